"""Many seeds, on all cores, and what they covered."""

import ctypes
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice, pairwise

import msgspec

from stillframe.errors import StillframeError, UsageError
from stillframe.model import Abandoned, Reason, Snapshot, SnapshotId
from stillframe.sim.run import Run, RunConfig, run_seed
from stillframe.sim.world import Epoch
from stillframe.topology import Description
from stillframe.trace import Event, MarkerStep

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
        seen: in how many runs each entry of `COVERAGE` was seen.
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
        """Add the results of other seeds."""
        for name in self.__struct_fields__:
            if name.endswith("_count"):
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.seen = dict(Counter(self.seen) + Counter(other.seen))
        self.broken = sorted([*self.broken, *other.broken])


def run_chunk(make_config: Callable[[], RunConfig], seeds: range) -> Tally:
    """Run `seeds` one after the other. Raises UsageError if a handler of the system failed; the
    seed is named."""
    tally, config = Tally(), make_config()
    for seed in seeds:
        try:
            run = run_seed(seed, config)
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
        for name in covered(run):
            tally.seen[name] = tally.seen.get(name, 0) + 1
        if run.violation is not None:
            tally.broken.append(seed)
    return tally


_PR_SET_PDEATHSIG = 1
_STDOUT, _STDERR = 1, 2


def _start_chunk_runner() -> None:
    """Prepare a process that runs chunks: it ends with the one that started it, and what handlers
    print does not get between the data."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.dup2(_STDERR, _STDOUT)


def run_seeds(
    make_config: Callable[[], RunConfig], seeds: range, progress: Callable[[int], None]
) -> Tally:
    """Run `seeds` on all cores, and stop soon after the first that breaks a promise.

    `make_config` is called in each process of the pool, `progress` with the number of further seeds
    that were run.

    Raises:
        UsageError: a handler of the system failed; the seed is named.
    """
    chunks = iter([seeds[i : i + CHUNK_COUNT] for i in range(0, len(seeds), CHUNK_COUNT)])
    core_count = len(os.sched_getaffinity(0))
    total = Tally()
    if len(seeds) <= CHUNK_COUNT or core_count == 1:
        for chunk in chunks:
            total.add(run_chunk(make_config, chunk))
            progress(len(chunk))
        return total
    with ProcessPoolExecutor(core_count, initializer=_start_chunk_runner) as pool:
        running: set[Future[Tally]] = set()
        try:
            while True:
                # The lowest seed that breaks a promise is named: those before it are waited for.
                room = 0 if total.broken else 2 * core_count - len(running)
                running |= {
                    pool.submit(run_chunk, make_config, chunk) for chunk in islice(chunks, room)
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


# --- coverage


def _published(epoch: Epoch) -> list[Snapshot]:
    return [outcome for outcome in epoch.outcomes.values() if isinstance(outcome, Snapshot)]


def _abandoned(epoch: Epoch, reason: Reason) -> bool:
    ended = [outcome for outcome in epoch.outcomes.values() if isinstance(outcome, Abandoned)]
    return any(outcome.reason is reason for outcome in ended)


def _never_occurred(epoch: Epoch, description: Description) -> bool:
    trace = epoch.trace(description)
    cuts = [trace.cut_of(snapshot.id) for snapshot in _published(epoch)]
    return any(trace.present_at(cut) is None for cut in cuts)


def _overlapped(epoch: Epoch) -> bool:
    began: dict[SnapshotId, int] = {}
    for index, step in enumerate(epoch.steps):
        if isinstance(step, MarkerStep):
            began.setdefault(step.snapshot, index)
    spans = sorted((first, epoch.ended_at.get(s, 10**9)) for s, first in began.items())
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))


def _several_initiated(epoch: Epoch) -> bool:
    steps = [step for step in epoch.steps if isinstance(step, MarkerStep)]
    initiations = Counter(s.snapshot for s in steps if s.is_cut and s.source is None)
    return any(initiations[snapshot.id] > 1 for snapshot in _published(epoch))


def _delivered_batch(epoch: Epoch) -> bool:
    frames = [frame for taken in epoch.taken for _, frame in taken.frames]
    return any(frame.batch is not None and frame.batch.count > 1 for frame in frames)


COVERAGE: Mapping[str, Callable[[Epoch, Description], object]] = {
    "a snapshot was published": lambda epoch, _: _published(epoch),
    "a channel held messages at the cut": lambda epoch, _: any(
        snapshot.state.message_count for snapshot in _published(epoch)
    ),
    "the recorded state never occurred": _never_occurred,
    "two snapshots were under way at once": lambda epoch, _: _overlapped(epoch),
    "several processes initiated one snapshot": lambda epoch, _: _several_initiated(epoch),
    "a snapshot was abandoned at its deadline": lambda epoch, _: _abandoned(epoch, Reason.DEADLINE),
    "a snapshot was abandoned because a process died": lambda epoch, _: _abandoned(
        epoch, Reason.PROCESS_DIED
    ),
    "the system went back to a snapshot": lambda epoch, _: epoch.start is not None,
    "messages recorded on channels were received again": lambda epoch, _: (
        epoch.start is not None and epoch.start.state.message_count
    ),
    "the system went back to its beginning": lambda epoch, _: (
        epoch.start is None and epoch.number > 1
    ),
    "a connection of an older epoch was refused": lambda epoch, _: epoch.refused_count,
    "a connection was lost and taken up again": lambda epoch, _: epoch.resent_count,
    "something was on its way twice": lambda epoch, _: epoch.dropped_count,
    "processes were cut off from the others": lambda epoch, _: epoch.held_count,
    "a batch held several messages": lambda epoch, _: _delivered_batch(epoch),
    "one action accepted several messages": lambda epoch, _: any(
        isinstance(step, Event) and len(step.accepted) > 1 for step in epoch.steps
    ),
}
"""What must be seen *sometimes* over many seeds where channels keep order, or finding nothing wrong
means little; name -> was it seen in an epoch? A fault counts if it had an effect: lost frames were
sent again, duplicates dropped, frames that had to cross a partition held up."""


def covered(run: Run) -> list[str]:
    """Return which entries of `COVERAGE` were seen in `run`."""
    epochs, description = run.world.epochs, run.world.description
    return [
        name
        for name, was_seen in COVERAGE.items()
        if any(was_seen(epoch, description) for epoch in epochs)
    ]
