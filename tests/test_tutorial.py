"""``docs/tutorial.md`` followed as a reader follows it: one shell, one empty directory."""

import contextlib
import os
import re
import shutil
import signal
import site
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
FENCE = re.compile(r"^```(console|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SAID = re.compile(r"Put this into `(\S+)`:\n\n$")
NOISE = re.compile("a snapshot was due and skipped|was abandoned")
PATIENCE_S = 60

pytestmark = pytest.mark.slow


class Shell:
    """A shell that is given one line after the other, and what it prints."""

    def __init__(self, directory: Path) -> None:
        # What pip would fetch is there already: the packages of this environment.
        variables = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        variables |= {
            "COLUMNS": "100",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_NO_DEPS": "1",
            "PIP_NO_INDEX": "1",
            "PYTHONPATH": "",
        }
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=directory,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def do(self, line: str) -> tuple[str, int]:
        """Give it a line; return what it printed and its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\nprintf '\\n<end %d>\\n' $?\n")
        self.process.stdin.flush()
        said: list[str] = []
        for answer in self.process.stdout:
            if found := re.fullmatch(r"<end (\d+)>\n", answer):
                return "".join(said).removesuffix("\n"), int(found[1])
            said.append(answer)
        raise AssertionError(f"the shell ended at {line!r}: {''.join(said)}")

    def close(self) -> None:
        """End it and what it started: in order, so that no account is left behind for a minute."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in an empty directory beside the clone."""
    if shutil.which("pgrep") is None:
        pytest.skip("pgrep is not there: on Debian apt-get install procps")
    (tmp_path / "stillframe").symlink_to(ROOT)
    (tmp_path / "tutorial").mkdir()
    begun = Shell(tmp_path / "tutorial")
    yield begun
    begun.close()


def shape(text: str) -> set[str]:
    """Return the lines with what differs from run to run masked, one of each shape."""
    text = "\n".join(line for line in text.splitlines() if not NOISE.search(line))
    masks = (
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? UTC", "TIME"),
        (r"\d+: Transfer\(amount=1\)|, \.\.\.|…", ""),
        (r"\b(Ada|Bob|Cem)(?!-\d)\b", "NAME"),
        (r"(NAME)(, NAME)+", r"\1"),
        (r"messages on their way: .*", ""),
        (r"active: NAME;?", "active: NAME"),
        (r"\d[\d,.]*( ms| s| µs| kB| B)?(?![\w-])", "#"),
        (r"-\d+", "-#"),
        (r"messages?\b", "messages"),
        (r"\s+|─+", " "),
    )
    for pattern, instead in masks:
        text = "\n".join(re.sub(pattern, instead, line) for line in text.splitlines())
    return {line.strip() for line in text.splitlines() if line.strip()}


def steps(page: str) -> Iterator[tuple[str, str, int, str]]:
    """Yield a program as (its name, "", 0, text), a command as (line, comment, code, output)."""
    for fence in FENCE.finditer(page):
        language, block = fence.groups()
        if language == "python":
            named = SAID.search(page, 0, fence.start())
            assert named, "a program must say which file it goes into"
            yield named[1], "", 0, block
            continue
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = step.partition("\n")
            command, _, comment = line.partition("  # ")
            yield command, comment, int("exit 1" in comment), output


def wait_for_snapshots(store: Path, count: int) -> None:
    """Wait until so many snapshots are there: a machine may be slower than the page expects."""
    deadline = time.monotonic() + PATIENCE_S
    while len(list(store.glob("snapshots/*-*/manifest.json"))) < count:
        assert time.monotonic() < deadline, f"no {count} snapshots in {PATIENCE_S} s"
        time.sleep(0.1)


def follow(shell: Shell, directory: Path) -> Iterator[tuple[str, str, str]]:
    """Do what the page says; yield each command with what it printed and what it should print."""
    for line, _, code, text in steps(PAGE.read_text()):
        if line.endswith(".py"):
            (directory / line).write_text(text)
            continue
        printed, ended = shell.do(line)
        assert ended == code, (line, printed)
        yield line, printed, text
        if line.startswith("python3 -m venv"):
            (packages,) = (directory / ".venv").glob("lib/python*/site-packages")
            (packages / "there.pth").write_text("\n".join(site.getsitepackages()))
        elif line.startswith("sleep"):
            known = len(list(directory.glob("bank.store/snapshots/*-*")))
            wait_for_snapshots(directory / "bank.store", known + 2)


def test_the_tutorial_can_be_followed(shell: Shell, tmp_path: Path) -> None:
    """Every command ends as the page says and prints what stands there, numbers aside."""
    count = 0
    for line, printed, expected in follow(shell, tmp_path / "tutorial"):
        assert shape(printed) == shape(expected), line
        count += 1
    assert count > 20
