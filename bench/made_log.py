"""Makes event logs of any length by arithmetic: messages on channels in order, and snapshots.

Every message has a moment at which it was sent and a later one at which it was accepted; every
process a moment at which it recorded its state for each snapshot. The moments of one snapshot are
nearer to each other than any message is fast: so every cut is consistent.
"""

from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stillframe.eventlog.reader import HEADER_KEY, SegmentHeader, segment_path
from stillframe.eventlog.segments import (
    ACCEPTED,
    KINDS,
    MARKER_ACCEPTED,
    MARKER_SENT,
    RECORDED,
    ROW_GROUP_COUNT,
    SCHEMA,
    SENT,
)

PROCESS_COUNT = 8
SNAPSHOT_COUNT = 1000
PART_ROW_COUNT = 2**22
"""What the writer of event logs puts into a file."""
SEED = 864
_MESSAGE_S_MIN, _MESSAGE_S_SPREAD, _CUT_S_SPREAD = 0.1, 0.5, 0.075
"""How long a message is under way, and how far the cuts of a snapshot are from each other, as parts
of the time between two snapshots."""

Moments = Any


class _Flow:
    """When each message of a channel was sent and accepted, and where the markers came."""

    def __init__(self, chance: np.random.Generator, count: int, cuts: Moments) -> None:
        spacing = cuts[0][1] - cuts[0][0]
        self.sent = np.sort(chance.random(count)) * spacing * SNAPSHOT_COUNT
        way = _MESSAGE_S_MIN + _MESSAGE_S_SPREAD * chance.random(count)
        tiny = spacing * 1e-9
        self.accepted = np.maximum.accumulate(self.sent + spacing * way)
        self.accepted += np.arange(count) * tiny
        source_cuts, target_cuts = cuts
        self.sent_count = np.searchsorted(self.sent, source_cuts)
        self.received_count = np.searchsorted(self.accepted, target_cuts)
        # A marker comes between the last message before it and the first behind it.
        padded = np.concatenate([[-np.inf], self.accepted, [np.inf]])
        before = np.maximum(padded[self.sent_count], target_cuts)
        behind = np.minimum(padded[self.sent_count + 1], before + spacing * _MESSAGE_S_MIN)
        self.markers = (before + behind) / 2


def make_log(log: Path, event_count: int) -> None:
    """Write an event log of about so many messages sent and accepted, in full mesh.

    Args:
        log: the directory.
        event_count: how many rows of messages it has.
    """
    chance = np.random.default_rng(SEED)
    names = [f"P{number}" for number in range(PROCESS_COUNT)]
    nominal = np.arange(SNAPSHOT_COUNT) + 0.5
    cuts = {name: nominal + _CUT_S_SPREAD * chance.random(SNAPSHOT_COUNT) for name in names}
    channels = list(permutations(names, 2))
    count = event_count // 2 // len(channels)
    flows = {
        (source, target): _Flow(chance, count, (cuts[source], cuts[target]))
        for source, target in channels
    }
    for name in names:
        _write(log, name, _table(name, cuts[name], flows), channels)


def _table(name: str, cuts: Moments, flows: dict[tuple[str, str], _Flow]) -> pa.Table:
    """Return the rows of a process, in the order of their moments."""
    columns = _Columns()
    columns.add(cuts, RECORDED, None, snapshots=True)
    for (source, target), flow in flows.items():
        channel = f"{source}->{target}"
        if source == name:
            columns.add(flow.sent, SENT, channel)
            columns.add(cuts, MARKER_SENT, channel, snapshots=True)
        elif target == name:
            columns.add(flow.accepted, ACCEPTED, channel)
            recorded = flow.received_count + 1, flow.sent_count - flow.received_count
            columns.add(flow.markers, MARKER_ACCEPTED, channel, snapshots=True, recorded=recorded)
    return columns.table()


