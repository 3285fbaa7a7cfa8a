"""Real recorders over queues in memory, and a log of all that happened, for an oracle to judge."""

import enum
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import cycle, permutations
from random import Random
from typing import Any

import msgspec

from stillframe.errors import UsageError
from stillframe.model import (
    Abandoned,
    Batch,
    Channel,
    Fragment,
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

    def __str__(self) -> str:
        told = (self.process, self.what.value, self.channel, self.number, self.message)
        return " ".join(str(part) for part in (*told, self.snapshot) if part)


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
        self.snapshots: list[SnapshotId] = []
        self.fragments: dict[tuple[SnapshotId, ProcessId], Fragment] = {}
        self.outcomes: dict[SnapshotId, Snapshot | Abandoned] = {}
        self.split_count = 0
        self.unrecordable: set[ProcessId] = set()
        self.recorders = {process: self._recorder(process) for process in states}
        self.assembler = Assembler(self.description, epoch=1)
        self._receive = receive
        self._sent_counts = dict.fromkeys(self.description.channels, 0)

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
            self.split_count += 1
            self.queues[channel].appendleft(rest)
        for number, message in enumerate(messages_in([item]), item.first):
            self.states[target] = self._receive(self.states[target], message)
            self.log.append(Event(What.RECEIVED, target, channel, number, message))
        self.recorders[target].receive(source, item)

    def initiate(self, snapshot: SnapshotId, process: ProcessId | None = None) -> None:
        """Let `process`, or else the one that `snapshot` names, begin."""
        process = process or snapshot.initiator
        if snapshot not in self.snapshots:
            self.snapshots.append(snapshot)
            self.assembler.begin(snapshot, 0.0, timeout_s=1.0)
        self.log.append(Event(What.INITIATED, process, snapshot=snapshot))
        self._report_sent(process)
        self._carry_out(process, self.recorders[process].initiate(snapshot))

    def give_up(self, snapshot: SnapshotId, process: ProcessId) -> None:
        """Let `process` stop recording `snapshot`."""
        self.log.append(Event(What.GAVE_UP, process, snapshot=snapshot))
        self.recorders[process].abandon(snapshot)

    def busy(self) -> list[Channel]:
        """Return the channels that something is on."""
        return [channel for channel, queue in self.queues.items() if queue]

    def drain(self, schedule: bytes = b"\0") -> None:
        """Deliver everything, in the order of the channels or in the one that `schedule` chooses:
        each number, again and again, one of the channels that something is on."""
        numbers = cycle(schedule)
        while busy := self.busy():
            channel = busy[next(numbers) % len(busy)]
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
                    self.fragments[snapshot, process] = fragment
                    outcome = self.assembler.add(fragment, 0.5)
                case NotRecorded(snapshot, detail):
                    outcome = self.assembler.abandon(snapshot, Reason.NOT_RECORDED, detail)
            if outcome is not None:
                self.outcomes[snapshot] = outcome


START_BALANCE = 100
PROCESS_COUNT_MAX = 5


def accounts(process_count: int, graph: int, *, is_ring: bool) -> Execution:
    """Return accounts; each bit of `graph` says whether there is one of the possible channels.

    With `is_ring` there is a way round besides, so that the graph is strongly connected; otherwise
    it may be a chain, a star, or fall into pieces.
    """
    names = [f"P{number}" for number in range(1, process_count + 1)]
    ring = set(zip(names, names[1:] + names[:1], strict=True)) if is_ring else set()
    pairs = enumerate(permutations(names, 2))
    return Execution(
        [pair for bit, pair in pairs if graph >> bit & 1 or pair in ring],
        dict.fromkeys(names, START_BALANCE),
        lambda balance, amount: balance + amount,
    )


def act(bank: Execution, what: int, which: int) -> None:
    """Let one thing happen: `what` (below 256) says of which kind, `which` at which channel,
    process or snapshot. 0 is nothing, so that hypothesis can take a step out of a schedule."""
    channels, busy = bank.description.channels, bank.busy()
    names = tuple(bank.states)
    process = names[which % len(names)]
    begun = bank.snapshots[which // len(names) % len(bank.snapshots)] if bank.snapshots else None
    if 1 <= what < 100 and channels:
        channel = channels[which % len(channels)]
        amounts = [len(bank.log) + index for index in range(1 + what % 3)]
        bank.states[channel.source] -= sum(amounts)
        bank.send(channel.source, channel.target, *amounts)
    elif 100 <= what < 210 and busy:
        channel = busy[which % len(busy)]
        bank.deliver(channel.source, channel.target, 1 + what % 3)
    elif 210 <= what < 234:
        fresh = SnapshotId(process, len(bank.snapshots) + 1)
        reaches_all = what % 3 > 0
        for initiator in bank.description.initiators(process) if reaches_all else (process,):
            bank.initiate(fresh, initiator)
    elif 234 <= what < 246 and begun:
        bank.initiate(begun, process)
    elif what >= 246 and begun:
        for quitter in names if what % 3 == 0 else (process,):
            bank.give_up(begun, quitter)


def scheduled(bank: Execution, schedule: bytes, *, is_drained: bool) -> Execution:
    """Let accounts do what `schedule` says, two numbers for each step; then, if `is_drained`, let
    everything arrive.

    Snapshots overlap; some have several initiators, too few of them or late ones, and some are
    given up somewhere.
    """
    for what, which in zip(schedule[::2], schedule[1::2], strict=False):
        act(bank, what, which)
    if is_drained:
        bank.drain(schedule or b"\0")
    return bank


def random_execution(chance: Random, *, step_count: int = 60) -> Execution:
    """Let accounts on a random graph act at random until nothing is on its way."""
    process_count = chance.randint(2, PROCESS_COUNT_MAX)
    bank = accounts(process_count, chance.getrandbits(20), is_ring=chance.random() < 0.5)
    return scheduled(bank, chance.randbytes(2 * step_count), is_drained=True)
