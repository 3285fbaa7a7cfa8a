"""From the codes of a process to rows: whole columns at once, because a process has millions.

A process records one small number, a *code*, for each event:

    0        an action started without a message
    1        one row of a step of a snapshot; its values are kept separately
    2c + 2   an action started by accepting a message on incoming channel c
    2c + 3   a message was sent on outgoing channel c

The number of a message is the count of earlier messages on its channel, plus one.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stillframe.eventlog.segments import ACCEPTED, INTERNAL, KINDS, SCHEMA, SENT
from stillframe.model import Channel, ProcessId

BY_ITSELF = 0
"""The code of an action that started without a message; no separate row if it sends some."""
STEP_ROW = 1
_FIRST = 2
_BYTE_MAX = 255

_RECORDED_TYPE = SCHEMA.field("recorded").type
_AT_TYPE = SCHEMA.field("at").type


class StepRow(NamedTuple):
    """One row of a step of a snapshot, at a time in seconds since 1970.

    `code` is of a message on the channel of the marker, in its direction; `BY_ITSELF` without one.
    `recorded` are the first number and the count of each range of messages that was recorded on the
    channel of the marker; None if the row has none.
    """

    kind: str
    code: int
    snapshot: str
    at: float
    recorded: Sequence[tuple[int, int]] | None = None


class ChannelCounts(NamedTuple):
    """The counts of a process at some point: its actions, and the messages received from each
    source and sent to each target."""

    event_count: int
    received: dict[ProcessId, int]
    sent: dict[ProcessId, int]


class RowEncoder:
    """Gives the channels of a process their codes, and makes record batches of its codes.

    `accepting` are the codes by source, `sending` by target. It `is_wide` if there are too many
    channels for codes of one byte.
    """

    def __init__(
        self, process: ProcessId, sources: Iterable[ProcessId], targets: Iterable[ProcessId]
    ) -> None:
        self.accepting = {source: _FIRST + 2 * index for index, source in enumerate(sources)}
        self.sending = {target: _FIRST + 2 * index + 1 for index, target in enumerate(targets)}
        count = _FIRST + 2 * max(len(self.accepting), len(self.sending))
        self.is_wide = count - 1 > _BYTE_MAX
        self._codes = range(count)
        self._kinds = [INTERNAL, INTERNAL, *([ACCEPTED, SENT] * (count // 2 - 1))]
        channels = {code: Channel(source, process) for source, code in self.accepting.items()}
        channels |= {code: Channel(process, target) for target, code in self.sending.items()}
        self._channels = pa.array(map(str, channels.values()), pa.string())
        index_of = {code: index for index, code in enumerate(channels)}
        self._channel_of = [index_of.get(code) for code in self._codes]
        begins = [kind == ACCEPTED or code == BY_ITSELF for code, kind in enumerate(self._kinds)]
        self._begins = pa.array(map(int, begins), pa.int64())
        # Shared by all batches, so that it is written once. Not made when this module is imported:
        # the first conversion loads pandas, and most processes write no log.
        self._kind_names = pa.array(KINDS, pa.string())
        self._snapshots = pa.array([], pa.string())
        self._nulls = [pa.nulls(0, type_) for type_ in (pa.int32(), _AT_TYPE, _RECORDED_TYPE)]

    def pack(self, codes: list[int]) -> bytes:
        """Return `codes` in few bytes."""
        return array("i", codes).tobytes() if self.is_wide else bytes(codes)

    def batch(
        self, packed: bytes, steps: Sequence[StepRow], before: ChannelCounts
    ) -> tuple[pa.RecordBatch, ChannelCounts]:
        """Return the packed codes of whole actions as rows, and the counts of the process after
        them. `before` are its counts before them, and `steps` are the values of the step rows among
        them, in order."""
        code_type = pa.int32() if self.is_wide else pa.uint8()
        count = len(packed) // code_type.byte_width
        coded = pa.Array.from_buffers(code_type, count, [None, pa.py_buffer(packed)])
        order = pc.array_sort_indices(coded)
        counts = self._counts(_take(coded, order))
        event = pc.cumulative_sum(_take(self._begins, coded), start=before.event_count)
        after = ChannelCounts(
            event[-1].as_py() if count else before.event_count,
            {source: n + counts[self.accepting[source]] for source, n in before.received.items()},
            {target: n + counts[self.sending[target]] for target, n in before.sent.items()},
        )
        rank = pc.inverse_permutation(order.view(pa.int64()))
        number = pc.add(rank, _take(self._offsets(counts, before), coded))
        # BY_ITSELF is the lowest code, so its places come first.
        if self._have_sent(coded, order.slice(0, counts[BY_ITSELF])):
            is_row = self._is_row(coded)
            coded, event, number = (column.filter(is_row) for column in (coded, event, number))
        columns = [event, *self._described(coded, steps, number)]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA), after

    def _counts(self, in_order: pa.Array) -> list[int]:
        """Return how often each code occurs in a sorted column."""
        counts = [0 for _ in self._codes]
        runs = pc.run_end_encode(in_order)
        end = 0
        for code, run_end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            counts[code], end = run_end - end, run_end
        return counts

    def _offsets(self, counts: list[int], before: ChannelCounts) -> pa.Array:
        """Return, for each code, the number of a message less its rank among all codes."""
        earlier = {self.accepting[source]: n for source, n in before.received.items()}
        earlier |= {self.sending[target]: n for target, n in before.sent.items()}
        offsets: list[int | None] = []
        start = 0
        for code, count in enumerate(counts):
            offsets.append(earlier[code] + 1 - start if code in earlier else None)
            start += count
        return pa.array(offsets, pa.int64())

    def _have_sent(self, coded: pa.Array, places: pa.Array) -> bool:
        """Return whether an action started without a message, at one of `places`, sent some."""
        following = pc.add(places, pa.scalar(1, places.type))
        following = following.filter(pc.less(following, pa.scalar(len(coded), places.type)))
        codes = pc.unique(_take(coded, following)).to_pylist()
        return any(self._kinds[code] == SENT for code in codes)

    def _is_row(self, coded: pa.Array) -> pa.Array:
        """Return which codes are rows: not the start of an action that only sent messages."""
        is_sent = pa.array([kind == SENT for kind in self._kinds])
        nothing = pa.array([BY_ITSELF], coded.type)
        following = pa.concat_arrays([coded.slice(1), nothing])
        begins_by_itself = pc.equal(coded, pa.scalar(BY_ITSELF, coded.type))
        return pc.invert(pc.and_(begins_by_itself, _take(is_sent, following)))

    def _described(
        self, coded: pa.Array, steps: Sequence[StepRow], number: pa.Array
    ) -> list[pa.Array]:
        """Return all columns after the first."""
        index = coded
        if steps:  # their rows get indices after those of the codes
            places = pa.array(range(len(self._codes), len(self._codes) + len(steps)), pa.int32())
            is_step = pc.equal(coded, pa.scalar(STEP_ROW, coded.type))
            index = pc.replace_with_mask(coded.cast(pa.int32()), is_step, places)
        kinds = [KINDS.index(kind) for kind in (*self._kinds, *(step.kind for step in steps))]
        channels = [*self._channel_of, *(self._channel_of[step.code] for step in steps)]
        described = [
            _dictionary(kinds, index, self._kind_names),
            _dictionary(channels, index, self._channels),
            number,
        ]
        if not steps:
            nowhere, never, nothing = self._nothing(len(coded))
            return [*described, _from_indices(nowhere, self._snapshots), never, nothing]
        names = list(dict.fromkeys(step.snapshot for step in steps))
        self._snapshots = pa.array(names, pa.string())
        none: list[None] = [None for _ in self._codes]
        at = [round(step.at * 1e6) for step in steps]
        return [
            *described,
            _dictionary(
                [*none, *(names.index(step.snapshot) for step in steps)], index, self._snapshots
            ),
            _take(pa.array([*none, *at], pa.int64()), index).cast(_AT_TYPE),
            _take(pa.array([*none, *map(_ranges, steps)], _RECORDED_TYPE), index),
        ]

    def _nothing(self, count: int) -> list[pa.Array]:
        """Return the last three columns of `count` rows that are no steps of snapshots."""
        if len(self._nulls[0]) < count:
            self._nulls = [pa.nulls(count, column.type) for column in self._nulls]
        return [column.slice(0, count) for column in self._nulls]


def _ranges(step: StepRow) -> list[dict[str, int]] | None:
    if step.recorded is None:
        return None
    return [{"first": first, "count": count} for first, count in step.recorded]


def _take(values: pa.Array, indices: pa.Array) -> pa.Array:
    return pc.take(values, indices, boundscheck=False)


def _dictionary(places: Sequence[int | None], index: pa.Array, values: pa.Array) -> pa.Array:
    """Return a column with, for each of `index`, the value at the place given for it."""
    return _from_indices(_take(pa.array(places, pa.int32()), index), values)


def _from_indices(indices: pa.Array, values: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(indices, values, safe=False)
