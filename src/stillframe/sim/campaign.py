"""Simulated runs from seeds: one, replayed or shrunk when it fails; or many, and their coverage."""

import ctypes
import gc
import os
import re
import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from random import Random

import msgspec

from stillframe.errors import StillframeError, UsageError
from stillframe.model import Abandoned, Reason, Snapshot, SnapshotId
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.recorder import Recorder
from stillframe.sim import choices
from stillframe.sim.checker import Invariant, Violation, check_end, check_run, rules_fit
from stillframe.sim.network import Fifo, Network
from stillframe.sim.scheduler import (
    EXPIRY_DELAY_MS,
    Faults,
    Load,
    RandomScheduler,
    Schedule,
    Step,
    draw_faults,
)
from stillframe.sim.systems import random_system
from stillframe.sim.world import Epoch, SnapshotRecorder, World, disabled_reason
from stillframe.topology import Description, Topology
from stillframe.trace import Event, MarkerStep

TIMEOUT_MS = 10.0
BATCH_COUNT_MAX = 3
"""How many messages that one action sends to one target travel together at most."""
TIMEOUT_DELAY_COUNT = 15
"""Longest delays until the deadline of a snapshot. A snapshot of up to five processes in a row
takes fewer of them when nothing else goes wrong. So a deadline is missed only if something did."""
CHUNK_COUNT = 20
"""How many seeds one task takes."""
EVENT_INDENT = " " * 14
"""The indentation of what happened, below its choice."""
_PR_SET_PDEATHSIG = 1
_STDOUT, _STDERR = 1, 2
_LINE = re.compile(r" *(?P<at>\d{1,9}(?:\.\d{1,9})?) ms  (?P<choice>\S.*)")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The system to simulate, and its load.

    Attributes:
        topology: the system; without one, every seed draws another.
        network: what is assumed of every channel.
        recorder: the recording rules.
        assembler: puts the fragments of a snapshot together.
        world: the class of the world.
        load: the duration of the phase with faults, and the rate of snapshots.
    """

    topology: Topology | None = None
    network: Network = Fifo
    recorder: Callable[..., SnapshotRecorder] = Recorder
    assembler: Callable[..., Assembler] = Assembler
    world: type[World] = World
    load: Load = field(default_factory=Load)


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        seed: the seed that it was drawn from.
        faults: the delays and the rates of faults.
        schedule: every choice, with its virtual time.
        world: the world at the end.
        violation: the first invariant that does not hold; None if all do.
    """

    seed: int
    faults: Faults
    schedule: Schedule
    world: World
    violation: Violation | None


def run_seed(seed: int, config: RunConfig) -> Run:
    """Simulate the run of `seed`, and check every snapshot in it.

    Args:
        seed: any number; the same one gives the same run.
        config: the system.

    Returns:
        The run, with the first invariant that does not hold.

    Raises:
        StillframeError: a handler of the system failed: a bug of the system, not of a snapshot.
    """
    chance = Random(seed)
    world, faults = _draw(chance, config)
    scheduler = RandomScheduler(world, chance, faults, config.load)
    scheduler.run()
    violation = check_run(world) or _check_liveness(scheduler)
    return Run(seed, faults, scheduler.schedule, world, violation)


def replay(
    seed: int,
    config: RunConfig,
    schedule: Schedule,
    after_each: Callable[[World, Step], None] = lambda world, step: None,
) -> Run:
    """Replay `schedule` with the system of `seed`, and check it. Choices that are not enabled are
    left out; `after_each` is called after each of the others. Raises StillframeError if a handler
    of the system failed."""
    world, faults = _draw(Random(seed), config)
    done: Schedule = []
    for step in schedule:
        world.now = step.at_ms / 1000
        if not disabled_reason(world, step.choice):
            world.take(step.choice)
            done.append(step)
            after_each(world, step)
    return Run(seed, faults, done, world, check_run(world))


def parse_schedule(text: str) -> Schedule:
    """Read a schedule as it is printed; the indented lines below a choice are ignored. Raises
    UsageError with the line that is neither."""
    schedule: Schedule = []
    for number, line in enumerate(text.splitlines(), 1):
        if found := _LINE.fullmatch(line):
            schedule.append(Step(float(found["at"]), choices.parse_choice(found["choice"])))
        elif line.strip() and not line.startswith(EVENT_INDENT):
            raise UsageError(
                f"line {number} of the schedule, {line[:80]!r}: write a time and a choice, such as "
                "'12.500 ms  deliver P1->P2'"
            )
    return schedule


