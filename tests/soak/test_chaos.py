"""Chaos: each fault once in the check, minutes of it with a fresh seed at night.

``python -m tests.soak.chaos`` runs it alone.
"""

import subprocess
import sys

import pytest

from tests.nightly import Figure, by_night, seeds
from tests.soak.chaos_machine import ROOT, missing


@pytest.mark.nightly(part="soak")
@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds("chaos", night=1) or (1,))
def test_money_and_history_survive_everything_that_goes_wrong(seed: int, figure: Figure) -> None:
    """Each kind of fault at least once, some at the same time: every snapshot is whole and
    conserved, no number comes twice, nothing is published twice, and no file is left over."""
    if (lack := missing()) is not None:
        pytest.skip(lack)
    minutes = str(by_night(6, check=0))
    command = [sys.executable, "-m", "tests.soak.chaos", "--minutes", minutes, "--seed", str(seed)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    done = dict(line.split(": ") for line in run.stdout.splitlines() if ": " in line)
    for name in (
        "the supervisor killed",
        "both killed",
        "takeovers",
        "epochs",
        "messages in transit",
    ):
        figure(name, done[name])
    assert int(done["the supervisor killed"]) + int(done["both killed"]) >= 2
    assert int(done["takeovers"]) > 0, "no system outlived its supervisor: this showed nothing"
    assert int(done["epochs"]) > 1, "no system went back: this showed nothing"
    assert int(done["messages in transit"].replace(",", "")) > 0, "no channel ever held a message"
