"""The rows of keyed fields: one for each key in a snapshot.

A file holds the rows of one keyed field of all processes of one class, those of a process next to
each other: keys that were set since the base snapshot, then keys that were removed; without a base,
every key. Where the columns do not give a key or a value back exactly as it was recorded, another
column holds its MessagePack (`key_encoded`, `value_encoded`).
"""

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stillframe.errors import NotConsistent, UsageError
from stillframe.model import (
    DECODING_ERRORS,
    KeyedChange,
    KeyedRows,
    ProcessId,
    ProcessState,
    encode_array,
)
from stillframe.store.arrow_columns import ARROW_TYPES, to_array
from stillframe.store.manifest import table_name
from stillframe.store.parquet import (
    KEY,
    KEY_ENCODED,
    apply_changes,
    read_parquet,
    repeated,
    to_parquet,
)
from stillframe.topology import Column, Description, KeyedColumns

_EXACT = frozenset({"bool", "int", "float", "text", "bytes"})
"""Kinds of columns that give a recorded value back exactly."""

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode
_decode_raw = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_MAP32 = 0xDF


class KeyedTable:
    """The table `name` of one keyed field of one class (`kind`)."""

    def __init__(self, kind: str, field: str, columns: KeyedColumns) -> None:
        self.kind = kind
        self.field = field
        self.name = table_name(kind, field)
        self._key = Column("key", columns.key)
        self._values = columns.values
        self._is_key_exact = columns.key in _EXACT
        self._is_value_exact = columns.layout == "value" and columns.values[0].kind in _EXACT
        self._identity = KEY if self._is_key_exact else KEY_ENCODED
        self._struct_decoder = None if columns.layout == "value" else _decoder_of(columns)
        self._queryable = ["process", "key", *(column.name for column in columns.values)]
        self._stored = [
            *("process", "is_removed", "key"),
            *(() if self._is_key_exact else ("key_encoded",)),
            *(column.name for column in columns.values),
            *(() if self._is_value_exact else ("value_encoded",)),
        ]

    def rows(self, snapshot: str, states: Iterable[ProcessState]) -> pa.Table:
        """Return the rows of a snapshot, from the keyed fields of these states."""
        tables = []
        for state in states:
            change = state.keyed[self.field]
            where = f"snapshot {snapshot}, process {state.process} ({self.kind}), {self.field}"
            tables += [self._set(where, state.process, rows) for rows in change.rows]
            tables.append(self._removed(where, state.process, change))
        return self.of_snapshot(snapshot, tables)

    def of_snapshot(self, snapshot: str, tables: Sequence[pa.Table]) -> pa.Table:
        """Return rows, such as ``merged`` gives for each process, as the table of a snapshot."""
        table = pa.concat_tables([self.no_rows(), *tables]).unify_dictionaries()
        return table.add_column(0, "snapshot", repeated([(snapshot, table.num_rows)]))

    def to_parquet(self, table: pa.Table) -> bytes:
        """Return the bytes of the Parquet file that holds the rows of a snapshot."""
        encodings = {
            column.name: encoding
            for column, is_unique in ((self._key, True), *((v, False) for v in self._values))
            if (encoding := _encoding(column.kind, is_unique=is_unique)) is not None
        }
        return to_parquet(table, encodings)

    def read(self, content: bytes) -> dict[ProcessId, pa.Table]:
        """Return the rows in a file of this table, by process."""
        table = read_parquet(content, self._stored, dictionaries=["process"])
        expected = self.no_rows()
        if table.schema.names != expected.schema.names or any(
            found.type != wanted.type
            for found, wanted in zip(table.schema, expected.schema, strict=True)
            if wanted.name != "process"
        ):
            raise ValueError(f"it has other columns than the table {self.name}")
        for name in ("process", "is_removed", self._identity):
            if table.column(name).null_count:
                raise ValueError(f"column {name} has an empty place")
        table = table.unify_dictionaries()
        found: dict[ProcessId, list[pa.Table]] = {}
        for process, first, end in _runs(table.column("process")):
            found.setdefault(process, []).append(table.slice(first, end - first))
        return {process: pa.concat_tables(tables) for process, tables in found.items()}

    def merged(self, links: Sequence[pa.Table]) -> pa.Table:
        """Return the keys that one process has after the last of the `links`, the oldest first."""
        return apply_changes([pa.concat_tables([self.no_rows(), *links[:1]]), *links[1:]])

    def as_map(self, table: pa.Table) -> bytes:
        """Return the keys of one process, none of them removed, as a MessagePack map."""
        if self._is_key_exact:
            keys, values = table.column("key").to_pylist(), self._plain_values(table)
            encoded: bytes = _encode(dict(zip(keys, values, strict=True)))
            return encoded
        pairs = zip(self._raw(table, "key"), self._raw(table, "value"), strict=True)
        header: bytes = bytes([_MAP32]) + table.num_rows.to_bytes(4, "big")
        return header + b"".join(itertools.chain.from_iterable(pairs))

    def change(self, table: pa.Table) -> KeyedChange:
        """Return the rows of one process as it recorded them."""
        removed = table.filter(table.column("is_removed"))
        kept = table.filter(pc.invert(table.column("is_removed")))
        keys, values = (encode_array(self._raw(kept, name)) for name in ("key", "value"))
        rows = (KeyedRows(kept.num_rows, keys, values),) if kept.num_rows else ()
        return KeyedChange(rows, removed.num_rows, encode_array(self._raw(removed, "key")))

    def queryable(self, table: pa.Table) -> pa.Table:
        """Return the columns for queries."""
        return table.select(["snapshot", *self._queryable])

    def repeated_key(self, table: pa.Table) -> str | None:
        """Return a key that occurs twice in the rows of one process, if any."""
        counted = table.group_by(self._identity).aggregate([([], "count_all")])
        twice = counted.filter(pc.greater(counted.column("count_all"), 1))
        return str(twice.column(self._identity)[0].as_py()) if twice.num_rows else None

    def _plain_values(self, table: pa.Table) -> list[Any]:
        if self._is_value_exact:
            return list(table.column(self._values[0].name).to_pylist())
        return list(map(msgspec.Raw, table.column("value_encoded").to_pylist()))

    def _raw(self, table: pa.Table, what: str) -> list[bytes]:
        """Return the keys or the values, each as MessagePack."""
        is_exact = self._is_key_exact if what == "key" else self._is_value_exact
        if is_exact:
            return list(map(_encode, table.column(what).to_pylist()))
        return list(table.column(f"{what}_encoded").to_pylist())

    def no_rows(self) -> pa.Table:
        """Return an empty table."""
        columns = {
            "process": pa.array([], pa.dictionary(pa.int32(), pa.string())),
            "is_removed": pa.array([], pa.bool_()),
            **{column.name: _nulls(0, column) for column in (self._key, *self._values)},
            "key_encoded": pa.array([], pa.binary()),
            "value_encoded": pa.array([], pa.binary()),
        }
        return pa.table({name: columns[name] for name in self._stored})

    def _set(self, where: str, process: ProcessId, rows: KeyedRows) -> pa.Table:
        columns = self._keys(where, rows.keys, rows.count)
        columns |= self._value_columns(where, rows)
        return self._table(process, rows.count, columns, is_removed=False)

    def _removed(self, where: str, process: ProcessId, change: KeyedChange) -> pa.Table:
        columns = self._keys(where, change.removed, change.removed_count)
        columns |= {c.name: _nulls(change.removed_count, c) for c in self._values}
        columns["value_encoded"] = pa.nulls(change.removed_count, pa.binary())
        return self._table(process, change.removed_count, columns, is_removed=True)

    def _table(
        self, process: ProcessId, count: int, columns: dict[str, pa.Array], *, is_removed: bool
    ) -> pa.Table:
        columns["process"] = repeated([(process, count)])
        columns["is_removed"] = pa.repeat(pa.scalar(is_removed), count)
        return pa.table({name: columns[name] for name in self._stored})

    def _keys(self, where: str, encoded: bytes, count: int) -> dict[str, pa.Array]:
        keys = _items(where, encoded, count)
        columns = {"key": to_array(self._key, keys, lambda index: f"{where}, key {index}")}
        if not self._is_key_exact:
            columns["key_encoded"] = _raw_array(encoded)
        return columns

    def _value_columns(self, where: str, rows: KeyedRows) -> dict[str, pa.Array]:
        def named(index: int) -> str:
            return f"{where}, key {_decode(rows.keys)[index]!r}"

        if self._struct_decoder is None:
            values = _items(where, rows.values, rows.count)
            columns = {"value": to_array(self._values[0], values, named)}
        else:
            structs = _items(where, rows.values, rows.count, self._struct_decoder)
            columns = {
                column.name: to_array(
                    column, list(map(operator.attrgetter(column.name), structs)), named
                )
                for column in self._values
            }
        if not self._is_value_exact:
            columns["value_encoded"] = _raw_array(rows.values)
        return columns


