"""Reads the part of an event log around the cut of one snapshot, however long the log is.

The counts of a snapshot locate its cut: the header of each segment has the number of messages
before it. So few segments are opened, however many there are, few row groups are searched for the
cut, in two columns, and only those around it are read.
"""

import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stillframe.errors import UsageError
from stillframe.eventlog.reader import Segment, open_segment, with_files
from stillframe.eventlog.segments import (
    ACCEPTED,
    MARKER_ACCEPTED,
    RECORDED,
    SCHEMA,
    SENT,
    Row,
    read_rows,
    rows_of,
)
from stillframe.eventlog.to_trace import foreign_channel
from stillframe.model import Channel, ProcessId, Snapshot
from stillframe.storage.files import mapped
from stillframe.storage.location import Location
from stillframe.storage.storage import Listed

CONTEXT_ROWS = 4096
"""How many rows are searched before the cut, and after it."""
AFTER_ROWS_MAX = 2**22
"""Maximum rows read after the cut, even if a marker has not arrived in them."""
EVENT_ROWS_MAX = 32
"""Maximum rows of one action, on each side of the requested one."""


class NotInLog(UsageError):
    """The log lacks the cut of a process; the message names it."""


class WindowRequest(NamedTuple):
    """The rows to read around the cut: the `nearest` events before it and after it, and, by
    channel, the events that sent and accepted some messages."""

    nearest: int
    messages: Mapping[Channel, Sequence[range]]


class Lane(msgspec.Struct, frozen=True):
    """The log of one process around its cut: all rows of the snapshot and those that were
    requested.

    `counts` are the last numbers of messages in each direction (`SENT`, `ACCEPTED`) on each channel
    before the cut, among the rows that were read; `event_count` is the number of actions before it.
    """

    rows: tuple[Row, ...]
    counts: dict[tuple[str, str], int]
    event_count: int


def read_window(log: Location, snapshot: Snapshot, wanted: WindowRequest) -> dict[ProcessId, Lane]:
    """Return the log of each process around its cut. Raises as ``list_segments``, and NotInLog if
    the log does not contain the cut of a process that took part: not yet, no longer, or never."""
    names = [s.process for s in snapshot.state.processes if s.process not in snapshot.excluded]

    def read(files: list[Listed]) -> dict[ProcessId, Lane]:
        by_process = groupby(files, key=lambda file: file.location.parent.name)
        own = {name: [*of_one] for name, of_one in by_process}

        def lane_of(process: ProcessId) -> Lane | None:
            return _Reading(process, snapshot, wanted).lane(_Segments(own.get(process, [])))

        lanes = list(mapped(log, lane_of, names))
        for process, lane in zip(names, lanes, strict=True):
            if lane is None:
                raise NotInLog(
                    f"{log} does not contain the cut of {process} in snapshot {snapshot.id}: a "
                    "process writes its log twice a second, and the files of all machines must be "
                    "in one directory"
                )
        return {process: lane for process, lane in zip(names, lanes, strict=True) if lane}

    return with_files(log, snapshot.epoch, read)


class _Split(NamedTuple):
    place: int  # of the segment
    segment: Segment
    group: int

    def tables(self, columns: Sequence[str] = SCHEMA.names) -> list[pa.Table]:
        return list(read_rows(self.segment.path, [self.group], columns))


class _Segments:
    """The segments of one process by number, each opened when it is needed."""

    def __init__(self, files: Sequence[Listed]) -> None:
        self._files = files
        self._opened: dict[int, Segment | None] = {}

    def last_before(self, message_count: int) -> int:
        """Return the index of the last segment with fewer messages before it, else of the first
        one."""
        numbers = range(len(self._files))
        return max(0, bisect_left(numbers, message_count, key=self._message_count) - 1)

    def splits_from(self, index: int) -> Iterator[_Split]:
        """Yield the splits of the segment with this index, and all after it."""
        for number in range(index, len(self._files)):
            yield from self._splits(number)

    def splits_before(self, split: _Split) -> Iterator[_Split]:
        """Yield the splits before that one, the nearest first."""
        own = [one for one in self._splits(split.place) if one.group < split.group]
        yield from reversed(own)
        for number in reversed(range(split.place)):
            yield from reversed(self._splits(number))

    def splits_after(self, split: _Split) -> Iterator[_Split]:
        """Yield the splits after that one."""
        yield from (one for one in self._splits(split.place) if one.group > split.group)
        yield from self.splits_from(split.place + 1)

    def _splits(self, index: int) -> list[_Split]:
        segment = self._open(index)
        groups = () if segment is None else segment.groups
        return [_Split(index, segment, group) for group in groups if segment is not None]

    def _message_count(self, index: int) -> int:
        segment = self._open(index)
        # Only the last one may have no whole schema yet.
        return sys.maxsize if segment is None else _message_count(segment)

    def _open(self, index: int) -> Segment | None:
        if index not in self._opened:
            self._opened[index] = open_segment(self._files[index])
        return self._opened[index]


