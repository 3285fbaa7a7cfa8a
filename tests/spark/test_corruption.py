"""A restore never mixes two timelines: what Spark's checkpoints do when they are cut by hand."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.rewinding import BACK_TO, STORES, THOUSANDS

ROOT = Path(__file__).parent.parent.parent


def drive(directory: Path, phase: str) -> list[str]:
    """Run a driver until it is done, kill it and its Java with SIGKILL; return what it said."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.spark.rewinding", str(directory), phase],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as driver:
        assert driver.stdout is not None
        said = []
        for line in driver.stdout:
            said.append(line.strip())
            if said[-1] == "done":
                break
        os.killpg(driver.pid, signal.SIGKILL)
    assert said[-1:] == ["done"], "the driver failed before it was killed"
    return said


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.nightly(part="pipelines")
def test_a_restore_never_reads_state_of_the_abandoned_timeline(tmp_path: Path) -> None:
    """30 micro-batches of 1, back to number 12, 12 of 1000, kill -9, one more: the sum is right.

    With each state store: in the state as Spark reads it, in what was put out, and in the log.
    """
    drive(tmp_path, "first")
    sums = json.loads(drive(tmp_path, "second")[0])
    truth = BACK_TO + 1 + (THOUSANDS + 1) * 1000
    assert sums == {name: dict.fromkeys(("state", "put out", "log"), truth) for name in STORES}
