"""What a snapshot must hold, found by brute force in the log of an execution. No recorder in here.

A cut is known from the log alone: a process records its state at the first thing that it hears of
the snapshot, a request or a marker.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.topology import Description
from tests.protocol.execution import Event, What

Log = list[Event]


def indexes(log: Log, process: ProcessId, snapshot: SnapshotId, *whats: What) -> list[int]:
    """Return where in the log these things happened to `snapshot` at `process`."""
    return [
        index
        for index, event in enumerate(log)
        if event.process == process and event.snapshot == snapshot and event.what in whats
    ]


def cut_index(log: Log, process: ProcessId, snapshot: SnapshotId) -> int | None:
    """Return before which entry of the log `process` recorded its state; None if it never did."""
    heard = indexes(log, process, snapshot, What.INITIATED, What.MARKER_RECEIVED, What.GAVE_UP)
    return heard[0] if heard and log[heard[0]].what is not What.GAVE_UP else None


def is_complete(log: Log, description: Description, snapshot: SnapshotId) -> bool:
    """Return whether every process had all its markers before it gave up, if it did."""
    for process in description.processes:
        cut = cut_index(log, process, snapshot)
        markers = indexes(log, process, snapshot, What.MARKER_RECEIVED)
        if cut is None or len(markers) < len(description.incoming(process)):
            return False
        gave_up = indexes(log, process, snapshot, What.GAVE_UP)
        if gave_up and gave_up[0] < max([cut, *markers]):
            return False
    return True


def events_before(log: Log, description: Description, snapshot: SnapshotId) -> Log:
    """Return the sends and receipts that each process did before its cut, as they happened."""
    cuts = {process: cut_index(log, process, snapshot) for process in description.processes}
    return [
        event
        for index, event in enumerate(log)
        if event.what in (What.SENT, What.RECEIVED) and index < (cuts[event.process] or 0)
    ]


def on_channel(before: Log, channel: Channel) -> list[tuple[int, Any]]:
    """Return what was sent before the source's cut and not received before the target's."""
    received = {e.number for e in before if e.what is What.RECEIVED and e.channel == channel}
    return [
        (event.number, event.message)
        for event in before
        if event.what is What.SENT and event.channel == channel and event.number not in received
    ]


def count(before: Log, what: What, channel: Channel) -> int:
    """Return how many messages of `channel` were sent, or received."""
    return sum(event.what is what and event.channel == channel for event in before)


def causes(log: Log, event: Event) -> set[Event]:
    """Return what happened immediately before `event`: at its process, and on its channel."""
    local = [e for e in log[: log.index(event)] if e.process == event.process]
    sends = [
        e
        for e in log
        if event.what is What.RECEIVED
        and (e.what, e.channel, e.number) == (What.SENT, event.channel, event.number)
    ]
    return {*local[-1:], *sends}


def past(log: Log, events: Iterable[Event]) -> set[Event]:
    """Return `events` and everything that happened before any of them (Lamport 1978)."""
    actions = [e for e in log if e.what in (What.SENT, What.RECEIVED)]
    found, frontier = set(events), list(events)
    while frontier:
        new = causes(actions, frontier.pop()) - found
        found |= new
        frontier.extend(new)
    return found


def replay(
    start: dict[ProcessId, int], events: Log
) -> tuple[dict[ProcessId, int], dict[Channel, list[int]]]:
    """Let accounts do `events` in the order given; return the balances and what is on the way.

    Raises:
        AssertionError: the order is no computation: a message is received that is not the first on
            its channel.
    """
    balances = dict(start)
    channels: dict[Channel, deque[int]] = {}
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
