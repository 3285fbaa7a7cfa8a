"""From an event log to a trace, for logs that are small enough for one machine's memory.

The logs of the processes are merged into one possible order, in which each message and each marker
is accepted after it was sent. Where the log of a process ends too early, because it was killed, its
last messages are unknown: the trace ends before everything that depends on them.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from typing import NamedTuple

from stillframe.errors import Damaged, NotConsistent, UsageError
from stillframe.eventlog.reader import Segment, SegmentHeader, list_segments, read_segment
from stillframe.eventlog.segments import (
    ACCEPTED,
    MARKER_ACCEPTED,
    MARKER_SENT,
    RECORDED,
    SENT,
    Row,
    grouped,
    rows_of,
)
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.storage.location import Location
from stillframe.trace import Event, MarkerStep, MessageId, Step, Trace

ROW_COUNT_MAX = 10**6
EARLIER = "before this log"
"""Label of the event for everything before the log of a process begins, if a message from then is
accepted later."""

Headers = Mapping[ProcessId, SegmentHeader]
"""What came before the log of each process."""


class MarkerId(NamedTuple):
    """A marker: its channel and its snapshot."""

    channel: Channel
    snapshot: SnapshotId


Sent = MessageId | MarkerId


def in_causal_order(lines: Mapping[ProcessId, deque[Step]]) -> Iterator[Step]:
    """Yield the steps of all processes, each after those that sent what it accepts. What depends
    on something that no step sends stays in `lines`. NotConsistent: they wait for each other's
    messages in a cycle.
    """
    sent: set[Sent] = set()
    waiting: dict[Sent, ProcessId] = {}
    ready = deque(lines)
    while ready:
        process = ready.popleft()
        if not (line := lines[process]):
            continue
        if missing := [one for one in _accepted_in(line[0]) if one not in sent]:
            waiting[missing[0]] = process
            continue
        step = line.popleft()
        yield step
        new = _sent_in(step)
        sent |= new
        ready.append(process)
        ready += [waiting.pop(one) for one in new & waiting.keys()]
    sources = {
        process: [one.channel.source]
        for one, process in waiting.items()
        if any(one in _sent_in(step) for step in lines.get(one.channel.source, ()))
    }
    try:
        TopologicalSorter(sources).prepare()
    except CycleError as error:
        raise NotConsistent(
            f"no execution has this order: each of {', '.join(sorted({*error.args[1]}))} first "
            "accepts a message that another of them sends later"
        ) from error


def _accepted_in(step: Step) -> tuple[Sent, ...]:
    if not isinstance(step, MarkerStep):
        return step.accepted
    if step.source is None:
        return ()
    return (MarkerId(Channel(step.source, step.process), step.snapshot),)


def _sent_in(step: Step) -> set[Sent]:
    if not isinstance(step, MarkerStep):
        return {*step.sent}
    return {MarkerId(Channel(step.process, target), step.snapshot) for target in step.targets}


def read_trace(log: Location, epoch: int, *, row_count_max: int = ROW_COUNT_MAX) -> Trace:
    """Return the trace of one epoch of the event log `log`, without the messages that were accepted
    before the log of their target begins.

    UsageError: there is no such epoch, it has more rows, or rows in the middle were lost; Damaged:
    a file is not what was written; NotConsistent: the steps contradict each other, so no execution
    has them.
    """
    found = list_segments(log, epoch)
    if not found:
        known = ", ".join(map(str, sorted({one.header.epoch for one in list_segments(log)})))
        raise UsageError(f"{log} contains nothing of epoch {epoch}: it has {known or 'no epoch'}")
    row_count = sum(segment.row_count for segment in found)
    if row_count > row_count_max:
        raise UsageError(
            f"{log} has {row_count:,} rows of epoch {epoch}, and a trace may have "
            f"{row_count_max:,}: query the files directly, with Spark or in SQL"
        )
    by_process = groupby(found, key=lambda segment: segment.header.process)
    files = {process: list(own) for process, own in by_process}
    headers = {process: own[0].header for process, own in files.items()}
    for header in headers.values():
        for other in (*header.sent, *header.received):
            if other not in headers:
                raise UsageError(
                    f"{log} has no log of process {other} in epoch {epoch}: copy the files of "
                    "all machines into one directory"
                )
    channels = [
        Channel(process, target) for process, header in headers.items() for target in header.sent
    ]
    in_transit = {channel: _in_transit(channel, headers) for channel in channels}
    total = sum(map(len, in_transit.values()))
    if total > row_count_max:
        raise UsageError(
            f"{total:,} messages were in transit when the logs in {log}/e{epoch} begin, and a "
            f"trace may have {row_count_max:,}: query the files directly"
        )
    lines: dict[ProcessId, deque[Step]] = {process: deque() for process in headers}
    for process, own in files.items():
        earlier = tuple(
            MessageId(channel, number)
            for channel in (Channel(process, target) for target in headers[process].sent)
            for number in in_transit[channel]
        )
        if earlier:
            lines[process].append(Event(process, label=EARLIER, sent=earlier))
        for rows in grouped(_rows(own, headers)):
            is_action = rows[0].snapshot is None
            step = _action(process, rows, headers) if is_action else marker_step(process, rows)
            lines[process].append(step)
    return Trace(headers, in_causal_order(lines), channels)


def _in_transit(channel: Channel, headers: Headers) -> range:
    """Return the messages that were on the channel when the logs begin."""
    received = headers[channel.target].received.get(channel.source, 0)
    return range(received + 1, headers[channel.source].sent[channel.target] + 1)


def _rows(own: list[Segment], headers: Headers) -> Iterator[Row]:
    """Yield the rows of one process, whose actions must follow each other, on its channels."""
    process = own[0].header.process
    last = own[0].header.event_count
    for segment in own:
        is_checked = False
        for table in read_segment(segment):
            for row in rows_of(table.drop_columns(["recorded"])):
                if not is_checked and segment.header.event_count != last:
                    raise UsageError(
                        f"{segment.path} begins after {segment.header.event_count} actions, and "
                        f"the rows before it end with {last}: the actions in between were lost, "
                        "and a trace needs them; query the files directly, with Spark or in SQL"
                    )
                is_checked = True
                if row.event not in (last, last + 1):
                    raise Damaged(f"{segment.path}: after action {last} comes action {row.event}")
                last = row.event
                if row.kind in (ACCEPTED, SENT, MARKER_ACCEPTED, MARKER_SENT):
                    ends = channel_of(row)
                    of_log = {ends.source, ends.target} <= headers.keys()
                    if not of_log or process not in (ends.source, ends.target):
                        raise foreign_channel(process, row.channel)
                yield row


def foreign_channel(process: ProcessId, channel: str | None) -> Damaged:
    """Return the error that the log of a process has rows of a channel that it does not have."""
    return Damaged(
        f"the event log of {process} has a row of channel {channel!r}, which is not one of its "
        "channels: put the original files back"
    )


def channel_of(row: Row) -> Channel:
    """Return the channel of a row that is on one."""
    source, _, target = (row.channel or "").partition("->")
    return Channel(source, target)


def _action(process: ProcessId, rows: Sequence[Row], headers: Headers) -> Event:
    accepted, sent = [], []
    for row in rows:
        if row.kind in (ACCEPTED, SENT):
            message = MessageId(channel_of(row), row.number or 0)
            if row.kind == ACCEPTED:
                accepted.append(message)
            elif message.number > headers[message.channel.target].received.get(process, 0):
                sent.append(message)
    return Event(process, accepted=tuple(accepted), sent=tuple(sent))


def marker_step(process: ProcessId, rows: Sequence[Row]) -> MarkerStep:
    """Return the step of a snapshot that these rows are."""
    sources = [channel_of(row).source for row in rows if row.kind == MARKER_ACCEPTED]
    at = rows[0].at
    return MarkerStep(
        process,
        SnapshotId.parse(rows[0].snapshot or ""),
        source=sources[0] if sources else None,
        is_cut=any(row.kind == RECORDED for row in rows),
        targets=tuple(channel_of(row).target for row in rows if row.kind == MARKER_SENT),
        at=None if at is None else at / 1e6,
    )
