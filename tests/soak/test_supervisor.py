"""Kill -9 of the supervisor itself, through the command line, again and again."""

import contextlib
import json
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stillframe.runtime.os_process import OsProcess, is_alive, kill
from stillframe.runtime.run_file import read_run_file
from stillframe.store.history import (
    SnapshotAbandoned,
    SnapshotBegan,
    SnapshotPublished,
    read_history,
)
from stillframe.store.store import Store
from tests.nightly import Figure, by_night, seeds
from tests.soak.run import check_snapshot

ROOT = Path(__file__).parent.parent.parent
STILLFRAME = str(Path(sys.executable).with_name("stillframe"))
ROUND_COUNT = by_night(50, check=3)


def published_count(run: "subprocess.Popen[str]", wanted: int) -> int:
    """Read the events of `run` until so many snapshots were published; return how many were."""
    assert run.stdout is not None
    count = 0
    for line in run.stdout:
        count += "SnapshotPublished" in json.dumps(json.loads(line))
        if count >= wanted:
            return count
    raise AssertionError(f"it ended after {count} snapshots: {run.wait()}")


def run_and_kill(command: list[str], chance: random.Random) -> None:
    """Run `command`, and kill it at a random moment after some snapshots."""
    with subprocess.Popen(
        [*command, "--every", "30ms", "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        published_count(run, 3 + chance.randrange(5))
        select.select([], [], [], chance.random() * 0.03)
        run.send_signal(signal.SIGKILL)


def check_history(store: Store) -> None:
    """Check that no number was given twice, and that what was published ended once and is there;
    of the last ones the history may not know yet how they ended."""
    happened = [line.what for line in read_history(store.path)]
    begun = [what.snapshot for what in happened if isinstance(what, SnapshotBegan)]
    published = [what.snapshot for what in happened if isinstance(what, SnapshotPublished)]
    abandoned = [what.snapshot for what in happened if isinstance(what, SnapshotAbandoned)]
    assert len({snapshot.number for snapshot in begun}) == len(begun)
    assert len(set(published + abandoned)) == len(published + abandoned)
    stored = [entry.id for entry in store.entries()]
    assert stored[: len(published)] == published
    assert set(stored[len(published) :]) <= set(begun) - set(abandoned)


@pytest.mark.nightly(part="soak")
@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds("supervisor", night=1) or (864,))
def test_a_system_survives_kill_9_of_its_supervisor(
    seed: int, tmp_path: Path, figure: Figure
) -> None:
    """The same processes go on under one supervisor after another, in one epoch; when one of them
    was killed too, all go back. Nothing published is lost, no number is given twice, and the money
    is all there."""
    chance = random.Random(seed)
    store, epoch, last_sequence = tmp_path / "store", 1, 0
    command = [STILLFRAME, "run", "tests.soak.ledger:bank", "--store", str(store)]
    former: dict[str, OsProcess] = {}
    for number in range(ROUND_COUNT):
        run_and_kill(command, chance)
        left = read_run_file(store)
        assert left is not None
        assert former in ({}, left.children)
        former = left.children
        assert all(map(is_alive, former.values()))
        with contextlib.closing(Store.open_writer(store)) as opened:
            assert opened.epoch == epoch
            entries = opened.entries()
            assert entries[-1].sequence >= last_sequence + 3
            last_sequence = entries[-1].sequence
            for entry in entries:
                check_snapshot(opened.load(entry.id))
                opened.verify(entry.id)
            check_history(opened)
        if number % 2:
            kill(chance.choice(list(former.values())))
            former, epoch = {}, epoch + 1
        command = [STILLFRAME, "resume", str(store)]
    for orphan in former.values():
        kill(orphan)
    figure("kills of the supervisor", ROUND_COUNT)
    figure("epochs", epoch)
    figure("snapshots", last_sequence)
