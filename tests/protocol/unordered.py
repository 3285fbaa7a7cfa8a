"""Accounts over channels without order, and an oracle that judges from the whole history.

The oracle knows who sent and received which message when, who asked for a snapshot and which
markers came. It does not know the recorder, nor the colours that travel.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from stillframe.model import (
    Abandoned,
    Batch,
    Channel,
    ProcessId,
    ProcessState,
    Reason,
    Snapshot,
    SnapshotId,
)
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.lai_yang import Colour, CountingMarker, LaiYangRecorder
from stillframe.protocol.recorder import Effect, NotRecorded, Recorded, SendMarker
from tests.protocol.execution import START_BALANCE, Event, What, describe, messages_in, state_of

Item = tuple[Batch, Colour] | CountingMarker
News = tuple[What, ProcessId, SnapshotId]
"""What the coordinator has to tell a process: begin (INITIATED), or it is over (GAVE_UP)."""


class Unordered:
    """A system in memory whose channels are bags: anything on its way may come next.

    Args:
        processes: the accounts; each has ``START_BALANCE`` at first.
        channels: pairs (source, target).
    """

    def __init__(self, processes: list[ProcessId], channels: list[tuple[str, str]]) -> None:
        self.description = describe(processes, channels)
        self.balances = dict.fromkeys(self.description.processes, START_BALANCE)
        self.bags: dict[Channel, list[Item]] = {c: [] for c in self.description.channels}
        self.sent_counts = dict.fromkeys(self.description.channels, 0)
        self.news: list[News] = []
        self.log: list[Event] = []
        self.begun: list[SnapshotId] = []
        self.outcomes: dict[SnapshotId, Snapshot | Abandoned] = {}
        self.late_count = 0
        self.assembler = Assembler(self.description, epoch=1)
        self.recorders = {process: self._recorder(process) for process in self.balances}

    def begin(self, snapshot: SnapshotId) -> None:
        """Ask for a snapshot; those who have to initiate it hear of that in their time."""
        self.begun.append(snapshot)
        self.assembler.begin(snapshot, 0.0, timeout_s=1.0)
        for process in self.description.initiators(snapshot.initiator):
            self.news.append((What.INITIATED, process, snapshot))

    def give_up(self, snapshot: SnapshotId) -> None:
        """Give a snapshot up; the processes hear of that in their time."""
        if abandoned := self.assembler.abandon(snapshot, Reason.DEADLINE):
            self._over(snapshot, abandoned)

    def send(self, source: ProcessId, target: ProcessId, *amounts: int) -> None:
        """Send money, in one batch."""
        channel = Channel(source, target)
        first = self.sent_counts[channel] + 1
        self.sent_counts[channel] += len(amounts)
        self.balances[source] -= sum(amounts)
        self._log(What.SENT, source, channel, first, amounts)
        batch = Batch.of(first, [msgspec.msgpack.encode(amount) for amount in amounts])
        self.bags[channel].append((batch, self.recorders[source].colour))

    def deliver(
        self, source: ProcessId, target: ProcessId, position: int = 0, count: int | None = None
    ) -> None:
        """Let the target take what is at `position`; of a batch only the first `count`."""
        channel, recorder = Channel(source, target), self.recorders[target]
        item = self.bags[channel].pop(position)
        if isinstance(item, CountingMarker):
            self.log.append(Event(What.MARKER_RECEIVED, target, channel, snapshot=item.snapshot))
            self._report_sent(target)
            self._carry_out(target, recorder.marker(source, item))
            return
        batch, colour = item
        if count is not None and count < batch.count:
            batch, rest = batch.split(count)
            self.bags[channel].append((rest, colour))
        self._report_sent(target)
        self._carry_out(target, recorder.meet(colour))
        amounts = messages_in([batch])
        self.balances[target] += sum(amounts)
        self._log(What.RECEIVED, target, channel, batch.first, amounts)
        self._carry_out(target, recorder.receive(source, batch, colour))

    def tell(self, position: int = 0) -> None:
        """Let a process hear some news."""
        what, process, snapshot = self.news.pop(position)
        self.log.append(Event(what, process, snapshot=snapshot))
        if what is What.GAVE_UP:
            self.recorders[process].ended(snapshot)
            return
        self._report_sent(process)
        self._carry_out(process, self.recorders[process].initiate(snapshot))

    def happen(self, chance: Random) -> bool:
        """Let anything come that is on its way; return whether anything was."""
        full = [channel for channel, bag in self.bags.items() if bag]
        is_any = bool(full or self.news)  # the last news may put markers on channels
        if self.news and (not full or chance.random() < 0.2):
            self.tell(chance.randrange(len(self.news)))
        elif full:
            channel = chance.choice(full)
            position = chance.randrange(len(self.bags[channel]))
            self.deliver(channel.source, channel.target, position, chance.randint(1, 3))
        return is_any

    def drain(self, chance: Random) -> None:
        """Let everything come that is on its way."""
        while self.happen(chance):
            pass

    @property
    def complete(self) -> dict[SnapshotId, Snapshot]:
        """The snapshots that were completed."""
        return {s: o for s, o in self.outcomes.items() if isinstance(o, Snapshot)}

    def _recorder(self, process: ProcessId) -> LaiYangRecorder:
        def capture() -> ProcessState:
            return state_of(process, self.balances[process])

        return LaiYangRecorder(
            process,
            incoming=dict.fromkeys(self.description.incoming(process), 0),
            outgoing=dict.fromkeys(self.description.outgoing(process), 0),
            capture=capture,
        )

    def _log(
        self, what: What, process: ProcessId, channel: Channel, first: int, amounts: Any
    ) -> None:
        for number, amount in enumerate(amounts, first):
            self.log.append(Event(what, process, channel, number, amount))

    def _report_sent(self, process: ProcessId) -> None:
        for target in self.description.outgoing(process):
            self.recorders[process].sent(target, self.sent_counts[Channel(process, target)])

    def _over(self, snapshot: SnapshotId, outcome: Snapshot | Abandoned) -> None:
        self.outcomes[snapshot] = outcome
        self.news += [(What.GAVE_UP, process, snapshot) for process in self.balances]

    def _carry_out(self, process: ProcessId, effects: list[Effect]) -> None:
        outcome: Snapshot | Abandoned | None
        for effect in effects:
            match effect:
                case SendMarker(target, marker):
                    assert isinstance(marker, CountingMarker)
                    channel = Channel(process, target)
                    self.log.append(
                        Event(What.MARKER_SENT, process, channel, snapshot=marker.snapshot)
                    )
                    self.bags[channel].append(marker)
                    continue
                case Recorded(fragment):
                    snapshot = fragment.snapshot
                    outcome = self.assembler.add(fragment, 0.5)
                case NotRecorded(snapshot, detail):
                    self.late_count += snapshot in self.outcomes
                    outcome = self.assembler.abandon(snapshot, Reason.NOT_RECORDED, detail)
            if outcome is not None:
                self._over(snapshot, outcome)


@dataclass(frozen=True)
class Truth:
    """What a snapshot must hold."""

    balances: dict[ProcessId, int]
    sent: dict[Channel, dict[int, int]]
    received: dict[Channel, set[int]]

    def in_transit(self, channel: Channel) -> list[int]:
        """Return the amounts sent before the source's cut and not received before the target's."""
        received = self.received[channel]
        return [amount for n, amount in sorted(self.sent[channel].items()) if n not in received]


def cut_indexes(log: list[Event], snapshot: SnapshotId) -> dict[ProcessId, int]:
    """Return before which entry of the log each process's cut lies: the first by which it hears of
    the snapshot, be it a request, a marker or a message sent after the source's cut."""
    cuts: dict[ProcessId, int] = {}
    red: set[tuple[Channel | None, int]] = set()
    for index, event in enumerate(log):
        hears = event.snapshot == snapshot and event.what in (What.INITIATED, What.MARKER_RECEIVED)
        if hears or (event.what is What.RECEIVED and (event.channel, event.number) in red):
            cuts.setdefault(event.process, index)
        if event.what is What.SENT and event.process in cuts:
            red.add((event.channel, event.number))
    return cuts


