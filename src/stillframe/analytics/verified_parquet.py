"""Parquet files as DataFrames, verified: no row comes from a changed byte.

A task reads the bytes of a file once, compares them with their SHA-256, and makes rows of these
same bytes. In an object store, where each file takes a round trip, it reads several at a time.
Executors of a cluster run it: it needs no more than Arrow, and obstore for an object store.
"""

import hashlib
import io
import json
import math
import os
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from stillframe.durable_files import sync
from stillframe.errors import Damaged, NotConsistent, StoreError, Unavailable
from stillframe.spark.session import add_package
from stillframe.storage.location import Location, ObjectPath, io_advice, location_of
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import read_hashed
from stillframe.store.parquet import NO_COLUMNS, as_written, check_row_count, row_groups

File = tuple[str | None, str, int, str, int | None]
"""Snapshot, path, bytes, SHA-256 and rows of a file. The snapshot is None if the file is of
several, the rows if their number is unknown."""

_ITEMS = pa.schema([("item", pa.string()), ("task", pa.int32())])
_ANSWER = "answer STRING"
_TASK_BYTES = 32 * 2**20
_TASK_FILE_COUNT = 256
"""How much, and how many files, one task reads: starting it costs more than reading a small
file."""
_BATCH_ROW_COUNT = 1 << 16
_AHEAD_COUNT = 16
_AHEAD_BYTES = 2**26
"""How many files, and how much, a task reads ahead from an object store."""
_ERRORS = {kind.__name__: kind for kind in (Damaged, StoreError, NotConsistent, Unavailable)}
_RAISED = re.compile(rf"^(?:[\w.]+\.)?({'|'.join(_ERRORS)}): (.+?)\s*$", re.MULTILINE)
_IN_PYTHON = "from the Python worker"
FILE_ROW_COUNT = 2**23
_OBJECT_BYTES = 2**27
"""How much becomes one object: it is in memory until it is complete."""
GROUP_ROW_COUNT = 2**20
GROUP_BYTES = 2**26


class Written(NamedTuple):
    """A file that was written: its name, rows, bytes and SHA-256."""

    name: str
    row_count: int
    bytes: int
    hash: str


def rows(
    spark: SparkSession,
    files: Sequence[File],
    schema: pa.Schema,
    optional: Mapping[str, pa.DataType] = NO_COLUMNS,
) -> DataFrame:
    """Return the rows of files with the columns of `schema`. The first has the snapshot given with
    a file. The `optional` ones are null if an older build has not written them. Nothing is read
    before an action, inside ``spark_errors``."""
    struct = from_arrow_schema(schema)
    arrow = to_arrow_schema(struct, timezone="UTC")
    rows_of = partial(_rows_of, schema=arrow, optional=dict(optional))
    is_remote = any(isinstance(location_of(file[1]), ObjectPath) for file in files)
    work = _Work(_fetch, rows_of, is_remote)
    return _in_tasks(spark, files, [file[2] for file in files], work, struct)


def damages(spark: SparkSession, files: Sequence[File]) -> dict[str, str]:
    """Return the paths of files that are not what was written, and why; runs a job."""
    place = location_of(files[0][1]).parent.parent if files else Path()
    return dict(run(spark, place, files, [file[2] for file in files], _damage))


def run(
    spark: SparkSession,
    place: Location,
    items: Sequence[tuple[Any, ...]],
    sizes: Sequence[int],
    work: Callable[..., Any],
) -> list[Any]:
    """Call `work`, which reads below `place`, with each item as its arguments, in tasks, and return
    the answers in any order, but for None. Items and answers can be JSON; `sizes` are the bytes
    that it reads."""
    if not items:
        return []
    answering = _Work(work, _answers, isinstance(place, ObjectPath))
    with spark_errors(place):
        return _collect(_in_tasks(spark, items, sizes, answering, _ANSWER))


class _Work(NamedTuple):
    """The two steps for each item: `fetch` reads files, in several threads if they are in an object
    store, and `rows_of` makes rows of what it returns."""

    fetch: Callable[..., Any]
    rows_of: Callable[[Any], Iterator[pa.RecordBatch]]
    is_remote: bool