def shrink(run: Run, config: RunConfig) -> Run:
    """Return the shortest run that this finds with the same broken invariant (delta debugging).

    Every section of the schedule is left out in turn, halves first, single choices last and until
    none can be spared (Zeller and Hildebrandt, *Simplifying and Isolating Failure-Inducing Input*,
    2002). The order of the others stays. An invariant of the liveness phase is not checked again:
    such a run is returned unchanged.
    """
    best = _try(run, config, run.schedule)
    if best is None:
        return run
    size = len(run.schedule) // 2
    while size:
        start, count = 0, len(best.schedule)
        while start < len(best.schedule):
            rest = best.schedule[:start] + best.schedule[start + size :]
            found = _try(run, config, rest)
            if found is None:
                start += size
            else:
                best = found
        if size > 1 or len(best.schedule) == count:
            size //= 2
    return best


def _try(run: Run, config: RunConfig, schedule: Schedule) -> Run | None:
    """Return the run of `schedule` if it breaks the same invariant as `run`."""
    try:
        found = replay(run.seed, config, schedule)
    except StillframeError:
        return None
    assert run.violation is not None
    broke = found.violation is not None and found.violation.invariant is run.violation.invariant
    return found if broke else None


def _draw(chance: Random, config: RunConfig) -> tuple[World, Faults]:
    drawn = random_system(chance)
    faults = draw_faults(chance, config.network)
    world = config.world(
        config.topology or drawn,
        network=config.network,
        recorder=config.recorder,
        assembler=config.assembler,
        timeout_s=(TIMEOUT_MS + TIMEOUT_DELAY_COUNT * faults.delay_ms_max) / 1000,
        batch_count_max=BATCH_COUNT_MAX,
    )
    return world, faults


def _check_liveness(scheduler: RandomScheduler) -> Violation | None:
    world = scheduler.world
    if world.refusal or not rules_fit(world):
        return None
    assert scheduler.last is not None
    open_ = [s for epoch in world.epochs for s in epoch.initiated if s not in epoch.outcomes]
    if open_:
        return Violation(Invariant.WHOLE, f"snapshots {', '.join(map(str, open_))} never ended")
    allowed_s = world.timeout_s + 2 * EXPIRY_DELAY_MS / 1000
    for snapshot in (snapshot for epoch in world.epochs for snapshot in epoch.published):
        if snapshot.completed_at - snapshot.initiated_at > allowed_s:
            return Violation(Invariant.WHOLE, f"snapshot {snapshot.id} outlived its deadline")
    outcome = world.epoch.outcomes[scheduler.last]
    if not isinstance(outcome, Snapshot):
        return Violation(Invariant.LIVE, str(outcome))
    return check_end(world)


# --- many seeds


