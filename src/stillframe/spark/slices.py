"""The names of the formats, and what one task of a source reads: data files of a log, or a table.

Executors import it: it needs no more than Arrow.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from stillframe.durable_files import check_file

CHANNELS_FORMAT = "stillframe"
SNAPSHOT_FORMAT = "stillframe.snapshot"
LOG_FORMAT = "stillframe.log"
_BATCH_ROW_COUNT = 1 << 16


class ChannelSlice(InputPartition):
    """Data files of a channel in order, with their checksums, and the schema of their records."""

    def __init__(self, files: list[tuple[str, int]], schema: bytes) -> None:
        self.files = files
        self.schema = schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records."""
        yield from record_batches(self.files, self.schema)


class TableSlice(InputPartition):
    """A small table that was made on the driver, as an Arrow stream."""

    def __init__(self, stream: bytes) -> None:
        self.stream = stream

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table."""
        yield from pa.ipc.open_stream(self.stream)


class RecordsSlice(InputPartition):
    """Data files of one partition of a log, with their checksums and first offsets. `schema` is an
    Arrow message: the columns of the records, then partition and offset."""

    def __init__(self, partition: int, files: list[tuple[str, int, int]], schema: bytes) -> None:
        self.partition = partition
        self.files = files
        self.schema = schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records with partition and offset."""
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        *own, partition_field, offset_field = schema
        message = pa.schema(own).serialize().to_pybytes()
        for path, checksum, first in self.files:
            offset = first
            for batch in record_batches([(path, checksum)], message):
                count = batch.num_rows
                where = (
                    pa.repeat(pa.scalar(self.partition, partition_field.type), count),
                    pa.array(range(offset, offset + count), offset_field.type),
                )
                yield pa.RecordBatch.from_arrays([*batch.columns, *where], schema=schema)
                offset += count


def record_batches(
    files: Iterable[tuple[str, int]], schema_message: bytes
) -> Iterator[pa.RecordBatch]:
    """Yield the records of Parquet files with these checksums, in order; the schema is a
    message."""
    schema = pa.ipc.read_schema(pa.py_buffer(schema_message))
    for path, checksum in files:
        check_file(Path(path), checksum)
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROW_COUNT):
                table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                yield from table.to_batches()
