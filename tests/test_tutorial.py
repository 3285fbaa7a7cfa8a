"""``docs/tutorial.md`` followed as a reader follows it: one shell, one empty directory."""

import shutil
import site
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nightly import by_night
from tests.reader import Shell, follow, shape, wait_until
from tests.wheels import Distributions, link_requirements

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
WHAT_IS_THERE = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_BUILD_ISOLATION": "0",
    "PIP_NO_DEPS": "1",
    "PIP_NO_INDEX": "1",
}
"""For pip: what it would fetch is there already, in the packages of this environment."""

MASKS = (
    # Any number of messages may be on a channel: three are shown, and how many more there are.
    (r"(, )?\d+: Transfer\(amount=1\)( and [\d,]+ more)?", ""),
    (r"\b(Ada|Bob|Cem)(?!-\d)\b", "NAME"),
    (r"(NAME)(, NAME)+", r"\1"),
    (r"messages in transit: .*", ""),
    (r"active: NAME;?", "active: NAME"),
    # One is taken every second, too, and may be in progress.
    (r"; it overlapped another and is not a restore point: to restore it, name it", ""),
    (r"(?m)^(Ada-\d.* TIME .*)\bno\b", r"\1yes"),
)

HURRY = {
    "-m venv": "-m venv --without-pip",
    "pip install": f"{sys.executable} -m pip --python .venv/bin/python install --no-compile",
    "sleep 5": "true",
    "sleep 4": "true",
    "--duration 2s": "--duration 500ms",
}
"""The check does not wait as long as the page does, but until what should happen meanwhile has
happened. It uses the pip of this environment: a new one takes longer than all the rest. It
installs the wheel and nothing but what that requires. At night the page's own command builds it."""

pytestmark = [pytest.mark.slow, pytest.mark.nightly(part="soak")]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in an empty directory beside the clone."""
    if shutil.which("pgrep") is None:
        pytest.skip("pgrep is not there: on Debian apt-get install procps")
    (tmp_path / "stillframe").symlink_to(ROOT)
    (tmp_path / "tutorial").mkdir()
    begun = Shell(tmp_path / "tutorial", **WHAT_IS_THERE)
    yield begun
    begun.close()


def link_everything(python: Path) -> None:
    """Give an environment all packages of this one: pip builds with some of them."""
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    (packages / "there.pth").write_text("\n".join(site.getsitepackages()))


def test_the_tutorial_can_be_followed(
    shell: Shell, distributions: Distributions, tmp_path: Path
) -> None:
    """Every command ends as the page says and prints what stands there, numbers aside."""
    count, directory = 0, tmp_path / "tutorial"

    def snapshots() -> int:
        return len(list(directory.glob("bank.store/snapshots/*-*/manifest.json")))

    instead = by_night({}, check={**HURRY, "../stillframe": str(distributions.wheel)})
    for step, printed in follow(PAGE, shell, directory, instead=instead):
        assert shape(printed, *MASKS) == shape(step.output, *MASKS), step.command
        count += 1
        if "venv" in step.command and not step.command.startswith("."):
            python = directory / ".venv" / "bin" / "python"
            if by_night(True, check=False):
                link_everything(python)
            else:
                link_requirements(distributions.wheel, python)
        elif step.command.startswith("sleep"):
            wanted = snapshots() + 2
            wait_until(lambda wanted=wanted: snapshots() >= wanted, "snapshots")  # type: ignore[misc]
    assert count > 20