def keyed_tables(description: Description) -> tuple[KeyedTable, ...]:
    """Return the tables of all keyed fields, in the order of the description."""
    return tuple(
        KeyedTable(kind, field, columns)
        for kind, fields in description.keyed.items()
        for field, columns in fields.items()
    )


def as_changes(snapshot: str, state: ProcessState, description: Description) -> ProcessState:
    """Return a state whose keyed fields are in `keyed`, also if they were recorded in full."""
    where = f"snapshot {snapshot}, process {state.process}"
    names = description.keyed.get(state.kind, {}).keys()
    if state.keyed.keys() == names:
        return state if names else msgspec.structs.replace(state, base=None)
    if state.keyed or state.base is not None:
        raise UsageError(
            f"{where}: changes of {', '.join(state.keyed) or 'nothing'} were recorded, and the "
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
            f"{where}: its state is no map with {', '.join(names)}: {error}"
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
        raise NotConsistent(f"{where}: what was recorded cannot be read: {error}") from error
    if len(items) != count:
        raise NotConsistent(f"{where}: {count} entries were announced, and {len(items)} recorded")
    return items


def _raw_array(encoded: bytes) -> pa.Array:
    return pa.array(map(bytes, _decode_raw(encoded)), pa.binary())


def _decoder_of(columns: KeyedColumns) -> Any:
    row = msgspec.defstruct(
        "Row",
        [(column.name, Any, None) for column in columns.values],
        array_like=columns.layout == "array",
        frozen=True,
        gc=False,
    )
    return msgspec.msgpack.Decoder(list[row]).decode  # type: ignore[valid-type]


def _nulls(count: int, column: Column) -> pa.Array:
    return pa.nulls(count, ARROW_TYPES[column.kind])


def _encoding(kind: str, *, is_unique: bool) -> str | None:
    """Return the Parquet encoding of a column: unique texts are not worth a dictionary."""
    if kind in ("int", "time"):
        return "DELTA_BINARY_PACKED"
    if not is_unique:
        return None
    return {"text": "DELTA_BYTE_ARRAY", "json": "DELTA_BYTE_ARRAY", "bool": "PLAIN"}.get(kind)


def _runs(column: pa.ChunkedArray) -> Iterable[tuple[str, int, int]]:
    """Yield each run of equal texts: the text, its start and its end."""
    array = column.combine_chunks()
    runs = pc.run_end_encode(array.indices)
    names, first = array.dictionary.to_pylist(), 0
    for end, index in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield names[index], first, end
        first = end
