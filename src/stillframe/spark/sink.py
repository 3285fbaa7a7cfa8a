"""The task of a query's sink in an object store: it writes a data file.

A task that Spark runs twice writes two files, under different names. The answer of one attempt
reaches the driver, and the entry of the log names only that file.

Executors import this module: it needs no more than Arrow.
"""

import io
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext

from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of

WRITTEN = "name string, partition int, record_count long, checksum long"
"""The columns of the answer of a task: what it wrote, if it had records."""
_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("partition", pa.int32()),
        ("record_count", pa.int64()),
        ("checksum", pa.int64()),
    ]
)


def writer_into(
    directory: ObjectPath,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow`` that writes the records of its partition."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _written(directory, batches)

    return write


def _written(directory: ObjectPath, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    kept = [batch for batch in batches if batch.num_rows]
    if not kept:
        return
    context = TaskContext.get()
    assert context is not None
    table = pa.Table.from_batches(kept)
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    partition = context.partitionId()
    name = f"part-{partition:05}-{uuid.uuid4().hex}.parquet"
    storage_of(directory).put(directory / name, file.getvalue())
    row = [name], [partition], [table.num_rows], [zlib.crc32(file.getbuffer())]
    yield pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(row, _SCHEMA, strict=True)],
        schema=_SCHEMA,
    )
