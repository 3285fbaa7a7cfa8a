"""Chaos in its short form; ``python -m tests.soak.chaos`` is the full one."""

import subprocess
import sys

import pytest

from tests.soak.chaos_machine import ROOT, missing


@pytest.mark.slow
def test_money_and_history_survive_everything_that_goes_wrong() -> None:
    """Each kind of fault once, some at the same time: every snapshot is whole and conserved, no
    number comes twice, nothing is published twice, and no file is left over."""
    if (lack := missing()) is not None:
        pytest.skip(lack)
    command = [sys.executable, "-m", "tests.soak.chaos", "--minutes", "0", "--seed", "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    done = dict(line.split(": ") for line in run.stdout.splitlines() if ": " in line)
    assert int(done["the supervisor killed"]) + int(done["both killed"]) >= 2
    assert int(done["takeovers"]) > 0, "no system outlived its supervisor: this showed nothing"
    assert int(done["epochs"]) > 1, "no system went back: this showed nothing"
    assert int(done["messages caught"].replace(",", "")) > 0, "no channel ever held a message"
