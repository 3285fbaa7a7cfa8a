"""Event logs of small executions by chance, wrong ones too, and a dumb oracle for them.

An execution follows Chandy and Lamport's rules on channels that keep order. What is wrong with a
log is found by going through all rows for each snapshot and channel, with sets of messages.
"""

import random
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from stillframe.analytics import log_checks as what
from stillframe.eventlog.reader import HEADER_KEY, SegmentHeader, segment_path
from stillframe.eventlog.segments import (
    ACCEPTED,
    INTERNAL,
    MARKER_ACCEPTED,
    MARKER_SENT,
    RECORDED,
    SCHEMA,
    SENT,
)

ACTION_COUNT_MAX = 30
SNAPSHOT_COUNT_MAX = 3


class Row(NamedTuple):
    """One row of an event log (``eventlog.segments.SCHEMA``)."""

    event: int
    kind: str
    channel: tuple[str, str] | None = None
    number: int | None = None
    snapshot: str | None = None
    recorded: tuple[int, ...] | None = None


Log = dict[str, list[Row]]
"""Process -> its rows, in order."""

Fault = tuple[str | None, str, str | None, str, int | None]
"""What is wrong: snapshot, source and target, what, and which message, if it is of one."""


def as_stream(path: Path) -> Path:
    """Write a file as the stream that it was before it was complete; return its path then."""
    table = pq.read_table(path).cast(SCHEMA)
    span = pq.read_metadata(path).metadata[HEADER_KEY]
    schema = SCHEMA.with_metadata({HEADER_KEY: span})
    stream_path = path.with_suffix(".arrows")
    with pa.OSFile(str(stream_path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for batch in table.to_batches(max_chunksize=20):
            stream.write_batch(batch)
    path.unlink()
    return stream_path


def messages(stream: bytes) -> list[tuple[str, int, int]]:
    """Return the type of each message in a stream of batches, where it begins, where it ends."""
    source = pa.BufferReader(stream)
    found = []
    start = 0
    for message in pa.ipc.MessageReader.open_stream(source):
        found.append((message.type, start, source.tell()))
        start = source.tell()
    return found


class _Process:
    def __init__(self, name: str, names: list[str]) -> None:
        self.name = name
        self.rows: list[Row] = []
        self.event = 0
        self.sent = dict.fromkeys((n for n in names if n != name), 0)
        self.received = dict.fromkeys((n for n in names if n != name), 0)
        # snapshot -> source -> the messages recorded, of the channels whose marker has not come.
        self.awaited: dict[str, dict[str, list[int]]] = {}


class Execution:
    """A few processes, a channel from each to each other, and what is under way on it."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        names = [f"P{number}" for number in range(chance.randint(2, 4))]
        self._processes = {name: _Process(name, names) for name in names}
        self._ways: dict[tuple[str, str], deque[int | str]] = {
            (a, b): deque() for a in names for b in names if a != b
        }

    def log(self) -> Log:
        """Act by chance, with snapshots in between; let every marker arrive; return the log."""
        snapshot_count = self._chance.randint(1, SNAPSHOT_COUNT_MAX)
        action_count = self._chance.randint(3, ACTION_COUNT_MAX)
        numbers = [*range(1, snapshot_count + 1)]
        turns: list[int] = [0] * action_count + numbers
        self._chance.shuffle(turns)
        for number in turns:
            process = self._chance.choice([*self._processes.values()])
            if number:
                self._record(process, f"{process.name}-{number}", None)
            else:
                self._act(process)
        while any(isinstance(item, str) for way in self._ways.values() for item in way):
            self._act(self._chance.choice([*self._processes.values()]))
        return {name: process.rows for name, process in self._processes.items()}

    def _act(self, process: _Process) -> None:
        due = [channel for channel, way in self._ways.items() if way and channel[1] == process.name]
        channel = self._chance.choice(due) if due and self._chance.random() < 0.7 else None
        if channel is not None and isinstance(self._ways[channel][0], str):
            self._accept_marker(process, channel[0], str(self._ways[channel].popleft()))
            return
        process.event += 1
        rows = []
        if channel is not None:
            number = int(self._ways[channel].popleft())
            process.received[channel[0]] = number
            for awaited in process.awaited.values():
                if channel[0] in awaited:
                    awaited[channel[0]].append(number)
            rows.append(Row(process.event, ACCEPTED, channel, number))
        for target in self._chance.choices([*process.sent], k=self._chance.randint(0, 2)):
            process.sent[target] += 1
            self._ways[process.name, target].append(process.sent[target])
            way = process.name, target
            rows.append(Row(process.event, SENT, way, process.sent[target]))
        process.rows += rows or [Row(process.event, INTERNAL)]

    def _record(self, process: _Process, snapshot: str, first: str | None) -> None:
        process.rows.append(Row(process.event, RECORDED, snapshot=snapshot))
        process.awaited[snapshot] = {source: [] for source in process.received if source != first}
        for target in process.sent:
            way = process.name, target
            self._ways[way].append(snapshot)
            process.rows.append(Row(process.event, MARKER_SENT, way, snapshot=snapshot))

    def _accept_marker(self, process: _Process, source: str, snapshot: str) -> None:
        is_first = snapshot not in process.awaited
        recorded = () if is_first else tuple(process.awaited[snapshot].pop(source))
        way = source, process.name
        row = Row(process.event, MARKER_ACCEPTED, way, snapshot=snapshot, recorded=recorded)
        process.rows.append(row)
        if is_first:
            self._record(process, snapshot, source)


def corrupt(log: Log, chance: random.Random) -> tuple[Log, str, tuple[str, str], int | None] | None:
    """Return a log with one thing wrong; what; on which channel; and with which message, if it is
    of one. None if the log is too short for what chance has chosen."""
    wrong = {name: [*rows] for name, rows in log.items()}
    ways = [_drop, _double, _swap, _move_across_the_cut, _lose_marker]
    changed = chance.choice(ways)(wrong, chance)
    return None if changed is None else (wrong, *changed)


Changed = tuple[str, tuple[str, str], int | None] | None


def _sides(log: Log) -> dict[tuple[str, str, tuple[str, str]], list[int]]:
    """Return process, kind and channel -> the places of its messages."""
    sides = defaultdict(list)
    for name, rows in log.items():
        for place, row in enumerate(rows):
            if row.kind in (SENT, ACCEPTED):
                assert row.channel is not None
                sides[name, row.kind, row.channel].append(place)
    return sides


def _some_side(log: Log, chance: random.Random) -> tuple[str, tuple[str, str], list[int]] | None:
    sides = [(key, places) for key, places in _sides(log).items() if len(places) > 1]
    if not sides:
        return None
    (name, _, channel), places = chance.choice(sides)
    return name, channel, places


def _without(rows: list[Row], place: int) -> None:
    """Take a row out; the action stays, as one that did nothing, if it was all of it."""
    row = rows[place]
    if any(other.event == row.event and other is not row and not other.snapshot for other in rows):
        del rows[place]
    else:
        rows[place] = Row(row.event, INTERNAL)


def _drop(log: Log, chance: random.Random) -> Changed:
    side = _some_side(log, chance)
    if side is None:
        return None
    name, channel, places = side
    place = chance.choice(places[:-1])  # that the last is not there is no contradiction
    number = log[name][place].number
    _without(log[name], place)
    return "dropped", channel, number


def _double(log: Log, chance: random.Random) -> Changed:
    side = _some_side(log, chance)
    if side is None:
        return None
    name, channel, places = side
    row = log[name][chance.choice(places)]
    after = chance.choice([place for place in places if log[name][place].number >= row.number])  # type: ignore[operator]
    log[name].insert(after + 1, row._replace(event=log[name][after].event))
    return "doubled", channel, row.number


def _swap(log: Log, chance: random.Random) -> Changed:
    side = _some_side(log, chance)
    if side is None:
        return None
    name, channel, places = side
    one, other = sorted(chance.sample(places, 2))
    rows = log[name]
    rows[one], rows[other] = (
        rows[one]._replace(number=rows[other].number),
        rows[other]._replace(number=rows[one].number),
    )
    return "reordered", channel, rows[other].number


def _move_across_the_cut(log: Log, chance: random.Random) -> Changed:
    """Let a message that was sent after the cut be accepted before it."""
    found = []
    for name, rows in log.items():
        for cut, recorded in enumerate(rows):
            if recorded.kind != RECORDED:
                continue
            for source in log:
                channel = source, name
                later = [p for p in range(cut, len(rows)) if _is(rows[p], ACCEPTED, channel)]
                sent = _numbers_before_cut(log[source], SENT, channel, str(recorded.snapshot))
                if later and rows[later[0]].number == len(sent) + 1:
                    found.append((name, cut, later[0], channel))
    if not found:
        return None
    name, cut, place, channel = chance.choice(found)
    row = log[name][place]
    _without(log[name], place)
    log[name].insert(cut, row._replace(event=log[name][cut].event))
    return "moved", channel, row.number


def _lose_marker(log: Log, chance: random.Random) -> Changed:
    markers = [
        (name, place)
        for name, rows in log.items()
        for place, row in enumerate(rows)
        if row.kind in (MARKER_SENT, MARKER_ACCEPTED)
    ]
    name, place = chance.choice(markers)
    row = log[name].pop(place)
    assert row.channel is not None
    return "marker missing", row.channel, None


def _is(row: Row, kind: str, channel: tuple[str, str]) -> bool:
    return row.kind == kind and row.channel == channel


def _numbers_before_cut(
    rows: list[Row], kind: str, channel: tuple[str, str], snapshot: str
) -> list[int]:
    found: list[int] = []
    for row in rows:
        if row.kind == RECORDED and row.snapshot == snapshot:
            break
        if _is(row, kind, channel):
            found.append(int(row.number or 0))
    return found


def faults_of(log: Log) -> set[Fault]:
    """Return everything that is wrong with a log, by brute force."""
    found: set[Fault] = set()
    channels = [(a, b) for a in log for b in log if a != b]
    for source, target in channels:
        for name, kind in ((source, SENT), (target, ACCEPTED)):
            numbers = [
                int(row.number or 0) for row in log[name] if _is(row, kind, (source, target))
            ]
            found |= {(None, source, target, *f) for f in _order_faults(kind, numbers)}
        for snapshot in {str(row.snapshot) for row in log[source] if row.kind == RECORDED}:
            if any(row.kind == RECORDED and row.snapshot == snapshot for row in log[target]):
                judged = _snapshot_faults(log, (source, target), snapshot)
                found |= {(snapshot, source, target, *fault) for fault in judged}
    return found


def _order_faults(kind: str, numbers: list[int]) -> Iterable[tuple[str, int]]:
    for number in range(1, max(numbers, default=0) + 1):
        if number not in numbers:
            yield what.MISSING[kind], number
    for place, number in enumerate(numbers):
        if numbers.count(number) > 1:
            yield what.TWICE[kind], number
        if number not in numbers[:place] and any(before > number for before in numbers[:place]):
            yield what.LATE[kind], number


def _snapshot_faults(
    log: Log, channel: tuple[str, str], snapshot: str
) -> Iterable[tuple[str, int | None]]:
    source, target = channel
    inside = _numbers_before_cut(log[source], SENT, channel, snapshot)
    taken = _numbers_before_cut(log[target], ACCEPTED, channel, snapshot)
    yield from ((what.ORPHAN, number) for number in {*taken} - {*inside})
    expected = sorted({*inside} - {*taken})
    yield from _marker_sent_faults(log[source], channel, snapshot)
    markers = [
        place
        for place, row in enumerate(log[target])
        if _is(row, MARKER_ACCEPTED, channel) and row.snapshot == snapshot
    ]
    if not markers:
        yield what.MARKER_NOT_ACCEPTED, None
        return
    if len(markers) > 1:
        yield what.MARKER_ACCEPTED_TWICE, None
    before = {row.number for row in log[target][: markers[0]] if _is(row, ACCEPTED, channel)}
    yield from ((what.OVERTAKEN, number) for number in {*inside} - before)
    yield from ((what.OVERTAKES, number) for number in before - {*inside})
    recorded = [*(log[target][markers[0]].recorded or ())]
    yield from ((what.NOT_RECORDED, number) for number in {*expected} - {*recorded})
    yield from ((what.RECORDED_TOO_MUCH, number) for number in {*recorded} - {*expected})
    yield from (
        (what.RECORDED_OUT_OF_ORDER, number)
        for sentence, number in _order_faults(SENT, recorded)
        if sentence != what.MISSING[SENT]
    )


def _marker_sent_faults(
    rows: list[Row], channel: tuple[str, str], snapshot: str
) -> Iterable[tuple[str, int | None]]:
    cut = next(p for p, row in enumerate(rows) if row.kind == RECORDED and row.snapshot == snapshot)
    markers = [
        place
        for place, row in enumerate(rows)
        if _is(row, MARKER_SENT, channel) and row.snapshot == snapshot
    ]
    if not markers:
        yield what.MARKER_NOT_SENT, None
        return
    if len(markers) > 1:
        yield what.MARKER_SENT_TWICE, None
    begin, end = sorted((cut, markers[0]))
    for row in rows[begin:end]:
        if _is(row, SENT, channel):
            yield what.MARKER_SENT_LATE, row.number


def write(log: Log, directory: Path, epoch: int, chance: random.Random) -> None:
    """Write a log as the files of an epoch, cut by chance into parts and row groups."""
    for name, rows in log.items():
        begin, part = 0, 1
        while part == 1 or begin < len(rows):
            end = len(rows) if chance.random() < 0.7 else chance.randint(begin, len(rows))
            span = span_of(log, name, epoch, part, begin)
            path = segment_path(directory, span, is_complete=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            group_count = chance.choice([1000, 1000, chance.randint(1, 40)])
            write_part(path, span, table_of(rows[begin:end]), group_count)
            begin, part = end, part + 1


def span_of(log: Log, name: str, epoch: int, part: int, begin: int) -> SegmentHeader:
    """Return what the file of a process says that begins with its row `begin`, from 0."""
    rows = log[name][:begin]
    others = [other for other in log if other != name]
    return SegmentHeader(
        process=name,
        epoch=epoch,
        number=part,
        event_count=rows[-1].event if rows else 0,
        sent=_counts(rows, SENT, [(name, other) for other in others]),
        received=_counts(rows, ACCEPTED, [(other, name) for other in others]),
    )


def _counts(rows: list[Row], kind: str, channels: list[tuple[str, str]]) -> dict[str, int]:
    """Return the other end of each channel -> how many rows of messages it has."""
    index = 1 if kind == SENT else 0
    return {channel[index]: sum(_is(row, kind, channel) for row in rows) for channel in channels}


def table_of(rows: list[Row]) -> pa.Table:
    """Return rows as a table."""
    columns: Mapping[str, list[object]] = {
        "event": [row.event for row in rows],
        "kind": [row.kind for row in rows],
        "channel": [row.channel and "->".join(row.channel) for row in rows],
        "number": [row.number for row in rows],
        "snapshot": [row.snapshot for row in rows],
        "at": [None if row.snapshot is None else 1_000_000 * row.event for row in rows],
        "recorded": [
            None if row.recorded is None else [{"first": n, "count": 1} for n in row.recorded]
            for row in rows
        ],
    }
    return pa.table(columns, schema=SCHEMA)


def write_part(path: Path, span: SegmentHeader, table: pa.Table, row_group_count: int) -> None:
    """Write a complete file of a log."""
    texts = ["kind", "channel", "snapshot"]
    with pq.ParquetWriter(
        path, SCHEMA, use_dictionary=texts, store_schema=False, write_page_checksum=True
    ) as writer:
        writer.add_key_value_metadata({HEADER_KEY.decode(): msgspec.json.encode(span).decode()})
        writer.write_table(table, row_group_size=row_group_count)
