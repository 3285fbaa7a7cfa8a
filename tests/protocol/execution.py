"""Real recorders over queues in memory, and a log of all that happened, for an oracle to judge."""

import enum
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from stillframe.errors import UsageError
from stillframe.model import (
    Abandoned,
    Batch,
    Channel,
    Marker,
    ProcessId,
    ProcessState,
    Reason,
    Snapshot,
    SnapshotId,
)
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.recorder import Effect, NotRecorded, Recorded, Recorder, SendMarker
from stillframe.topology import Description


def describe(processes: Iterable[ProcessId], channels: Iterable[tuple[str, str]]) -> Description:
    """Return the description of processes that are all of one class."""
    return Description(
        processes=dict.fromkeys(sorted(processes), "Account"),
        channels=tuple(sorted(Channel(*pair) for pair in channels)),
        states={},
        messages={},
        accepts={},
    )


def state_of(process: ProcessId, value: Any) -> ProcessState:
    """Return what `process` records when its state is `value`."""
    return ProcessState(process, "Account", msgspec.msgpack.encode(value))


def messages_in(batches: Iterable[Batch]) -> list[Any]:
    """Return the messages of `batches`, decoded."""
    return [message for batch in batches for message in msgspec.msgpack.decode(batch.encoded)]


class What(enum.Enum):
    """What an event is."""

    SENT = "sent"
    RECEIVED = "received"
    MARKER_SENT = "marker sent"
    MARKER_RECEIVED = "marker received"
    INITIATED = "initiated"
    GAVE_UP = "gave up"


@dataclass(frozen=True, eq=False)
class Event:
    """Something that happened at `process`; two events are never equal."""

    what: What
    process: ProcessId
    channel: Channel | None = None
    number: int = 0
    message: Any = None
    snapshot: SnapshotId | None = None


