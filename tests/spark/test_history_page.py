"""What ``docs/history.md`` shows is run: its commands, its programs, on two real runs of a bank."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from examples.bank import ACCOUNT_COUNT
from tests.reader import wait_until
from tests.spark.history_page_program import blocks

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "history.md"
STILLFRAME = str(Path(sys.executable).with_name("stillframe"))

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def run_until(files: str, count: int, line: str, place: Path) -> None:
    """Run a system as the page says until so many files are there, and stop it in order."""
    system = subprocess.Popen(
        [STILLFRAME, *shlex.split(line)[2:], "--every", "100ms"],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: len(list(place.glob(files))) >= count, f"{count} {files}")
    finally:
        system.terminate()
        _, said = system.communicate(timeout=60)
    assert system.returncode == 0, said.decode()


def test_commands_and_programs_of_the_page(tmp_path: Path) -> None:
    """After the two runs that the page describes each command and program does what it says."""
    sessions = blocks("console", PAGE.read_text())
    fragments, log = (line for line in sessions if line.startswith("$ stillframe run"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run_until("bank.store/snapshots/P1-17/manifest.json", 1, log, tmp_path)
    apart = fragments.replace("bank.store", "other.store")
    run_until("bank.parts/e1/*/P1-2/manifest.json", ACCOUNT_COUNT, apart, tmp_path)
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
