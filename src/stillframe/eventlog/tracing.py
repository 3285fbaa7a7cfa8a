"""From an event log to a trace, for logs that are small enough for one machine's memory.

The logs of the processes are put into one possible order: each message and each marker is accepted
after it was sent. Where the log of a process ends too early, because it was killed, nobody knows
what it sent last: the trace ends before whatever depends on that.
"""

from collections import deque
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from stillframe.errors import Damaged, UsageError
from stillframe.eventlog.grouping import Row, grouped, rows_of
from stillframe.eventlog.merging import Merging
from stillframe.eventlog.parts import Span
from stillframe.eventlog.reading import Part, parts, tables
from stillframe.eventlog.schema import (
    ACCEPTED,
    MARKER_ACCEPTED,
    MARKER_SENT,
    RECORDED,
    SENT,
)
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.trace import Event, MarkerStep, MessageId, Step, Trace

ROW_COUNT_MAX = 10**6
EARLIER = "before this log"
"""The label of the event that stands for all that a process did before its log begins, if some of
what it sent then is accepted later."""


def read_trace(log: Path, epoch: int, *, row_count_max: int = ROW_COUNT_MAX) -> Trace:
    """Return what the event log `log` says of `epoch` as a trace.

    Messages that were accepted before the log of their target begins are left out.

    Args:
        log: the directory of the event log.
        epoch: of the system.
        row_count_max: how many rows may be read into memory.

    Raises:
        UsageError: there is no such epoch, it has more rows, or rows in the middle were lost.
        Damaged: a file is not what was written.
        NotConsistent: no execution is like that.
        OSError: a file cannot be read.
    """
    found = parts(log, epoch)
    if not found:
        known = ", ".join(str(e) for e in sorted({part.span.epoch for part in parts(log)}))
        raise UsageError(f"{log} holds nothing of epoch {epoch}: it has {known or 'no epoch'}")
    row_count = sum(part.row_count for part in found)
    if row_count > row_count_max:
        raise UsageError(
            f"{log} has {row_count:,} rows of epoch {epoch}, and a trace may have "
            f"{row_count_max:,}: ask the files themselves, with Spark or in SQL"
        )
    spans = {
        process: next(own).span for process, own in groupby(found, key=lambda p: p.span.process)
    }
    for span in spans.values():
        for other in (*span.sent, *span.received):
            if other not in spans:
                raise UsageError(
                    f"{log} has no log of process {other} in epoch {epoch}: bring the files of all "
                    "machines into one directory"
                )
    on_the_way = sum(
        len(numbers) for span in spans.values() for numbers in _on_the_way(spans, span).values()
    )
    if on_the_way > row_count_max:
        raise UsageError(
            f"{on_the_way:,} messages were on the way when the logs in {log}/e{epoch} begin, "
            f"and a trace may have {row_count_max:,}: ask the files themselves"
        )
    lines: dict[ProcessId, deque[Step]] = {p: deque(_earlier(spans, p)) for p in spans}
    for process, own in groupby(found, key=lambda p: p.span.process):
        lines[process].extend(_steps(list(own), spans))
    channels = [Channel(process, target) for process, span in spans.items() for target in span.sent]
    return Trace(spans, Merging(lines).steps(), channels)


def _on_the_way(spans: dict[ProcessId, Span], span: Span) -> dict[ProcessId, range]:
    """Return the messages of one process, by target, that were on the way when the logs begin."""
    return {
        target: range(spans[target].received.get(span.process, 0) + 1, count + 1)
        for target, count in span.sent.items()
    }


def _earlier(spans: dict[ProcessId, Span], process: ProcessId) -> Iterator[Step]:
    """Yield an event that sends what was on the way when the logs begin, if there was something."""
    sent = tuple(
        MessageId(Channel(process, target), number)
        for target, numbers in _on_the_way(spans, spans[process]).items()
        for number in numbers
    )
    if sent:
        yield Event(process, label=EARLIER, sent=sent)


def _steps(own: list[Part], spans: dict[ProcessId, Span]) -> Iterator[Step]:
    """Yield what the log of one process says."""
    process = own[0].span.process
    for rows in grouped(_rows(own)):
        if rows[0].snapshot is None:
            yield _action(process, rows, spans)
        else:
            yield _marker_step(process, rows, spans)


def _rows(own: list[Part]) -> Iterator[Row]:
    last = own[0].span.event_count
    for part in own:
        is_checked = False
        for table in tables(part):
            for row in rows_of(table.drop_columns(["recorded"])):
                if not is_checked and part.span.event_count != last:
                    raise UsageError(
                        f"{part.path} begins after {part.span.event_count} actions, and the rows "
                        f"before it end with {last}: what lies between was lost, and a trace "
                        "cannot be without it; ask the files themselves, with Spark or in SQL"
                    )
                is_checked = True
                if row.event not in (last, last + 1):
                    raise Damaged(f"{part.path}: after action {last} comes action {row.event}")
                last = row.event
                yield row


def _channel(row: Row, process: ProcessId, spans: dict[ProcessId, Span]) -> Channel:
    """Return the channel of a row, which must be one of `process` with one that has a log."""
    source, _, target = (row.channel or "").partition("->")
    if not {source, target} <= spans.keys() or process not in (source, target):
        raise Damaged(
            f"the event log of {process} has a row of channel {row.channel!r}, which is none "
            "of its channels: bring the files back that were written"
        )
    return Channel(source, target)


def _action(process: ProcessId, rows: list[Row], spans: dict[ProcessId, Span]) -> Event:
    accepted, sent = [], []
    for row in rows:
        if row.kind in (ACCEPTED, SENT):
            channel, number = _channel(row, process, spans), row.number or 0
            if row.kind == ACCEPTED:
                accepted.append(MessageId(channel, number))
            elif number > spans[channel.target].received.get(process, 0):
                sent.append(MessageId(channel, number))
    return Event(process, accepted=tuple(accepted), sent=tuple(sent))


def _marker_step(process: ProcessId, rows: list[Row], spans: dict[ProcessId, Span]) -> MarkerStep:
    sources = [_channel(row, process, spans).source for row in rows if row.kind == MARKER_ACCEPTED]
    targets = [_channel(row, process, spans).target for row in rows if row.kind == MARKER_SENT]
    at = rows[0].at
    return MarkerStep(
        process,
        SnapshotId.parse(rows[0].snapshot or ""),
        source=sources[0] if sources else None,
        is_cut=any(row.kind == RECORDED for row in rows),
        targets=tuple(targets),
        at=None if at is None else at / 1e6,
    )
