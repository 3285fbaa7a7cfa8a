"""The sources that a pipeline gives to Spark: channels as streams, snapshots and logs as tables.

``format("stillframe")`` is a stream whose micro-batches end at barriers. Options: `pipeline`, the
directory; `query`, who reads; `channels`, one or several logs of the same schema, with commas;
`maxRowsPerTrigger`, about how many records a micro-batch may have: items are not divided, each log
gives one at least, and half as many more are taken rather than leave a rest. Spark asks
``latestOffset`` before it plans a micro-batch, when the one before is committed: that is the moment
between two atomic actions.

``format("stillframe.snapshot")`` is a snapshot. Options: `pipeline`, the place; `snapshot`, an
id or a savepoint's name; and what to read:

    table=services       participant, kind, positions, state (its fields as JSON)
    service=NAME         one row with the fields of that service
    table=queries        query, batch
    table=channels       log, target, position, barrier, sent_count, received_count, record_count,
                         duplicate_count, partition, end; of a topic of Kafka a row for each
                         partition, with offsets in `position` and `end`, and null where only a log
                         has a value
    channel=NAME         the records that were on the channel at the cut, where they lie in its log
                         in `_partition` and `_offset`; `target` says to whom if there are several.
                         Of a topic key, value, headers, partition, offset and timestamp

``stillframe.log`` has the same columns for all records of a log: `pipeline`, `channel`, and
`snapshot`, to stop at its barrier, or none for the log as it is now. Of a topic it has the records
that count, up to the cut of the snapshot or up to now.

What runs on executors (``read``) imports no more than Arrow; the plan is made on the driver.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from stillframe.spark.slices import CHANNELS_FORMAT, LOG_FORMAT, SNAPSHOT_FORMAT, SlicesReader

if TYPE_CHECKING:
    from stillframe.spark.scan_planner import ScanPlan


class ChannelSource(DataSource):
    """Logs of a pipeline as a streaming source."""

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to ``format``."""
        return CHANNELS_FORMAT

    def schema(self) -> StructType:
        """Return the columns that the channels declare."""
        from stillframe.spark.scan_planner import channel_schema

        return channel_schema(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of one query."""
        from stillframe.spark.scan_planner import ChannelStreamReader

        return ChannelStreamReader(self.options)


class _TableSource(DataSource):
    """A batch source whose columns and slices are planned on the driver."""

    def schema(self) -> StructType:
        """Return the columns of what is to be read."""
        return self._plan().schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of what is to be read."""
        return SlicesReader(self._plan().slices)

    def _plan(self) -> "ScanPlan":
        from stillframe.spark.scan_planner import PLANS

        return PLANS[self.name()](self.options)


class SnapshotSource(_TableSource):
    """A snapshot as a batch source."""

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to ``format``."""
        return SNAPSHOT_FORMAT


class RecordsSource(_TableSource):
    """A log as a batch source, as it is when it is planned."""

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to ``format``."""
        return LOG_FORMAT
