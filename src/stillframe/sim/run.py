"""One simulated run from a seed, or again from its schedule; checked, and shrunk when it fails."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from stillframe.errors import StillframeError, UsageError
from stillframe.model import Snapshot
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
from stillframe.sim.world import SnapshotRecorder, World, disabled_reason
from stillframe.topology import Topology

TIMEOUT_MS = 10.0
BATCH_COUNT_MAX = 3
"""How many messages that one action sends to one target travel together at most."""
TIMEOUT_DELAY_COUNT = 15
"""A snapshot of up to five processes in a row takes fewer of the longest delays than this, when
nothing else goes wrong: so a deadline after them is missed only if something did."""


EVENT_INDENT = " " * 14
"""The indentation of what happened, below its choice."""
_LINE = re.compile(r" *(?P<at>\d{1,9}(?:\.\d{1,9})?) ms  (?P<choice>\S.*)")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The system to simulate; without a topology, every seed draws one of its own."""

    topology: Topology | None = None
    network: Network = Fifo
    recorder: Callable[..., SnapshotRecorder] = Recorder
    assembler: Callable[..., Assembler] = Assembler
    world: type[World] = World
    load: Load = field(default_factory=Load)


@dataclass(frozen=True)
class Run:
    """A finished run: its world at the end, and the first invariant that does not hold, or None."""

    seed: int
    faults: Faults
    schedule: Schedule
    world: World
    violation: Violation | None


def run_seed(seed: int, config: RunConfig) -> Run:
    """Simulate the run of `seed`, and check it. Raises StillframeError if a handler of the system
    failed; a bug of its own, not of a snapshot."""
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
    """Read a schedule as it is printed; the indented lines below a choice are ignored.

    Raises:
        UsageError: a line is neither; it is named.
    """
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
    for epoch in world.epochs:
        for ended in epoch.outcomes.values():
            if isinstance(ended, Snapshot) and _is_late(ended, world):
                return Violation(Invariant.WHOLE, f"snapshot {ended.id} outlived its deadline")
    outcome = world.epoch.outcomes[scheduler.last]
    if not isinstance(outcome, Snapshot):
        return Violation(Invariant.LIVE, str(outcome))
    return check_end(world)


def _is_late(snapshot: Snapshot, world: World) -> bool:
    taken_s = snapshot.completed_at - snapshot.initiated_at
    return taken_s > world.timeout_s + 2 * EXPIRY_DELAY_MS / 1000
