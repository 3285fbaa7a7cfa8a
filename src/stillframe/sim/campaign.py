"""Many seeds, on all cores."""

import ctypes
import os
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice

import msgspec

from stillframe.errors import StillframeError, UsageError
from stillframe.model import Abandoned, Reason, Snapshot
from stillframe.sim.run import Setting, run_seed
from stillframe.sim.sightings import sightings

CHUNK_COUNT = 20
"""How many seeds one task takes."""


class Tally(msgspec.Struct):
    """What came of many seeds.

    Attributes:
        seed_count: how many were run.
        choice_count: how many choices their schedules had.
        event_count: how many atomic actions were taken.
        message_count: how many messages were sent.
        snapshot_count: how many snapshots ended, published or abandoned.
        published_count: how many of them were published.
        inconsistent_count: how many were abandoned because their parts contradicted each other.
        refused_count: how many runs ended early because the rules found something wrong with a
            channel.
        seen: in how many runs each of the sightings was seen.
        broken: the seeds whose runs broke a promise.
    """

    seed_count: int = 0
    choice_count: int = 0
    event_count: int = 0
    message_count: int = 0
    snapshot_count: int = 0
    published_count: int = 0
    inconsistent_count: int = 0
    refused_count: int = 0
    seen: dict[str, int] = {}
    broken: list[int] = []

    def add(self, other: "Tally") -> None:
        """Add what came of other seeds."""
        self.seed_count += other.seed_count
        self.choice_count += other.choice_count
        self.event_count += other.event_count
        self.message_count += other.message_count
        self.snapshot_count += other.snapshot_count
        self.published_count += other.published_count
        self.inconsistent_count += other.inconsistent_count
        self.refused_count += other.refused_count
        self.seen = dict(Counter(self.seen) + Counter(other.seen))
        self.broken = sorted([*self.broken, *other.broken])


def run_chunk(make_setting: Callable[[], Setting], seeds: range) -> Tally:
    """Run `seeds` one after the other.

    Raises:
        UsageError: a handler of the system failed; the seed is named.
    """
    tally, setting = Tally(), make_setting()
    for seed in seeds:
        try:
            run = run_seed(seed, setting)
        except StillframeError as error:
            raise UsageError(f"seed {seed}: {error}") from error
        tally.seed_count += 1
        tally.choice_count += len(run.schedule)
        for epoch in run.world.epochs:
            tally.event_count += len(epoch.steps)
            tally.message_count += len(epoch.contents)
            tally.snapshot_count += len(epoch.outcomes)
            for outcome in epoch.outcomes.values():
                tally.published_count += isinstance(outcome, Snapshot)
                tally.inconsistent_count += (
                    isinstance(outcome, Abandoned) and outcome.reason is Reason.NOT_CONSISTENT
                )
        tally.refused_count += bool(run.world.refusal)
        for name in sightings(run):
            tally.seen[name] = tally.seen.get(name, 0) + 1
        if run.violation is not None:
            tally.broken.append(seed)
    return tally


_PR_SET_PDEATHSIG = 1
_STDOUT, _STDERR = 1, 2


def _take_part() -> None:
    """Prepare a process that runs chunks: it ends with the one that started it, and what handlers
    print does not get between the data."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.dup2(_STDERR, _STDOUT)


def run_seeds(
    make_setting: Callable[[], Setting], seeds: range, progress: Callable[[int], None]
) -> Tally:
    """Run `seeds` on all cores, and stop soon after the first that breaks a promise.

    Args:
        make_setting: says what is simulated; called in each process that takes part.
        seeds: which seeds.
        progress: is told how many more were run.

    Raises:
        UsageError: a handler of the system failed; the seed is named.
    """
    chunks = iter([seeds[i : i + CHUNK_COUNT] for i in range(0, len(seeds), CHUNK_COUNT)])
    core_count = len(os.sched_getaffinity(0))
    total = Tally()
    if len(seeds) <= CHUNK_COUNT or core_count == 1:
        for chunk in chunks:
            total.add(run_chunk(make_setting, chunk))
            progress(len(chunk))
        return total
    with ProcessPoolExecutor(core_count, initializer=_take_part) as pool:
        running: set[Future[Tally]] = set()
        try:
            while True:
                # The lowest seed that breaks a promise is named: those before it are waited for.
                room = 0 if total.broken else 2 * core_count - len(running)
                running |= {
                    pool.submit(run_chunk, make_setting, chunk) for chunk in islice(chunks, room)
                }
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    tally = future.result()
                    total.add(tally)
                    progress(tally.seed_count)
        finally:
            pool.shutdown(cancel_futures=True)
    return total
