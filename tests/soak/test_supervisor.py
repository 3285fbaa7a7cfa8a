"""Kill -9 of the supervisor itself, through the command line, again and again."""

import json
import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stillframe.store.store import Store
from tests.soak.run import check_snapshot

ROOT = Path(__file__).parent.parent.parent
STILLFRAME = str(Path(sys.executable).with_name("stillframe"))
ROUND_COUNT = 5
GONE_TIMEOUT_S = 20


def children_of(pid: int) -> list[int]:
    """Return the process ids of the children of `pid`."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def published_count(run: "subprocess.Popen[str]", wanted: int) -> int:
    """Read the events of `run` until so many snapshots were published; return how many were."""
    assert run.stdout is not None
    count = 0
    for line in run.stdout:
        count += "SnapshotPublished" in json.dumps(json.loads(line))
        if count >= wanted:
            return count
    raise AssertionError(f"it ended after {count} snapshots: {run.wait()}")


@pytest.mark.slow
def test_the_store_survives_kill_9_of_the_supervisor(tmp_path: Path) -> None:
    """The processes end too, nothing published is lost, and it goes on from there."""
    chance = random.Random(864)
    store = tmp_path / "store"
    command = [STILLFRAME, "run", "tests.soak.ledger:bank", "--store", str(store)]
    last_sequence = 0
    for epoch in range(1, ROUND_COUNT + 1):
        with subprocess.Popen(
            [*command, "--every", "30ms", "--json"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as run:
            published_count(run, 3 + chance.randrange(5))
            orphans = [os.pidfd_open(child) for child in children_of(run.pid)]
            select.select([], [], [], chance.random() * 0.03)
            run.send_signal(signal.SIGKILL)
        for orphan in orphans:
            ended, _, _ = select.select([orphan], [], [], GONE_TIMEOUT_S)
            os.close(orphan)
            assert ended, "a process outlived its supervisor"
        assert orphans
        opened = Store.open_writer(store)
        try:
            assert opened.epoch == epoch
            entries = opened.entries()
            assert len(entries) >= last_sequence + 3
            last_sequence = entries[-1].sequence
            for entry in entries:
                check_snapshot(opened.load(entry.id))
                opened.verify(entry.id)
        finally:
            opened.close()
        command = [STILLFRAME, "restore", str(store)]
