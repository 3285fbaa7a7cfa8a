"""The sources that a pipeline gives to Spark: channels as streams, snapshots and logs as tables.

``format("stillframe")`` is a stream whose micro-batches end at barriers. Options: `pipeline`, the
directory; `query`, who reads; `channels`, one or several logs of the same schema, with commas;
`maxRowsPerTrigger`, about how many records a micro-batch may have: items are not divided, each log
gives one at least, and half as many more are taken rather than leave a rest. Spark asks
``latestOffset`` before it plans a micro-batch, when the one before is committed: that is the moment
between two atomic actions.

``format("stillframe.snapshot")`` is a snapshot. Options: `pipeline`, the directory; `snapshot`, an
id or a savepoint's name; and what to read:

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

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from stillframe.errors import UsageError
from stillframe.spark.slices import (
    CHANNELS_FORMAT,
    LOG_FORMAT,
    SNAPSHOT_FORMAT,
    RecordsSlice,
    TableSlice,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from stillframe.pipeline.log import LogReader
    from stillframe.spark.scan_planner import ScanPlan

BARRIER_COUNT_MAX = 100
"""How many barriers may stand before a query that has nothing else to read; then an empty micro-
batch steps over them, because each status report looks at every one."""


class ChannelSource(DataSource):
    """Logs of a pipeline as a streaming source."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` takes."""
        return CHANNELS_FORMAT

    def schema(self) -> StructType:
        """Return the columns that the channels declare."""
        from stillframe.spark.scan_planner import channels_of, read_options

        logs = channels_of(read_options(self.options))
        return from_arrow_schema(logs[0].arrow_schema) if logs else StructType()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of one query."""
        return ChannelStreamReader(self.options)


class ChannelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs for one query, and evaluates the barrier rules before each micro-batch."""

    def __init__(self, options: Mapping[str, str]) -> None:
        from stillframe.spark.scan_planner import channels_of, read_options

        self._options = read_options(options)
        self._logs = [log.name for log in channels_of(self._options)]
        self._targets: dict[str, int] | None = None
        self._checked: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return where a query begins that has no checkpoint yet."""
        from stillframe.pipeline.checkpoint import offset_of

        starts = self._participant.metadata.starts[self._options.query]
        return offset_of({log: starts[log] for log in self._logs})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return how much a micro-batch may read."""
        rows = self._options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Remember the present ends of the logs: such a run ends there."""
        participant = self._participant
        participant.is_patient = False
        starts = participant.positions()
        for log in self._logs:
            participant.readers[log].check_whole(starts[log])
        self._targets = {log: participant.readers[log].tail(starts[log]) for log in self._logs}

    def latestOffset(  # noqa: N802 - Spark's
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends; record and pass on a barrier if it is time."""
        from stillframe.pipeline.checkpoint import OFFSET_KEY, offset_of

        positions = start[OFFSET_KEY]
        participant = self._participant
        participant.check_epoch()
        if positions != self._checked:
            # Once for each micro-batch: Spark calls this every few milliseconds.
            participant.check_stands_at(positions)
            self._checked = positions
        reached = positions
        if positions.keys() != participant.readers.keys():
            # Another source of this query reads the other logs, from the end of the last committed
            # micro-batch.
            reached = participant.positions()
        ends = participant.at_boundary(participant.tails(reached))
        if self._targets is not None:
            ends = {log: min(ends[log], self._targets[log]) for log in self._logs}
        ends = {log: max(ends[log], positions[log]) for log in self._logs}
        if isinstance(limit, ReadMaxRows):
            ends = _limited(participant.readers, positions, ends, limit.max_rows)
        new = {
            log: _without_trailing_barriers(participant.readers[log], positions[log], ends[log])
            for log in self._logs
        }
        for log, reader in participant.readers.items():
            reader.forget(reached[log])
        return offset_of(new)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a task for each partition of each log."""
        from stillframe.pipeline.checkpoint import OFFSET_KEY
        from stillframe.spark.scan_planner import record_slices

        slices: list[InputPartition] = []
        for log in self._logs:
            reader = self._participant.readers[log]
            ends = start[OFFSET_KEY][log], end[OFFSET_KEY][log]
            schema = from_arrow_schema(reader.log.arrow_schema)
            slices += record_slices(reader, *ends, schema, is_placed=False)
        return slices

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the records of one task."""
        assert isinstance(partition, RecordsSlice)
        return partition.batches()

    def __getstate__(self) -> dict[str, Any]:
        """Travel to executors without what only the driver needs."""
        return {"_options": None, "_logs": self._logs}

    @functools.cached_property
    def _participant(self) -> Any:
        from stillframe.pipeline.locks import is_running
        from stillframe.pipeline.participant_logs import QueryParticipant

        query, root = self._options.query, Path(self._options.pipeline)
        if not is_running(root, query):
            raise UsageError(
                f"query {query} of {root} was not started with start_query, and its sink is "
                "none of to_channel: no snapshot could hold what it writes; use one of them, "
                "or read with spark.read"
            )
        return QueryParticipant(root, query)


def _without_trailing_barriers(reader: "LogReader", begin: int, end: int) -> int:
    """Return `end`, or an earlier one with no records in between: a micro-batch is not for barriers
    alone, unless there are very many."""
    if end - begin > BARRIER_COUNT_MAX:
        return end
    while end > begin and not reader.entry(end - 1).files:
        end -= 1
    return end


def _limited(
    readers: "Mapping[str, LogReader]",
    begins: Mapping[str, int],
    ends: Mapping[str, int],
    row_limit: int,
) -> dict[str, int]:
    """Return up to where to read each log for about `row_limit` records. Each gets an equal share,
    at least one item; what some leave goes to those with more. A rest of up to half a micro-batch
    is taken along: to cut it off before each barrier would cost as much as a full one."""
    waiting_count = sum(begins[log] < end for log, end in ends.items())
    share = max(1, row_limit // max(1, waiting_count))
    reached, rest_count = {}, row_limit
    for log, end in ends.items():
        reached[log], count = _reach(readers[log], begins[log], end, share)
        rest_count -= count
    for log, end in ends.items():
        reached[log], count = _reach(readers[log], reached[log], end, rest_count)
        rest_count -= count
    further, more_count = {}, 0
    for log, end in ends.items():
        wanted = row_limit // 2 - more_count + 1
        further[log], count = _reach(readers[log], reached[log], end, wanted)
        more_count += count
    is_short = further == dict(ends) and 2 * more_count <= row_limit
    return further if is_short else reached


def _reach(reader: "LogReader", begin: int, end: int, row_limit: int) -> tuple[int, int]:
    """Return the position with at least `row_limit` records before it, and how many they are."""
    position, count = begin, 0
    while position < end and count < row_limit:
        count += reader.entry(position).record_count
        position += 1
    return position, count


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
        """Return what ``format`` takes."""
        return SNAPSHOT_FORMAT


class RecordsSource(_TableSource):
    """A log as a batch source, as it is when it is planned."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` takes."""
        return LOG_FORMAT


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
