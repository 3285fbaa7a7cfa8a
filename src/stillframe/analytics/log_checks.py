"""Count and check an event log in tasks of ``log_verification``.

First each row group is counted. Channels keep order and cuts advance, so what a cut has of a
channel is how many of its messages lie before the cut: one number. To find it no message is joined
with any snapshot. The numbers of the messages themselves are compared with their places, and what
does not follow on is kept as runs of consecutive numbers: one run, if nothing is wrong.

Then each channel, or process, is checked for all snapshots at once, given its counts in all splits.
A channel whose numbers are consecutive takes a few comparisons per snapshot; one with a fault is
examined as sets of numbers.

Executors have Arrow and numpy, and of this package what imports nothing else.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stillframe.channel_accounting import balances
from stillframe.errors import Damaged
from stillframe.eventlog.segments import SCHEMA, STREAM, read_rows
from stillframe.storage.location import Location, ObjectPath, location_of

Ints = npt.NDArray[np.int64]

SENT_SIDE, ACCEPTED_SIDE, PROCESS_SIDE = "sent", "accepted", "process"
PUBLISHED_SIDE = "published"
"""A channel as a store has it: its `markers` are the snapshots, each with how many messages were
sent (`place`) and received (`event`) at the cuts, and which were recorded."""
RUN_COUNT_MAX = 1000
"""How many runs are kept of one side of a channel, in one row group and of all; later ones are not
checked."""
_NUMBERS = pa.list_(pa.int64())
_RANGES = pa.list_(pa.struct([("first", pa.int64()), ("count", pa.int64())]))
_STEP = [("snapshot", pa.string()), ("place", pa.int64()), ("event", pa.int64())]
COUNTS = pa.schema(
    [
        ("epoch", pa.int64()),
        ("source", pa.string()),  # of the channel; or the process, if `side` is PROCESS_SIDE
        ("target", pa.string()),  # null if `side` is PROCESS_SIDE
        ("side", pa.string()),
        ("part", pa.int64()),  # pieces are in the order of part and row group
        ("row_group", pa.int64()),
        ("base", pa.int64()),  # messages, or actions, before the file; null if not its beginning
        ("lost", pa.bool_()),  # whether the last of those are in no file
        ("firsts", _NUMBERS),  # the first number of each run
        ("counts", _NUMBERS),  # and how many numbers it has
        ("is_cut_short", pa.bool_()),  # whether there are more runs
        # Where the process recorded its state: `place` messages of this piece were before it.
        ("cuts", pa.list_(pa.struct(_STEP))),
        # The same of the markers on the channel, with the messages that were recorded of it.
        ("markers", pa.list_(pa.struct([*_STEP, ("recorded", _RANGES)]))),
    ]
)
"""The counts of one side of a channel, or of a process, in one split of a log. Those of a process
are of its actions."""

_SNAPSHOT = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}-[0-9]{1,18}")
_NONE: Ints = np.empty(0, np.int64)
SPLITS = (
    "path STRING, "  # of the file
    "row_group INT, "  # which row group of it, from 0, or ``eventlog.segments.STREAM``
    "epoch BIGINT, "
    "process STRING, "  # whose file it is
    "part INT, "  # which file of that process and epoch, from 1
    "span STRING"  # what came before the file, as JSON (``eventlog.reader.SegmentHeader``)
)
FINDINGS = pa.schema(
    [
        ("epoch", pa.int64()),
        ("snapshot", pa.string()),  # null: of the log, whatever the snapshot
        ("source", pa.string()),  # of the channel; or the process, if there is no target
        ("target", pa.string()),
        ("what", pa.string()),  # one of KNOWN, LOGGED, CUT, IN_TRANSIT, FAULTS and GAPS
        # Which message. Of a cut: how many actions are before it. Of what is in transit: the first
        # that the target had not received at its cut, and the last that the source had sent.
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("count", pa.int64()),  # how many messages
    ]
)
"""Where the cuts lie, how many messages are on the channels, and what is wrong."""

KNOWN = "known"
"""There is such a channel, or process."""
LOGGED = "logged"
"""The process has a log."""
CUT = "cut"
IN_TRANSIT = "in transit"

ORPHAN = "accepted inside the cut, not sent inside it"
NOT_RECORDED = "sent inside the cut, accepted outside, not recorded"
RECORDED_TOO_MUCH = "recorded, though not on the channel at the cut"
RECORDED_OUT_OF_ORDER = "recorded out of order or twice"
MARKER_NOT_SENT = "the marker was not sent"
MARKER_SENT_TWICE = "the marker was sent more than once"
MARKER_SENT_LATE = "sent between the recording of the state and the marker"
MARKER_ACCEPTED_TWICE = "the marker was accepted more than once"
OVERTAKEN = "sent before the marker, accepted after it"
OVERTAKES = "sent after the marker, accepted before it"
PUBLISHED_OTHERWISE = "published with other contents than the log has"
RECORDED_TWICE = "the state was recorded more than once"
MISSING = {SENT_SIDE: "never sent, though a later one was", ACCEPTED_SIDE: "passed over"}
TWICE = {SENT_SIDE: "sent more than once", ACCEPTED_SIDE: "accepted more than once"}
LATE = {SENT_SIDE: "sent out of order", ACCEPTED_SIDE: "accepted out of order"}
ACTIONS_WRONG = "actions out of order or twice"
FAULTS = (
    *(ORPHAN, NOT_RECORDED, RECORDED_TOO_MUCH, RECORDED_OUT_OF_ORDER),
    *(MARKER_NOT_SENT, MARKER_SENT_TWICE, MARKER_SENT_LATE, MARKER_ACCEPTED_TWICE),
    *(OVERTAKEN, OVERTAKES, PUBLISHED_OTHERWISE, RECORDED_TWICE, ACTIONS_WRONG),
    *(*MISSING.values(), *TWICE.values(), *LATE.values()),
)
"""Impossible if the rules were followed and the log is true."""

NOT_LOGGED = "published, but its cuts are not in the log"
MARKER_NOT_ACCEPTED = "the marker was not accepted"
NOT_COMPLETED = "the channel was not recorded to its end"
ROWS_LOST = "rows were lost, as the log itself reports"
ROWS_MISSING = "rows are missing: a file does not exist"
TOO_MUCH = "more problems than can be listed"
GAPS = (NOT_LOGGED, MARKER_NOT_ACCEPTED, NOT_COMPLETED, ROWS_LOST, ROWS_MISSING, TOO_MUCH)
"""Why there is no verdict, or why a snapshot was not completed."""

_NAMED_MAX = 10
"""How many runs of messages are named of one kind of fault on one channel of one snapshot."""

Run = tuple[int, int]
"""The numbers ``first .. first + count - 1``."""
Runs = Sequence[Run]
Step = Mapping[str, Any]
"""A row of `cuts` or `markers` (`COUNTS`)."""
Add = Callable[..., None]
"""``Findings.add`` for one snapshot."""


def aggregate_splits(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the counts (`COUNTS`) of each split of a log (`SPLITS`)."""
    for piece, found in read_splits(batches, SCHEMA.names):
        number = -1
        for number, table in enumerate(found):
            yield from _count(piece, number, table).to_batches()
        if number < 0:  # it is empty, but states what came before it
            yield from _count(piece, 0, SCHEMA.empty_table()).to_batches()


