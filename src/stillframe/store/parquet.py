"""Tables as the bytes of Parquet files, and back."""

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq


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
    sink = pa.BufferOutputStream()
    encodings = encodings or {}
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
        compression="zstd",
        use_dictionary=texts,
        column_encoding=dict(encodings) or None,
        store_schema=False,
    )
    return bytes(sink.getvalue())


def read_parquet(content: bytes, columns: list[str] | None = None) -> pa.Table:
    """Read a Parquet file, or some of its columns.

    Raises:
        pyarrow.ArrowException: it is no Parquet file, or lacks a column.
    """
    return pq.read_table(pa.BufferReader(content), columns=columns, use_threads=False)


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