class Execution:
    """A system in memory: the test says what happens next.

    Args:
        channels: pairs (source, target); they name the processes, too.
        states: the start state of each process.
        receive: (state, message) -> the state after the message.
    """

    def __init__(
        self,
        channels: Iterable[tuple[ProcessId, ProcessId]],
        states: dict[ProcessId, Any],
        receive: Callable[[Any, Any], Any] = lambda state, message: state,
    ) -> None:
        self.description = describe(states, channels)
        self.start = dict(states)
        self.states = dict(states)
        self.log: list[Event] = []
        self.queues: dict[Channel, deque[Batch | Marker]] = {
            channel: deque() for channel in self.description.channels
        }
        self.outcomes: dict[SnapshotId, Snapshot | Abandoned] = {}
        self.unrecordable: set[ProcessId] = set()
        self.recorders = {process: self._recorder(process) for process in states}
        self.assembler = Assembler(self.description, epoch=1)
        self._receive = receive
        self._sent_counts = dict.fromkeys(self.description.channels, 0)

    @property
    def snapshots(self) -> list[SnapshotId]:
        """Every snapshot that was initiated."""
        return list(dict.fromkeys(e.snapshot for e in self.log if e.snapshot is not None))

    def send(self, source: ProcessId, target: ProcessId, *messages: Any) -> None:
        """Send `messages` as one batch."""
        channel = Channel(source, target)
        first = self._sent_counts[channel] + 1
        self._sent_counts[channel] += len(messages)
        for number, message in enumerate(messages, first):
            self.log.append(Event(What.SENT, source, channel, number, message))
        self.queues[channel].append(Batch.of(first, [msgspec.msgpack.encode(m) for m in messages]))

    def deliver(self, source: ProcessId, target: ProcessId, count: int | None = None) -> None:
        """Let the target take the marker or the batch at the head; of a batch only `count`."""
        channel = Channel(source, target)
        item = self.queues[channel].popleft()
        if isinstance(item, Marker):
            self.log.append(Event(What.MARKER_RECEIVED, target, channel, snapshot=item.snapshot))
            self._report_sent(target)
            self._carry_out(target, self.recorders[target].marker(source, item))
            return
        if count is not None and count < item.count:
            item, rest = item.split(count)
            self.queues[channel].appendleft(rest)
        for number, message in enumerate(messages_in([item]), item.first):
            self.states[target] = self._receive(self.states[target], message)
            self.log.append(Event(What.RECEIVED, target, channel, number, message))
        self.recorders[target].receive(source, item)

    def initiate(self, snapshot: SnapshotId, process: ProcessId | None = None) -> None:
        """Let `process`, or else the one that `snapshot` names, begin."""
        process = process or snapshot.initiator
        if snapshot not in self.snapshots:
            self.assembler.begin(snapshot, 0.0, timeout_s=1.0)
        self.log.append(Event(What.INITIATED, process, snapshot=snapshot))
        self._report_sent(process)
        self._carry_out(process, self.recorders[process].initiate(snapshot))

    def give_up(self, snapshot: SnapshotId, process: ProcessId) -> None:
        """Let `process` stop recording `snapshot`."""
        self.log.append(Event(What.GAVE_UP, process, snapshot=snapshot))
        self.recorders[process].abandon(snapshot)

    def drain(self, chance: Random | None = None) -> None:
        """Deliver everything, in the order of the channels or in one that `chance` chooses."""
        while busy := [channel for channel, queue in self.queues.items() if queue]:
            channel = chance.choice(busy) if chance else busy[0]
            self.deliver(channel.source, channel.target)

    def recorded_states(self, snapshot: SnapshotId) -> dict[ProcessId, Any]:
        """Return the states that a complete snapshot holds."""
        return {
            state.process: msgspec.msgpack.decode(state.encoded)
            for state in self.complete(snapshot).state.processes
        }

    def recorded_messages(self, snapshot: SnapshotId) -> dict[Channel, list[Any]]:
        """Return the messages that a complete snapshot holds, channel by channel."""
        return {
            state.channel: messages_in(state.batches)
            for state in self.complete(snapshot).state.channels
        }

    def complete(self, snapshot: SnapshotId) -> Snapshot:
        """Return a snapshot that must be complete."""
        outcome = self.outcomes[snapshot]
        assert isinstance(outcome, Snapshot), outcome
        return outcome

    def _recorder(self, process: ProcessId) -> Recorder:
        def capture() -> ProcessState:
            if process in self.unrecordable:
                raise UsageError("a field cannot be recorded")
            return state_of(process, self.states[process])

        return Recorder(
            process,
            incoming=dict.fromkeys(self.description.incoming(process), 0),
            outgoing=dict.fromkeys(self.description.outgoing(process), 0),
            capture=capture,
        )

    def _report_sent(self, process: ProcessId) -> None:
        # As late as the rules allow: right before the recorder may take a cut.
        for target in self.description.outgoing(process):
            self.recorders[process].sent(target, self._sent_counts[Channel(process, target)])

    def _carry_out(self, process: ProcessId, effects: list[Effect]) -> None:
        outcome: Snapshot | Abandoned | None
        for effect in effects:
            match effect:
                case SendMarker(target, marker):
                    channel = Channel(process, target)
                    event = Event(What.MARKER_SENT, process, channel, snapshot=marker.snapshot)
                    self.log.append(event)
                    self.queues[channel].append(marker)
                    continue
                case Recorded(fragment):
                    snapshot = fragment.snapshot
                    outcome = self.assembler.add(fragment, 0.5)
                case NotRecorded(snapshot, detail):
                    outcome = self.assembler.abandon(snapshot, Reason.NOT_RECORDED, detail)
            if outcome is not None:
                self.outcomes[snapshot] = outcome


START_BALANCE = 100


def random_execution(chance: Random, *, step_count: int) -> Execution:
    """Let accounts on a random strongly connected graph act at random until nothing is on its way.

    Several snapshots overlap; some have several initiators, and some are given up somewhere.
    """
    names = [f"P{index}" for index in range(chance.randint(2, 5))]
    ring = list(zip(names, names[1:] + names[:1], strict=True))
    chords = [(a, b) for a in names for b in names if a != b and (a, b) not in ring]
    bank = Execution(
        ring + [pair for pair in chords if chance.random() < 0.4],
        dict.fromkeys(names, START_BALANCE),
        lambda balance, amount: balance + amount,
    )
    channels = bank.description.channels
    for _ in range(step_count):
        channel = chance.choice(channels)
        source, target = channel.source, channel.target
        draw = chance.random()
        if draw < 0.45:
            amounts = [chance.randint(1, 9) for _ in range(chance.randint(1, 3))]
            bank.states[source] -= sum(amounts)
            bank.send(source, target, *amounts)
        elif draw < 0.88:
            if bank.queues[channel]:
                bank.deliver(source, target, chance.randint(1, 3))
        elif draw < 0.96 or not bank.snapshots:
            joins = bank.snapshots and chance.random() < 0.3
            fresh = SnapshotId(source, len(bank.snapshots) + 1)
            bank.initiate(chance.choice(bank.snapshots) if joins else fresh, source)
        else:
            bank.give_up(chance.choice(bank.snapshots), source)
    bank.drain(chance)
    return bank
