"""What docs/detection.md shows is what happens."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "detection.md"


@pytest.mark.slow
def test_philosophers_lock_and_detect_says_so(tmp_path: Path) -> None:
    """The commands of the page, with real processes: a ring of all forks and philosophers is found,
    and that it is no termination."""
    (session,) = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    outcomes = []
    for line in session.splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        assert program == "stillframe"
        words = [str(tmp_path / "dinner") if word == "dinner" else word for word in arguments]
        outcomes.append(
            subprocess.run(
                [sys.executable, "-m", "stillframe.cli.app", *words],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        )
    run, deadlock, termination = outcomes
    assert run.returncode == 0, run.stderr
    assert deadlock.returncode == 0, deadlock.stderr
    ring = deadlock.stderr.rpartition(": ")[2].strip().split(" waits for ")
    assert (len(ring), len(set(ring)), ring[0]) == (11, 10, ring[-1])
    assert termination.returncode == 1
    assert "active: P1, P2, P3, P4, P5" in termination.stderr
