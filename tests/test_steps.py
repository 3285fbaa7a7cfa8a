"""The steps of a check (``scripts/steps.sh``), with a stand-in for Python."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
BROKEN = "raise SystemExit(1)"
UNTIL_CTRL_C = """import os, sys
try:
    if sys.argv[1] == "-c":
        print("one two")
    else:
        print(os.environ["STILLFRAME_NIGHTLY_PART"], flush=True)
        sys.stdin.read()
except KeyboardInterrupt:
    sys.exit(2)  # as pytest does
"""

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
        # A program started in the background ignores Ctrl-C, and so do its children.
        ["env", "--default-signal=INT", "bash", "scripts/steps.sh", "nightly"],
        cwd=root,
        env={**os.environ, "CHECK_BEGAN": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_night_without_parts_fails(tmp_path: Path) -> None:
    """Its parts are unknown if they cannot be read: nothing ran, so nothing passed."""
    with night(tmp_path, BROKEN) as program:
        said, errors = program.communicate()
    assert program.returncode == 1
    assert "passed" not in said
    assert "cannot read the parts of a night" in errors


def test_ctrl_c_ends_the_night(tmp_path: Path) -> None:
    """No other part begins, although pytest handles Ctrl-C and exits with a code of its own."""
    with night(tmp_path, UNTIL_CTRL_C) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "one\n"
        os.killpg(program.pid, signal.SIGINT)
        said, _ = program.communicate()
    assert said == ""
    assert program.returncode == -signal.SIGINT
