"""A global state as three Parquet files, and back; and decoded for display.

``channels.parquet`` and ``processes.parquet`` hold everything as it was recorded (`encoded`); a
restore reads only these. Their other columns, and all of ``messages.parquet``, repeat it field by
field for queries with any reader of Parquet.
"""

import itertools
import operator
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from stillframe.errors import NotConsistent, UsageError
from stillframe.model import (
    DECODING_ERRORS,
    Batch,
    Channel,
    ChannelState,
    GlobalState,
    ProcessState,
    SnapshotId,
)
from stillframe.store.arrow_columns import merged_columns, to_array
from stillframe.store.keyed import as_changes, keyed_tables
from stillframe.store.manifest import CHANNELS, MESSAGES, PROCESSES, keyed_file
from stillframe.store.parquet import check_columns, read_parquet, repeated, to_parquet
from stillframe.topology import Description


class DecodedMessage(msgspec.Struct, frozen=True):
    """A message on a channel: its number, its class, and its fields by name."""

    number: int
    kind: str
    fields: dict[str, Any]


def fields_of(state: ProcessState) -> dict[str, Any]:
    """Return the recorded fields of a process."""
    return msgspec.msgpack.decode(state.encoded, type=dict[str, Any])


def messages_of(state: ChannelState, description: Description) -> Iterator[DecodedMessage]:
    """Yield the messages of a channel in order; each batch is decoded when it is needed."""
    for batch in state.batches:
        for index, (kind, *values) in enumerate(msgspec.msgpack.decode(batch.encoded)):
            names = [column.name for column in description.messages[kind]]
            fields = dict(zip(names, values, strict=False))
            yield DecodedMessage(batch.first + index, kind, fields)


_BATCHES = pa.list_(
    pa.struct(
        [
            pa.field("first", pa.int64()),  # the number of its first message
            pa.field("count", pa.int64()),  # how many messages
            pa.field("encoded", pa.binary()),  # a MessagePack array of them
        ]
    )
)
_CHANNELS_SCHEMA = pa.schema(
    [
        pa.field("snapshot", pa.string()),  # P1-17
        pa.field("source", pa.string()),  # process that sends
        pa.field("target", pa.string()),  # process that receives
        pa.field("sent_count", pa.int64()),  # at the cut of the source
        pa.field("received_count", pa.int64()),  # at the cut of the target
        pa.field("first", pa.int64()),  # received_count + 1
        pa.field("message_count", pa.int64()),  # how many were on the channel
        pa.field("encoded", _BATCHES),  # and which, as they travelled
    ]
)
_RECORDED_SCHEMA = pa.schema(
    [
        pa.field("process", pa.string()),
        pa.field("kind", pa.string()),  # the name of its class
        pa.field("encoded", pa.binary()),  # its fields, as they were recorded
    ]
)
_COUNT_MAX = 2**63 - 1


