"""A global state as Parquet files, and back; and decoded for display.

``channels.parquet`` and ``processes.parquet`` hold everything as it was recorded (`encoded`); a
restore reads only these. Their other columns, and all of ``messages.parquet``, repeat it field by
field for queries with any reader of Parquet.

A keyed field has a separate file for all processes of a class (`KeyedTable`), with a row for each
key. The rows of a process are next to each other: keys that were set since the base snapshot, then
keys that were removed; without a base, every key. Where the columns do not give a key or a value
back exactly as it was recorded, another column holds its MessagePack (`_key_encoded`,
`_value_encoded`).

In tables with columns of fields, the columns of the store begin with `_`, which no field does.
"""

import datetime
import itertools
import operator
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stillframe.errors import NotConsistent, StoreError, UsageError, text_of
from stillframe.json_values import json_texts
from stillframe.model import (
    DECODING_ERRORS,
    Batch,
    Channel,
    ChannelState,
    GlobalState,
    KeyedChange,
    KeyedRows,
    ProcessId,
    ProcessState,
    Snapshot,
    SnapshotId,
    decoded,
    encode_array,
)
from stillframe.store.manifest import (
    CHANNELS,
    FILES,
    MESSAGES,
    PROCESSES,
    keyed_file,
    table_name,
)
from stillframe.store.parquet import (
    ENCODED,
    IS_REMOVED,
    KEY,
    KEY_ENCODED,
    KIND,
    NUMBER,
    PROCESS,
    SNAPSHOT,
    SOURCE,
    TARGET,
    VALUE_ENCODED,
    apply_changes,
    check_columns,
    read_parquet,
    repeated,
    to_parquet,
)
from stillframe.topology import KEYED, Column, Description, KeyedColumns

ARROW_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "time": pa.timestamp("us", tz="UTC"),
    "json": pa.string(),
}
"""Kind of column (``Column.kind``) -> its Arrow type."""

_FITTING: dict[str, set[type]] = {
    "bool": {bool},
    "int": {int},
    "float": {float, int},
    "text": {str},
    "bytes": {bytes},
    "time": {datetime.datetime, str},
}
"""Kind of column -> the types that MessagePack gives for it. Arrow would truncate 0.5 to 0."""

_EXACT = frozenset({"bool", "int", "float", "text", "bytes"})
"""Kinds of columns that give a recorded value back exactly."""

JsonOf = Callable[[Sequence[Any]], list[str | None]]
CONVERSION_ERRORS = (
    pa.ArrowException,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
    msgspec.MsgspecError,
)

_ENCODINGS = {"int": "DELTA_BINARY_PACKED", "time": "DELTA_BINARY_PACKED"}
_KEY_ENCODINGS = _ENCODINGS | {
    "text": "DELTA_BYTE_ARRAY",
    "json": "DELTA_BYTE_ARRAY",
    "bool": "PLAIN",
}
"""Kind of column -> its encoding in Parquet. Unique texts are not worth a dictionary."""

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode
_decode_raw = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_MAP32 = 0xDF

_BATCHES = pa.list_(
    pa.struct(
        [
            pa.field("first", pa.int64()),  # the number of its first message
            pa.field("count", pa.int64()),  # how many messages
            pa.field("encoded", pa.binary()),  # a MessagePack array of them
        ]
    )
)
OWN_SCHEMAS = {
    "processes": pa.schema(
        [
            pa.field(SNAPSHOT, pa.string()),  # P1-17
            pa.field(PROCESS, pa.string()),
            pa.field(KIND, pa.string()),  # the name of its class
            pa.field(ENCODED, pa.binary()),  # its fields, as they were recorded
        ]
    ),
    "channels": pa.schema(
        [
            pa.field("snapshot", pa.string()),
            pa.field("source", pa.string()),  # process that sends
            pa.field("target", pa.string()),  # process that receives
            pa.field("sent_count", pa.int64()),  # at the cut of the source
            pa.field("received_count", pa.int64()),  # at the cut of the target
            pa.field("first", pa.int64()),  # received_count + 1
            pa.field("message_count", pa.int64()),  # how many were on the channel
            pa.field("encoded", _BATCHES),  # and which, as they travelled
        ]
    ),
    "messages": pa.schema(
        [
            pa.field(SNAPSHOT, pa.string()),
            pa.field(SOURCE, pa.string()),
            pa.field(TARGET, pa.string()),
            pa.field(NUMBER, pa.int64()),  # of the message on its channel, from 1
            pa.field(KIND, pa.string()),  # the name of its class
        ]
    ),
}
"""The columns of the store in each table; those of fields come after them."""
_CHANNELS_SCHEMA = OWN_SCHEMAS["channels"]
_RECORDED_SCHEMA = OWN_SCHEMAS["processes"].remove(0)
_COUNT_MAX = 2**63 - 1