def _in_tasks(
    spark: SparkSession,
    items: Sequence[tuple[Any, ...]],
    sizes: Sequence[int],
    work: _Work,
    schema: StructType | str,
) -> DataFrame:
    """Return the rows that tasks make of items; large ones are spread."""
    add_package(spark)
    by_size = math.ceil(sum(sizes) / _TASK_BYTES)
    by_number = math.ceil(len(items) / _TASK_FILE_COUNT)
    cores = spark.sparkContext.defaultParallelism
    count = max(1, min(len(items), max(by_size, by_number, cores)))
    largest_first = sorted(range(len(items)), key=lambda index: -sizes[index])
    encoded = [json.dumps((sizes[index], items[index])) for index in largest_first]
    tasks = [place % count for place in range(len(items))]
    listed = spark.createDataFrame(pa.table([encoded, tasks], schema=_ITEMS))
    spread = listed.repartitionById(count, F.col("task"))
    return spread.mapInArrow(partial(_each, work=work), schema)


def _each(batches: Iterable[pa.RecordBatch], work: _Work) -> Iterator[pa.RecordBatch]:
    encoded = (item for batch in batches for item in batch.column("item").to_pylist())
    items = map(json.loads, encoded)
    if work.is_remote:
        fetched = _ahead(items, work.fetch)
    else:
        fetched = (work.fetch(*item) for _, item in items)
    for found in fetched:
        yield from work.rows_of(found)


def _ahead(items: Iterable[tuple[int, Sequence[Any]]], fetch: Callable[..., Any]) -> Iterator[Any]:
    """Yield what `fetch` returns for each item, in order, while later ones are fetched."""
    waiting: deque[tuple[int, Future[Any]]] = deque()
    with ThreadPoolExecutor(_AHEAD_COUNT) as pool:
        for size, item in items:
            waiting.append((size, pool.submit(fetch, *item)))
            while len(waiting) > _AHEAD_COUNT or sum(one[0] for one in waiting) > _AHEAD_BYTES:
                yield waiting.popleft()[1].result()
        while waiting:
            yield waiting.popleft()[1].result()


def _answers(answer: object) -> Iterator[pa.RecordBatch]:
    if answer is not None:
        yield _to_batch(answer)


def _to_batch(answer: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"answer": [json.dumps(answer)]})


def _collect(answers: DataFrame) -> list[Any]:
    return [json.loads(row["answer"]) for row in answers.collect()]


@contextmanager
def spark_errors(place: object) -> Iterator[None]:
    """Raise the error that stopped a Spark task in the body as an error of Stillframe.

    DataFrames read files when Spark runs them. So collect, count or write one in ``with
    spark_errors(path)``: without it, damage is an error of Spark with a traceback.

    Args:
        place: what is read, for the message.

    Raises:
        Damaged: a file is not what was written; the message names it.
        NotConsistent: a snapshot contradicts itself.
        StoreError: Spark cannot read it for another reason.
    """
    try:
        yield
    except PySparkException as error:
        found = error_of_task(error)
        if found is not None:
            raise found from error
        raise StoreError(
            f"Spark cannot read {place}: {first_line(error)}. If files are being deleted "
            "there, try again"
        ) from error


def collected(rows: DataFrame, place: object) -> DataFrame:
    """Return a few rows that were read now, so that what is wrong with `place` is raised here."""
    with spark_errors(place):
        return rows.sparkSession.createDataFrame(rows.collect(), rows.schema)


def error_of_task(error: PySparkException) -> Exception | None:
    """Return the StillframeError that a task raised; None if Spark stopped for another reason."""
    found = _RAISED.search(str(error))
    return None if found is None else _ERRORS[found[1]](found[2])


def first_line(error: PySparkException) -> str:
    """Return the first line of Spark's message, without codes and plans; of an error in Python that
    is the last one, after the traceback."""
    lines = str(error).partition("JVM stacktrace:")[0].strip().splitlines() or [""]
    line = lines[-1] if _IN_PYTHON in lines[0] else lines[0]
    return re.sub(r"\s*SQLSTATE: \w+.*|\[Errno \d+\] ", "", line).rstrip(".")


