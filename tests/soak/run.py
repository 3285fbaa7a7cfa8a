"""The soak by seed: snapshots under full load, and kill -9 at random moments.

``python -m tests.soak.run --snapshots 200 --kills 50 --seed 7`` prints ``SEED=`` first, and at the
end what it did; it raises at the first thing that is wrong. The short form runs with the tests.
"""

import argparse
import asyncio
import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec
import uvloop

from stillframe.model import Abandoned, Reason, Snapshot
from stillframe.runtime import events
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from tests.soak.ledger import TOTAL, amount_in_transit, bank

REFERENCE = "tests.soak.ledger:bank"
MOMENTS = ("any", "snapshot", "publish", "restore")
STEP_TIMEOUT_S = 60.0


def check_snapshot(snapshot: Snapshot) -> int:
    """Check one snapshot against the ledgers in it; return how many messages its channels hold.

    The money is all there.
    """
    states = {s.process: msgspec.msgpack.decode(s.encoded) for s in snapshot.state.processes}
    total = amount_in_transit(snapshot, states, bank)
    total += sum(state["balance"] for state in states.values())
    assert total == TOTAL, f"{snapshot.id}: {total} is not {TOTAL}"
    return snapshot.state.message_count


class WatchedStore(Store):
    """A store that says when it begins to write."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set ``writing`` in `loop` at the beginning of each publish."""
        self._loop = loop
        self.writing = asyncio.Event()

    def publish(self, snapshot: Snapshot) -> SnapshotEntry:
        """Say so, and publish."""
        self._loop.call_soon_threadsafe(self.writing.set)
        return super().publish(snapshot)


class Soak:
    """One run: what was done, and what was seen."""

    def __init__(self, seed: int, path: Path) -> None:
        self.random = random.Random(seed)
        self.store = WatchedStore.create(path, description=bank.description, reference=REFERENCE)
        self.done: Counter[str] = Counter()
        self.recoveries_s: list[float] = []
        self.began = asyncio.Event()
        self.died = asyncio.Event()

    def emit(self, event: events.Event) -> None:
        """Note what happens; a failure of the application is the end."""
        match event:
            case events.EpochBegan():
                self.began.set()
            case events.ProcessDied(process, cause, story):
                self.died.set()
                assert "SIGKILL" in cause, f"{process} died by itself: {cause}\n{story}"
            case events.SnapshotAbandoned(abandoned):
                assert abandoned.reason in (Reason.PROCESS_DIED, Reason.STOPPED), str(abandoned)
                self.done["abandoned"] += 1
            case events.SystemRunning(epoch, seconds, _):
                if epoch > 1:
                    self.recoveries_s.append(seconds)
            case events.ConnectionWarning(detail):
                raise AssertionError(detail)

    async def snapshot(self, system: Supervisor) -> None:
        """Take one snapshot, sometimes two at once, and check what is in the store then."""
        initiators = self.random.sample(sorted(bank.processes), self.random.choice((1, 1, 2)))
        outcomes = await asyncio.gather(
            *[await system.begin_snapshot(initiator) for initiator in initiators]
        )
        self.done["overlapping"] += len(initiators) == 2
        for outcome in outcomes:
            assert not isinstance(outcome, Abandoned), str(outcome)
            caught = check_snapshot(await asyncio.to_thread(self.store.load, outcome.id))
            self.done["snapshots"] += 1
            self.done["messages in transit"] += caught

    async def kill(self, system: Supervisor, moment: str) -> None:
        """Kill -9 one process at a random moment of one kind; wait until the system is back."""
        match moment:
            case "snapshot":
                _ = await system.begin_snapshot(self.random.choice(sorted(bank.processes)))
                await self._moment(0.02)
            case "publish":
                self.store.writing.clear()
                _ = await system.begin_snapshot()
                await self.store.writing.wait()
                await self._moment(0.005)
            case "restore":
                await self._kill_one(system)
                await self.began.wait()
                await self._moment(0.2)
            case _:
                await self._moment(0.3)
        await self._kill_one(system)
        self.done[f"kills: {moment}"] += 1
        await system.until_running()

    async def _kill_one(self, system: Supervisor) -> None:
        """Kill one process and wait until its death was noticed."""
        self.died.clear()
        self.began.clear()
        alive = [child for child in system.children.values() if not child.has_terminated]
        os.kill(self.random.choice(alive).pid, signal.SIGKILL)
        await self.died.wait()

    async def _moment(self, seconds_max: float) -> None:
        await asyncio.sleep(self.random.random() * seconds_max)

    async def run(self, snapshot_count: int, kill_count: int) -> None:
        """Take so many snapshots and kill so often, in random order; then verify every file."""
        self.store.watch(asyncio.get_running_loop())
        kills = [MOMENTS[index % len(MOMENTS)] for index in range(kill_count)]
        steps = kills + ["take"] * (snapshot_count - kill_count)
        self.random.shuffle(steps)
        async with Supervisor(REFERENCE, self.store, emit=self.emit) as system:
            for step in steps:
                async with asyncio.timeout(STEP_TIMEOUT_S):
                    if step != "take":
                        await self.kill(system, step)
                    await self.snapshot(system)
        for entry in self.store.entries():
            check_snapshot(self.store.load(entry.id))
            self.store.verify(entry.id)
        self.done["verified"] = len(self.store.entries())


def soak(seed: int, *, snapshot_count: int, kill_count: int) -> Soak:
    """Run the soak in a directory of its own and return what was seen."""
    print(f"SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="stillframe-soak-") as directory:
        run = Soak(seed, Path(directory) / "store")
        try:
            uvloop.run(run.run(snapshot_count, kill_count))
        finally:
            run.store.close()
        return run


def main() -> None:
    """Run the full form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--snapshots", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
    began = time.monotonic()
    run = soak(seed, snapshot_count=options.snapshots, kill_count=options.kills)
    for what, count in sorted(run.done.items()):
        print(f"{what:24} {count:>10,}")
    recoveries = sorted(run.recoveries_s)
    if recoveries:
        print(f"{'recovery, median':24} {recoveries[len(recoveries) // 2]:>10.2f} s")
        print(f"{'recovery, longest':24} {recoveries[-1]:>10.2f} s")
    print(f"{'all of it':24} {time.monotonic() - began:>10.0f} s")


if __name__ == "__main__":
    main()
