"""Parquet files as DataFrames, verified: no row comes from a changed byte.

A task reads the bytes of a file once, compares them with their SHA-256, and makes rows of these
same bytes. Executors of a cluster run it: it needs no more than Arrow.
"""

import hashlib
import math
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from stillframe.durable_files import read_hashed, sync
from stillframe.errors import Damaged, NotConsistent, StoreError
from stillframe.spark.session import add_package
from stillframe.store.parquet import as_written, check_row_count, row_groups

File = tuple[str | None, str, int, str, int | None]
"""Snapshot, path, bytes, SHA-256 and rows of a file. The snapshot is None if the file is of
several, the rows if their number is unknown."""

SNAPSHOT = "snapshot"
_FILES_SCHEMA = pa.schema(
    [
        pa.field("snapshot", pa.string()),
        pa.field("path", pa.string()),
        pa.field("byte_count", pa.int64()),
        pa.field("hash", pa.string()),
        pa.field("row_count", pa.int64()),
        pa.field("task", pa.int32()),
    ]
)
_TASK_BYTES = 32 * 2**20
_TASK_FILE_COUNT = 256
"""How much, and how many files, one task reads: starting it costs more than reading a small
file."""
_BATCH_ROW_COUNT = 1 << 16
_ERRORS = {kind.__name__: kind for kind in (Damaged, StoreError, NotConsistent)}
_RAISED = re.compile(rf"^(?:[\w.]+\.)?({'|'.join(_ERRORS)}): (.+?)\s*$", re.MULTILINE)
FILE_ROW_COUNT = 2**23
GROUP_ROW_COUNT = 2**20
GROUP_BYTES = 2**26
_WRITTEN = pa.schema(
    [("name", pa.string()), ("row_count", pa.int64()), ("bytes", pa.int64()), ("hash", pa.string())]
)
Written = tuple[str, int, int, str]
"""Name, rows, bytes and SHA-256 of a file."""


def rows(spark: SparkSession, files: Sequence[File], schema: str | StructType) -> DataFrame:
    """Return the rows of files with the columns of `schema`, of which `snapshot` is the first and
    has the snapshot given with a file. Nothing is read before an action, inside
    ``spark_errors``."""
    struct = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(struct, StructType)
    message = to_arrow_schema(struct, timezone="UTC").serialize().to_pybytes()
    return _spread(spark, files).mapInArrow(partial(_read, schema_message=message), struct)


def damages(spark: SparkSession, files: Sequence[File]) -> dict[str, str]:
    """Return the paths of files that are not what was written, and why; runs a job."""
    with spark_errors(Path(files[0][1]).parent.parent if files else Path()):
        found = _spread(spark, files).mapInArrow(_check, "path STRING, damage STRING").collect()
    return {row["path"]: row["damage"] for row in found}


def _spread(spark: SparkSession, files: Sequence[File]) -> DataFrame:
    add_package(spark)
    task_count, tasks = spread_tasks(spark, [file[2] for file in files])
    columns = [list(column) for column in zip(*files, strict=True)] or [[]] * 5
    listed = spark.createDataFrame(pa.table([*columns, tasks], schema=_FILES_SCHEMA))
    return listed.repartitionById(task_count, F.col("task"))


@contextmanager
def spark_errors(path: Path) -> Iterator[None]:
    """Raise what stopped a task that read `path`: Damaged, which names a file, or a StoreError."""
    try:
        yield
    except PySparkException as error:
        found = error_of_task(error)
        if found is not None:
            raise found from error
        raise StoreError(
            f"Spark cannot read {path}: {first_line(error)}. If snapshots are being dropped there "
            "meanwhile, try again"
        ) from error


def error_of_task(error: PySparkException) -> Exception | None:
    """Return the error of ours that a task raised; None if Spark stopped for another reason."""
    found = _RAISED.search(str(error))
    return None if found is None else _ERRORS[found[1]](found[2])


def first_line(error: PySparkException) -> str:
    """Return the first line of Spark's message, without codes and plans."""
    line = str(error).strip().partition("\n")[0]
    return re.sub(r"\s*SQLSTATE: \w+.*", "", line).rstrip(".")


def spread_tasks(spark: SparkSession, sizes: Sequence[int]) -> tuple[int, list[int]]:
    """Return how many tasks there are, and which reads each file of so many bytes; large ones
    spread."""
    by_size = math.ceil(sum(sizes) / _TASK_BYTES)
    by_number = math.ceil(len(sizes) / _TASK_FILE_COUNT)
    cores = spark.sparkContext.defaultParallelism
    count = max(1, min(len(sizes), max(by_size, by_number, cores)))
    tasks = [0] * len(sizes)
    ordered = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    for place, index in enumerate(ordered):
        tasks[index] = place % count
    return count, tasks


def _check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for _, path, byte_count, digest, row_count in _files(batch):
            try:
                _content(Path(path), byte_count, digest, row_count)
            except (Damaged, NotConsistent) as error:
                yield pa.RecordBatch.from_pydict({"path": [path], "damage": [str(error)]})


def _files(batch: pa.RecordBatch) -> Iterator[File]:
    yield from zip(*(column.to_pylist() for column in batch.columns[:-1]), strict=True)


def _content(path: Path, byte_count: int, digest: str, row_count: int | None) -> bytes:
    content = read_hashed(path, byte_count, digest)
    if row_count is not None:
        with as_written(path):
            found = pq.read_metadata(pa.BufferReader(content)).num_rows
        check_row_count(path, found, row_count)
    return content


def _read(batches: Iterable[pa.RecordBatch], schema_message: bytes) -> Iterator[pa.RecordBatch]:
    schema = pa.ipc.read_schema(pa.py_buffer(schema_message))
    for batch in batches:
        for snapshot, path, byte_count, digest, row_count in _files(batch):
            content = _content(Path(path), byte_count, digest, row_count)
            yield from _batches(snapshot, Path(path), content, schema)


def _batches(
    snapshot: str | None, path: Path, content: bytes, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    names = [name for name in schema.names if name != SNAPSHOT or snapshot is None]
    with as_written(path):
        for group in row_groups(content, names):
            columns = dict(zip(names, group.columns, strict=True))
            if snapshot is not None:
                columns[SNAPSHOT] = pa.repeat(pa.scalar(snapshot), group.num_rows)
            table = pa.table([columns[name] for name in schema.names], names=schema.names)
            yield from table.cast(schema).to_batches(max_chunksize=_BATCH_ROW_COUNT)


def write(rows: DataFrame, directory: Path) -> list[Written]:
    """Write rows to new files in `directory`, which every executor sees. The files are on the disk
    then; their names in the directory are not, and those of failed tasks are not returned. Run it
    inside ``spark_errors``."""
    add_package(rows.sparkSession)
    schema = to_arrow_schema(rows.schema, timezone="UTC").serialize().to_pybytes()
    task = partial(_write, directory=str(directory.absolute()), schema_message=schema)
    written = rows.mapInArrow(task, from_arrow_schema(_WRITTEN)).collect()
    return [(row["name"], row["row_count"], row["bytes"], row["hash"]) for row in written]


def write_here(table: pa.Table, path: Path) -> Written:
    """Write a table to a new file, here on the driver."""
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
