"""Drives a world by chance, from one seed, in virtual time that jumps to whatever is due next.

First the *safety phase*: actions, snapshots, and everything that may go wrong. Then the *liveness
phase*: what is broken is mended, no process acts any more by itself, and one last snapshot must be
published. What was chosen is the schedule: played again it makes the same run, without any chance.
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
from stillframe.sim.faults import Faults
from stillframe.sim.network import Reordering
from stillframe.sim.possible import why_not
from stillframe.sim.world import World

FREE_MS = 2.0
"""The mean time between two actions of ``every(ms=0)``."""
FULL_COUNT = 10
"""A process takes no action of its own while so much is on its way on one of its channels: what
back-pressure does in the runtime."""
BEHIND_SHARE = 0.1
"""What is behind something else on its channel has been on its way meanwhile: so much of the delay
is left when that has arrived."""
TOGETHER_SHARE = 0.05
"""Where messages wait on several channels of a process, one action accepts one of each of two in
so many cases."""
EXPIRY_DELAY_MS = 0.001
"""A deadline is acted on so much after it."""
STEP_COUNT_MAX = 50_000
"""How many choices a phase has at most."""
REST_COUNT_MAX = 5_000
"""So many choices of the liveness phase are waited for messages to come to rest: in some systems
they never do."""


class Step(msgspec.Struct, frozen=True):
    """One line of a schedule: what was chosen, and when, in virtual milliseconds."""

    at_ms: float
    choice: choices.Choice

    def __str__(self) -> str:
        return f"{self.at_ms:9.3f} ms  {self.choice}"


Schedule = list[Step]


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a run does: how long, and how many snapshots.

    Attributes:
        safety_ms: how long the safety phase takes.
        snapshot_per_s: how many snapshots are initiated, by any process, per virtual second.
    """

    safety_ms: float = 100.0
    snapshot_per_s: float = 60.0


