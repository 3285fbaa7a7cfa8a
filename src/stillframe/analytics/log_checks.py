"""Checks one channel, or one process, of an event log: what a task of ``log_verification`` does.

It is given what ``log_aggregate`` counted in all splits, and answers for all snapshots at once. A
channel whose numbers are consecutive takes a few comparisons per snapshot; one with a fault is
examined as sets of numbers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stillframe.analytics.log_aggregate import (
    ACCEPTED_SIDE,
    PROCESS_SIDE,
    PUBLISHED_SIDE,
    SENT_SIDE,
)
from stillframe.channel_accounting import balances

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
PUBLISHED_OTHERWISE = "published otherwise than the log says"
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
ROWS_LOST = "rows were lost, as the log itself says"
ROWS_MISSING = "rows are missing: a file is not there"
TOO_MUCH = "more is wrong than can be named"
GAPS = (NOT_LOGGED, MARKER_NOT_ACCEPTED, NOT_COMPLETED, ROWS_LOST, ROWS_MISSING, TOO_MUCH)
"""Why there is no verdict, or why a snapshot was not completed."""

_NAMED_MAX = 10
"""How many runs of messages are named of one kind of fault on one channel of one snapshot."""
RUN_COUNT_MAX = 1000
"""How many runs of one side of a channel are checked; later ones are not."""

Run = tuple[int, int]
"""The numbers ``first .. first + count - 1``."""
Runs = Sequence[Run]


class Findings:
    """Collects rows of `FINDINGS` about one channel or process."""

    def __init__(self, key: tuple[Any, ...]) -> None:
        self._epoch, self._source, self._target = (
            None if part is None else part.as_py() if hasattr(part, "as_py") else part
            for part in key
        )
        self._rows: list[tuple[str | None, str, int | None, int | None, int | None]] = []
        self._tables: list[pa.Table] = []

    def add(self, snapshot: str | None, what: str, runs: Runs | None = None) -> None:
        """Add a finding about the messages `runs`, none if there is no message, or about no
        messages."""
        if runs is None:
            self._rows.append((snapshot, what, None, None, None))
            return
        self._rows += [
            (snapshot, what, first, first + count - 1, count) for first, count in runs[:_NAMED_MAX]
        ]

    def add_all(
        self,
        snapshots: pa.Array,
        what: str,
        firsts: Any = None,
        lasts: Any = None,
        counts: Any = None,
    ) -> None:
        """Add the same finding about many snapshots, with numbers for each."""
        nothing = pa.nulls(len(snapshots), pa.int64())
        self._tables.append(
            self._table(
                snapshots,
                pa.repeat(pa.scalar(what), len(snapshots)),
                *(
                    nothing if n is None else pa.array(n, pa.int64())
                    for n in (firsts, lasts, counts)
                ),
            )
        )

    def table(self) -> pa.Table:
        """Return all findings."""
        columns = list(zip(*self._rows, strict=True)) or [()] * 5
        types = (pa.string(), pa.string(), pa.int64(), pa.int64(), pa.int64())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        return pa.concat_tables([*self._tables, self._table(*arrays)])

    def _table(self, snapshots: pa.Array, what: pa.Array, *numbers: pa.Array) -> pa.Table:
        count = len(snapshots)

        def same(value: Any, kind: pa.DataType) -> pa.Array:
            return pa.repeat(pa.scalar(value, kind), count)

        ends = same(self._source, pa.string()), same(self._target, pa.string())
        columns = [same(self._epoch, pa.int64()), snapshots, *ends, what, *numbers]
        return pa.table(columns, schema=FINDINGS)


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
        columns = ("base", "lost", "firsts", "counts")
        for base, lost, firsts, counts in zip(
            *(rows.column(name).to_pylist() for name in columns), strict=True
        ):
            if base is not None and base > total:
                gap = total + 1, base - total
                if before:
                    self.gaps.append((ROWS_LOST if lost else ROWS_MISSING, gap))
                runs.append(gap)
                total = base
            before.append(total)
            runs += zip(firsts, counts, strict=True)
            total += sum(counts)
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
    flat = lists.flatten()
    offset = np.repeat(np.array(before, np.int64), lists.value_lengths().to_numpy())
    steps = pa.Table.from_struct_array(flat)
    places = steps.column("place").to_numpy() + offset
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
        found.add(None, ROWS_MISSING, minus([(1, sum(max(actions)) - 1)], union(actions)))
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
    there = union(side.runs)
    found.add(None, MISSING[name], minus([(1, sum(there[-1]) - 1)], there))
    found.add(None, TWICE[name], repeated(side.runs))
    found.add(None, LATE[name], union(out_of_order(side.runs)))


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
        inside = union(between(sent.runs, 0, sent_count))
        taken = union(between(accepted.runs, 0, received_count))
        found.add(snapshot, ORPHAN, minus(taken, inside))
        expected = minus(inside, taken)
        here = pa.array([snapshot], pa.string())
        found.add_all(here, IN_TRANSIT, [received_count + 1], [sent_count], [size(expected)])
        markers = markers_sent.get(snapshot, [])
        _check_markers_sent(markers, sent.runs, sent_count, snapshot, found)
        markers = markers_accepted.get(snapshot, [])
        _check_markers_accepted(markers, accepted.runs, inside, snapshot, found)
        if markers:
            _check_recorded(markers[0]["recorded"], expected, snapshot, found)


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


def _check_markers_sent(
    markers: list[Mapping[str, Any]], sent: Runs, place: int, snapshot: str, found: Findings
) -> None:
    """Check the markers that were sent; `place` messages of those in `sent` are before the cut."""
    if not markers:
        found.add(snapshot, MARKER_NOT_SENT)
        return
    if len(markers) > 1:
        found.add(snapshot, MARKER_SENT_TWICE)
    places = sorted([place, markers[0]["place"]])
    found.add(snapshot, MARKER_SENT_LATE, union(between(sent, *places)))


def _check_markers_accepted(
    markers: list[Mapping[str, Any]], accepted: Runs, inside: Runs, snapshot: str, found: Findings
) -> None:
    """Check the markers that were accepted; `inside` are the messages sent inside the cut."""
    if not markers:
        found.add(snapshot, MARKER_NOT_ACCEPTED)
        return
    if len(markers) > 1:
        found.add(snapshot, MARKER_ACCEPTED_TWICE)
    before = union(between(accepted, 0, markers[0]["place"]))
    found.add(snapshot, OVERTAKEN, minus(inside, before))
    found.add(snapshot, OVERTAKES, minus(before, inside))


def _check_recorded(
    batches: list[Mapping[str, int]] | None, expected: Runs, snapshot: str, found: Findings
) -> None:
    """Check the messages recorded of the channel; `expected` are those that were on it."""
    if batches is None:
        found.add(snapshot, NOT_COMPLETED)
        return
    recorded = merged((run["first"], run["count"]) for run in batches)
    if recorded == list(expected):
        return
    there = union(recorded)
    found.add(snapshot, NOT_RECORDED, minus(expected, there))
    found.add(snapshot, RECORDED_TOO_MUCH, minus(there, expected))
    wrong_order = union([*out_of_order(recorded), *repeated(recorded)])
    found.add(snapshot, RECORDED_OUT_OF_ORDER, wrong_order)


class _Places:
    """How many messages come before the cuts of both ends, for the `snapshots` that both
    recorded."""

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
    if len(pc.unique(snapshots)) == len(snapshots):
        return steps
    seen: dict[str, int] = {}
    for index, snapshot in enumerate(snapshots.to_pylist()):
        seen.setdefault(snapshot, index)
    return steps.take(pa.array(list(seen.values()), pa.int64()))


def _by_snapshot(steps: pa.Table) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for step in steps.to_pylist():
        found.setdefault(step["snapshot"], []).append(step)
    return found


# Sets and sequences of message numbers, as runs of consecutive ones: without faults there is one
# run, so a set of a million messages takes one pair.


def merged(runs: Iterable[Run]) -> list[Run]:
    """Return a sequence of runs of which none continues the one before; empty ones are left out."""
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


def union(runs: Iterable[Run]) -> list[Run]:
    """Return the set of all numbers in a sequence: sorted, each once."""
    found: list[Run] = []
    for first, count in sorted(run for run in runs if run[1] > 0):
        if found and first <= sum(found[-1]):
            begin, end = found[-1][0], max(sum(found[-1]), first + count)
            found[-1] = begin, end - begin
        else:
            found.append((first, count))
    return found


def minus(left: Runs, right: Runs) -> list[Run]:
    """Return the set `left` without the set `right`; both as ``union`` gives them."""
    found: list[Run] = []
    others = iter(right)
    other = next(others, None)
    for first, count in left:
        begin, end = first, first + count
        while other is not None and sum(other) <= begin:
            other = next(others, None)
        while other is not None and other[0] < end:
            if other[0] > begin:
                found.append((begin, other[0] - begin))
            begin = sum(other)
            if begin >= end:
                break
            other = next(others, None)
        if begin < end:
            found.append((begin, end - begin))
    return found


def size(runs: Iterable[Run]) -> int:
    """Return how many numbers a sequence has, those that are there twice counted twice."""
    return sum(count for _, count in runs)


def repeated(runs: Iterable[Run]) -> list[Run]:
    """Return the set of the numbers that are in a sequence more than once."""
    seen: list[Run] = []
    twice: list[Run] = []
    for run in runs:
        twice += minus([run], minus([run], seen))
        seen = union([*seen, run])
    return union(twice)


def out_of_order(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield what of a sequence comes after a greater number, for the first time."""
    seen: list[Run] = []
    greatest = 0
    for first, count in runs:
        new = minus([(first, count)], seen) if count > 0 else []
        for begin, length in new:
            if begin < greatest:
                yield begin, min(length, greatest - begin)
        seen = union([*seen, *new])
        greatest = max(greatest, first + count - 1)
