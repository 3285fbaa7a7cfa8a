"""The names of the formats, and what one task of a source reads: data files of a log, or a table.

Executors import it: it needs no more than Arrow. Only what reads topics of Kafka needs confluent-
kafka there as well.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition

from stillframe.durable_files import check_content, check_file
from stillframe.storage.location import Location, ObjectPath, location_of
from stillframe.storage.reading import read_file

if TYPE_CHECKING:  # it needs more than Arrow: only slices of topics have it
    from stillframe.pipeline.kafka import KafkaRecord
    from stillframe.pipeline.topic_records import TopicSelection

CHANNELS_FORMAT = "stillframe"
SNAPSHOT_FORMAT = "stillframe.snapshot"
LOG_FORMAT = "stillframe.log"
_BATCH_ROW_COUNT = 1 << 16
_READ_BYTES_MAX = 2**32
"""A data file in an object store is read as a whole."""
_TOPIC_ROW_COUNT = 4096
_TOPIC_BYTES = 2**23
"""How much of a topic becomes one batch."""


class TableSlice(InputPartition):
    """A small table that was made on the driver."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table."""
        yield from self.table.to_batches()


class RecordsSlice(InputPartition):
    """Data files of one partition of a log, with their checksums and first offsets. `schema` has
    the columns of the records and then, unless `partition` is None, partition and offset."""

    def __init__(
        self, partition: int | None, files: list[tuple[str, int, int]], schema: pa.Schema
    ) -> None:
        self.partition = partition
        self.files = files
        self.schema = schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records."""
        if self.partition is None:
            yield from record_batches([file[:2] for file in self.files], self.schema)
            return
        *own, partition_field, offset_field = self.schema
        for path, checksum, first in self.files:
            offset = first
            for batch in record_batches([(path, checksum)], pa.schema(own)):
                count = batch.num_rows
                where = (
                    pa.repeat(pa.scalar(self.partition, partition_field.type), count),
                    pa.array(range(offset, offset + count), offset_field.type),
                )
                yield pa.RecordBatch.from_arrays([*batch.columns, *where], schema=self.schema)
                offset += count


class TopicSlice(InputPartition):
    """Records of one partition of a topic, in the columns of Spark's source for Kafka."""

    def __init__(self, selection: "TopicSelection", schema: pa.Schema) -> None:
        self.selection = selection
        self.schema = schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records."""
        rows: list[dict[str, Any]] = []
        size = 0
        for record in self.selection.records():
            rows.append(_topic_row(record))
            size += len(record.key or b"") + len(record.value or b"")
            if len(rows) == _TOPIC_ROW_COUNT or size > _TOPIC_BYTES:
                yield pa.RecordBatch.from_pylist(rows, self.schema)
                rows, size = [], 0
        if rows:
            yield pa.RecordBatch.from_pylist(rows, self.schema)


def _topic_row(record: "KafkaRecord") -> dict[str, Any]:
    return {
        "key": record.key,
        "value": record.value,
        "headers": [{"key": key, "value": value} for key, value in record.headers],
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms * 1000,
    }


class TopicCountSlice(InputPartition):
    """One row about records of a topic, with how many they are."""

    def __init__(self, row: dict[str, Any], selection: "TopicSelection", schema: pa.Schema) -> None:
        self.row = row
        self.selection = selection
        self.schema = schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the row."""
        row = self.row | {"record_count": self.selection.count()}
        yield pa.RecordBatch.from_pylist([row], self.schema)


class SlicesReader(DataSourceReader):
    """Reads slices that were planned on the driver."""

    def __init__(self, slices: Sequence[InputPartition]) -> None:
        self._slices = list(slices)

    def partitions(self) -> Sequence[InputPartition]:
        """Return a slice for each task."""
        return self._slices

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one slice."""
        if isinstance(partition, TableSlice | RecordsSlice | TopicSlice | TopicCountSlice):
            yield from partition.batches()
        # Else there is nothing to read: where no slice is planned, Spark makes one up.

    def __getstate__(self) -> dict[str, Any]:
        """Travel to executors without the slices: each task is sent its own."""
        return {"_slices": []}


def _checked(path: Location, checksum: int) -> Path | pa.BufferReader:
    """Return a file to read, after its checksum was compared."""
    if isinstance(path, ObjectPath):
        content = read_file(path, bytes_max=_READ_BYTES_MAX)
        check_content(path, zlib.crc32(content), checksum)
        return pa.BufferReader(content)
    check_file(path, checksum)
    return path


def record_batches(files: Iterable[tuple[str, int]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the records of Parquet files with these checksums, in order."""
    for path, checksum in files:
        source = _checked(location_of(path), checksum)
        with pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROW_COUNT):
                table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                yield from table.to_batches()
