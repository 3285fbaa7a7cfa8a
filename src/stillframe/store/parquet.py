"""Tables as the bytes of Parquet files, and back; and changes of keyed fields applied to each
other.

Executors of a cluster import this module: it needs no more than Arrow.
"""

import contextlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stillframe.errors import Damaged, NotConsistent, text_of
from stillframe.storage.location import Location
from stillframe.storage.reading import SNAPSHOT_ADVICE
from stillframe.store import version_1

# Arrow raises an ``OSError``, too, for bytes in memory that are no table.
_NO_TABLE = (pa.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError)
_UNPACKED_BYTES_MIN = 2**30
SNAPSHOT, PROCESS, KIND, ENCODED = "_snapshot", "_process", "_kind", "_encoded"
SOURCE, TARGET, NUMBER = "_source", "_target", "_number"
IS_REMOVED, KEY, KEY_ENCODED = "_is_removed", "_key", "_key_encoded"
VALUE_ENCODED = "_value_encoded"
"""The columns of the store in the tables of states, messages and keyed fields; no field begins with
an underscore. The table of channels, which has no fields, has plain names."""
_UNPACKED_PER_BYTE = 64
NO_COLUMNS: Mapping[str, pa.DataType] = {}


def unpacked_bytes_max(size: int) -> int:
    """Return the maximum size in memory of a file of `size` bytes: a few kilobytes can claim to be
    terabytes. A table that really packs better is not compressed."""
    return _UNPACKED_BYTES_MIN + _UNPACKED_PER_BYTE * size


@contextlib.contextmanager
def as_written(where: Location, *, advice: str = SNAPSHOT_ADVICE) -> Iterator[None]:
    """Turn errors of the body, which reads what is at `where`, into a Damaged with this advice."""
    try:
        yield
    except _NO_TABLE as error:
        raise Damaged(
            f"{where} is not a table of a store: {' '.join(text_of(error).split())}",
            path=where,
            remedy=advice,
        ) from error


def check_row_count(path: Location, found: int, promised: int | None) -> None:
    """Raise a NotConsistent if a table has not the promised number of rows; None: any number."""
    if promised is not None and found != promised:
        raise NotConsistent(
            f"{path} holds {found} rows, and its manifest lists {promised}",
            path=path,
            remedy="use another snapshot",
        )


def repeated(runs: Iterable[tuple[str, int]]) -> pa.Array:
    """Return texts, each repeated, as a dictionary array, which Parquet stores without a search."""
    names: dict[str, int] = {}
    indices = [
        pa.repeat(pa.scalar(names.setdefault(text, len(names)), pa.int32()), count)
        for text, count in runs
    ]
    return pa.DictionaryArray.from_arrays(
        pa.concat_arrays(indices) if indices else pa.array([], pa.int32()),
        pa.array(list(names), pa.string()),
    )