class DecodedMessage(msgspec.Struct, frozen=True):
    """A message on a channel, as plain values.

    Attributes:
        number: its number on the channel, from 1.
        kind: the name of its class.
        fields: its fields by name.
    """

    number: int
    kind: str
    fields: dict[str, Any]


def fields_of(state: ProcessState) -> dict[str, Any]:
    """Return the recorded fields of a process."""
    return _decode(state.encoded, type=dict[str, Any])


def messages_of(state: ChannelState, description: Description) -> Iterator[DecodedMessage]:
    """Yield the messages of a channel in order; each batch is decoded when it is needed."""
    for batch in state.batches:
        for index, (kind, *values) in enumerate(_decode(batch.encoded)):
            names = [column.name for column in description.messages[kind]]
            fields = dict(zip(names, values, strict=False))
            yield DecodedMessage(batch.first + index, kind, fields)


def merged_columns(classes: Mapping[str, tuple[Column, ...]]) -> tuple[Column, ...]:
    """Return one column for each field name of any of the classes, in the order of first
    occurrence.

    If classes disagree about a name, integers and floats become float, all else JSON. A keyed field
    has separate rows and no column.
    """
    kinds: dict[str, set[str]] = {}
    for column in itertools.chain.from_iterable(classes.values()):
        if column.kind != KEYED:
            kinds.setdefault(column.name, set()).add(column.kind)
    return tuple(Column(name, _meet(of_name)) for name, of_name in kinds.items())


