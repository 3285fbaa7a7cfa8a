"""What ``docs/history.md`` shows is run: its commands, its programs, on two real runs of a bank."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reader import wait_until
from tests.spark.history_page_program import blocks

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "history.md"
STILLFRAME = str(Path(sys.executable).with_name("stillframe"))

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def run_for_a_while(line: str, place: Path, until: str) -> None:
    """Run a system as the page says until a snapshot is there, and stop it in order."""
    store = line.split()[line.split().index("--store") + 1]
    system = subprocess.Popen(
        [STILLFRAME, *shlex.split(line)[2:], "--every", "100ms"],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        manifest = place / store / "snapshots" / until / "manifest.json"
        wait_until(manifest.exists, f"{until} in {store}")
    finally:
        system.terminate()
        _, said = system.communicate(timeout=60)
    assert system.returncode == 0, said.decode()


def test_commands_and_programs_of_the_page(tmp_path: Path) -> None:
    """After the two runs that the page describes each command and program does what it says."""
    sessions = blocks("console", PAGE.read_text())
    fragments, log = (line for line in sessions if line.startswith("$ stillframe run"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run_for_a_while(log, tmp_path, "P1-17")
    run_for_a_while(fragments.replace("bank.store", "other.store"), tmp_path, "P1-3")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.spark.history_page_program", str(PAGE)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-6000:]