class Tally(msgspec.Struct):
    """The results of many seeds.

    Of the snapshots that ended `inconsistent_count` were abandoned because their parts contradicted
    each other. `refused_count` runs ended early because the rules found something wrong with a
    channel. `seen` says in how many runs each entry of `COVERAGE` was, and `broken` which seeds
    broke an invariant.
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
            tally.published_count += len(epoch.published)
            tally.inconsistent_count += _abandoned_count(epoch, Reason.NOT_CONSISTENT)
        tally.refused_count += bool(run.world.refusal)
        for name in covered(run):
            tally.seen[name] = tally.seen.get(name, 0) + 1
        if run.violation is not None:
            tally.broken.append(seed)
    return tally


def _start_chunk_runner() -> None:
    """Prepare a process that runs chunks: it ends with the one that started it, and what handlers
    print does not get between the data.

    It never collects garbage of its parent. A finalizer would run here, too, and one of a library
    whose threads do not exist here can end the process.
    """
    gc.freeze()
    gc.enable()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.dup2(_STDERR, _STDOUT)


def run_seeds(
    make_config: Callable[[], RunConfig], seeds: range, progress: Callable[[int], None]
) -> Tally:
    """Run `seeds` on all cores up to the first chunk in which one breaks an invariant; later ones
    are not in the tally. `make_config` is called for each chunk, in the process that runs it, and
    `progress` with the number of further seeds that were run. UsageError as ``run_chunk``."""
    total = Tally()
    with closing(_tallies(make_config, seeds)) as tallies:
        for tally in tallies:
            total.add(tally)
            progress(tally.seed_count)
            if total.broken:
                break
    return total


def _tallies(make_config: Callable[[], RunConfig], seeds: range) -> Generator[Tally]:
    """Yield what came of each chunk in their order, so that the lowest seed that breaks an
    invariant is named."""
    chunks = (seeds[i : i + CHUNK_COUNT] for i in range(0, len(seeds), CHUNK_COUNT))
    run = partial(run_chunk, make_config)
    core_count = len(os.sched_getaffinity(0))
    if len(seeds) <= CHUNK_COUNT or core_count == 1:
        yield from map(run, chunks)
        return
    with ProcessPoolExecutor(core_count, initializer=_start_chunk_runner) as pool:
        is_enabled = gc.isenabled()
        gc.disable()  # in the processes, which begin now, until their first step
        try:
            running = deque(pool.submit(run, chunk) for chunk in islice(chunks, 2 * core_count))
        finally:
            if is_enabled:
                gc.enable()
        try:
            while running:
                tally = running.popleft().result()
                running.extend(pool.submit(run, chunk) for chunk in islice(chunks, 1))
                yield tally
        finally:
            pool.shutdown(cancel_futures=True)


# --- coverage


def _abandoned_count(epoch: Epoch, reason: Reason) -> int:
    return sum(o.reason is reason for o in epoch.outcomes.values() if isinstance(o, Abandoned))


def _never_occurred(epoch: Epoch, description: Description) -> bool:
    trace = epoch.trace(description)
    cuts = [trace.cut_of(snapshot.id) for snapshot in epoch.published]
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
    return any(initiations[snapshot.id] > 1 for snapshot in epoch.published)


def _delivered_batch(epoch: Epoch) -> bool:
    frames = [frame for taken in epoch.taken for _, frame in taken.frames]
    return any(frame.batch is not None and frame.batch.count > 1 for frame in frames)


COVERAGE: Mapping[str, Callable[[Epoch, Description], object]] = {
    "a snapshot was published": lambda epoch, _: epoch.published,
    "a channel held messages at the cut": lambda epoch, _: any(
        snapshot.state.message_count for snapshot in epoch.published
    ),
    "the recorded state never occurred": _never_occurred,
    "two snapshots were pending at once": lambda epoch, _: _overlapped(epoch),
    "several processes initiated one snapshot": lambda epoch, _: _several_initiated(epoch),
    "a snapshot was abandoned at its deadline": lambda epoch, _: _abandoned_count(
        epoch, Reason.DEADLINE
    ),
    "a snapshot was abandoned because a process died": lambda epoch, _: _abandoned_count(
        epoch, Reason.PROCESS_DIED
    ),
    "the system was restored from a snapshot": lambda epoch, _: epoch.start is not None,
    "messages in transit were received again": lambda epoch, _: (
        epoch.start is not None and epoch.start.state.message_count
    ),
    "the system was started again from its beginning": lambda epoch, _: (
        epoch.start is None and epoch.number > 1
    ),
    "a connection of an older epoch was refused": lambda epoch, _: epoch.refused_count,
    "a connection was lost and opened again": lambda epoch, _: epoch.resent_count,
    "a frame arrived twice": lambda epoch, _: epoch.dropped_count,
    "processes were cut off from the others": lambda epoch, _: epoch.held_count,
    "a batch held several messages": lambda epoch, _: _delivered_batch(epoch),
    "one action accepted several messages": lambda epoch, _: any(
        isinstance(step, Event) and len(step.accepted) > 1 for step in epoch.steps
    ),
}
"""What must be seen *sometimes* over many seeds where channels keep order, because seeds that show
none of it prove little; name -> was it seen in an epoch? A fault counts if it had an effect: lost
frames were sent again, duplicates dropped, frames that had to cross a partition held up."""


def covered(run: Run) -> list[str]:
    """Return which entries of `COVERAGE` were seen in `run`."""
    epochs, system = run.world.epochs, run.world.description
    return [name for name, seen in COVERAGE.items() if any(seen(epoch, system) for epoch in epochs)]
