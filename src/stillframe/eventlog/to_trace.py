"""From an event log to a trace, for logs that are small enough for one machine's memory.

The logs of the processes are merged into one possible order, in which each message and each marker
is accepted after it was sent. Where the log of a process ends too early, because it was killed, its
last messages are unknown: the trace ends before everything that depends on them.
"""

from collections import deque
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
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
from stillframe.trace import Event, MarkerStep, MessageId, Step, Trace


class MarkerId(NamedTuple):
    """A marker: its channel and its snapshot."""

    channel: Channel
    snapshot: SnapshotId


class CausalMerge:
    """Merges the steps of several processes into one possible order.

    Args:
        lines: process -> its steps in order; those that can have happened are taken out.
    """

    def __init__(self, lines: dict[ProcessId, deque[Step]]) -> None:
        self._lines = lines
        self._sent: set[MessageId | MarkerId] = set()

    def steps(self) -> Iterator[Step]:
        """Yield all steps that can have happened, each after those that sent what it accepts.

        Raises:
            NotConsistent: processes wait for each other's messages in a cycle.
        """
        ready = deque(self._lines)
        waiting: dict[ProcessId, set[ProcessId]] = {process: set() for process in self._lines}
        while ready:
            process = ready.popleft()
            if not (line := self._lines[process]):
                continue
            if (awaited := self._awaited(line[0])) is not None:
                waiting[awaited.channel.source].add(process)
                continue
            step = line.popleft()
            sent = _sent_in(step)
            self._sent |= sent
            yield step
            ready.append(process)
            for target in {one.channel.target for one in sent} & waiting[process]:
                waiting[process].remove(target)
                ready.append(target)
        self._check_rest()

    def _awaited(self, step: Step) -> MessageId | MarkerId | None:
        """Return what must be sent before `step`; None if it can happen now."""
        return next((one for one in _accepted_in(step) if one not in self._sent), None)

    def _check_rest(self) -> None:
        """Check that the steps left are not waiting for each other."""
        for first in self._lines:
            path = [first]
            while (line := self._lines[path[-1]]) and (awaited := self._awaited(line[0])):
                source = awaited.channel.source
                if not any(awaited in _sent_in(step) for step in self._lines[source]):
                    break
                if source in path:
                    circle = ", ".join(path[path.index(source) :])
                    raise NotConsistent(
                        f"no execution is like that: each of {circle} accepts first what another "
                        "of them sends after that"
                    )
                path.append(source)


def _accepted_in(step: Step) -> tuple[MessageId | MarkerId, ...]:
    if not isinstance(step, MarkerStep):
        return step.accepted
    if step.source is None:
        return ()
    return (MarkerId(Channel(step.source, step.process), step.snapshot),)


def _sent_in(step: Step) -> set[MessageId | MarkerId]:
    if not isinstance(step, MarkerStep):
        return {*step.sent}
    return {MarkerId(Channel(step.process, target), step.snapshot) for target in step.targets}


ROW_COUNT_MAX = 10**6
EARLIER = "before this log"
"""Label of the event for everything before the log of a process begins, if a message from then is
accepted later."""


def read_trace(log: Path, epoch: int, *, row_count_max: int = ROW_COUNT_MAX) -> Trace:
    """Return the trace of one epoch of the event log `log`.

    Messages that were accepted before the log of their target begins are left out.

    Args:
        log: the directory of the event log.
        epoch: of the system.
        row_count_max: maximum rows to read into memory.

    Raises:
        UsageError: there is no such epoch, it has more rows, or rows in the middle were lost.
        Damaged: a file is not what was written.
        NotConsistent: no execution is like that.
        OSError: a file cannot be read.
    """
    found = list_segments(log, epoch)
    if not found:
        known = ", ".join(map(str, sorted({one.header.epoch for one in list_segments(log)})))
        raise UsageError(f"{log} holds nothing of epoch {epoch}: it has {known or 'no epoch'}")
    row_count = sum(segment.row_count for segment in found)
    if row_count > row_count_max:
        raise UsageError(
            f"{log} has {row_count:,} rows of epoch {epoch}, and a trace may have "
            f"{row_count_max:,}: ask the files themselves, with Spark or in SQL"
        )
    headers = {
        process: next(own).header for process, own in groupby(found, key=lambda p: p.header.process)
    }
    for header in headers.values():
        for other in (*header.sent, *header.received):
            if other not in headers:
                raise UsageError(
                    f"{log} has no log of process {other} in epoch {epoch}: bring the files of all "
                    "machines into one directory"
                )
    in_transit = sum(
        len(numbers)
        for header in headers.values()
        for numbers in _in_transit(headers, header).values()
    )
    if in_transit > row_count_max:
        raise UsageError(
            f"{in_transit:,} messages were in transit when the logs in {log}/e{epoch} begin, "
            f"and a trace may have {row_count_max:,}: ask the files themselves"
        )
    lines: dict[ProcessId, deque[Step]] = {p: deque(_earlier(headers, p)) for p in headers}
    for process, own in groupby(found, key=lambda p: p.header.process):
        lines[process].extend(_steps(list(own), headers))
    channels = [
        Channel(process, target) for process, header in headers.items() for target in header.sent
    ]
    return Trace(headers, CausalMerge(lines).steps(), channels)