def _damage(_: str | None, path: str, *promised: Any) -> tuple[str, str] | None:
    try:
        _content(location_of(path), *promised)
    except (Damaged, NotConsistent) as error:
        return path, str(error)
    return None


def _content(path: Location, byte_count: int, digest: str, row_count: int | None) -> bytes:
    content = read_hashed(path, byte_count, digest)
    if row_count is not None:
        with as_written(path):
            found = pq.read_metadata(pa.BufferReader(content)).num_rows
        check_row_count(path, found, row_count)
    return content


def _fetch(snapshot: str | None, path: str, *promised: Any) -> tuple[str | None, Location, bytes]:
    place = location_of(path)
    return snapshot, place, _content(place, *promised)


def _rows_of(
    fetched: tuple[str | None, Location, bytes],
    schema: pa.Schema,
    optional: Mapping[str, pa.DataType],
) -> Iterator[pa.RecordBatch]:
    snapshot, path, content = fetched
    names = schema.names if snapshot is None else schema.names[1:]
    with as_written(path):
        for group in row_groups(content, names, optional=optional):
            columns = group.columns
            if snapshot is not None:
                columns = [pa.repeat(pa.scalar(snapshot), group.num_rows), *columns]
            table = pa.table(columns, names=schema.names)
            yield from table.cast(schema).to_batches(max_chunksize=_BATCH_ROW_COUNT)


def write(rows: DataFrame, directory: Location) -> list[Written]:
    """Write rows to new files in `directory`, which every executor sees. The files are on the disk,
    or in the object store, then; their names in a local directory are not, and those of failed
    tasks are not returned. Run it inside ``spark_errors``."""
    add_package(rows.sparkSession)
    schema = to_arrow_schema(rows.schema, timezone="UTC")
    task = partial(_write, directory=directory.absolute(), schema=schema)
    return [Written(*answer) for answer in _collect(rows.mapInArrow(task, _ANSWER))]


def write_here(table: pa.Table, path: Location) -> Written:
    """Write a table to a new file, here on the driver."""
    return _write_file(iter([table]), path, table.schema)


def _write(
    batches: Iterable[pa.RecordBatch], directory: Location, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    groups = _groups(batches, schema)
    bytes_max = _OBJECT_BYTES if isinstance(directory, ObjectPath) else math.inf
    for first in groups:
        path = directory / f"{secrets.token_hex(16)}.parquet"
        yield _to_batch(_write_file(_limited(first, groups, bytes_max), path, schema))


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield rows as tables large enough for a row group."""
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


def _limited(first: pa.Table, groups: Iterator[pa.Table], bytes_max: float) -> Iterator[pa.Table]:
    """Yield `first`, and more groups until a file has enough rows, or bytes in memory."""
    yield first
    row_count, byte_count = first.num_rows, first.nbytes
    while (
        row_count < FILE_ROW_COUNT
        and byte_count < bytes_max
        and (group := next(groups, None)) is not None
    ):
        yield group
        row_count, byte_count = row_count + group.num_rows, byte_count + group.nbytes


def _write_file(tables: Iterable[pa.Table], path: Location, schema: pa.Schema) -> Written:
    row_count = 0
    buffer = io.BytesIO()
    target = buffer if isinstance(path, ObjectPath) else path
    try:
        with pq.ParquetWriter(target, schema, compression="zstd", store_schema=False) as file:
            for table in tables:
                file.write_table(table, row_group_size=GROUP_ROW_COUNT)
                row_count += table.num_rows
        if isinstance(path, ObjectPath):
            content = buffer.getvalue()
            storage_of(path).put(path, content)
            byte_count, digest = len(content), hashlib.sha256(content).hexdigest()
        else:
            sync(path)
            with path.open("rb") as written:
                digest = hashlib.file_digest(written, "sha256").hexdigest()
            byte_count = path.stat().st_size
    except OSError as error:
        is_local = isinstance(path, Path)
        why = os.strerror(error.errno) if is_local and error.errno else error.strerror or error
        raise StoreError(
            f"{path} could not be written: {why}: {io_advice(path, error)}; the tables "
            "published there before are unchanged",
            path=path,
        ) from error
    return Written(path.name, row_count, byte_count, digest)
