"""Count the messages and markers of an event log, one row group at a time, in tasks.

Channels keep order and cuts advance, so what a cut has of a channel is how many of its messages
lie before the cut: one number. To find it no message is joined with any snapshot. The numbers of
the messages themselves are compared with their places, and what does not follow on is kept as runs
of consecutive numbers: one run, if nothing is wrong.

Executors have Arrow and numpy, and of this package what imports nothing else.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stillframe.errors import Damaged
from stillframe.eventlog.segments import SCHEMA, STREAM, read_rows

Ints = npt.NDArray[np.int64]

SENT_SIDE, ACCEPTED_SIDE, PROCESS_SIDE = "sent", "accepted", "process"
PUBLISHED_SIDE = "published"
"""A channel as a store has it: its `markers` are the snapshots, each with how many messages were
sent (`place`) and received (`event`) at the cuts, and which were recorded."""
RUN_COUNT_MAX = 1000
"""How many runs are kept of one side of a channel in one row group."""
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
_COLUMNS = ["event", "channel", "number", "snapshot", "recorded"]
_NOTHING = SCHEMA.empty_table().select(_COLUMNS)
_NONE: Ints = np.empty(0, np.int64)
SPLITS = (
    "path STRING, "  # of the file
    "row_group INT, "  # which row group of it, from 0, or ``eventlog.segments.STREAM``
    "epoch BIGINT, "
    "process STRING, "  # whose file it is
    "part INT, "  # which file of that process and epoch, from 1
    "span STRING"  # what came before the file, as JSON (``eventlog.reader.SegmentHeader``)
)


def aggregate_splits(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the counts (`COUNTS`) of each split of a log (`SPLITS`)."""
    for batch in batches:
        for piece in batch.to_pylist():
            found = read_rows(Path(piece["path"]), [piece["row_group"]], _COLUMNS)
            number = -1
            for number, table in enumerate(found):
                yield from _count(piece, number, table).to_batches()
            if number < 0:  # it is empty, but states what came before it
                yield from _count(piece, 0, _NOTHING).to_batches()


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
            raise Damaged(f"{path} has rows of a snapshot {strange[0]!r}, which is no name of one")
        self._steps = np.flatnonzero(is_step)
        self._snapshots, self._snapshot_of = snapshots, which[self._steps]
        key = self._keys(table.column("channel"))
        self._key_of_step = key[self._steps]
        # Steps are no messages; nor are actions without a channel.
        key[self._steps] = len(self.channels)
        if table.column("number").null_count != np.count_nonzero(key == len(self.channels)):
            raise Damaged(f"{path} has messages without a number, or numbers without a message")
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
                f"{self._path} has rows on {unknown[0]}, which its beginning does not name"
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
    """Return a column of 64-bit integers as they lie in memory; empty places hold anything."""
    array = column.combine_chunks()
    return np.frombuffer(array.buffers()[1] or b"", np.int64, len(array), array.offset * 8)


def _texts(column: pa.ChunkedArray) -> tuple[list[str], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the different texts of a column; for each row which one; and whether it has one."""
    array = column.unify_dictionaries().combine_chunks()
    indices = array.indices
    which = np.frombuffer(indices.buffers()[1] or b"", np.int32, len(indices), indices.offset * 4)
    if not indices.null_count:
        return array.dictionary.to_pylist(), which, np.ones(len(indices), bool)
    bits = np.frombuffer(indices.buffers()[0], np.uint8)
    last = indices.offset + len(indices)
    is_there = np.unpackbits(bits, count=last, bitorder="little")[indices.offset :].astype(bool)
    return array.dictionary.to_pylist(), np.where(is_there, which, 0), is_there


def plan_splits(log: Path) -> list[dict[str, Any]]:
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
