"""The records of a log entry as Parquet files: partitioned, written, and read back."""

import zlib
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stillframe.durable_files import check_file
from stillframe.errors import Damaged
from stillframe.pipeline.dataflow import Log, schema_difference

_COMPRESSION = "zstd"
_encode = msgspec.json.Encoder().encode


def write_records(path: Path, table: pa.Table) -> None:
    """Write records as a Parquet file."""
    pq.write_table(table, path, compression=_COMPRESSION)


def read_records(path: Path, schema: pa.Schema, checksum: int) -> pa.Table:
    """Read a Parquet file of a log, whose checksum when it was written is given. Raises Damaged if
    it is missing, changed, or of other columns."""
    check_file(path, checksum)
    try:
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            table = file.read().select(schema.names)
            difference = schema_difference(_unzoned(schema), _unzoned(table.schema))
            if difference is not None:
                raise Damaged(f"{path} is not of the columns of its channel: {difference}")
            return table.cast(schema)
    except (OSError, pa.ArrowException, KeyError, UnicodeError) as error:
        raise Damaged(f"{path} cannot be read as records of its channel: {error}") from error


def spread(table: pa.Table, log: Log, first: int = 0) -> list[tuple[int, pa.Table]]:
    """Return the partitions of `log` that get records of a table, each with its records in their
    order. Without a key the partitions take turns, from partition `first` on."""
    count = log.partition_count
    if count == 1:
        return [(0, table)] if table.num_rows else []
    if not log.key:
        turns = range(min(count, table.num_rows))
        return [
            ((first + turn) % count, table.take(list(range(turn, table.num_rows, count))))
            for turn in turns
        ]
    places = _places(table.select(log.key), count)
    order = pc.sort_indices(places)  # a stable sort: records keep their order
    ordered = table.take(order)
    parts = []
    done_count = 0
    sizes = {int(one["values"]): int(one["counts"]) for one in pc.value_counts(places).to_pylist()}
    for place in sorted(sizes):
        parts.append((place, ordered.slice(done_count, sizes[place])))
        done_count += sizes[place]
    return parts


def partition_of(key: tuple[object, ...], partition_count: int) -> int:
    """Return the partition of a key, the same in every process and every epoch. It has a value for
    each column; for columns of time, the integer that Arrow stores."""
    # Not repr, which depends on the version of Python and on what else is installed.
    return zlib.crc32(_encode(key)) % partition_count


def _places(keys: pa.Table, count: int) -> pa.Array:
    """Return the partition of every record; each distinct key is hashed once."""
    distinct: list[tuple[object, ...]] = [()]
    codes = pa.repeat(pa.scalar(0, pa.int64()), keys.num_rows)
    for column in keys.columns:
        coded = _plain(column).dictionary_encode(null_encoding="encode")
        values = coded.dictionary.to_pylist()
        if keys.num_columns == 1:
            distinct = list(zip(values, strict=True))
            codes = coded.indices
            break
        both = pc.add(pc.multiply(codes, len(values)), coded.indices.cast(pa.int64()))
        again = both.dictionary_encode()
        distinct = [
            (*distinct[code // len(values)], values[code % len(values)])
            for code in again.dictionary.to_pylist()
        ]
        codes = again.indices.cast(pa.int64())
    places = pa.array([partition_of(key, count) for key in distinct], pa.int32())
    return places.take(codes)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, with times as the integers that Arrow stores."""
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _unzoned(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose times have no zone, as Spark writes them."""
    return pa.schema([field.with_type(_unzoned_type(field.type)) for field in schema])


def _unzoned_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit)
    if pa.types.is_struct(kind):
        return pa.struct(list(_unzoned(pa.schema(list(kind)))))
    if pa.types.is_list(kind):
        return pa.list_(_unzoned_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_unzoned_type(kind.key_type), _unzoned_type(kind.item_type))
    return kind
