"""A random scheduler of a world, from one seed, in virtual time that jumps to the next due event.

First the *safety phase*: actions, snapshots, and every kind of fault. Then the *liveness phase*:
all faults end, no process acts spontaneously, and one last snapshot must be published. The choices
are the schedule: replayed, it makes the same run without any randomness.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random

import msgspec

from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.process import Action
from stillframe.sim import choices
from stillframe.sim.network import Fifo, Lossy, Network, Reordering
from stillframe.sim.world import World, disabled_reason

FREE_MS = 2.0
"""The mean time between two actions of ``every(ms=0)``."""
FULL_COUNT = 10
"""Maximum frames in transit on a channel; with that many, its source takes no action that it could
choose. This has the effect of back-pressure in the runtime."""
BEHIND_SHARE = 0.1
"""The share of the delay that is left for a frame when the one before it arrives: it has been in
flight meanwhile."""
TOGETHER_SHARE = 0.05
"""How often one action accepts a message from each of two channels, if both have one."""
EXPIRY_DELAY_MS = 0.001
"""A deadline is acted on this much later."""
STEP_COUNT_MAX = 50_000
"""The maximum number of choices in a phase."""
REST_COUNT_MAX = 5_000
"""How many choices of the liveness phase wait for channels to become empty: in some systems they
never do."""


class Step(msgspec.Struct, frozen=True):
    """One line of a schedule: a choice, and its time in virtual milliseconds."""

    at_ms: float
    choice: choices.Choice

    def __str__(self) -> str:
        return f"{self.at_ms:9.3f} ms  {self.choice}"


Schedule = list[Step]


@dataclass(frozen=True, kw_only=True)
class Load:
    """The duration of the safety phase, and how many snapshots are initiated, by any process, per
    virtual second."""

    safety_ms: float = 100.0
    snapshot_per_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Faults:
    """The delays of the network, and the rates of faults per virtual second.

    The longest delays are those of a frame, of the notice that a snapshot has ended, of the
    rollback after a death, and of a lost connection until it is back. Frames are lost on a lossy
    network only.
    """

    delay_ms_max: float = 5.0
    hearing_ms_max: float = 5.0
    crash_per_s: float = 0.0
    restart_ms_max: float = 30.0
    break_per_s: float = 0.0
    connect_ms_max: float = 30.0
    partition_per_s: float = 0.0
    partition_ms_max: float = 100.0
    double_per_s: float = 0.0
    lose_per_s: float = 0.0


def draw_faults(chance: Random, network: Network) -> Faults:
    """Return faults that differ from seed to seed: some runs have a single kind, some all."""

    def rate(most: float) -> float:
        return chance.choice((0.0, most / 4, most))

    keeps_connections = network is Fifo
    return Faults(
        delay_ms_max=chance.choice((1.0, 5.0, 20.0)),
        hearing_ms_max=chance.choice((1.0, 20.0)),
        crash_per_s=rate(20.0),
        break_per_s=rate(80.0) if keeps_connections else 0.0,
        partition_per_s=rate(20.0),
        partition_ms_max=chance.choice((30.0, 300.0)),
        double_per_s=rate(80.0) if keeps_connections else 0.0,
        lose_per_s=rate(80.0) if network is Lossy else 0.0,
    )


def describe(faults: Faults) -> str:
    """Return the figures of `faults` that are not 0."""
    figures = {name: value for name, value in vars(faults).items() if value}
    return ", ".join(f"{name} {value:g}" for name, value in figures.items())


class RandomScheduler:
    """Makes one run of `world`; all its choices are drawn from `chance`."""

    def __init__(self, world: World, chance: Random, faults: Faults, load: Load) -> None:
        self.world = world
        self.schedule: Schedule = []
        self.last: SnapshotId | None = None
        self._chance = chance
        self._faults = faults
        self._load = load
        self._now_ms = 0.0
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._arriving: set[Channel] = set()
        self._is_safety = True
        self._notified: set[tuple[int, SnapshotId]] = set()
        self._notice_count = 0
        self._snapshot_count = 0

    def run(self) -> None:
        """Run from start to end; StillframeError if a handler of the application fails."""
        faults = self._faults
        self._plan_actions()
        self._plan_arrivals()
        self._repeat(self._load.snapshot_per_s, self._start_snapshot)
        self._repeat(faults.crash_per_s, self._crash)
        self._repeat(faults.break_per_s, self._break)
        self._repeat(faults.partition_per_s, self._partition)
        self._repeat(faults.double_per_s, partial(self._damage, choices.Duplicate))
        self._repeat(faults.lose_per_s, partial(self._damage, choices.Lose))
        self._run_until(self._load.safety_ms)
        self._is_safety = False
        self._restart()
        self._take(choices.Heal())
        for channel, memory in self.world.channels.items():
            if not memory.is_connected:
                self._take(choices.Connect(channel))
        self._start_snapshot()
        self._run_until(float("inf"))

    def _run_until(self, until_ms: float) -> None:
        begin_count = len(self.schedule)
        while self._due and self._due[0][0] <= until_ms and not self.world.refusal:
            self._now_ms, _, happen = heapq.heappop(self._due)
            happen()
            self._plan_arrivals()
            self._plan_notices()
            count = len(self.schedule) - begin_count
            if count > STEP_COUNT_MAX or not (self._is_safety or self._must_wait(count)):
                return

    def _must_wait(self, count: int) -> bool:
        if self.world.pending or self._notice_count:
            return True
        return count < REST_COUNT_MAX and any(map(len, self.world.channels.values()))

    def _at(self, delay_ms: float, happen: Callable[[], object]) -> None:
        heapq.heappush(self._due, (self._now_ms + delay_ms, next(self._order), happen))

    def _within(self, delay_ms_max: float, happen: Callable[[], object]) -> None:
        self._at(self._chance.random() * delay_ms_max, happen)

    def _repeat(self, rate_per_s: float, happen: Callable[[], None]) -> None:
        """Call `happen` at random times during the safety phase."""
        if not rate_per_s or not self._is_safety:
            return

        def once() -> None:
            if self._is_safety:
                happen()
                self._repeat(rate_per_s, happen)

        self._at(self._chance.expovariate(rate_per_s / 1000), once)

    def _take(self, choice: choices.Choice) -> bool:
        """Take `choice` and add it to the schedule; False if it is not enabled."""
        self.world.now = self._now_ms / 1000
        if disabled_reason(self.world, choice):
            return False
        self.schedule.append(Step(self._now_ms, choice))
        self.world.take(choice)
        return True

    def _take_in(self, epoch: int, choice: choices.Choice) -> None:
        if self.world.epoch.number == epoch:
            self._take(choice)

    # --- moves

    def _plan_actions(self) -> None:
        epoch = self.world.epoch.number
        for name, runner in self.world.runners.items():
            for action in runner.process.actions:
                self._plan_action(epoch, name, action)

    def _plan_action(self, epoch: int, process: ProcessId, action: Action) -> None:
        def act() -> None:
            if not self._is_safety or self.world.epoch.number != epoch:
                return
            outgoing = self.world.description.outgoing(process)
            channels = [self.world.channels[Channel(process, target)] for target in outgoing]
            if all(len(channel) < FULL_COUNT for channel in channels):
                self._take(choices.Act(process, action.name))
            self._ask_for_snapshot(process)
            self._plan_action(epoch, process, action)

        rate = 1 / (action.period_ms or FREE_MS)
        self._at(action.period_ms or self._chance.expovariate(rate), act)

    def _ask_for_snapshot(self, process: ProcessId) -> None:
        """Start the snapshot that an action asked for: in the safety phase only, since some systems
        would never end."""
        runner = self.world.runners[process]
        if runner.wants_snapshot:
            runner.wants_snapshot = False
            if self._is_safety:
                self._start_snapshot(process)

    def _plan_arrivals(self) -> None:
        for channel in sorted({*self.world.sendings}):
            if channel not in self._arriving:
                self._plan_arrival(channel)
        self.world.sendings.clear()

    def _plan_arrival(self, channel: Channel, share: float = 1.0) -> None:
        delay_ms = self._chance.random() * self._faults.delay_ms_max * share
        self._arriving.add(channel)
        self._at(delay_ms, lambda: self._arrive(channel))

    def _arrive(self, channel: Channel) -> None:
        self._arriving.remove(channel)
        memory = self.world.channels[channel]
        position = 0
        if self.world.network is Reordering and len(memory):
            position = self._chance.randrange(len(memory))
        if self._take(choices.Deliver(self._together(channel, position), position)):
            self._ask_for_snapshot(channel.target)
            if len(memory):
                self._plan_arrival(channel, BEHIND_SHARE)

    def _together(self, channel: Channel, position: int) -> tuple[Channel, ...]:
        """Return `channel`, sometimes with another one from which a message can arrive too."""
        sources = self.world.description.incoming(channel.target)
        others = [Channel(s, channel.target) for s in sources if s != channel.source]
        both = [
            (channel, other)
            for other in others
            if not disabled_reason(self.world, choices.Deliver((channel, other), position))
        ]
        if both and self._chance.random() < TOGETHER_SHARE:
            return self._chance.choice(both)
        return (channel,)

    def _start_snapshot(self, first: ProcessId | None = None) -> None:
        """Let a process initiate, and as many more as are needed for markers to reach all."""
        world = self.world
        up = [name for name in world.runners if name not in world.down]
        if not up:
            return
        self._snapshot_count += 1
        first = first or self._chance.choice(up)
        self.last = snapshot = SnapshotId(first, self._snapshot_count)
        for process in world.description.initiators(first):
            delay_ms = 0.0 if process == first else self._chance.random() * 5.0
            self._at(delay_ms, partial(self._initiate, choices.Initiate(process, snapshot)))

    def _initiate(self, choice: choices.Initiate) -> None:
        if self._take(choice):
            self._at(self.world.timeout_s * 1000 + EXPIRY_DELAY_MS, self._expire)

    def _expire(self) -> None:
        deadline = self.world.assembler.next_deadline()
        if deadline is not None and deadline <= self._now_ms / 1000:
            self._take(choices.Expire())

    def _plan_notices(self) -> None:
        epoch = self.world.epoch
        for snapshot in epoch.outcomes:
            if (epoch.number, snapshot) in self._notified:
                continue
            self._notified.add((epoch.number, snapshot))
            for process in self.world.runners:
                self._notice_count += 1
                choice = choices.DeliverNotice(process, snapshot)
                notice = partial(self._notice, epoch.number, choice)
                self._within(self._faults.hearing_ms_max, notice)

    def _notice(self, epoch: int, choice: choices.DeliverNotice) -> None:
        self._notice_count -= 1
        self._take_in(epoch, choice)

    # --- faults

    def _crash(self) -> None:
        names = [name for name in self.world.runners if name not in self.world.down]
        if names and self._take(choices.Crash(self._chance.choice(names))):
            self._within(self._faults.restart_ms_max, self._restart)

    def _restart(self) -> None:
        if self.world.down and self._take(choices.Restart()):
            self._plan_actions()

    def _break(self) -> None:
        if not self.world.channels:
            return
        channel = self._chance.choice(list(self.world.channels))
        if self._take(choices.Break(channel)):
            epoch, connect = self.world.epoch.number, choices.Connect(channel)
            self._within(self._faults.connect_ms_max, partial(self._take_in, epoch, connect))

    def _partition(self) -> None:
        names = list(self.world.runners)
        if len(names) < 2:
            return
        group = self._chance.sample(names, self._chance.randrange(1, len(names)))
        if not self.world.parted and self._take(choices.Partition(tuple(sorted(group)))):
            self._within(self._faults.partition_ms_max, partial(self._take, choices.Heal()))

    def _damage(self, fault: type[choices.Duplicate] | type[choices.Lose]) -> None:
        busy = [channel for channel, memory in self.world.channels.items() if len(memory)]
        if busy:
            self._take(fault(self._chance.choice(busy)))
