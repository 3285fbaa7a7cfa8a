"""What an event log says around the cut of one snapshot, however long the log is.

The counts of a snapshot say where in the files of a process its cut lies: each file says how many
messages came before it. Then one column is read of few row groups, and the others only of those
that hold the cut and the markers.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stillframe.errors import Damaged, UsageError
from stillframe.eventlog import groups
from stillframe.eventlog.grouping import Row, rows_of
from stillframe.eventlog.reading import Part, parts
from stillframe.eventlog.schema import ACCEPTED, MARKER_ACCEPTED, RECORDED, SCHEMA, SENT
from stillframe.model import Channel, ProcessId, Snapshot

CONTEXT_ROWS = 4096
"""So many rows before the cut are looked at, and after it, as long as there are that many."""
AFTER_ROWS_MAX = 2**22
"""With so many rows after the cut no more are read, also if a marker has not come in them."""
EVENT_ROWS_MAX = 32
"""So many rows of one action are shown, on each side of the one that is wanted."""


class NotInLog(UsageError):
    """The log does not have the cuts of all processes; the message says of which it does not."""


class Wanted(NamedTuple):
    """What is to be read around the cut.

    Attributes:
        nearest: so many events before the cut, and so many after it.
        messages: by channel, the numbers of messages of which those events are wanted that sent
            and accepted them.
    """

    nearest: int
    messages: Mapping[Channel, Sequence[range]]


class Lane(msgspec.Struct, frozen=True):
    """What the log of one process says around its cut.

    Attributes:
        rows: some rows, in order: all of the snapshot, and those that were wanted.
        counts: the last number of a message in each direction (`SENT`, `ACCEPTED`) on each channel
            before the cut, of those that were read.
        event_count: how many actions it had done at its cut.
    """

    rows: tuple[Row, ...]
    counts: dict[tuple[str, str], int]
    event_count: int


def around(log: Path, snapshot: Snapshot, wanted: Wanted) -> dict[ProcessId, Lane]:
    """Return what the directory `log` says of each process around its cut.

    Raises:
        NotInLog: it has not the cuts of all processes that took part: not yet, not any more, or
            they were never written.
        UsageError: there is no event log.
        Damaged: a file is not what was written.
        OSError: a file cannot be read.
    """
    found = groupby(parts(log, snapshot.epoch), key=lambda part: part.span.process)
    files = {process: list(own) for process, own in found}
    names = [s.process for s in snapshot.state.processes if s.process not in snapshot.excluded]
    lanes: dict[ProcessId, Lane] = {}
    for process in names:
        lane = _Reading(process, snapshot, wanted).lane(files.get(process, []))
        if lane is None:
            raise NotInLog(
                f"{log} does not have the cut of {process} in snapshot {snapshot.id}: a process "
                "writes its log twice a second, and the files of all machines belong together"
            )
        lanes[process] = lane
    return lanes


class _Piece(NamedTuple):
    part: Part
    group: int


class _Reading:
    """Reads the log of one process."""

    def __init__(self, process: ProcessId, snapshot: Snapshot, wanted: Wanted) -> None:
        self._name = str(snapshot.id)
        self._wanted = wanted
        self._states = {
            str(state.channel): state
            for state in snapshot.state.channels
            if process in (state.channel.source, state.channel.target)
        }
        self._process = process
        self._sources = sum(1 for s in self._states.values() if s.channel.target == process)
        self._total = sum(
            state.sent_count if state.channel.source == process else state.received_count
            for state in self._states.values()
        )

    def lane(self, own: list[Part]) -> Lane | None:
        """Return what the files of the process say; None if its cut is in none of them."""
        pieces = [_Piece(part, group) for part in own for group in part.groups]
        # The cut is in the last file that begins before it for sure, or in one after that.
        earlier = [part.span.part for part in own if _total(part) < self._total]
        for index, piece in enumerate(pieces):
            if earlier and piece.part.span.part < earlier[-1]:
                continue
            if _total(piece.part) > self._total:
                return None
            cut = self._cut_in(piece)
            if cut is not None:
                return self._select(self._read(pieces, index, cut))
        return None

    def _cut_in(self, piece: _Piece) -> int | None:
        """Return in which row of a piece the process recorded its state."""
        row_count = 0
        for table in groups.tables(piece.part.path, [piece.group], ["kind", "snapshot"]):
            places = _places(
                pc.and_(_is(table, "snapshot", self._name), _is(table, "kind", RECORDED))
            )
            if places:
                return row_count + places[0]
            row_count += table.num_rows
        return None

    def _read(self, pieces: list[_Piece], index: int, cut: int) -> pa.Table:
        """Return the rows of the piece at `index`, in which the cut is row `cut`, and of others:
        those before it as long as there are few, those after it until all markers have come."""
        tables = self._tables(pieces[index])
        row_count = sum(len(table) for table in tables) - cut
        marker_count = self._marker_count(tables)
        for piece in reversed(pieces[:index]):
            if cut >= CONTEXT_ROWS:
                break
            before = self._tables(piece)
            cut += sum(len(table) for table in before)
            tables = [*before, *tables]
        for piece in pieces[index + 1 :]:
            if row_count >= AFTER_ROWS_MAX or (
                marker_count >= self._sources and row_count >= CONTEXT_ROWS
            ):
                break
            after = self._tables(piece)
            row_count += sum(len(table) for table in after)
            marker_count += self._marker_count(after)
            tables += after
        whole = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
        unknown = {*whole.column("channel").unique().to_pylist()} - {None, *self._states}
        if unknown:
            raise Damaged(
                f"the event log of {self._process} has a row of channel {min(unknown)!r}, which is "
                "none of its channels: bring the files back that were written"
            )
        return whole

    def _tables(self, piece: _Piece) -> list[pa.Table]:
        return list(groups.tables(piece.part.path, [piece.group], SCHEMA.names))

    def _marker_count(self, tables: list[pa.Table]) -> int:
        """Return how many markers of the snapshot came in some rows."""
        return sum(
            len(_places(pc.and_(_is(t, "snapshot", self._name), _is(t, "kind", MARKER_ACCEPTED))))
            for t in tables
        )

    def _select(self, table: pa.Table) -> Lane:
        of_snapshot = _is(table, "snapshot", self._name)
        (cut, *_) = _places(pc.and_(of_snapshot, _is(table, "kind", RECORDED)))
        events, snapshots = table.column("event"), table.column("snapshot")
        event_count = events[cut].as_py()
        chosen = {*_places(of_snapshot)}
        chosen |= self._near(events, snapshots, range(cut - 1, -1, -1), self._wanted.nearest)
        chosen |= self._near(events, snapshots, range(cut + 1, len(table)), self._wanted.nearest)
        for place in self._ends(table):
            chosen |= _action_around(events, snapshots, place)
        rows = tuple(rows_of(table.take(sorted(chosen))))
        return Lane(rows, _last_numbers(table.slice(0, cut)), event_count)

    def _near(self, events: Any, snapshots: Any, places: range, event_count: int) -> set[int]:
        """Return the rows of so many actions, the nearest first."""
        chosen: dict[int, list[int]] = defaultdict(list)
        for place in places[:CONTEXT_ROWS]:
            if snapshots[place].as_py() is not None:
                continue
            event = events[place].as_py()
            if event not in chosen and len(chosen) == event_count:
                break
            if len(chosen[event]) < EVENT_ROWS_MAX:
                chosen[event].append(place)
        return {place for own in chosen.values() for place in own}

    def _ends(self, table: pa.Table) -> Iterator[int]:
        """Yield the rows in which the messages that are wanted were sent or accepted."""
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
                yield from _places(pc.and_(on_channel, is_one))


def _total(part: Part) -> int:
    return sum(part.span.sent.values()) + sum(part.span.received.values())


def _is(table: pa.Table, column: str, text: str) -> Any:
    """Return of each row whether a column in which few texts stand many times has this one."""
    found = []
    for chunk in table.column(column).chunks:
        texts = chunk.dictionary.to_pylist()
        code = texts.index(text) if text in texts else -1
        found.append(pc.fill_null(pc.equal(chunk.indices, code), fill_value=False))
    return pa.chunked_array(found, pa.bool_())


def _places(is_one: Any) -> list[int]:
    places: list[int] = pc.indices_nonzero(is_one).to_pylist()
    return places


def _action_around(events: Any, snapshots: Any, place: int) -> set[int]:
    """Return the rows of the action of which one is at `place`."""
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
    plain = pa.table(
        {
            "kind": before.column("kind").cast(pa.string()),
            "channel": before.column("channel").cast(pa.string()),
            "number": before.column("number"),
        }
    )
    messages = plain.filter(pc.is_in(plain.column("kind"), pa.array([SENT, ACCEPTED])))
    last = messages.group_by(["kind", "channel"]).aggregate([("number", "max")])
    return {(row["kind"], row["channel"]): row["number_max"] for row in last.to_pylist()}
