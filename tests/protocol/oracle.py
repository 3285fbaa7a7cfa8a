"""What a snapshot must hold, found by brute force in the log of an execution. No recorder in here.

A cut is known from the log alone: a process records its state at the first thing that it hears of
the snapshot, a request or a marker.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from stillframe.model import Channel, ProcessId, Snapshot, SnapshotId
from tests.protocol.execution import Event, Execution, What, random_execution

Log = list[Event]
Numbered = list[tuple[int, Any]]
"""Messages, each with its number on its channel."""


@dataclass
class Part:
    """What the log says of one process in one snapshot.

    Attributes:
        cut: before which entry of the log it recorded its state; None if it never did.
        marked: from whom a marker came while it was recording.
        is_whole: whether all its markers came before it gave up, if it did.
        gave_up: whether it gave up before that.
        markers_sent: which entry of the log is a marker that it sent, and to whom.
    """

    cut: int | None = None
    marked: set[ProcessId] = field(default_factory=set)
    is_whole: bool = False
    gave_up: bool = False
    markers_sent: list[tuple[int, ProcessId]] = field(default_factory=list)


def parts(system: Execution) -> dict[SnapshotId, dict[ProcessId, Part]]:
    """Return what every process did in every snapshot."""
    sources = {p: set(system.description.incoming(p)) for p in system.states}
    found = {s: {p: Part() for p in system.states} for s in system.snapshots}
    for index, event in enumerate(system.log):
        if event.snapshot is None:
            continue
        part, channel = found[event.snapshot][event.process], event.channel
        if event.what is What.MARKER_SENT:
            assert channel is not None
            part.markers_sent.append((index, channel.target))
        elif event.what is What.GAVE_UP:
            part.gave_up = part.gave_up or not part.is_whole
        elif not part.gave_up:
            part.cut = index if part.cut is None else part.cut
            if channel is not None:
                part.marked.add(channel.source)
            part.is_whole = part.marked == sources[event.process]
    return found


class Truth:
    """The global state at the cuts of one snapshot, and what came after them.

    Attributes:
        white: what the processes sent and received before their cuts, as it happened.
        red: what they sent and received after them.
        balances: what each process held at its cut.
        sent: channel -> what its source had sent at its cut.
        received: channel -> what its target had received at its own.
        received_later: channel -> what its target has received since.
    """

    def __init__(self, system: Execution, parts_of: dict[ProcessId, Part]) -> None:
        cuts = {process: part.cut or 0 for process, part in parts_of.items()}
        self.white: Log = []
        self.red: Log = []
        self.balances = dict(system.start)
        self.sent: dict[Channel, Numbered] = {c: [] for c in system.queues}
        self.received: dict[Channel, Numbered] = {c: [] for c in system.queues}
        self.received_later: dict[Channel, Numbered] = {c: [] for c in system.queues}
        for index, event in enumerate(system.log):
            channel, is_white = event.channel, index < cuts[event.process]
            if channel is None or event.snapshot is not None:
                continue
            (self.white if is_white else self.red).append(event)
            if is_white:
                is_sent = event.what is What.SENT
                self.balances[event.process] += -event.message if is_sent else event.message
                side = self.sent if is_sent else self.received
                side[channel].append((event.number, event.message))
            elif event.what is What.RECEIVED:
                self.received_later[channel].append((event.number, event.message))

    def on_channel(self, channel: Channel) -> Numbered:
        """Return what was sent before the source's cut and not received before the target's."""
        received = {number for number, _ in self.received[channel]}
        return [message for message in self.sent[channel] if message[0] not in received]


def random_snapshots(
    seed_count: int, *, step_count: int = 60
) -> Iterator[tuple[Execution, Snapshot, Truth]]:
    """Yield every complete snapshot of some random executions, and the truth about it."""
    for seed in range(seed_count):
        system = random_execution(Random(seed), step_count=step_count)
        for snapshot, parts_of in parts(system).items():
            if snapshot in system.outcomes:
                yield system, system.complete(snapshot), Truth(system, parts_of)


def actions(log: Log) -> Log:
    """Return what the application did."""
    return [event for event in log if event.what in (What.SENT, What.RECEIVED)]


def past(log: Log, events: Iterable[Event]) -> set[Event]:
    """Return `events` and everything that happened before any of them (Lamport 1978)."""
    last: dict[ProcessId, Event] = {}
    sends: dict[tuple[Channel | None, int], Event] = {}
    causes: dict[Event, list[Event]] = {}
    for event in actions(log):
        causes[event] = [last[event.process]] if event.process in last else []
        last[event.process] = event
        if event.what is What.SENT:
            sends[event.channel, event.number] = event
        else:
            causes[event].append(sends[event.channel, event.number])
    found, frontier = set(events), list(events)
    while frontier:
        new = set(causes[frontier.pop()]) - found
        found |= new
        frontier.extend(new)
    return found


def replay(
    start: dict[ProcessId, int], events: Log, on_the_way: dict[Channel, list[int]] | None = None
) -> tuple[dict[ProcessId, int], dict[Channel, list[int]]]:
    """Let accounts do `events` in the order given; return the balances and what is on the way.

    Args:
        start: the balances to begin with.
        events: what they do.
        on_the_way: what is on the channels to begin with.

    Raises:
        AssertionError: the order is no computation: a message is received that is not the first on
            its channel.
    """
    balances = dict(start)
    channels = {channel: deque(messages) for channel, messages in (on_the_way or {}).items()}
    for event in events:
        assert event.channel is not None
        queue = channels.setdefault(event.channel, deque())
        if event.what is What.SENT:
            balances[event.process] -= event.message
            queue.append(event.message)
        else:
            assert queue, f"{event} comes before it was sent"
            assert queue.popleft() == event.message
            balances[event.process] += event.message
    return balances, {channel: list(queue) for channel, queue in channels.items() if queue}