class _Columns:
    """Gathers rows of one kind and channel after the other, and sorts them by their moments."""

    def __init__(self) -> None:
        self._moments: list[Moments] = []
        self._kinds: list[Moments] = []
        self._channels: list[Moments] = []
        self._numbers: list[Moments] = []
        self._snapshots: list[Moments] = []
        self._recorded: list[pa.Array] = []
        self._names: list[str] = []

    def add(
        self,
        moments: Moments,
        kind: str,
        channel: str | None,
        *,
        snapshots: bool = False,
        recorded: tuple[Moments, Moments] | None = None,
    ) -> None:
        """Add rows; messages are numbered, steps bear the snapshots in their order."""
        count = len(moments)
        if channel is not None and channel not in self._names:
            self._names.append(channel)
        which = -1 if channel is None else self._names.index(channel)
        ordinal = np.arange(count, dtype=np.int64)
        self._moments.append(moments)
        self._kinds.append(np.full(count, KINDS.index(kind), np.int32))
        self._channels.append(np.full(count, which, np.int32))
        self._numbers.append(np.full(count, -1) if snapshots else ordinal + 1)
        self._snapshots.append((ordinal if snapshots else np.full(count, -1)).astype(np.int32))
        kind_of_list = SCHEMA.field("recorded").type
        if recorded is None:
            self._recorded.append(pa.nulls(count, kind_of_list))
            return
        first, length = recorded
        some = length > 0
        runs = pa.StructArray.from_arrays(
            [pa.array(first[some]), pa.array(length[some])], names=["first", "count"]
        )
        ends = pa.array(np.concatenate([[0], np.cumsum(some)]), pa.int32())
        self._recorded.append(pa.ListArray.from_arrays(ends, runs).cast(kind_of_list))

    def table(self) -> pa.Table:
        """Return all rows in order."""
        order = np.argsort(np.concatenate(self._moments), kind="stable")
        number = np.concatenate(self._numbers)[order]
        is_step = number < 0
        names = pa.array([f"P0-{index + 1}" for index in range(SNAPSHOT_COUNT)])
        event = np.cumsum(~is_step)
        at = pa.array(event * 1000, mask=~is_step).cast(pa.timestamp("us", tz="UTC"))
        return pa.table(
            [
                pa.array(event),
                _texts(np.concatenate(self._kinds)[order], pa.array(KINDS)),
                _texts(np.concatenate(self._channels)[order], pa.array(self._names)),
                pa.array(number, mask=is_step),
                _texts(np.concatenate(self._snapshots)[order], names),
                at,
                pa.concat_arrays(self._recorded).take(pa.array(order)),
            ],
            schema=SCHEMA,
        )


def _texts(indices: Moments, texts: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(indices, mask=indices < 0), texts)


def _write(log: Path, name: str, rows: pa.Table, channels: list[tuple[str, str]]) -> None:
    """Write the files of a process as the runtime's writer does."""
    for part, begin in enumerate(range(0, len(rows), PART_ROW_COUNT), 1):
        before = rows.slice(max(begin - 1, 0), 1)
        event_count = before["event"][0].as_py() if begin else 0
        last = _last_numbers(rows.slice(0, begin))
        span = SegmentHeader(
            process=name,
            epoch=1,
            number=part,
            event_count=event_count,
            sent={b: last.get(f"{a}->{b}", 0) for a, b in channels if a == name},
            received={a: last.get(f"{a}->{b}", 0) for a, b in channels if b == name},
        )
        path = segment_path(log, span, is_complete=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(
            path,
            SCHEMA,
            compression="zstd",
            use_dictionary=["kind", "channel", "snapshot"],
            column_encoding={"event": "DELTA_BINARY_PACKED", "number": "DELTA_BINARY_PACKED"},
            store_schema=False,
        ) as writer:
            writer.add_key_value_metadata({HEADER_KEY.decode(): msgspec.json.encode(span).decode()})
            part_rows = rows.slice(begin, PART_ROW_COUNT)
            writer.write_table(part_rows, row_group_size=ROW_GROUP_COUNT)


def _last_numbers(before: pa.Table) -> dict[str, int]:
    """Return channel -> the number of the last message on it in some rows."""
    messages = before.filter(before["snapshot"].is_null())
    found = messages.group_by("channel").aggregate([("number", "max")]).to_pylist()
    return {row["channel"]: row["number_max"] for row in found}