class _Reading:
    """Reads the log of one process."""

    def __init__(self, process: ProcessId, snapshot: Snapshot, wanted: WindowRequest) -> None:
        self._name = str(snapshot.id)
        self._wanted = wanted
        self._process = process
        into = [s for s in snapshot.state.channels if s.channel.target == process]
        out_of = [s for s in snapshot.state.channels if s.channel.source == process]
        self._known = {str(state.channel) for state in (*into, *out_of)}
        self._source_count = len(into)
        # A channel to itself counts as one that it sends on.
        received = sum(s.received_count for s in into if s.channel.source != process)
        self._message_count = received + sum(state.sent_count for state in out_of)

    def lane(self, own: _Segments) -> Lane | None:
        """Return the rows around the cut in the segments of the process, if one has it."""
        # The cut is in the last file that begins before it for sure, or in one after that.
        for split in own.splits_from(own.last_before(self._message_count)):
            if _message_count(split.segment) > self._message_count:
                return None
            if cut := self._places(split.tables(["kind", "snapshot"]), RECORDED):
                return self._select(self._read(own, split, cut[0]))
        return None

    def _places(self, tables: Iterable[pa.Table], kind: str) -> list[int]:
        """Return the rows of that kind that are of the snapshot."""
        found: list[int] = []
        row_count = 0
        for table in tables:
            is_one = pc.and_(_is(table, "snapshot", self._name), _is(table, "kind", kind))
            found += [row_count + place for place in _true(is_one)]
            row_count += len(table)
        return found

    def _read(self, own: _Segments, split: _Split, cut: int) -> pa.Table:
        """Return the rows around the cut, which is row `cut` of `split`. Splits before it are
        included until there is enough context, and splits after it until all markers have
        arrived."""
        tables = split.tables()
        after_count = sum(map(len, tables)) - cut
        marker_count = len(self._places(tables, MARKER_ACCEPTED))
        for earlier in own.splits_before(split):
            if cut >= CONTEXT_ROWS:
                break
            before = earlier.tables()
            cut += sum(map(len, before))
            tables = [*before, *tables]
        for later in own.splits_after(split):
            has_markers = marker_count >= self._source_count and after_count >= CONTEXT_ROWS
            if has_markers or after_count >= AFTER_ROWS_MAX:
                break
            after = later.tables()
            after_count += sum(map(len, after))
            marker_count += len(self._places(after, MARKER_ACCEPTED))
            tables += after
        whole = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
        unknown = {*whole.column("channel").unique().to_pylist()} - {None, *self._known}
        if unknown:
            raise foreign_channel(self._process, min(unknown))
        return whole

    def _select(self, table: pa.Table) -> Lane:
        cut = self._places([table], RECORDED)[0]
        events, snapshots = table.column("event"), table.column("snapshot")
        chosen = {*_true(_is(table, "snapshot", self._name))}
        for way in (range(cut - 1, -1, -1), range(cut + 1, len(table))):
            chosen |= _near(events, snapshots, way, self._wanted.nearest)
        for place in self._ends(table):
            chosen |= _action_around(events, snapshots, place)
        rows = tuple(rows_of(table.take(sorted(chosen))))
        return Lane(rows, _last_numbers(table.slice(0, cut)), events[cut].as_py())

    def _ends(self, table: pa.Table) -> Iterator[int]:
        """Yield the rows in which the requested messages were sent or accepted."""
        numbers = table.column("number")
        for channel, ranges in self._wanted.messages.items():
            if self._process not in (channel.source, channel.target):
                continue
            kind = SENT if channel.source == self._process else ACCEPTED
            on_channel = pc.and_(_is(table, "channel", str(channel)), _is(table, "kind", kind))
            for wanted in filter(None, ranges):
                is_one = pc.and_(
                    pc.greater_equal(numbers, wanted.start), pc.less(numbers, wanted.stop)
                )
                yield from _true(pc.and_(on_channel, is_one))


def _message_count(segment: Segment) -> int:
    return sum(segment.header.sent.values()) + sum(segment.header.received.values())


def _is(table: pa.Table, column: str, text: str) -> Any:
    """Return, for each row, whether a column with few distinct texts has this one."""
    found = []
    for chunk in table.column(column).chunks:
        texts = chunk.dictionary.to_pylist()
        code = texts.index(text) if text in texts else -1
        found.append(pc.fill_null(pc.equal(chunk.indices, code), fill_value=False))
    return pa.chunked_array(found, pa.bool_())


def _true(is_one: Any) -> list[int]:
    places: list[int] = pc.indices_nonzero(is_one).to_pylist()
    return places


def _near(events: Any, snapshots: Any, places: range, event_count: int) -> set[int]:
    """Return the rows of the `event_count` nearest actions on the way along `places`."""
    chosen: set[int] = set()
    seen: set[int] = set()
    for place in places[:CONTEXT_ROWS]:
        event = events[place].as_py()
        if event in seen or snapshots[place].as_py() is not None:
            continue
        if len(seen) == event_count:
            break
        seen.add(event)
        chosen |= _action_around(events, snapshots, place)
    return chosen


def _action_around(events: Any, snapshots: Any, place: int) -> set[int]:
    """Return the rows of the action that the row at `place` belongs to."""
    event = events[place].as_py()
    found = {place}
    for way in (range(place - 1, -1, -1), range(place + 1, len(events))):
        for other in way[:EVENT_ROWS_MAX]:
            if events[other].as_py() != event or snapshots[other].as_py() is not None:
                break
            found.add(other)
    return found


def _last_numbers(before: pa.Table) -> dict[tuple[str, str], int]:
    """Return direction and channel -> the last number in the rows before the cut."""
    texts = {name: before.column(name).cast(pa.string()) for name in ("kind", "channel")}
    plain = pa.table({**texts, "number": before.column("number")})
    messages = plain.filter(pc.is_in(plain.column("kind"), pa.array([SENT, ACCEPTED])))
    last = messages.group_by([*texts]).aggregate([("number", "max")])
    return {(row["kind"], row["channel"]): row["number_max"] for row in last.to_pylist()}