class Drive:
    """One run by chance.

    Args:
        world: what to drive.
        chance: where everything that is chosen comes from.
        faults: what may go wrong.
        load: how much happens.
    """

    def __init__(self, world: World, chance: Random, faults: Faults, load: Load) -> None:
        self.world = world
        self.schedule: Schedule = []
        self.last: SnapshotId | None = None
        self._chance = chance
        self._faults = faults
        self._load = load
        self._now_ms = 0.0
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._arrives_ms: dict[Channel, float] = {}
        self._is_safety = True
        self._told: set[tuple[int, SnapshotId]] = set()
        self._telling_count = 0
        self._snapshot_count = 0

    def run(self) -> None:
        """Take the run from its beginning to its end.

        Raises:
            StillframeError: a handler of the application failed.
        """
        faults = self._faults
        self._plan_actions()
        self._plan_arrivals()
        self._again_and_again(self._load.snapshot_per_s, self._begin_snapshot)
        self._again_and_again(faults.crash_per_s, self._crash)
        self._again_and_again(faults.break_per_s, self._break)
        self._again_and_again(faults.partition_per_s, self._partition)
        self._again_and_again(faults.double_per_s, lambda: self._spoil(choices.Double))
        self._again_and_again(faults.lose_per_s, lambda: self._spoil(choices.Lose))
        self._go_on(self._load.safety_ms)
        self._is_safety = False
        self._mend()
        self._begin_snapshot()
        self._go_on(float("inf"))

    def _go_on(self, until_ms: float) -> None:
        begin_count = len(self.schedule)
        while self._due and self._due[0][0] <= until_ms and not self.world.refusal:
            self._now_ms, _, happen = heapq.heappop(self._due)
            happen()
            self._plan_arrivals()
            self._tell_of_endings()
            count = len(self.schedule) - begin_count
            if count > STEP_COUNT_MAX or not (self._is_safety or self._is_busy(count)):
                return

    def _is_busy(self, count: int) -> bool:
        if self.world.pending or self._telling_count:
            return True
        return count < REST_COUNT_MAX and any(map(len, self.world.channels.values()))

    def _at(self, delay_ms: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self._now_ms + delay_ms, next(self._order), happen))

    def _within(self, delay_ms_max: float, happen: Callable[[], None]) -> None:
        self._at(self._chance.random() * delay_ms_max, happen)

    def _again_and_again(self, rate_per_s: float, happen: Callable[[], None]) -> None:
        """Let `happen` be called at random times as long as the safety phase lasts."""
        if not rate_per_s or not self._is_safety:
            return

        def once() -> None:
            if self._is_safety:
                happen()
                self._again_and_again(rate_per_s, happen)

        self._at(self._chance.expovariate(rate_per_s / 1000), once)

    def _take(self, choice: choices.Choice) -> bool:
        """Take `choice` and keep it in the schedule; False if it is not possible now."""
        self.world.now = self._now_ms / 1000
        if why_not(self.world, choice):
            return False
        self.schedule.append(Step(self._now_ms, choice))
        self.world.take(choice)
        return True

    # --- what a system does

    def _plan_actions(self) -> None:
        """Let every process act by itself, in this epoch."""
        epoch = self.world.epoch.number
        for name, performer in self.world.performers.items():
            for action in performer.process.actions:
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
        """Begin the snapshot that a process asked for in an action, if it did: in the safety phase,
        since some systems would never come to an end."""
        performer = self.world.performers[process]
        if performer.wants_snapshot:
            performer.wants_snapshot = False
            if self._is_safety:
                self._begin_snapshot(process)

    def _plan_arrivals(self) -> None:
        """Say when what is new on the channels will arrive."""
        for channel in sorted({*self.world.sendings}):
            if channel not in self._arrives_ms:
                self._plan_arrival(channel)
        self.world.sendings.clear()

    def _plan_arrival(self, channel: Channel, share: float = 1.0) -> None:
        delay_ms = self._chance.random() * self._faults.delay_ms_max * share
        self._arrives_ms[channel] = self._now_ms + delay_ms
        self._at(delay_ms, lambda: self._arrive(channel))

    def _arrive(self, channel: Channel) -> None:
        del self._arrives_ms[channel]
        memory = self.world.channels[channel]
        position = 0
        if self.world.network is Reordering and len(memory):
            position = self._chance.randrange(len(memory))
        if self._take(choices.Deliver(self._together(channel, position), position)):
            self._ask_for_snapshot(channel.target)
            if len(memory):
                self._plan_arrival(channel, BEHIND_SHARE)

    def _together(self, channel: Channel, position: int) -> tuple[Channel, ...]:
        """Return `channel`, sometimes with another one from which a message can come as well."""
        sources = self.world.description.incoming(channel.target)
        others = [Channel(s, channel.target) for s in sources if s != channel.source]
        both = [
            (channel, other)
            for other in others
            if not why_not(self.world, choices.Deliver((channel, other), position))
        ]
        if both and self._chance.random() < TOGETHER_SHARE:
            return self._chance.choice(both)
        return (channel,)

    def _begin_snapshot(self, first: ProcessId | None = None) -> None:
        """Let a process initiate, and as many more as it takes for markers to reach all."""
        world = self.world
        up = [name for name in world.performers if name not in world.down]
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

    def _tell_of_endings(self) -> None:
        """Let every process hear, each in its time, that a snapshot is over."""
        epoch = self.world.epoch
        for snapshot in epoch.outcomes:
            if (epoch.number, snapshot) not in self._told:
                self._told.add((epoch.number, snapshot))
                self._tell(snapshot)

    def _tell(self, snapshot: SnapshotId) -> None:
        epoch = self.world.epoch.number
        for process in self.world.performers:
            choice = choices.Hear(process, snapshot)

            def hear(choice: choices.Choice = choice) -> None:
                self._telling_count -= 1
                if self.world.epoch.number == epoch:
                    self._take(choice)

            self._telling_count += 1
            self._within(self._faults.hearing_ms_max, hear)

    # --- what goes wrong

    def _crash(self) -> None:
        names = [name for name in self.world.performers if name not in self.world.down]
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
            epoch = self.world.epoch.number

            def connect() -> None:
                if self.world.epoch.number == epoch:
                    self._take(choices.Connect(channel))

            self._within(self._faults.connect_ms_max, connect)

    def _partition(self) -> None:
        names = list(self.world.performers)
        if len(names) < 2:
            return
        group = self._chance.sample(names, self._chance.randrange(1, len(names)))
        if not self.world.parted and self._take(choices.Partition(tuple(sorted(group)))):
            self._within(self._faults.partition_ms_max, self._heal)

    def _heal(self) -> None:
        self._take(choices.Heal())

    def _spoil(self, fault: type[choices.Double] | type[choices.Lose]) -> None:
        busy = [channel for channel, memory in self.world.channels.items() if len(memory)]
        if busy:
            self._take(fault(self._chance.choice(busy)))

    def _mend(self) -> None:
        """End everything that goes wrong."""
        if self.world.down:
            self._restart()
        self._heal()
        for channel, memory in self.world.channels.items():
            if not memory.is_connected:
                self._take(choices.Connect(channel))
