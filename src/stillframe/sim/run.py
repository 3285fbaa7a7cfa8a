"""One simulated run from a seed, or again from its schedule; judged, and cut down when it fails."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from stillframe.errors import StillframeError, UsageError
from stillframe.model import Snapshot
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.recorder import Recorder
from stillframe.sim import choices
from stillframe.sim.drive import EXPIRY_DELAY_MS, Drive, Load, Schedule, Step
from stillframe.sim.faults import Faults, draw_faults
from stillframe.sim.judge import Promise, Violation, judge, judge_end, rules_fit
from stillframe.sim.network import Fifo, Network
from stillframe.sim.possible import why_not
from stillframe.sim.systems import random_system
from stillframe.sim.world import SnapshotRecorder, World
from stillframe.topology import Topology

TIMEOUT_MS = 10.0
BATCH_COUNT_MAX = 3
"""So many messages that one action sends to one target travel together."""
TIMEOUT_DELAY_COUNT = 15
"""A snapshot of up to five processes in a row takes fewer of the longest delays than this, when
nothing else goes wrong: so a deadline after them is missed only if something did."""


TOLD_INDENT = " " * 14
"""What happened is told below its choice, so far to the right."""
_LINE = re.compile(r" *(?P<at>\d{1,9}(?:\.\d{1,9})?) ms  (?P<choice>\S.*)")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is simulated.

    Attributes:
        topology: the system; None draws another one from every seed.
        network: what is assumed of every channel.
        recorder: the recording rules.
        assembler: what puts the parts of a snapshot together.
        world: where it all happens.
        load: how much happens.
    """

    topology: Topology | None = None
    network: Network = Fifo
    recorder: Callable[..., SnapshotRecorder] = Recorder
    assembler: Callable[..., Assembler] = Assembler
    world: type[World] = World
    load: Load = field(default_factory=Load)


@dataclass(frozen=True)
class Run:
    """How a run went.

    Attributes:
        seed: what everything was drawn from.
        faults: what could go wrong.
        schedule: what was chosen.
        world: as it is at the end.
        violation: the first promise that was not kept; None if all were.
    """

    seed: int
    faults: Faults
    schedule: Schedule
    world: World
    violation: Violation | None


def run_seed(seed: int, setting: Setting) -> Run:
    """Simulate what `seed` says, and judge it.

    Raises:
        StillframeError: a handler of the system failed; a bug of its own, not of a snapshot.
    """
    chance = Random(seed)
    world, faults = _draw(chance, setting)
    drive = Drive(world, chance, faults, setting.load)
    drive.run()
    violation = judge(world) or _judge_liveness(drive)
    return Run(seed, faults, drive.schedule, world, violation)


def replay(
    seed: int,
    setting: Setting,
    schedule: Schedule,
    after_each: Callable[[World, Step], None] = lambda world, step: None,
) -> Run:
    """Do `schedule` with the system of `seed`, and judge it; what is not possible is left out.

    Args:
        seed: what the system is drawn from.
        setting: what is simulated.
        schedule: what is done.
        after_each: is called after each choice that was taken.

    Raises:
        StillframeError: a handler of the system failed.
    """
    world, faults = _draw(Random(seed), setting)
    done: Schedule = []
    for step in schedule:
        world.now = step.at_ms / 1000
        if not why_not(world, step.choice):
            world.take(step.choice)
            done.append(step)
            after_each(world, step)
    return Run(seed, faults, done, world, judge(world))


def parse_schedule(text: str) -> Schedule:
    """Read a schedule as it is printed; what is told below a choice, indented, is passed over.

    Raises:
        UsageError: a line is neither; it is named.
    """
    schedule: Schedule = []
    for number, line in enumerate(text.splitlines(), 1):
        if found := _LINE.fullmatch(line):
            schedule.append(Step(float(found["at"]), choices.parse_choice(found["choice"])))
        elif line.strip() and not line.startswith(TOLD_INDENT):
            raise UsageError(
                f"line {number} of the schedule, {line[:80]!r}: write a time and a choice, such as "
                "'12.500 ms  deliver P1->P2'"
            )
    return schedule


def shrink(run: Run, setting: Setting) -> Run:
    """Return the shortest run that this finds with the same broken promise (delta debugging).

    Every piece of the schedule is left out in turn, halves first, single choices last and until
    none can be spared (Zeller and Hildebrandt, *Simplifying and Isolating Failure-Inducing Input*,
    2002). Run on what is left, the order stays as it was. A promise of the liveness phase is not
    judged again: such a run stays.
    """
    best = _try(run, setting, run.schedule)
    if best is None:
        return run
    size = len(run.schedule) // 2
    while size:
        start, count = 0, len(best.schedule)
        while start < len(best.schedule):
            rest = best.schedule[:start] + best.schedule[start + size :]
            found = _try(run, setting, rest)
            if found is None:
                start += size
            else:
                best = found
        if size > 1 or len(best.schedule) == count:
            size //= 2
    return best


def _try(run: Run, setting: Setting, schedule: Schedule) -> Run | None:
    """Return the run of `schedule` if it breaks the promise that `run` broke."""
    try:
        found = replay(run.seed, setting, schedule)
    except StillframeError:
        return None
    assert run.violation is not None
    broke = found.violation is not None and found.violation.promise is run.violation.promise
    return found if broke else None


def _draw(chance: Random, setting: Setting) -> tuple[World, Faults]:
    drawn = random_system(chance)
    faults = draw_faults(chance, setting.network)
    world = setting.world(
        setting.topology or drawn,
        network=setting.network,
        recorder=setting.recorder,
        assembler=setting.assembler,
        timeout_s=(TIMEOUT_MS + TIMEOUT_DELAY_COUNT * faults.delay_ms_max) / 1000,
        batch_count_max=BATCH_COUNT_MAX,
    )
    return world, faults


def _judge_liveness(drive: Drive) -> Violation | None:
    world = drive.world
    if world.refusal or not rules_fit(world):
        return None
    assert drive.last is not None
    open_ = [s for epoch in world.epochs for s in epoch.initiated if s not in epoch.outcomes]
    if open_:
        return Violation(Promise.WHOLE, f"snapshots {', '.join(map(str, open_))} never ended")
    for epoch in world.epochs:
        for ended in epoch.outcomes.values():
            if isinstance(ended, Snapshot) and _is_late(ended, world):
                return Violation(Promise.WHOLE, f"snapshot {ended.id} outlived its deadline")
    outcome = world.epoch.outcomes[drive.last]
    if not isinstance(outcome, Snapshot):
        return Violation(Promise.LIVE, str(outcome))
    return judge_end(world)


def _is_late(snapshot: Snapshot, world: World) -> bool:
    taken_s = snapshot.completed_at - snapshot.initiated_at
    return taken_s > world.timeout_s + 2 * EXPIRY_DELAY_MS / 1000
