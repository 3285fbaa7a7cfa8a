"""From what a process noted to rows: whole columns at once, because a process has millions.

A process notes one small number, a *code*, for each thing that it does:

    0        an action began by itself
    2c + 1   an action began, by accepting a message on incoming channel c
    2c + 2   a message was sent on outgoing channel c
    -(k+1)   step row k of this buffer: one row of a step of a snapshot

The numbers of the messages are how many there were before on the same channel.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stillframe.eventlog.schema import ACCEPTED, INTERNAL, KINDS, SCHEMA, SENT
from stillframe.model import Channel, ProcessId

BY_ITSELF = 0
"""The code of an action that began by itself. With messages sent, it is no row of its own."""
CODE_TYPE = "i"

_KINDS = pa.array(KINDS, pa.string())
_RECORDED_TYPE = SCHEMA.field("recorded").type
_AT_TYPE = SCHEMA.field("at").type


def accepting(channel: int) -> int:
    """Return the code of an action that begins with a message on incoming channel `channel`."""
    return 2 * channel + 1


def sending(channel: int) -> int:
    """Return the code of a message that is sent on outgoing channel `channel`."""
    return 2 * channel + 2


class StepRow(NamedTuple):
    """One row of a step of a snapshot.

    Attributes:
        kind: one of ``schema.KINDS``.
        code: that of a message which came or went on the marker's channel; `BY_ITSELF` if none did.
        snapshot: its id.
        at: when, in seconds since 1970.
        recorded: the first number and the count of each range of messages that was recorded on the
            marker's channel; None if the row has nothing of that.
    """

    kind: str
    code: int
    snapshot: str
    at: float
    recorded: Sequence[tuple[int, int]] | None = None


class Tally(NamedTuple):
    """What a process had done at some time.

    Attributes:
        event_count: how many actions.
        received: how many messages were received on each incoming channel.
        sent: how many messages were sent on each outgoing channel.
    """

    event_count: int
    received: tuple[int, ...]
    sent: tuple[int, ...]


class Rows:
    """Makes batches of rows for one process.

    Args:
        process: whose rows they are.
        sources: of its incoming channels, in the order of their codes.
        targets: of its outgoing channels, in the order of their codes.
    """

    def __init__(
        self, process: ProcessId, sources: Sequence[ProcessId], targets: Sequence[ProcessId]
    ) -> None:
        self._source_count, self._target_count = len(sources), len(targets)
        count = 2 * max(len(sources), len(targets)) + 1
        self._kinds = [INTERNAL] + [ACCEPTED if code % 2 else SENT for code in range(1, count)]
        channels = [Channel(source, process) for source in sources]
        channels += [Channel(process, target) for target in targets]
        self._channels = pa.array(map(str, channels), pa.string())
        self._channel_of: list[int | None] = [None] * count
        for index in range(len(sources)):
            self._channel_of[accepting(index)] = index
        for index in range(len(targets)):
            self._channel_of[sending(index)] = len(sources) + index
        self._begins = [1 if code % 2 or code == BY_ITSELF else 0 for code in range(count)]
        # One that is the same from batch to batch is written once.
        self._snapshots = pa.array([], pa.string())

    def batch(
        self, codes: "array[int]", steps: Sequence[StepRow], before: Tally
    ) -> tuple[pa.RecordBatch, Tally]:
        """Return what was noted as rows, and what the process had done after them.

        Args:
            codes: what it noted, of whole actions.
            steps: the step rows that `codes` name, in the order in which they were noted.
            before: what it had done before.
        """
        # The step rows come first in all tables, the last of them at the very beginning.
        shift = len(steps)
        noted = pa.Array.from_buffers(pa.int32(), len(codes), [None, pa.py_buffer(codes)])
        index = pc.add(noted, pa.scalar(shift, pa.int32())) if shift else noted
        order = pc.array_sort_indices(index)
        counts = [0] * (shift + len(self._kinds))
        runs = pc.run_end_encode(_take(index, order))
        end = 0
        for value, run_end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            counts[value], end = run_end - end, run_end
        begins = pa.array([0] * shift + self._begins, pa.int64())
        event = pc.cumulative_sum(_take(begins, index), start=before.event_count)
        number = self._numbers(index, order, counts, before)
        if counts[shift]:
            is_row = self._is_row(index, shift)
            index, event, number = (column.filter(is_row) for column in (index, event, number))
        columns = [event, *self._described(index, steps, number)]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA), self._after(
            before, counts[shift:]
        )

    def _numbers(
        self, index: pa.Array, order: pa.Array, counts: list[int], before: Tally
    ) -> pa.Array:
        """Return the numbers of the messages, which are consecutive among those of one code."""
        offsets: list[int | None] = []
        start = 0
        shift = len(counts) - len(self._kinds)
        for code, count in enumerate(counts, -shift):
            earlier = self._earlier(code, before)
            offsets.append(None if earlier is None else earlier + 1 - start)
            start += count
        rank = pc.inverse_permutation(order.view(pa.int64()))
        return pc.add(rank, _take(pa.array(offsets, pa.int64()), index))

    def _earlier(self, code: int, before: Tally) -> int | None:
        """Return how many messages there were before on the channel of `code`; None for no code of
        a channel."""
        if code <= BY_ITSELF or self._channel_of[code] is None:
            return None
        channel = (code - 1) // 2
        return before.received[channel] if code % 2 else before.sent[channel]

    def _is_row(self, index: pa.Array, shift: int) -> pa.Array:
        """Return which codes are rows: not those of actions by themselves that sent something."""
        is_sent = pa.array(
            [False] * shift + [kind == SENT for kind in self._kinds] + [False], pa.bool_()
        )
        after_last = pa.array([len(is_sent) - 1], pa.int32())
        following = pa.concat_arrays([index.slice(1), after_last])
        begins_by_itself = pc.equal(index, pa.scalar(shift + BY_ITSELF, pa.int32()))
        return pc.invert(pc.and_(begins_by_itself, _take(is_sent, following)))

    def _described(
        self, index: pa.Array, steps: Sequence[StepRow], number: pa.Array
    ) -> list[pa.Array]:
        """Return all columns after the first."""
        last_first = steps[::-1]
        kinds = [KINDS.index(kind) for kind in (*(s.kind for s in last_first), *self._kinds)]
        channels = [self._channel_of[step.code] for step in last_first] + self._channel_of
        columns = [
            _dictionary(kinds, index, _KINDS),
            _dictionary(channels, index, self._channels),
            number,
        ]
        if not steps:
            nowhere = pa.nulls(len(index), pa.int32())
            return [
                *columns,
                _from_indices(nowhere, self._snapshots),
                pa.nulls(len(index), _AT_TYPE),
                pa.nulls(len(index), _RECORDED_TYPE),
            ]
        names = list(dict.fromkeys(step.snapshot for step in steps))
        self._snapshots = pa.array(names, pa.string())
        empty: list[None] = [None] * len(self._kinds)
        at = [round(step.at * 1e6) for step in last_first]
        recorded = [_ranges(step) for step in last_first]
        return [
            *columns,
            _dictionary(
                [*(names.index(step.snapshot) for step in last_first), *empty],
                index,
                self._snapshots,
            ),
            _take(pa.array([*at, *empty], pa.int64()), index).cast(_AT_TYPE),
            _take(pa.array([*recorded, *empty], _RECORDED_TYPE), index),
        ]

    def _after(self, before: Tally, counts: list[int]) -> Tally:
        received = counts[accepting(0) :: 2][: self._source_count]
        sent = counts[sending(0) :: 2][: self._target_count]
        return Tally(
            before.event_count + counts[BY_ITSELF] + sum(received),
            tuple(map(int.__add__, before.received, received)),
            tuple(map(int.__add__, before.sent, sent)),
        )


def _ranges(step: StepRow) -> list[dict[str, int]] | None:
    if step.recorded is None:
        return None
    return [{"first": first, "count": count} for first, count in step.recorded]


def _take(values: pa.Array, indices: pa.Array) -> pa.Array:
    return pc.take(values, indices, boundscheck=False)


def _dictionary(places: Sequence[int | None], index: pa.Array, values: pa.Array) -> pa.Array:
    """Return a column that has, for each of `index`, the value at the place given for it."""
    return _from_indices(_take(pa.array(places, pa.int32()), index), values)


def _from_indices(indices: pa.Array, values: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(indices, values, safe=False)
