"""What a snapshot holds, as tables: ``format("stillframe.snapshot")``; and logs as tables.

Options of ``stillframe.snapshot``: `pipeline`, the directory; `snapshot`, an id or a savepoint's
name; and what to read:

    table=services       participant, kind, positions, state (its fields as JSON)
    service=NAME         one row with the fields of that service
    table=queries        query, batch
    table=channels       log, target, position, barrier, sent_count, received_count, record_count,
                         duplicate_count
    channel=NAME         the records that were on the channel at the cut, where they lie in its log
                         in `_partition` and `_offset`; `target` says to whom if there are several

``stillframe.log`` has the same columns for all records of a log: `pipeline`, `channel`, and
`snapshot`, to stop at its barrier, or none for the log as it is now.

What runs on executors (``read``) imports no more than Arrow; the plan is made on the driver.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

SNAPSHOT_FORMAT = "stillframe.snapshot"
LOG_FORMAT = "stillframe.log"


class TableSlice(InputPartition):
    """A small table that was made on the driver, as an Arrow stream."""

    def __init__(self, stream: bytes) -> None:
        self.stream = stream

    def batches(self) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of the table."""
        import pyarrow as pa

        yield from pa.ipc.open_stream(self.stream)


class RecordsSlice(InputPartition):
    """Data files of one partition of a log, each with its checksum and the offset of its first
    record.

    `schema` is an Arrow message: the columns of the records, then partition and offset.
    """

    def __init__(self, partition: int, files: list[tuple[str, int, int]], schema: bytes) -> None:
        self.partition = partition
        self.files = files
        self.schema = schema

    def batches(self) -> "Iterator[pa.RecordBatch]":
        """Yield the records with partition and offset."""
        import pyarrow as pa

        from stillframe.spark.slices import record_batches

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


class SnapshotSource(DataSource):
    """A snapshot as a batch source."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` takes."""
        return SNAPSHOT_FORMAT

    def schema(self) -> StructType:
        """Return the columns of what is to be read."""
        from stillframe.spark.scan_planner import plan_snapshot_scan

        return plan_snapshot_scan(self.options).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of what is to be read."""
        from stillframe.spark.scan_planner import plan_snapshot_scan

        return SlicesReader(plan_snapshot_scan(self.options).slices)


class RecordsSource(DataSource):
    """A log as a batch source."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` takes."""
        return LOG_FORMAT

    def schema(self) -> StructType:
        """Return the columns of the records."""
        from stillframe.spark.scan_planner import plan_log_scan

        return plan_log_scan(self.options).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the log as it is now."""
        from stillframe.spark.scan_planner import plan_log_scan

        return SlicesReader(plan_log_scan(self.options).slices)


class SlicesReader(DataSourceReader):
    """Reads slices that were planned on the driver."""

    def __init__(self, slices: Sequence[InputPartition]) -> None:
        self._slices = list(slices)

    def partitions(self) -> Sequence[InputPartition]:
        """Return a slice for each task."""
        return self._slices

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one slice."""
        if isinstance(partition, TableSlice | RecordsSlice):
            yield from partition.batches()
        # Else there is nothing to read: where no slice is planned, Spark makes one up.

    def __getstate__(self) -> dict[str, Any]:
        """Travel to executors without the slices: each task is sent its own."""
        return {"_slices": []}