class Tables:
    """Makes the tables of every snapshot of one topology; `keyed` are those of its keyed fields."""

    def __init__(self, description: Description) -> None:
        self.description = description
        self.keyed = keyed_tables(description)
        self._keyed_files = {
            keyed_file(table.name, is_full=is_full): table
            for table in self.keyed
            for is_full in (True, False)
        }
        self._state_columns = merged_columns(description.states)
        self._message_columns = merged_columns(description.messages)
        self._kinds = list(description.messages)
        self._decoder = self._message_decoder()

    def _message_decoder(self) -> Any:
        """Return a decoder with one Struct per message class, and every column as an attribute.

        A field that a class lacks is a class attribute, None: so one ``attrgetter`` reads a column
        from messages of all classes, and no Python code runs per message.
        """
        structs = []
        for index, (kind, columns) in enumerate(self.description.messages.items()):
            own = {column.name for column in columns}
            absent = {c.name: None for c in self._message_columns if c.name not in own}
            structs.append(
                msgspec.defstruct(
                    kind,
                    [(column.name, Any, None) for column in columns],
                    namespace={**absent, "kind": index},
                    tag=kind,
                    array_like=True,
                    forbid_unknown_fields=True,
                    frozen=True,
                    gc=False,
                )
            )
        message = typing.Union[tuple(structs)] if structs else typing.Never  # noqa: UP007
        return msgspec.msgpack.Decoder(list[message] if structs else list[None])  # type: ignore[valid-type]

    def split(self, snapshot: SnapshotId, state: GlobalState) -> GlobalState:
        """Return a state whose keyed fields are separate from the others, as in the files."""
        processes = tuple(as_changes(str(snapshot), s, self.description) for s in state.processes)
        return GlobalState(processes, state.channels)

    def of(self, snapshot: SnapshotId, state: GlobalState) -> dict[str, pa.Table]:
        """Return file name -> table for a state that was ``split`` and whose books balance.

        Raises:
            UsageError, StoreError: a state or a message does not fit its class or its column.
            NotConsistent: a batch does not hold the messages that it announces.
        """
        name = str(snapshot)
        return {
            PROCESSES: self._processes(name, state.processes),
            CHANNELS: _channels(name, state.channels),
            MESSAGES: self._messages(name, state.channels),
            **self._keyed(name, state.processes),
        }

    def to_parquet(self, name: str, table: pa.Table) -> bytes:
        """Return the bytes of the file `name` with `table`."""
        keyed = self._keyed_files.get(name)
        return to_parquet(table) if keyed is None else keyed.to_parquet(table)

    def _keyed(self, snapshot: str, states: Sequence[ProcessState]) -> dict[str, pa.Table]:
        is_full = all(state.base is None for state in states)
        return {
            keyed_file(table.name, is_full=is_full): table.rows(
                snapshot, [state for state in states if state.kind == table.kind]
            )
            for table in self.keyed
        }

    def _processes(self, snapshot: str, states: Sequence[ProcessState]) -> pa.Table:
        fields = [_decode_state(snapshot, state) for state in states]

        def where(index: int) -> str:
            return f"snapshot {snapshot}, process {states[index].process} ({states[index].kind})"

        columns = {
            "snapshot": repeated([(snapshot, len(states))]),
            "process": pa.array([state.process for state in states], pa.string()),
            "kind": pa.array([state.kind for state in states], pa.string()),
            "encoded": pa.array([state.encoded for state in states], pa.binary()),
        }
        for column in self._state_columns:
            values = [of_one.get(column.name) for of_one in fields]
            columns[column.name] = to_array(column, values, where)
        return pa.table(columns)

    def _messages(self, snapshot: str, states: Sequence[ChannelState]) -> pa.Table:
        messages: list[Any] = []
        for state in states:
            for batch in state.batches:
                messages += self._decode(snapshot, state.channel, batch)
        counts = [(state.channel, state.message_count) for state in states]
        numbers = (range(s.received_count + 1, s.sent_count + 1) for s in states)

        def where(index: int) -> str:
            for state in states:
                if index < state.message_count:
                    number = state.received_count + 1 + index
                    return f"snapshot {snapshot}, message {number} on channel {state.channel}"
                index -= state.message_count
            return f"snapshot {snapshot}"

        columns = {
            "snapshot": repeated([(snapshot, len(messages))]),
            "source": repeated([(channel.source, count) for channel, count in counts]),
            "target": repeated([(channel.target, count) for channel, count in counts]),
            "number": pa.array(list(itertools.chain.from_iterable(numbers)), pa.int64()),
            "kind": self._kind_array(messages),
        }
        for column in self._message_columns:
            values = list(map(operator.attrgetter(column.name), messages))
            columns[column.name] = to_array(column, values, where)
        return pa.table(columns)

    def _decode(self, snapshot: str, channel: Channel, batch: Batch) -> list[Any]:
        where = f"snapshot {snapshot}, channel {channel}, messages {batch.first} to {batch.last}"
        try:
            messages: list[Any] = self._decoder.decode(batch.encoded)
        except DECODING_ERRORS as error:
            raise NotConsistent(
                f"{where}: these are not messages of the classes that the topology accepts "
                f"({', '.join(self._kinds) or 'none'}): {error}"
            ) from error
        assert len(messages) == batch.count, f"{where}: the books were not checked"
        return messages

    def _kind_array(self, messages: list[Any]) -> pa.Array:
        if len(self._kinds) <= 1:
            return repeated([(kind, len(messages)) for kind in self._kinds])
        indices = pa.array(list(map(operator.attrgetter("kind"), messages)), pa.int32())
        return pa.DictionaryArray.from_arrays(indices, pa.array(self._kinds, pa.string()))


def _decode_state(snapshot: str, state: ProcessState) -> dict[str, Any]:
    try:
        return msgspec.msgpack.decode(state.encoded, type=dict[str, Any])
    except DECODING_ERRORS as error:
        raise UsageError(
            f"snapshot {snapshot}, process {state.process}: its state is no MessagePack map from "
            f"field to value: {error}"
        ) from error


def _channels(snapshot: str, states: Sequence[ChannelState]) -> pa.Table:
    for state in states:
        if state.sent_count > _COUNT_MAX:
            raise UsageError(f"channel {state.channel}: {state.sent_count} is no count of messages")
    batches = [batch for state in states for batch in state.batches]
    flat = pa.StructArray.from_arrays(
        [
            pa.array([batch.first for batch in batches], pa.int64()),
            pa.array([batch.count for batch in batches], pa.int64()),
            pa.array([batch.encoded for batch in batches], pa.binary()),
        ],
        fields=list(_BATCHES.value_type),
    )
    ends = itertools.accumulate((len(state.batches) for state in states), initial=0)
    return pa.table(
        [
            repeated([(snapshot, len(states))]).cast(pa.string()),
            [state.channel.source for state in states],
            [state.channel.target for state in states],
            [state.sent_count for state in states],
            [state.received_count for state in states],
            [state.received_count + 1 for state in states],
            [state.message_count for state in states],
            pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat, type=_BATCHES),
        ],
        schema=_CHANNELS_SCHEMA,
    )


def read_processes(content: bytes) -> tuple[ProcessState, ...]:
    """Read the recorded states of processes from a file of ``Tables``."""
    recorded = read_parquet(content, _RECORDED_SCHEMA.names)
    check_columns(recorded, _RECORDED_SCHEMA)
    return tuple(map(ProcessState, *(column.to_pylist() for column in recorded.columns)))


def read_channels(content: bytes) -> tuple[ChannelState, ...]:
    """Read the states of the channels; checking their books is the caller's next step."""
    table = read_parquet(content)
    check_columns(table, _CHANNELS_SCHEMA)
    return tuple(_channel_states(table))


def _channel_states(table: pa.Table) -> Iterable[ChannelState]:
    columns = table.select(["source", "target", "sent_count", "received_count"]).to_pydict()
    lists = table.column("encoded").combine_chunks()
    flat = lists.flatten()
    check_columns(pa.Table.from_struct_array(flat), pa.schema(list(_BATCHES.value_type)))
    batches = map(Batch, *(flat.field(name).to_pylist() for name in ("first", "count", "encoded")))
    for source, target, sent, received, count in zip(
        *columns.values(), lists.value_lengths().to_pylist(), strict=True
    ):
        state = tuple(itertools.islice(batches, count))
        yield ChannelState(Channel(source, target), sent, received, state)