def read_splits(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[tuple[dict[str, Any], Iterable[pa.Table]]]:
    """Yield each split of a log (`SPLITS`) with its rows. In an object store the row group after it
    is read meanwhile, which hides that each takes round trips."""
    pieces = chain.from_iterable(batch.to_pylist() for batch in batches)
    with ThreadPoolExecutor(1) as pool:

        def begin(piece: dict[str, Any] | None) -> Callable[[], Iterable[pa.Table]]:
            if piece is None:
                return lambda: ()
            path, group = location_of(piece["path"]), piece["row_group"]
            rows = read_rows(path, [group], columns)
            if not isinstance(path, ObjectPath) or group == STREAM:
                return lambda: rows
            return pool.submit(list, rows).result

        piece = next(pieces, None)
        rows = begin(piece)
        while piece is not None:
            following = next(pieces, None)
            rows_after = begin(following)
            yield piece, rows()
            piece, rows = following, rows_after


def _count(piece: dict[str, Any], number: int, table: pa.Table) -> pa.Table:
    span = json.loads(piece["span"])
    rows = _Rows(piece["path"], piece["process"], span, table)
    is_first = piece["row_group"] in (0, STREAM) and number == 0
    bases = [*span["sent"].values(), *span["received"].values(), span["event_count"]]
    found = [rows.counted(index) for index in range(len(rows.channels))]
    found.append(rows.actions())
    count = len(found)
    return pa.table(
        [
            [piece["epoch"]] * count,
            [source for source, _ in rows.channels] + [piece["process"]],
            [target for _, target in rows.channels] + [None],
            [*rows.sides, PROCESS_SIDE],
            [piece["part"]] * count,
            [max(piece["row_group"], number)] * count,
            bases if is_first else [None] * count,
            [is_first and span.get("lost_count", 0) > 0] * count,
            pa.array([firsts[:RUN_COUNT_MAX] for firsts, _, _, _ in found], _NUMBERS),
            pa.array([counts[:RUN_COUNT_MAX] for _, counts, _, _ in found], _NUMBERS),
            [len(firsts) > RUN_COUNT_MAX for firsts, _, _, _ in found],
            rows.cuts([places for _, _, places, _ in found]),
            rows.markers([places for _, _, _, places in found]),
        ],
        schema=COUNTS,
    )


class _Rows:
    """The rows of one piece, sorted by channel; the channels are those that the file names."""

    def __init__(self, path: str, process: str, span: dict[str, Any], table: pa.Table) -> None:
        self.channels = [(process, target) for target in span["sent"]]
        self.channels += [(source, process) for source in span["received"]]
        self.sides = [SENT_SIDE] * len(span["sent"]) + [ACCEPTED_SIDE] * len(span["received"])
        self._path = path
        self._event = _ints(table.column("event"))
        self._number = _ints(table.column("number"))
        self._recorded = table.column("recorded").combine_chunks()
        snapshots, which, is_step = _texts(table.column("snapshot"))
        if strange := [name for name in snapshots if not _SNAPSHOT.fullmatch(name)]:
            raise Damaged(
                f"{path} has rows of a snapshot {strange[0]!r}, which is not a snapshot id",
                path=path,
            )
        self._steps = np.flatnonzero(is_step)
        self._snapshots, self._snapshot_of = snapshots, which[self._steps]
        key = self._keys(table.column("channel"))
        self._key_of_step = key[self._steps]
        # Steps are no messages; nor are actions without a channel.
        key[self._steps] = len(self.channels)
        if table.column("number").null_count != np.count_nonzero(key == len(self.channels)):
            raise Damaged(
                f"{path} has messages without a number, or numbers without a message", path=path
            )
        self._order = np.argsort(key, kind="stable")
        self._ends = np.cumsum(np.bincount(key, minlength=len(self.channels) + 1))
        self._sorted = self._number[self._order]
        self._is_cut = self._key_of_step == len(self.channels)

    def _keys(self, column: pa.ChunkedArray) -> npt.NDArray[Any]:
        """Return for each row the index of its channel; one more than the last for none."""
        names, which, is_on_one = _texts(column)
        known = {f"{source}->{target}": k for k, (source, target) in enumerate(self.channels)}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise Damaged(
                f"{self._path} has rows on {unknown[0]}, which its header does not list",
                path=self._path,
            )
        kind = np.uint8 if len(known) < 2**8 else np.uint16
        places = np.array([*(known[name] for name in names), len(known)], dtype=kind)
        key: npt.NDArray[Any] = places[which]
        key[~is_on_one] = len(known)
        return key

    def counted(self, index: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Return a channel's runs, firsts and counts, and how many of its messages were before each
        cut and before each of its markers."""
        begin, end = (self._ends[index - 1] if index else 0), self._ends[index]
        places = self._order[begin:end]
        return (
            *_runs(self._sorted[begin:end]),
            np.searchsorted(places, self._steps[self._is_cut]),
            np.searchsorted(places, self._steps[self._key_of_step == index]),
        )

    def actions(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the same of the actions of the process, each counted once."""
        event = self._event
        is_new = np.ones(len(event), bool)
        is_new[1:] = event[1:] != event[:-1]
        # A step bears the number of the action before it, which may be in the piece before.
        if len(self._steps) and self._steps[0] == 0:
            is_other = np.ones(len(event), bool)
            is_other[self._steps] = False
            first = int(np.argmax(is_other)) if is_other.any() else len(event)
            is_new[:first] = False
            is_new[first : first + 1] = True
        return (*_runs(event[is_new]), self._event[self._steps[self._is_cut]], _NONE)

    def cuts(self, places: list[Ints]) -> pa.Array:
        """Return the cuts for each channel and the process, given their places there."""
        return self._listed([self._is_cut] * len(places), places, [])

    def markers(self, places: list[Ints]) -> pa.Array:
        """Return the markers for each channel, given their places there."""
        masks = [self._key_of_step == index for index in range(len(self.channels))]
        masks.append(np.zeros(len(self._steps), bool))
        steps = np.concatenate([self._steps[mask] for mask in masks])
        return self._listed(masks, places, [self._recorded.take(pa.array(steps))])

    def _listed(
        self, masks: list[npt.NDArray[Any]], places: list[Ints], more: list[pa.Array]
    ) -> pa.Array:
        """Return one list of steps for each mask of steps."""
        chosen = np.concatenate([np.flatnonzero(mask) for mask in masks])
        fields = COUNTS.field("markers" if more else "cuts").type.value_type
        flat = pa.StructArray.from_arrays(
            [
                pa.array(self._snapshots, pa.string()).take(pa.array(self._snapshot_of[chosen])),
                pa.array(np.concatenate(places)),
                pa.array(self._event[self._steps[chosen]]),
                *more,
            ],
            fields=list(fields),
        )
        ends = np.cumsum([0, *(int(mask.sum()) for mask in masks)])
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat)


def _runs(numbers: Ints) -> tuple[Ints, Ints]:
    """Return the runs of consecutive numbers: their firsts, and how many numbers each has."""
    if not len(numbers):
        return _NONE, _NONE
    begins = np.concatenate([[0], np.flatnonzero(np.diff(numbers) != 1) + 1])
    return numbers[begins], np.diff(np.append(begins, len(numbers)))


def _ints(column: pa.ChunkedArray) -> Ints:
    """Return a column of 64-bit integers; 0 for empty places."""
    found: Ints = column.combine_chunks().fill_null(0).to_numpy()
    return found


def _texts(column: pa.ChunkedArray) -> tuple[list[str], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the different texts of a column; for each row which one; and whether it has one."""
    array = column.unify_dictionaries().combine_chunks()
    which = array.indices.fill_null(0).to_numpy()
    return array.dictionary.to_pylist(), which, array.is_valid().to_numpy(zero_copy_only=False)


def plan_splits(log: Location) -> list[dict[str, Any]]:
    """Return a row for each row group of an event log (`SPLITS`), which a system may write to."""
    import msgspec

    from stillframe.eventlog.reader import list_segments

    return [
        {
            "path": str(part.path.absolute()),
            "row_group": group,
            "epoch": part.header.epoch,
            "process": part.header.process,
            "part": part.header.number,
            "span": msgspec.json.encode(part.header).decode(),
        }
        for part in list_segments(log)
        for group in part.groups
    ]


class Findings:
    """Collects rows of `FINDINGS` about one channel or process."""

    def __init__(self, key: tuple[Any, ...]) -> None:
        self._key = key
        self._rows: list[tuple[str | None, str, int | None, int | None, int | None]] = []
        self._tables: list[pa.Table] = []

    def add(self, snapshot: str | None, what: str, runs: Runs | None = None) -> None:
        """Add a finding about the messages `runs`, none if there is no message, or about no
        messages."""
        if runs is None:
            self._rows.append((snapshot, what, None, None, None))
            return
        for first, count in runs[:_NAMED_MAX]:
            self._rows.append((snapshot, what, first, first + count - 1, count))

    def add_all(
        self, snapshots: Any, what: str, firsts: Any = None, lasts: Any = None, counts: Any = None
    ) -> None:
        """Add the same finding about many snapshots, with numbers for each."""
        row_count = len(snapshots)
        numbers = (
            pa.nulls(row_count) if values is None else values for values in (firsts, lasts, counts)
        )
        self._put(snapshots, pa.repeat(what, row_count), *numbers)

    def _put(self, snapshots: Any, whats: Any, *numbers: Any) -> None:
        epoch, *ends = (pa.repeat(part, len(snapshots)) for part in self._key)
        columns = [epoch, snapshots, *ends, whats, *numbers]
        self._tables.append(pa.table(columns, schema=FINDINGS))

    def table(self) -> pa.Table:
        """Return all findings."""
        if self._rows:
            self._put(*map(list, zip(*self._rows, strict=True)))
            self._rows = []
        return pa.concat_tables(self._tables)


class _Side:
    """One side of a channel, or a process: all its splits in order.

    `runs` are in the order of the log; numbers before its beginning, and of lost rows, are where
    they should be. `cuts` and `markers` hold how many numbers come before (`place`). `gaps` are
    missing.
    """

    def __init__(self, rows: pa.Table) -> None:
        rows = rows.sort_by([("part", "ascending"), ("row_group", "ascending")])
        self.gaps: list[tuple[str, Run]] = []
        self.is_cut_short = any(rows.column("is_cut_short").to_pylist())
        runs: list[Run] = []
        before: list[int] = []
        total = 0
        for row in rows.select(["base", "lost", "firsts", "counts"]).to_pylist():
            base, lost, firsts, counts = row.values()
            if base is not None and base > total:
                gap = total + 1, base - total
                if before:
                    self.gaps.append((ROWS_LOST if lost else ROWS_MISSING, gap))
                runs.append(gap)
                total = base
            before.append(total)
            runs += zip(firsts or (), counts or (), strict=True)
            total += sum(counts or ())
        self.runs = merged(runs)
        if len(self.runs) > RUN_COUNT_MAX:
            self.runs, self.is_cut_short = self.runs[:RUN_COUNT_MAX], True
        self.total = total
        self.cuts = _placed(rows.column("cuts"), before)
        self.markers = _placed(rows.column("markers"), before)

    @property
    def is_whole(self) -> bool:
        """Whether the numbers are 1, 2, 3 and so on."""
        return self.runs == ([(1, self.total)] if self.total else [])


def _placed(column: pa.ChunkedArray, before: list[int]) -> pa.Table:
    """Return the steps of all pieces, with `place` counted from the beginning of the log."""
    lists = column.combine_chunks()
    counts = lists.value_lengths().fill_null(0).to_numpy()
    steps = pa.Table.from_struct_array(lists.flatten())
    places = steps.column("place").to_numpy() + np.repeat(np.array(before, np.int64), counts)
    index = steps.column_names.index("place")
    return steps.set_column(index, "place", pa.array(places))


def check_group(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
    """Return the `FINDINGS` about a channel, or a process without target, from its `COUNTS`; `key`
    is epoch, source and target."""
    found = Findings(key)
    found.add(None, KNOWN)
    sides = {
        side: _Side(rows.filter(pc.equal(rows.column("side"), side)))
        for side in pc.unique(rows.column("side")).to_pylist()
    }
    if PROCESS_SIDE in sides:
        _check_process(sides[PROCESS_SIDE], found)
        return found.table()
    places = None
    if SENT_SIDE in sides and ACCEPTED_SIDE in sides:
        for name in (SENT_SIDE, ACCEPTED_SIDE):
            _check_order(name, sides[name], found)
        places = _Places(sides[SENT_SIDE], sides[ACCEPTED_SIDE])
        _check_channel(sides[SENT_SIDE], sides[ACCEPTED_SIDE], places, found)
    if PUBLISHED_SIDE in sides:
        _check_published(sides[PUBLISHED_SIDE].markers, places, found)
    return found.table()


def _check_process(side: _Side, found: Findings) -> None:
    found.add(None, LOGGED)
    for what, run in side.gaps:
        found.add(None, what, [run])
    # An action may end in the piece after that in which it began.
    seen: list[Run] = []
    for first, count in side.runs:
        is_rest = bool(seen) and first == sum(seen[-1]) - 1
        seen.append((first + 1, count - 1) if is_rest else (first, count))
    actions = merged(seen)
    if len(actions) > 1:
        found.add(None, ROWS_MISSING, minus([(1, sum(max(actions)) - 1)], actions))
        found.add(None, ACTIONS_WRONG, union([*out_of_order(actions), *repeated(actions)]))
    snapshots = side.cuts.column("snapshot").combine_chunks()
    found.add_all(snapshots, CUT, side.cuts.column("event").combine_chunks())
    for counted in pc.value_counts(snapshots).to_pylist():
        if counted["counts"] > 1:
            found.add(counted["values"], RECORDED_TWICE)


def _check_order(name: str, side: _Side, found: Findings) -> None:
    if side.is_cut_short:
        found.add(None, TOO_MUCH)
    if side.is_whole:
        return
    last = max(map(sum, side.runs)) - 1
    found.add(None, MISSING[name], minus([(1, last)], side.runs))
    found.add(None, TWICE[name], repeated(side.runs))
    found.add(None, LATE[name], out_of_order(side.runs))


def _check_channel(sent: _Side, accepted: _Side, places: "_Places", found: Findings) -> None:
    if sent.is_whole and accepted.is_whole:
        is_right = places.is_right()
        received, sent_before = places.received[is_right], places.sent[is_right]
        right = places.snapshots.filter(pa.array(is_right))
        found.add_all(right, IN_TRANSIT, received + 1, sent_before, sent_before - received)
        rest = np.flatnonzero(~is_right)
    else:
        rest = np.arange(len(places.sent))
    if not len(rest):
        return
    markers_sent, markers_accepted = _by_snapshot(sent.markers), _by_snapshot(accepted.markers)
    for index in rest.tolist():
        snapshot = places.snapshots[index].as_py()
        sent_count, received_count = int(places.sent[index]), int(places.received[index])
        inside = between(sent.runs, 0, sent_count)
        taken = between(accepted.runs, 0, received_count)
        add = partial(found.add, snapshot)
        add(ORPHAN, minus(taken, inside))
        expected = minus(inside, taken)
        size = sum(count for _, count in expected)
        found.add_all([snapshot], IN_TRANSIT, [received_count + 1], [sent_count], [size])
        _check_markers_sent(markers_sent[snapshot], sent.runs, sent_count, add)
        _check_markers_accepted(markers_accepted[snapshot], accepted.runs, inside, expected, add)


def _check_published(published: pa.Table, places: "_Places | None", found: Findings) -> None:
    snapshots = published.column("snapshot").combine_chunks()
    if places is None:
        found.add_all(snapshots, NOT_LOGGED)
        return
    index = pc.index_in(snapshots, places.snapshots)
    is_logged = pc.is_valid(index)
    found.add_all(snapshots.filter(pc.invert(is_logged)), NOT_LOGGED)
    there = _with_recorded(published.filter(is_logged))
    at = pc.drop_null(index).to_numpy()
    sent, received = places.sent[at], places.received[at]
    places_there, received_there, count, first = (
        there.column(name).to_numpy() for name in ("place", "event", "recorded_count", "first")
    )
    is_same = balances(sent, received, count, first)
    is_same &= (places_there == sent) & (received_there == received)
    different = snapshots.filter(is_logged).filter(pa.array(~is_same))
    ends = received[~is_same] + 1, sent[~is_same]
    found.add_all(different, PUBLISHED_OTHERWISE, *ends, np.maximum(ends[1] - ends[0] + 1, 0))


def _check_markers_sent(markers: list[Step], sent: Runs, place: int, add: Add) -> None:
    """Check the markers that were sent; `place` messages of those in `sent` are before the cut."""
    if not markers:
        add(MARKER_NOT_SENT)
        return
    if len(markers) > 1:
        add(MARKER_SENT_TWICE)
    add(MARKER_SENT_LATE, union(between(sent, *sorted([place, markers[0]["place"]]))))


def _check_markers_accepted(
    markers: list[Step], accepted: Runs, inside: Runs, expected: Runs, add: Add
) -> None:
    """Check the markers that were accepted, and the messages recorded of the channel; `inside` are
    the messages sent inside the cut, `expected` those that were on the channel."""
    if not markers:
        add(MARKER_NOT_ACCEPTED)
        return
    if len(markers) > 1:
        add(MARKER_ACCEPTED_TWICE)
    before = between(accepted, 0, markers[0]["place"])
    add(OVERTAKEN, minus(inside, before))
    add(OVERTAKES, minus(before, inside))
    if (batches := markers[0]["recorded"]) is None:
        add(NOT_COMPLETED)
        return
    recorded = merged((run["first"], run["count"]) for run in batches)
    if recorded == expected:
        return
    add(NOT_RECORDED, minus(expected, recorded))
    add(RECORDED_TOO_MUCH, minus(recorded, expected))
    add(RECORDED_OUT_OF_ORDER, union([*out_of_order(recorded), *repeated(recorded)]))


class _Places:
    """The numbers of messages before the cuts of both ends, for `snapshots` that both recorded."""

    def __init__(self, sent: _Side, accepted: _Side) -> None:
        at_target = _first_of_each(accepted.cuts)
        at_source = _first_of_each(sent.cuts)
        found = pc.index_in(at_target.column("snapshot"), at_source.column("snapshot"))
        both = at_target.filter(pc.is_valid(found))
        self.snapshots = both.column("snapshot").combine_chunks()
        self.received = both.column("place").to_numpy()
        self.sent = at_source.column("place").to_numpy()[pc.drop_null(found).to_numpy()]
        self._markers_sent, self._markers_accepted = sent.markers, accepted.markers

    def is_right(self) -> Any:
        """Return for each snapshot whether nothing is wrong, if the numbers follow on."""
        accepted = _with_recorded(self._markers_accepted)
        count, first = (self._aligned(accepted, name) for name in ("recorded_count", "first"))
        right = balances(self.sent, self.received, count, first)
        right &= self._aligned(self._markers_sent, "place") == self.sent
        return right & (self._aligned(accepted, "place") == self.sent)

    def _aligned(self, markers: pa.Table, column: str) -> Any:
        """Return a column of markers for each snapshot; -1 where there is not exactly one."""
        counts = pc.value_counts(markers.column("snapshot").combine_chunks())
        once = counts.filter(pc.equal(counts.field("counts"), 1)).field("values")
        single = markers.filter(pc.is_in(markers.column("snapshot"), once))
        index = pc.index_in(self.snapshots, single.column("snapshot"))
        return single.column(column).take(index).fill_null(-1).to_numpy()


def _with_recorded(markers: pa.Table) -> pa.Table:
    """Return markers with `recorded_count` and `first`; -1 where it is not one run, or none."""
    lists = markers.column("recorded").combine_chunks()
    flat = lists.flatten()
    lengths = lists.value_lengths()
    ends = np.cumsum(lengths.fill_null(0).to_numpy())
    firsts, counts = flat.field("first").to_numpy(), flat.field("count").to_numpy()
    is_new = np.ones(len(firsts), bool)
    is_new[1:] = firsts[1:] != firsts[:-1] + counts[:-1]
    begins = ends - lengths.fill_null(0).to_numpy()
    is_new[begins[begins < len(firsts)]] = True
    breaks = np.concatenate([[0], np.cumsum(is_new)])
    sums = np.concatenate([[0], np.cumsum(counts)])
    run_count = breaks[ends] - breaks[begins]
    total = sums[ends] - sums[begins]
    is_null = lists.is_null().to_numpy(zero_copy_only=False)
    total[(run_count > 1) | is_null] = -1
    padded = np.append(firsts, -1)
    return markers.append_column("recorded_count", pa.array(total)).append_column(
        "first", pa.array(padded[np.minimum(begins, len(firsts))])
    )


def _first_of_each(steps: pa.Table) -> pa.Table:
    """Return the steps without those of a snapshot that has one before them already."""
    snapshots = steps.column("snapshot").combine_chunks()
    different = pc.unique(snapshots)
    return steps if len(different) == len(steps) else steps.take(pc.index_in(different, snapshots))


def _by_snapshot(steps: pa.Table) -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = defaultdict(list)
    for step in steps.to_pylist():
        found[step["snapshot"]].append(step)
    return found


# Sets and sequences of message numbers, as runs of consecutive ones: without faults there is one
# run, so a set of a million messages takes one pair.


def merged(runs: Iterable[Run]) -> list[Run]:
    """Merge consecutive runs of a sequence, and leave out empty ones."""
    found: list[Run] = []
    for first, count in runs:
        if count <= 0:
            continue
        if found and sum(found[-1]) == first:
            found[-1] = found[-1][0], found[-1][1] + count
        else:
            found.append((first, count))
    return found


def between(runs: Runs, begin: int, end: int) -> list[Run]:
    """Return the numbers of a sequence from place `begin`, from 0, to before place `end`."""
    found: list[Run] = []
    place = 0
    for first, count in runs:
        low, high = max(begin, place), min(end, place + count)
        if low < high:
            found.append((first + low - place, high - low))
        place += count
        if place >= end:
            break
    return found


def _where(is_wanted: Callable[..., bool], *sequences: Iterable[Run]) -> list[Run]:
    """Return the set of the numbers that sequences have as often as is wanted, given how often each
    sequence has one: sorted, each once."""
    changes: dict[int, list[int]] = {}
    for index, runs in enumerate(sequences):
        for first, count in runs:
            if count > 0:
                for place, change in ((first, 1), (first + count, -1)):
                    changes.setdefault(place, [0 for _ in sequences])[index] += change
    found: list[Run] = []
    counts = [0 for _ in sequences]
    for place, following in pairwise(sorted(changes)):
        counts = [count + change for count, change in zip(counts, changes[place], strict=True)]
        if is_wanted(*counts):
            found.append((place, following - place))
    return merged(found)


def union(runs: Iterable[Run]) -> list[Run]:
    """Return the set of all numbers in a sequence."""
    return _where(lambda count: count > 0, runs)


def minus(left: Iterable[Run], right: Iterable[Run]) -> list[Run]:
    """Return the set of the numbers that are in `left` and not in `right`."""
    return _where(lambda here, there: here > 0 and not there, left, right)


def repeated(runs: Iterable[Run]) -> list[Run]:
    """Return the set of the numbers that are in a sequence more than once."""
    return _where(lambda count: count > 1, runs)


def out_of_order(runs: Iterable[Run]) -> list[Run]:
    """Return the set of the numbers that a sequence has, at first, after a greater one."""
    late: list[Run] = []
    seen: list[Run] = []
    greatest = 0
    for first, count in runs:
        if count > 0 and first < greatest:
            late += minus([(first, min(count, greatest - first))], seen)
        seen.append((first, count))
        greatest = max(greatest, first + count - 1)
    return union(late)
