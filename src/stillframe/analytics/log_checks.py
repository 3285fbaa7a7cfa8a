"""Checks one channel, or one process, of an event log: what a task of ``log_verification`` does.

It is given what ``log_aggregate`` counted in all splits, and answers for all snapshots at once. A
channel whose numbers are consecutive takes a few comparisons per snapshot; one with a fault is
examined as sets of numbers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stillframe.analytics.intervals import (
    Run,
    Runs,
    between,
    merged,
    minus,
    out_of_order,
    repeated,
    size,
    union,
)
from stillframe.analytics.log_aggregate import (
    ACCEPTED_SIDE,
    PROCESS_SIDE,
    PUBLISHED_SIDE,
    SENT_SIDE,
)
from stillframe.analytics.log_findings import (
    ACTIONS_WRONG,
    CUT,
    GIVEN_UP,
    IN_TRANSIT,
    KNOWN,
    LATE,
    LOGGED,
    MARKER_ACCEPTED_TWICE,
    MARKER_NOT_ACCEPTED,
    MARKER_NOT_SENT,
    MARKER_SENT_LATE,
    MARKER_SENT_TWICE,
    MISSING,
    NOT_LOGGED,
    NOT_RECORDED,
    ORPHAN,
    OVERTAKEN,
    OVERTAKES,
    PUBLISHED_OTHERWISE,
    RECORDED_OUT_OF_ORDER,
    RECORDED_TOO_MUCH,
    RECORDED_TWICE,
    ROWS_LOST,
    ROWS_MISSING,
    TOO_MUCH,
    TWICE,
    Findings,
)

RUN_COUNT_MAX = 1000
"""So many runs of one side of a channel are looked at; what comes after them is not judged."""


class _Side:
    """One side of a channel, or a process: all its pieces in order.

    Attributes:
        runs: the numbers in the order of the log; those before its beginning, and those of which it
            has lost the rows, stand where they should.
        places: snapshot -> how many of them are before the cut.
        markers: snapshot -> for each marker, how many are before it, and what was recorded.
        gaps: what is not there.
        is_cut_short: whether there is more than is looked at.
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
    """Judge one channel or process in one epoch.

    Args:
        key: epoch, source and target; no target: the process `source`.
        rows: what was counted of it (``log_aggregate.COUNTS``).

    Returns:
        what was found (`FINDINGS`).
    """
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
    """Judge the channel at every cut that both its ends recorded."""
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
    """Compare what a store says of the channel with where the cuts lie."""
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
    is_same = (there.column("place").to_numpy() == sent) & (
        there.column("event").to_numpy() == received
    )
    count = there.column("recorded_count").to_numpy()
    is_same &= count == sent - received
    is_same &= (count == 0) | (there.column("first").to_numpy() == received + 1)
    different = snapshots.filter(is_logged).filter(pa.array(~is_same))
    ends = received[~is_same] + 1, sent[~is_same]
    found.add_all(different, PUBLISHED_OTHERWISE, *ends, np.maximum(ends[1] - ends[0] + 1, 0))


def _check_markers_sent(
    markers: list[Mapping[str, Any]], sent: Runs, place: int, snapshot: str, found: Findings
) -> None:
    """Judge the markers that were sent; `place` messages of those in `sent` are before the cut."""
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
    """Judge the markers that were accepted; `inside` are the messages sent inside the cut."""
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
    """Judge what was recorded of the channel; `expected` are the messages that were on it."""
    if batches is None:
        found.add(snapshot, GIVEN_UP)
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
    """Where the cuts of both ends lie on a channel, snapshot by snapshot, as arrays.

    Attributes:
        snapshots: those that both ends recorded.
        sent: how many rows of messages sent are before the cut of the source.
        received: how many of messages accepted are before that of the target.
    """

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
        right = self.received <= self.sent
        right &= self._aligned(self._markers_sent, ["place"]) == self.sent
        accepted = _with_recorded(self._markers_accepted)
        right &= self._aligned(accepted, ["place"]) == self.sent
        count = self._aligned(accepted, ["recorded_count"])
        right &= count == self.sent - self.received
        return right & ((count == 0) | (self._aligned(accepted, ["first"]) == self.received + 1))

    def _aligned(self, markers: pa.Table, columns: list[str]) -> Any:
        """Return a column of markers for each snapshot; -1 where there is not exactly one."""
        counts = pc.value_counts(markers.column("snapshot").combine_chunks())
        once = counts.filter(pc.equal(counts.field("counts"), 1)).field("values")
        single = markers.filter(pc.is_in(markers.column("snapshot"), once))
        index = pc.index_in(self.snapshots, single.column("snapshot"))
        return single.column(columns[0]).take(index).fill_null(-1).to_numpy()


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
