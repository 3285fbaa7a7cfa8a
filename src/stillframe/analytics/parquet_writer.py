"""Tasks that write Parquet files and say what they wrote: name, rows, bytes and SHA-256.

What a task that failed has written is in nobody's list. Executors of a cluster run it: it needs no
more than Arrow.
"""

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from stillframe.errors import StoreError
from stillframe.spark.executor_package import add_package
from stillframe.store.disk import sync

FILE_ROW_COUNT = 2**23
GROUP_ROW_COUNT = 2**20
GROUP_BYTES = 2**26
_WRITTEN_SCHEMA = "name STRING, row_count BIGINT, bytes BIGINT, hash STRING"
_WRITTEN = pa.schema(
    [("name", pa.string()), ("row_count", pa.int64()), ("bytes", pa.int64()), ("hash", pa.string())]
)
Written = tuple[str, int, int, str]
"""Name, rows, bytes and SHA-256 of a file."""


def write(rows: DataFrame, directory: Path) -> list[Written]:
    """Write rows to new files in `directory`, which every executor sees under this path.

    The files are on the disk when this returns; their names, in the directory, are not.

    Raises:
        PySparkException: a task failed; ``verified_parquet.spark_errors`` says why.
    """
    add_package(rows.sparkSession)
    schema = to_arrow_schema(rows.schema, timezone="UTC").serialize().to_pybytes()
    task = partial(_write, directory=str(directory.absolute()), schema_message=schema)
    written = rows.mapInArrow(task, _WRITTEN_SCHEMA).collect()
    return [(row["name"], row["row_count"], row["bytes"], row["hash"]) for row in written]


def write_here(table: pa.Table, path: Path) -> Written:
    """Write a table to a new file, here on the driver.

    Raises:
        StoreError: the disk is full or failed.
    """
    return _write_file(iter([table]), path, table.schema)


def _write(
    batches: Iterable[pa.RecordBatch], directory: str, schema_message: bytes
) -> Iterator[pa.RecordBatch]:
    schema = pa.ipc.read_schema(pa.py_buffer(schema_message))
    groups = _groups(batches, schema)
    for first in groups:
        path = Path(directory) / f"{secrets.token_hex(16)}.parquet"
        written = _write_file(_limited(first, groups), path, schema)
        columns = [pa.array([value]) for value in written]
        yield pa.RecordBatch.from_arrays(columns, schema=_WRITTEN)


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield rows as tables that are worth a group of a file."""
    held: list[pa.RecordBatch] = []
    row_count = byte_count = 0
    for batch in batches:
        held.append(batch)
        row_count, byte_count = row_count + batch.num_rows, byte_count + batch.nbytes
        if row_count >= GROUP_ROW_COUNT or byte_count >= GROUP_BYTES:
            yield pa.Table.from_batches(held).cast(schema)
            held, row_count, byte_count = [], 0, 0
    if row_count:
        yield pa.Table.from_batches(held).cast(schema)


def _limited(first: pa.Table, groups: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield `first`, and more groups until a file has enough rows."""
    yield first
    row_count = first.num_rows
    while row_count < FILE_ROW_COUNT and (group := next(groups, None)) is not None:
        yield group
        row_count += group.num_rows


def _write_file(tables: Iterable[pa.Table], path: Path, schema: pa.Schema) -> Written:
    row_count = 0
    try:
        with pq.ParquetWriter(path, schema, compression="zstd", store_schema=False) as file:
            for table in tables:
                file.write_table(table, row_group_size=GROUP_ROW_COUNT)
                row_count += table.num_rows
        sync(path)
        with path.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise StoreError(
            f"{path} could not be written: {why}: make room on that disk, or "
            "give another directory; what was published there before is as it was"
        ) from error
    return path.name, row_count, path.stat().st_size, digest
