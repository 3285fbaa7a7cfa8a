"""Tables as the bytes of Parquet files, and back."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stillframe.errors import Damaged, NotConsistent
from stillframe.store.disk import WHAT_TO_DO

# Arrow says with an ``OSError``, too, that bytes in memory are no table.
_NO_TABLE = (pa.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError)
_UNPACKED_BYTES_MIN = 2**30
_UNPACKED_PER_BYTE = 64


def unpacked_bytes_max(size: int) -> int:
    """Return how many bytes a file of `size` bytes may become in memory.

    A few kilobytes can say that they are terabytes. What really packs better than this is written
    without compression.
    """
    return _UNPACKED_BYTES_MIN + _UNPACKED_PER_BYTE * size


@contextlib.contextmanager
def as_written(where: Path) -> Iterator[None]:
    """Refuse what is no table as the store writes it.

    Args:
        where: the file, or the directory with the files, of which the body makes something.

    Raises:
        Damaged: it cannot be made of them, and why.
    """
    try:
        yield
    except _NO_TABLE as error:
        raise Damaged(
            f"{where} is no table as the store writes it: {error}: {WHAT_TO_DO}"
        ) from error


def check_row_count(path: Path, found: int, promised: int | None) -> None:
    """Refuse a table with more or fewer rows than promised; None if nothing was promised.

    Raises:
        NotConsistent: it is one.
    """
    if promised is not None and found != promised:
        raise NotConsistent(
            f"{path} holds {found} rows, and {promised} were promised: use another snapshot"
        )


def repeated(runs: Iterable[tuple[str, int]]) -> pa.Array:
    """Return texts, each repeated, as a dictionary: Parquet stores it so and need not search."""
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
    """Return the bytes of a Parquet file that holds `table`.

    `encodings` are those of columns that have one of their own, by name.
    """
    content = _written(table, encodings or {}, "zstd")
    if table.nbytes > unpacked_bytes_max(len(content)):
        return _written(table, encodings or {}, "none")
    return content


def _written(table: pa.Table, encodings: Mapping[str, str], compression: str) -> bytes:
    sink = pa.BufferOutputStream()
    # What is opaque does not repeat: no dictionary for it. Arrow's own schema would only make
    # readers see our dictionaries, and the file longer.
    texts = [
        field.name
        for field in table.schema
        if not pa.types.is_binary(field.type) and field.name not in encodings
    ]
    pq.write_table(
        table,
        sink,
        compression=compression,
        use_dictionary=texts,
        column_encoding=dict(encodings) or None,
        store_schema=False,
    )
    return bytes(sink.getvalue())


def read_parquet(
    content: bytes, columns: list[str] | None = None, *, dictionaries: Iterable[str] = ()
) -> pa.Table:
    """Read a Parquet file, or some of its columns, with `dictionaries` as they are in the file.

    Raises:
        pyarrow.ArrowException, OSError: it is no Parquet file, or lacks a column.
        ValueError: what is in it is not what its types say, or it says that it is more than such a
            file may become.
    """
    return pa.concat_tables(row_groups(content, columns, dictionaries=dictionaries))


def row_groups(
    content: bytes, columns: list[str] | None = None, *, dictionaries: Iterable[str] = ()
) -> Iterator[pa.Table]:
    """Read a Parquet file as ``read_parquet`` does, one group of rows after the other; one without
    rows if there is no group."""
    file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=list(dictionaries))
    bytes_max = unpacked_bytes_max(len(content))
    # Of groups only: to ask what a column says of itself can end this operating-system process.
    announced = [file.metadata.row_group(n).total_byte_size for n in range(file.num_row_groups)]
    _check_size(sum(announced) if min(announced, default=0) >= 0 else -1, bytes_max)
    total_bytes = 0
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=columns, use_threads=False)
        total_bytes += table.nbytes
        _check_size(total_bytes, bytes_max)
        yield _checked(table, columns)
    if not announced:
        yield _checked(file.read(columns=columns, use_threads=False), columns)


def _checked(table: pa.Table, columns: list[str] | None) -> pa.Table:
    table.validate(full=True)
    if columns is not None and table.column_names != columns:
        raise ValueError(f"it has the columns {', '.join(table.column_names)}")
    return table


def _check_size(found: int, bytes_max: int) -> None:
    if not 0 <= found <= bytes_max:
        raise ValueError(f"it would be {found} bytes in memory, and may be {bytes_max}")


def check_columns(table: pa.Table, schema: pa.Schema) -> None:
    """Check that a table has the columns of `schema`, of these types and without empty places.

    Raises:
        KeyError, ValueError: it has not; the column is named.
    """
    for field in schema:
        found = table.schema.field(field.name)
        if found.type != field.type:
            raise ValueError(f"column {field.name} is of type {found.type}, not {field.type}")
        if table.column(field.name).null_count:
            raise ValueError(f"column {field.name} has an empty place")


def different_column(one: pa.Table, other: pa.Table) -> str | None:
    """Return the name of the first column in which two tables differ; None if they are the same.

    Two tables are compared as files hold them: a NaN equals itself, 0.0 and -0.0 differ.
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