def _meet(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    return "float" if kinds == {"int", "float"} else "json"


def to_array(
    column: Column,
    values: Sequence[Any],
    where: Callable[[int], str],
    json_of: JsonOf = json_texts,
) -> pa.Array:
    """Return values as an Arrow array of the column's type.

    `json_of` encodes those of a column of the kind ``json``. A StoreError names the first value
    that does not fit, by `where`, a function of its index."""
    try:
        return _convert(column, values, json_of)
    except CONVERSION_ERRORS as error:
        index, cause = _first_misfit(column, values, error)
        raise StoreError(
            f"{where(index)}: field {column.name!r} holds {_shortened(repr(values[index]))}, "
            f"which does not fit a column of kind {column.kind} ({_shortened(str(cause))}): "
            "keep it in that range, or declare the field with another type, for example str"
        ) from error


def _convert(column: Column, values: Sequence[Any], json_of: JsonOf = json_texts) -> pa.Array:
    if column.kind == "json":
        return pa.array(json_of(values), ARROW_TYPES["json"])
    odd = set(map(type, values)) - _FITTING[column.kind] - {type(None)}
    if odd:
        raise TypeError(f"it is of type {', '.join(sorted(kind.__name__ for kind in odd))}")
    if column.kind == "time":
        values = [_time(value) if isinstance(value, str) else value for value in values]
    return pa.array(values, ARROW_TYPES[column.kind])


def _first_misfit(column: Column, values: Sequence[Any], error: Exception) -> tuple[int, Exception]:
    for index, value in enumerate(values):
        try:
            _convert(column, [value])
        except CONVERSION_ERRORS as cause:
            return index, cause
    return 0, error


def _shortened(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."


def _time(text: str) -> datetime.datetime:
    # MessagePack has no time without a zone: it is encoded as text, and read as UTC.
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


def former_json_texts(values: Sequence[Any]) -> list[str | None]:
    """Return values as release 0.2 wrote them into a column of the kind ``json``: not all of
    each."""
    return [None if value is None else _former_json(value) for value in values]


def _former_json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return msgspec.json.encode(_with_pairs(value), enc_hook=repr).decode()


def _with_pairs(value: Any) -> Any:
    """JSON has only text as keys: a dict with other keys becomes a list of [key, value]."""
    match value:
        case dict():
            return [[_with_pairs(k), _with_pairs(v)] for k, v in value.items()]
        case list() | tuple():
            return [_with_pairs(item) for item in value]
        case _:
            return value


class KeyedTable:
    """The table `name` of one keyed field of one class (`kind`), with the columns of `schema`;
    `encodings` are those of some of them in Parquet."""

    def __init__(
        self, kind: str, field: str, columns: KeyedColumns, json_of: JsonOf = json_texts
    ) -> None:
        self._json_of = json_of
        self.kind = kind
        self.field = field
        self.name = table_name(kind, field)
        self._key = Column(KEY, columns.key)
        self._values = columns.values
        self._is_key_exact = columns.key in _EXACT
        self._is_value_exact = columns.layout == "value" and columns.values[0].kind in _EXACT
        self._identity = KEY if self._is_key_exact else KEY_ENCODED
        row = _struct_of("Row", columns.values, array_like=columns.layout == "array")
        self._struct_decoder = (
            None if columns.layout == "value" else msgspec.msgpack.Decoder(list[row]).decode  # type: ignore[valid-type]
        )
        self._queryable = [PROCESS, KEY, *(column.name for column in columns.values)]
        self.schema = pa.schema(
            [
                (PROCESS, pa.dictionary(pa.int32(), pa.string())),
                (IS_REMOVED, pa.bool_()),
                (KEY, ARROW_TYPES[columns.key]),
                *(() if self._is_key_exact else [(KEY_ENCODED, pa.binary())]),
                *((column.name, ARROW_TYPES[column.kind]) for column in columns.values),
                *(() if self._is_value_exact else [(VALUE_ENCODED, pa.binary())]),
            ]
        )
        self.encodings = {
            column.name: known[column.kind]
            for known, some in ((_KEY_ENCODINGS, [self._key]), (_ENCODINGS, self._values))
            for column in some
            if column.kind in known
        }

    def rows(self, snapshot: str, states: Iterable[ProcessState]) -> pa.Table:
        """Return the rows of a snapshot, from the keyed fields of these states."""
        tables = []
        for state in states:
            change = state.keyed[self.field]
            where = f"snapshot {snapshot}, process {state.process} ({self.kind}), {self.field}"
            for rows in change.rows:
                columns = self._keys(where, rows.keys, rows.count) | self._all_values(where, rows)
                tables.append(self._table(state.process, rows.count, columns, is_removed=False))
            columns = self._keys(where, change.removed, change.removed_count)
            tables.append(
                self._table(state.process, change.removed_count, columns, is_removed=True)
            )
        return self.of_snapshot(snapshot, tables)

    def of_snapshot(self, snapshot: str, tables: Sequence[pa.Table]) -> pa.Table:
        """Return rows, such as ``merged`` gives for each process, as the table of a snapshot."""
        table = pa.concat_tables([self.schema.empty_table(), *tables]).unify_dictionaries()
        return table.add_column(0, SNAPSHOT, repeated([(snapshot, table.num_rows)]))

    def read(self, content: bytes) -> dict[ProcessId, pa.Table]:
        """Return the rows in a file of this table, by process."""
        table = read_parquet(content, self.schema.names, dictionaries=[PROCESS])
        check_columns(table, self.schema, filled={PROCESS, IS_REMOVED, self._identity})
        table = table.unify_dictionaries()
        found: dict[ProcessId, list[pa.Table]] = {}
        for process, first, end in _runs(table.column(PROCESS)):
            found.setdefault(process, []).append(table.slice(first, end - first))
        return {process: pa.concat_tables(tables) for process, tables in found.items()}

    def merged(self, links: Sequence[pa.Table]) -> pa.Table:
        """Return the keys that one process has after the last of the `links`, the oldest first."""
        return apply_changes(
            [pa.concat_tables([self.schema.empty_table(), *links[:1]]), *links[1:]]
        )

    def as_map(self, table: pa.Table) -> bytes:
        """Return the keys of one process, none of them removed, as a MessagePack map."""
        if self._is_key_exact:
            keys, values = table.column(KEY).to_pylist(), self._plain_values(table)
            encoded: bytes = _encode(dict(zip(keys, values, strict=True)))
            return encoded
        pairs = zip(self._raw_keys(table), self._raw_values(table), strict=True)
        header: bytes = bytes([_MAP32]) + table.num_rows.to_bytes(4, "big")
        return header + b"".join(itertools.chain.from_iterable(pairs))

    def change(self, table: pa.Table) -> KeyedChange:
        """Return the rows of one process as it recorded them."""
        removed = table.filter(table.column(IS_REMOVED))
        kept = table.filter(pc.invert(table.column(IS_REMOVED)))
        keys, values = encode_array(self._raw_keys(kept)), encode_array(self._raw_values(kept))
        rows = (KeyedRows(kept.num_rows, keys, values),) if kept.num_rows else ()
        return KeyedChange(rows, removed.num_rows, encode_array(self._raw_keys(removed)))

    def queryable(self, table: pa.Table) -> pa.Table:
        """Return the columns for queries."""
        return table.select([SNAPSHOT, *self._queryable])

    def repeated_key(self, table: pa.Table) -> str | None:
        """Return a key that occurs twice in the rows of one process, if any."""
        counted = table.group_by(self._identity).aggregate([([], "count_all")])
        twice = counted.filter(pc.greater(counted.column("count_all"), 1))
        return str(twice.column(self._identity)[0].as_py()) if twice.num_rows else None

    def _plain_values(self, table: pa.Table) -> list[Any]:
        if self._is_value_exact:
            return list(table.column(self._values[0].name).to_pylist())
        return list(map(msgspec.Raw, table.column(VALUE_ENCODED).to_pylist()))

    def _raw_keys(self, table: pa.Table) -> list[bytes]:
        """Return the keys, each as MessagePack."""
        keys = table.column(self._identity).to_pylist()
        return list(map(_encode, keys)) if self._is_key_exact else keys

    def _raw_values(self, table: pa.Table) -> list[bytes]:
        if self._is_value_exact:
            return list(map(_encode, self._plain_values(table)))
        return list(table.column(VALUE_ENCODED).to_pylist())

    def _table(
        self, process: ProcessId, count: int, columns: dict[str, pa.Array], *, is_removed: bool
    ) -> pa.Table:
        """Return rows of a process; the columns of values are empty unless they are given."""
        columns[PROCESS] = repeated([(process, count)])
        columns[IS_REMOVED] = pa.repeat(pa.scalar(is_removed), count)
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(count, field.type)
            for field in self.schema
        ]
        return pa.table(arrays, schema=self.schema)

    def _keys(self, where: str, encoded: bytes, count: int) -> dict[str, pa.Array]:
        keys = _items(where, encoded, count)

        def named(index: int) -> str:
            return f"{where}, key {index}"

        columns = {KEY: to_array(self._key, keys, named, self._json_of)}
        if not self._is_key_exact:
            columns[KEY_ENCODED] = _raw_array(encoded)
        return columns

    def _all_values(self, where: str, rows: KeyedRows) -> dict[str, pa.Array]:
        def named(index: int) -> str:
            return f"{where}, key {_decode(rows.keys)[index]!r}"

        items = _items(where, rows.values, rows.count, self._struct_decoder)
        columns = {}
        for column in self._values:
            if self._struct_decoder is None:
                values = items
            else:
                values = list(map(operator.attrgetter(column.name), items))
            columns[column.name] = to_array(column, values, named, self._json_of)
        if not self._is_value_exact:
            columns[VALUE_ENCODED] = _raw_array(rows.values)
        return columns


def keyed_tables(description: Description, json_of: JsonOf = json_texts) -> list[KeyedTable]:
    """Return the tables of all keyed fields, in the order of the description."""
    return [
        KeyedTable(kind, field, columns, json_of)
        for kind, fields in description.keyed.items()
        for field, columns in fields.items()
    ]


def as_changes(snapshot: str, state: ProcessState, description: Description) -> ProcessState:
    """Return a state whose keyed fields are in `keyed`, also if they were recorded in full."""
    where = f"snapshot {snapshot}, process {state.process}"
    names = description.keyed.get(state.kind, {}).keys()
    if state.keyed.keys() == names:
        return state if names else msgspec.structs.replace(state, base=None)
    if state.keyed or state.base is not None:
        raise UsageError(
            f"{where}: changes of {', '.join(state.keyed) or 'nothing'} were recorded, but the "
            f"keyed fields of {state.kind} are {', '.join(names) or 'none'}"
        )
    try:
        fields = _decode(state.encoded, type=dict[str, msgspec.Raw])
        keyed = {
            name: _full_change(_decode(fields.pop(name), type=dict[Any, msgspec.Raw]))
            for name in names
        }
    except (*DECODING_ERRORS, KeyError) as error:
        raise UsageError(
            f"{where}: its state is not a map with {', '.join(names)}: {text_of(error)}"
        ) from error
    return ProcessState(state.process, state.kind, _encode(fields), None, keyed)


def as_full(
    state: ProcessState, maps: Mapping[str, bytes], description: Description
) -> ProcessState:
    """Return a state with its keyed fields, each a MessagePack map, among the others."""
    fields = _decode(state.encoded, type=dict[str, msgspec.Raw])
    fields |= {name: msgspec.Raw(encoded) for name, encoded in maps.items()}
    order = {column.name: index for index, column in enumerate(description.states[state.kind])}
    names = sorted(fields, key=lambda name: order.get(name, len(order)))
    return ProcessState(state.process, state.kind, _encode({name: fields[name] for name in names}))


def _full_change(rows: dict[Any, msgspec.Raw]) -> KeyedChange:
    keyed_rows = KeyedRows(len(rows), _encode(list(rows)), _encode(list(rows.values())))
    return KeyedChange((keyed_rows,) if rows else (), 0, _encode([]))


def _items(where: str, encoded: bytes, count: int, decoder: Any = None) -> list[Any]:
    try:
        items: list[Any] = _decode(encoded, type=list) if decoder is None else decoder(encoded)
    except DECODING_ERRORS as error:
        raise NotConsistent(
            f"{where}: the recorded value cannot be decoded: {text_of(error)}"
        ) from error
    if len(items) != count:
        raise NotConsistent(f"{where}: {count} entries were announced, and {len(items)} recorded")
    return items


def _raw_array(encoded: bytes) -> pa.Array:
    return pa.array(map(bytes, _decode_raw(encoded)), pa.binary())


def _struct_of(kind: str, columns: Iterable[Column], **options: Any) -> type[msgspec.Struct]:
    """Return a class with a field for each column, and any of them may be missing."""
    fields = [(column.name, Any, None) for column in columns]
    return msgspec.defstruct(kind, fields, frozen=True, gc=False, **options)


def _runs(column: pa.ChunkedArray) -> Iterable[tuple[str, int, int]]:
    """Yield each run of equal texts: the text, its start and its end."""
    array = column.combine_chunks()
    runs = pc.run_end_encode(array.indices)
    names, first = array.dictionary.to_pylist(), 0
    for end, index in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield names[index], first, end
        first = end


class Tables:
    """Makes the tables of every snapshot of one topology; `keyed` are those of its keyed fields,
    `json_of` makes the columns of the kind ``json``."""

    def __init__(self, description: Description, json_of: JsonOf = json_texts) -> None:
        self.description = description
        self.keyed = keyed_tables(description, json_of)
        self._json_of = json_of
        self._encodings = {
            keyed_file(table.name, is_full=is_full): table.encodings
            for table in self.keyed
            for is_full in (True, False)
        }
        self._state_columns = merged_columns(description.states)
        self._message_columns = merged_columns(description.messages)
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
                _struct_of(
                    kind,
                    columns,
                    namespace={**absent, KIND: index},
                    tag=kind,
                    array_like=True,
                    forbid_unknown_fields=True,
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

        A UsageError or StoreError if a state or a message does not fit its class or its column, a
        NotConsistent if a batch does not hold the messages that it announces.
        """
        name, processes = str(snapshot), state.processes
        is_full = all(process.base is None for process in processes)
        return {
            PROCESSES: self._processes(name, processes),
            CHANNELS: _channels(name, state.channels),
            MESSAGES: self._messages(name, state.channels),
            **{
                keyed_file(table.name, is_full=is_full): table.rows(
                    name, [process for process in processes if process.kind == table.kind]
                )
                for table in self.keyed
            },
        }

    def queryable(self, snapshot: Snapshot) -> dict[str, pa.Table]:
        """Return what ``StoreReader.tables`` reads from the files of a snapshot; errors are as for
        ``of``."""
        made = self.of(snapshot.id, self.split(snapshot.id, snapshot.state))
        found = {
            name.removesuffix(".parquet"): read_parquet(self.to_parquet(name, made.pop(name)))
            for name in FILES
        }
        rows = made.values()
        return found | {
            table.name: table.queryable(one) for table, one in zip(self.keyed, rows, strict=True)
        }

    def to_parquet(self, name: str, table: pa.Table) -> bytes:
        """Return the bytes of the file `name` with `table`."""
        return to_parquet(table, self._encodings.get(name))

    def _processes(self, snapshot: str, states: Sequence[ProcessState]) -> pa.Table:
        fields = [_decode_state(snapshot, state) for state in states]

        def where(index: int) -> str:
            return f"snapshot {snapshot}, process {states[index].process} ({states[index].kind})"

        columns = {
            SNAPSHOT: repeated([(snapshot, len(states))]),
            PROCESS: pa.array([state.process for state in states], pa.string()),
            KIND: pa.array([state.kind for state in states], pa.string()),
            ENCODED: pa.array([state.encoded for state in states], pa.binary()),
        }
        for column in self._state_columns:
            values = [of_one.get(column.name) for of_one in fields]
            columns[column.name] = to_array(column, values, where, self._json_of)
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
            SNAPSHOT: repeated([(snapshot, len(messages))]),
            SOURCE: repeated([(channel.source, count) for channel, count in counts]),
            TARGET: repeated([(channel.target, count) for channel, count in counts]),
            NUMBER: pa.array(list(itertools.chain.from_iterable(numbers)), pa.int64()),
            KIND: pa.DictionaryArray.from_arrays(
                pa.array(list(map(operator.attrgetter(KIND), messages)), pa.int32()),
                pa.array(list(self.description.messages), pa.string()),
            ),
        }
        for column in self._message_columns:
            values = list(map(operator.attrgetter(column.name), messages))
            columns[column.name] = to_array(column, values, where, self._json_of)
        return pa.table(columns)

    def _decode(self, snapshot: str, channel: Channel, batch: Batch) -> list[Any]:
        where = f"snapshot {snapshot}, channel {channel}, messages {batch.first} to {batch.last}"
        try:
            messages: list[Any] = decoded(self._decoder.decode, batch.encoded)
        except DECODING_ERRORS as error:
            raise NotConsistent(
                f"{where}: these are not messages of the classes that the topology accepts "
                f"({', '.join(self.description.messages) or 'none'}): {text_of(error)}"
            ) from error
        assert len(messages) == batch.count, f"{where}: the books were not checked"
        return messages


def _decode_state(snapshot: str, state: ProcessState) -> dict[str, Any]:
    try:
        return fields_of(state)
    except DECODING_ERRORS as error:
        raise UsageError(
            f"snapshot {snapshot}, process {state.process}: its state is not a MessagePack map "
            f"from field to value: {text_of(error)}"
        ) from error


def _channels(snapshot: str, states: Sequence[ChannelState]) -> pa.Table:
    for state in states:
        if state.sent_count > _COUNT_MAX:
            raise UsageError(
                f"channel {state.channel}: {state.sent_count} is not a count of messages"
            )
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
    lists = table.column("encoded").combine_chunks()
    flat = lists.flatten()
    check_columns(pa.Table.from_struct_array(flat), pa.schema(list(_BATCHES.value_type)))
    batches = map(Batch, *(flat.field(name).to_pylist() for name in ("first", "count", "encoded")))
    columns = table.select(["source", "target", "sent_count", "received_count"]).to_pydict()
    states = zip(*columns.values(), lists.value_lengths().to_pylist(), strict=True)
    return tuple(
        ChannelState(
            Channel(source, target), sent, received, tuple(itertools.islice(batches, count))
        )
        for source, target, sent, received, count in states
    )
