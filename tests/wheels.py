"""The distributions of Stillframe, and environments that have a wheel and its requirements only."""

import email
import email.message
import importlib.metadata
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


class Distributions(NamedTuple):
    """What is published of a version."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The source distribution, and the wheel that was built from it, with the pinned backend."""
    out = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT))
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return Distributions(sdist, wheel)


def metadata_of(wheel: Path) -> bytes:
    """Return the metadata in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name)


def environment(directory: Path, wheel: Path, *extras: str) -> Path:
    """Make a virtual environment with a wheel; return its directory of programs."""
    venv.create(directory, symlinks=True)
    programs = directory / "bin"
    link_requirements(wheel, programs / "python", *extras)
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        programs / "python",
    )
    _run(*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", wheel)
    _run(*pip, "check")
    return programs


def link_requirements(wheel: Path, python: Path, *extras: str) -> None:
    """Give an environment the packages that a wheel requires, and those that these require.

    They are links to the pinned packages of this environment: what a wheel does not ask for is not
    there, and nothing is downloaded.

    Args:
        wheel: whose requirements are met.
        python: of the environment.
        extras: of the wheel.
    """
    (target,) = (python.parent.parent / "lib").glob("python3*/site-packages")
    asked = email.message_from_bytes(metadata_of(wheel)).get_all("Requires-Dist", [])
    for name in _closure(asked, extras):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            link = target / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))


def _closure(requirements: Iterable[str], extras: Iterable[str]) -> Iterator[str]:
    """Yield the name of each package that some packages need, directly or not."""
    waiting = [(line, tuple(extras)) for line in requirements]
    done = set()
    while waiting:
        line, chosen = waiting.pop()
        requirement = Requirement(line)
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *chosen)):
            continue
        wanted = (canonicalize_name(requirement.name), tuple(sorted(requirement.extras)))
        if wanted in done:
            continue
        done.add(wanted)
        yield wanted[0]
        needed = importlib.metadata.requires(wanted[0]) or ()
        waiting += [(line, wanted[1]) for line in needed]


def _run(*command: str | Path) -> None:
    """Run a program that must succeed."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, (command, ended.stdout, ended.stderr)


def outside(programs: Path) -> dict[str, str]:
    """Return the variables of a user with that directory of programs first in the path."""
    hidden = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV")
    ours = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**ours, "PATH": f"{programs}:{ours['PATH']}"}