def _in_transit(
    headers: dict[ProcessId, SegmentHeader], header: SegmentHeader
) -> dict[ProcessId, range]:
    """Return the messages of a process that were in transit when the logs begin, by target."""
    return {
        target: range(headers[target].received.get(header.process, 0) + 1, count + 1)
        for target, count in header.sent.items()
    }


def _earlier(headers: dict[ProcessId, SegmentHeader], process: ProcessId) -> Iterator[Step]:
    """Yield an event that sends the messages that were in transit when the logs begin, if any."""
    sent = tuple(
        MessageId(Channel(process, target), number)
        for target, numbers in _in_transit(headers, headers[process]).items()
        for number in numbers
    )
    if sent:
        yield Event(process, label=EARLIER, sent=sent)


def _steps(own: list[Segment], headers: dict[ProcessId, SegmentHeader]) -> Iterator[Step]:
    """Yield the steps of one process."""
    process = own[0].header.process
    for rows in grouped(_rows(own)):
        if rows[0].snapshot is None:
            yield _action(process, rows, headers)
        else:
            yield _marker_step(process, rows, headers)


def _rows(own: list[Segment]) -> Iterator[Row]:
    last = own[0].header.event_count
    for segment in own:
        is_checked = False
        for table in read_segment(segment):
            for row in rows_of(table.drop_columns(["recorded"])):
                if not is_checked and segment.header.event_count != last:
                    raise UsageError(
                        f"{segment.path} begins after {segment.header.event_count} actions, and "
                        f"the rows before it end with {last}: what lies between was lost, and a "
                        "trace cannot be without it; ask the files themselves, with Spark or in SQL"
                    )
                is_checked = True
                if row.event not in (last, last + 1):
                    raise Damaged(f"{segment.path}: after action {last} comes action {row.event}")
                last = row.event
                yield row


def _channel(row: Row, process: ProcessId, headers: dict[ProcessId, SegmentHeader]) -> Channel:
    """Return the channel of a row, which must be one of `process` with one that has a log."""
    source, _, target = (row.channel or "").partition("->")
    if not {source, target} <= headers.keys() or process not in (source, target):
        raise Damaged(
            f"the event log of {process} has a row of channel {row.channel!r}, which is none "
            "of its channels: bring the files back that were written"
        )
    return Channel(source, target)


def _action(process: ProcessId, rows: list[Row], headers: dict[ProcessId, SegmentHeader]) -> Event:
    accepted, sent = [], []
    for row in rows:
        if row.kind in (ACCEPTED, SENT):
            channel, number = _channel(row, process, headers), row.number or 0
            if row.kind == ACCEPTED:
                accepted.append(MessageId(channel, number))
            elif number > headers[channel.target].received.get(process, 0):
                sent.append(MessageId(channel, number))
    return Event(process, accepted=tuple(accepted), sent=tuple(sent))


def _marker_step(
    process: ProcessId, rows: list[Row], headers: dict[ProcessId, SegmentHeader]
) -> MarkerStep:
    sources = [
        _channel(row, process, headers).source for row in rows if row.kind == MARKER_ACCEPTED
    ]
    targets = [_channel(row, process, headers).target for row in rows if row.kind == MARKER_SENT]
    at = rows[0].at
    return MarkerStep(
        process,
        SnapshotId.parse(rows[0].snapshot or ""),
        source=sources[0] if sources else None,
        is_cut=any(row.kind == RECORDED for row in rows),
        targets=tuple(targets),
        at=None if at is None else at / 1e6,
    )