def truth(world: Unordered, snapshot: SnapshotId) -> Truth:
    """Return what `snapshot` must hold, by replaying every process up to its cut."""
    cuts = cut_indexes(world.log, snapshot)
    found = Truth(
        dict.fromkeys(world.balances, START_BALANCE),
        {channel: {} for channel in world.bags},
        {channel: set() for channel in world.bags},
    )
    for index, event in enumerate(world.log):
        if event.channel is None or index >= cuts[event.process]:
            continue
        if event.what is What.SENT:
            found.balances[event.process] -= event.message
            found.sent[event.channel][event.number] = event.message
        elif event.what is What.RECEIVED:
            found.balances[event.process] += event.message
            found.received[event.channel].add(event.number)
    return found


def random_unordered(chance: Random, *, step_count: int) -> Unordered:
    """Let accounts on any graph act at random until nothing is on its way."""
    names = [f"P{index}" for index in range(chance.randint(2, 5))]
    pairs = [(a, b) for a in names for b in names if a != b]
    density = chance.choice((0.2, 0.5, 1.0))
    channels = [pair for pair in pairs if chance.random() < density] or pairs[:1]
    world = Unordered(names, channels)
    for _ in range(step_count):
        draw = chance.random()
        if draw < 0.4:
            amounts = [chance.randint(1, 9) for _ in range(chance.randint(1, 3))]
            world.send(*chance.choice(channels), *amounts)
        elif draw < 0.9:
            world.happen(chance)
        elif draw < 0.97 or not world.begun:
            world.begin(SnapshotId(chance.choice(names), len(world.begun) + 1))
        elif draw < 0.98:
            world.news.append((What.INITIATED, chance.choice(names), chance.choice(world.begun)))
        else:
            world.give_up(chance.choice(world.begun))
    world.drain(chance)
    return world
