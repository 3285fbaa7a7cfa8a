"""The steps of a check (``scripts/steps.sh``), with a stand-in for Python."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
BROKEN = "raise SystemExit(1)"

pytestmark = pytest.mark.slow


def night(root: Path, python: str) -> subprocess.Popen[str]:
    """Start a night in `root`, in which the program `python` stands for Python."""
    (root / "scripts").mkdir()
    for name in ("setup.sh", "steps.sh"):
        shutil.copy(SCRIPTS / name, root / "scripts")
    program = root / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\n{python}")
    program.chmod(0o755)
    return subprocess.Popen(
        ["bash", "scripts/steps.sh", "nightly"],
        cwd=root,
        env={**os.environ, "CHECK_BEGAN": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_night_without_parts_fails(tmp_path: Path) -> None:
    """Its parts are unknown if they cannot be read: nothing ran, so nothing passed."""
    with night(tmp_path, BROKEN) as program:
        said, errors = program.communicate()
    assert program.returncode == 1
    assert "passed" not in said
    assert "cannot read the parts of a night" in errors