def to_parquet(table: pa.Table, encodings: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of a Parquet file with `table`; `encodings` are of some columns, by name."""
    encoded = dict(encodings or {})
    # Binary values do not repeat: no dictionary for them. Arrow's own schema would only make the
    # file longer, and show our dictionaries to readers.
    texts = [
        field.name
        for field in table.schema
        if not pa.types.is_binary(field.type) and field.name not in encoded
    ]
    for compression in ("zstd", "none"):
        sink = pa.BufferOutputStream()
        pq.write_table(
            table,
            sink,
            compression=compression,
            use_dictionary=texts,
            column_encoding=encoded or None,
            store_schema=False,
        )
        content = bytes(sink.getvalue())
        if table.nbytes <= unpacked_bytes_max(len(content)):
            break
    return content


def read_parquet(
    content: bytes,
    columns: list[str] | None = None,
    *,
    dictionaries: Iterable[str] = (),
    optional: Mapping[str, pa.DataType] = NO_COLUMNS,
) -> pa.Table:
    """Read a Parquet file, or some columns; ``as_written`` turns its errors into one. Those of
    `columns` that are `optional` are null if an older build has not written them."""
    groups = row_groups(content, columns, dictionaries=dictionaries, optional=optional)
    return pa.concat_tables(groups)


def row_groups(
    content: bytes,
    columns: list[str] | None = None,
    *,
    dictionaries: Iterable[str] = (),
    optional: Mapping[str, pa.DataType] = NO_COLUMNS,
) -> Iterator[pa.Table]:
    """Read one row group at a time, as ``read_parquet`` does; without a row group, one empty
    table."""
    file = pq.ParquetFile(pa.BufferReader(content))
    names = version_1.parquet_names(file.schema_arrow.names)
    absent = optional.keys() - set(file.schema_arrow.names)
    wanted = None
    if columns is not None:
        wanted = [names.get(name, name) for name in columns if name not in absent]
    if encoded := [names.get(name, name) for name in dictionaries]:
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=encoded)
    bytes_max = unpacked_bytes_max(len(content))
    # Only from groups: reading the metadata of a column can end this operating-system process.
    announced = [file.metadata.row_group(n).total_byte_size for n in range(file.num_row_groups)]
    _check_size(sum(announced) if min(announced, default=0) >= 0 else -1, bytes_max)
    total_bytes = 0
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=wanted, use_threads=False)
        total_bytes += table.nbytes
        _check_size(total_bytes, bytes_max)
        yield _with_nulls(_checked(table, wanted, names), columns, optional)
    if not announced:
        table = file.read(columns=wanted, use_threads=False)
        yield _with_nulls(_checked(table, wanted, names), columns, optional)


def _with_nulls(
    table: pa.Table, columns: list[str] | None, optional: Mapping[str, pa.DataType]
) -> pa.Table:
    """Return a table with those of `columns` that were not written, as nulls."""
    if columns is None or table.column_names == columns:
        return table
    for name in optional.keys() - set(table.column_names):
        table = table.append_column(name, pa.nulls(table.num_rows, optional[name]))
    return table.select(columns)


def _checked(table: pa.Table, columns: list[str] | None, former: Mapping[str, str]) -> pa.Table:
    table.validate(full=True)
    if columns is not None and table.column_names != columns:
        raise ValueError(f"it has the columns {', '.join(table.column_names)}")
    if not former:
        return table
    current = {name: now for now, name in former.items()}
    return table.rename_columns([current.get(name, name) for name in table.column_names])


def _check_size(found: int, bytes_max: int) -> None:
    if not 0 <= found <= bytes_max:
        raise ValueError(
            f"it would take {found} bytes in memory, more than the limit of {bytes_max}"
        )


def check_columns(
    table: pa.Table, schema: pa.Schema, *, filled: Container[str] | None = None
) -> None:
    """Raise a KeyError or ValueError if a table lacks a column of `schema`, of that type and
    without nulls; those outside of `filled`, if that is given, may have nulls."""
    for field in schema:
        found = table.schema.field(field.name)
        if found.type != field.type:
            raise ValueError(f"column {field.name} is of type {found.type}, not {field.type}")
        if (filled is None or field.name in filled) and table.column(field.name).null_count:
            raise ValueError(f"column {field.name} has a missing value")


def different_column(one: pa.Table, other: pa.Table) -> str | None:
    """Return the name of the first column in which two tables differ, if any.

    Tables are compared as files hold them: a NaN equals itself, 0.0 and -0.0 differ.
    """
    if one.schema.names != other.schema.names or one.num_rows != other.num_rows:
        return ", ".join(one.schema.names)
    for name in one.schema.names:
        if not _bits(one.column(name)).equals(_bits(other.column(name))):
            return str(name)
    return None


def _bits(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array.view(pa.int64()) if pa.types.is_float64(array.type) else array


def identity_of(columns: Sequence[str]) -> str:
    """Return the column of a keyed field that identifies its keys."""
    return KEY_ENCODED if KEY_ENCODED in columns else KEY


def apply_changes(links: Sequence[pa.Table]) -> pa.Table:
    """Return the keys of one process after the last of the `links`, the oldest first.

    All have the columns of the table of that field, and the oldest has each key once.
    """
    oldest, *rest = links
    identity = identity_of(oldest.column_names)
    newer = pa.concat_tables([oldest.slice(0, 0), *rest])
    keys = newer.select([identity]).append_column(
        "row", pa.array(range(newer.num_rows), pa.int64())
    )
    last = keys.group_by(identity).aggregate([("row", "max")]).column("row_max")
    newer = newer.take(last.sort())  # of each key the last row
    is_stale = pc.is_in(oldest.column(identity), value_set=newer.column(identity))
    table = pa.concat_tables([oldest.filter(pc.invert(is_stale)), newer])
    return table.filter(pc.invert(table.column(IS_REMOVED)))
