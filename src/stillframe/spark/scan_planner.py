"""Plan what ``source`` reads, and where micro-batches end. On the driver alone."""

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from stillframe.errors import Unavailable, UsageError
from stillframe.pipeline.checkpoint import OFFSET_KEY, offset_of
from stillframe.pipeline.dataflow import (
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    Dataflow,
    Log,
    schema_difference,
)
from stillframe.pipeline.locks import OBJECT_POLL_S, is_running
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.participant_logs import QueryParticipant
from stillframe.pipeline.snapshot_manifest import Manifest, find
from stillframe.pipeline.topic_records import TopicSelection, select
from stillframe.spark.slices import (
    LOG_FORMAT,
    SNAPSHOT_FORMAT,
    RecordsSlice,
    SlicesReader,
    TableSlice,
    TopicCountSlice,
    TopicSlice,
)
from stillframe.storage.location import Location, locate
from stillframe.store.tables import to_array
from stillframe.topology import Column

_SERVICES_SCHEMA = pa.schema(
    [
        ("participant", pa.string()),
        ("kind", pa.string()),
        ("positions", pa.map_(pa.string(), pa.int64())),
        ("state", pa.string()),
    ]
)
_COUNTS = ("position", "barrier", "sent_count", "received_count", "record_count", "duplicate_count")
_CHANNELS_SCHEMA = pa.schema(
    [
        ("log", pa.string()),
        ("target", pa.string()),
        *((name, pa.int64()) for name in _COUNTS),
        ("partition", pa.int32()),
        ("end", pa.int64()),
    ]
)
_HEADER = StructType().add("key", StringType()).add("value", BinaryType())
_TOPIC_SCHEMA = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("headers", ArrayType(_HEADER))
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
)
"""The columns of Spark's source for Kafka, without those that are the same in all records."""
_INT64 = range(-(2**63), 2**63)
_KINDS = {bool: "bool", int: "int", float: "float", str: "text", bytes: "bytes", datetime: "time"}
"""The type of a recorded value -> the kind of its column; what is not here becomes JSON."""

IDLE_POLL_S = 0.5
"""How often an idle query looks for records in an object store, in seconds. While a snapshot is
pending it looks as often as services do."""

BARRIER_COUNT_MAX = 100
"""How many barriers may stand before a query that has nothing else to read; then an empty micro-
batch steps over them, because each status report looks at every one."""


class ReadOptions(msgspec.Struct, frozen=True):
    """The channels to read, their reader, and the approximate records of one batch (None for all
    there are)."""

    pipeline: str
    query: str
    channels: tuple[str, ...]
    max_rows: int | None


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a streaming read, checked."""
    for name in ("pipeline", "query", "channels"):
        if options.get(name) is None or (name != "channels" and not options[name]):
            raise UsageError(
                f'format("stillframe") needs the option {name!r}; it needs pipeline (the '
                "directory), query (the reader) and channels (names, separated by commas)"
            )
    rows = options.get("maxRowsPerTrigger")
    if rows is not None and (not rows.isascii() or not rows.isdigit() or int(rows) == 0):
        raise UsageError(f"maxRowsPerTrigger is {rows!r}: give a number of records above 0")
    return ReadOptions(
        pipeline=options["pipeline"],
        query=options["query"],
        channels=tuple(name.strip() for name in options["channels"].split(",") if name.strip()),
        max_rows=None if rows is None else int(rows),
    )


def channels_of(options: ReadOptions) -> list[Log]:
    """Return the logs that the options name, all with the same columns and read by the query."""
    dataflow = read_metadata(locate(options.pipeline)).dataflow
    dataflow.check_participant(options.query, "query")
    if not options.channels and dataflow.incoming(options.query):
        raise UsageError(
            f"query {options.query} is declared to read channels: name them in the option channels"
        )
    logs = [dataflow.log(name) for name in options.channels]
    for log in logs:
        if options.query not in log.targets:
            raise UsageError(
                f"query {options.query} is not a target of channel {log.name}; its targets are "
                f"{', '.join(log.targets) or 'none'}: declare it"
            )
        difference = schema_difference(logs[0].arrow_schema, log.arrow_schema)
        if difference is not None:
            raise UsageError(
                f"channels {logs[0].name} and {log.name} have different columns ({difference}): "
                "read each with a separate readStream"
            )
    return logs


def channel_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns that the channels declare."""
    logs = channels_of(read_options(options))
    return from_arrow_schema(logs[0].arrow_schema) if logs else StructType()


class ChannelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs for one query, and evaluates the barrier rules before each micro-batch."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = read_options(options)
        self._logs = [log.name for log in channels_of(self._options)]
        self._targets: dict[str, int] | None = None
        self._checked: dict[str, int] | None = None
        self._looked_at = 0.0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return the offset at which a query without a checkpoint starts."""
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
        positions = start[OFFSET_KEY]
        participant = self._participant
        self._rest(positions)
        if not participant.is_remote:  # else one request below says that, too
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

    def _rest(self, positions: dict[str, int]) -> None:
        """Wait until it is time to look for more to read. In an object store each look costs, and
        an idle query would look every few milliseconds. After a micro-batch it is time at once."""
        if positions == self._checked and self._participant.is_remote:
            pause_s = OBJECT_POLL_S if self._participant.is_asked else IDLE_POLL_S
            time.sleep(max(0.0, self._looked_at + pause_s - time.monotonic()))
        self._looked_at = time.monotonic()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a task for each partition of each log."""
        slices: list[InputPartition] = []
        for log in self._logs:
            reader = self._participant.readers[log]
            ends = start[OFFSET_KEY][log], end[OFFSET_KEY][log]
            slices += _plan_records(reader, *ends, is_placed=False).slices
        return slices

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        return SlicesReader([]).read(partition)

    def __reduce__(self) -> tuple[type[SlicesReader], tuple[list[InputPartition]]]:
        """Travel to executors as what needs no more than Arrow."""
        return SlicesReader, ([],)

    @functools.cached_property
    def _participant(self) -> QueryParticipant:
        query, root = self._options.query, locate(self._options.pipeline)
        if not is_running(root, query):
            raise UsageError(
                f"query {query} of {root} was not started with start_query, and its sink was not "
                "made by to_channel, so snapshots would miss its output: use one of them, or "
                "read with spark.read"
            )
        participant = QueryParticipant(root, query)
        if participant.is_starting:
            # It would record its driver's checkpoint as that of the next run.
            raise Unavailable(f"another program is starting query {query} of {root}: stop this one")
        return participant


def _without_trailing_barriers(reader: LogReader, begin: int, end: int) -> int:
    """Return `end`, or an earlier one with no records in between: a micro-batch is not for barriers
    alone, unless there are very many."""
    if end - begin > BARRIER_COUNT_MAX:
        return end
    while end > begin and not reader.entry(end - 1).files:
        end -= 1
    return end


def _limited(
    readers: Mapping[str, LogReader],
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


def _reach(reader: LogReader, begin: int, end: int, row_limit: int) -> tuple[int, int]:
    """Return the position with at least `row_limit` records before it, and how many they are."""
    position, count = begin, 0
    while position < end and count < row_limit:
        count += reader.entry(position).record_count
        position += 1
    return position, count


class ScanPlan(msgspec.Struct, frozen=True):
    """The columns of what is read, and what each task reads of it."""

    schema: StructType
    slices: list[InputPartition]


def plan_snapshot_scan(options: Mapping[str, str]) -> ScanPlan:
    """Return the plan for ``stillframe.snapshot``; errors say what there is to read."""
    root = _root(options, SNAPSHOT_FORMAT)
    manifest = find(root, _needed(options, "snapshot", SNAPSHOT_FORMAT))
    table, service, channel = (options.get(name) for name in ("table", "service", "channel"))
    if channel is not None and (table is not None or service is not None):
        raise UsageError(
            f"the option channel={channel!r} reads only the records of a channel: leave out the "
            "options table and service"
        )
    if channel is not None:
        target = _target(manifest.dataflow, channel, options.get("target"))
        if _is_topic(manifest.dataflow, channel):
            return _plan_topic(select(root, manifest, channel, target=target))
        cut = manifest.cut(channel, target)
        reader = manifest.reader(root, channel)
        # A target that had read past the barrier, in mode at-least-once, has an empty channel.
        return _plan_records(reader, min(cut.position, cut.barrier), cut.barrier)
    if service is not None and table in (None, "services"):
        return _plan_table(service_fields(manifest, service))
    if service is None and table in _TABLES:
        plan = _plan_table(_TABLES[table](manifest))
        if table == "channels":
            plan.slices.extend(_topic_counts(root, manifest))
        return plan
    asked = "no source of rows is named" if table is None else f"there is no table {table!r}"
    if table in _TABLES:
        asked = f"the option service cannot be combined with table={table!r}"
    names = ", ".join(one.name for one in manifest.dataflow.channels) or "none"
    raise UsageError(
        f"{asked}: give table, one of {', '.join(_TABLES)}; or service, one of "
        f"{', '.join(manifest.dataflow.services) or 'none'}; or channel, one of {names}"
    )


def plan_log_scan(options: Mapping[str, str]) -> ScanPlan:
    """Return the plan for the kept records of a log or topic, up to a cut or all."""
    root = _root(options, LOG_FORMAT)
    snapshot, channel = options.get("snapshot"), _needed(options, "channel", LOG_FORMAT)
    described = read_metadata(root) if snapshot is None else find(root, snapshot)
    if _is_topic(described.dataflow, channel):
        return _plan_topic(select(root, described, channel))
    log = described.dataflow.log(channel)
    reader = LogReader(root, log, described.segments[channel])
    first = reader.first_kept()
    if isinstance(described, Manifest):
        end = described.fragment(log.source).barriers[channel]
    else:
        reader.check_whole(first)
        end = reader.tail(first)
    return _plan_records(reader, min(first, end), end)


def service_fields(manifest: Manifest, service: str) -> pa.Table:
    """Return one row with the recorded fields of a service; the values decide the types. Lists,
    dicts, other objects, whole numbers beyond 64 bits and None become JSON text."""
    manifest.dataflow.check_participant(service, "service")
    state = manifest.fragment(service).service
    assert state is not None
    fields = state.fields()
    if not fields:
        raise UsageError(f"service {service} has no recorded field: read table=services instead")
    return pa.table(
        {
            name: to_array(Column(name, _kind_of(value)), [value], lambda _: f"service {service}")
            for name, value in fields.items()
        }
    )


def as_json(values: list[Any]) -> pa.Array:
    """Return each value as JSON text; None becomes null."""
    return to_array(Column("state", "json"), values, lambda index: f"row {index}")


def _services(manifest: Manifest) -> pa.Table:
    parts = [(part, part.service) for part in manifest.fragments if part.service is not None]
    return pa.table(
        [
            [part.participant for part, _ in parts],
            [state.kind for _, state in parts],
            [list(part.positions.items()) for part, _ in parts],
            as_json([state.fields() for _, state in parts]),
        ],
        schema=_SERVICES_SCHEMA,
    )


def _queries(manifest: Manifest) -> pa.Table:
    parts = [(part, part.query) for part in manifest.fragments if part.query is not None]
    columns = [part.participant for part, _ in parts], [state.batch for _, state in parts]
    return pa.table([*columns], schema=pa.schema([("query", pa.string()), ("batch", pa.int64())]))


def _channels(manifest: Manifest) -> pa.Table:
    rows = [{"log": cut.log, **cut.document()} for cut in manifest.channels]
    return pa.Table.from_pylist(rows, schema=_CHANNELS_SCHEMA)


_TABLES = {"services": _services, "queries": _queries, "channels": _channels}


def _topic_counts(root: Location, manifest: Manifest) -> Iterator[InputPartition]:
    """Yield a task for each target and partition of each topic, which counts the records."""
    schema = to_arrow_schema(from_arrow_schema(_CHANNELS_SCHEMA), timezone="UTC")
    for cut in manifest.topics:
        for target, positions in cut.positions.items():
            selected = select(root, manifest, cut.channel, target=target)
            parts = selected.by_partition()
            for partition, end in sorted(cut.ends.items()):
                row = {
                    "log": cut.channel,
                    "target": target,
                    "position": positions.get(partition),
                    "duplicate_count": 0,
                    "partition": partition,
                    "end": end,
                }
                none = msgspec.structs.replace(selected, ranges={})
                yield TopicCountSlice(row, parts.get(partition, none), schema)


def _is_topic(flow: Dataflow, channel: str) -> bool:
    return any(topic.name == channel for topic in flow.topics)


def _target(flow: Dataflow, channel: str, target: str | None) -> str:
    """Return the target of a channel, which may be left out if there is only one."""
    found = flow.topic(channel) if _is_topic(flow, channel) else flow.log(channel)
    targets = found.targets
    if not targets:
        raise UsageError(
            f"channel {channel} has no target, because it is an output of the dataflow, so it "
            "never has records in transit: read it with log_records"
        )
    if target is None and len(targets) > 1:
        raise UsageError(
            f"channel {channel} has several targets: name one of {', '.join(targets)} in the "
            "option target"
        )
    if target is not None and target not in targets:
        raise UsageError(f"channel {channel} has no target {target!r}; it has {', '.join(targets)}")
    return target or targets[0]


def _plan_table(table: pa.Table) -> ScanPlan:
    schema = from_arrow_schema(table.schema)
    return ScanPlan(schema, [TableSlice(table.cast(to_arrow_schema(schema, timezone="UTC")))])


def _plan_topic(selection: TopicSelection) -> ScanPlan:
    """Return a task for each partition of a topic."""
    taken = to_arrow_schema(_TOPIC_SCHEMA, timezone="UTC")
    parts = selection.by_partition().values()
    return ScanPlan(_TOPIC_SCHEMA, [TopicSlice(part, taken) for part in parts])


def _plan_records(reader: LogReader, first: int, end: int, *, is_placed: bool = True) -> ScanPlan:
    """Return a task for each partition that has records among the items ``first .. end - 1``; with
    `is_placed` the last two columns are partition and offset."""
    schema = from_arrow_schema(reader.log.arrow_schema)
    if is_placed:
        schema = schema.add(PARTITION_COLUMN, IntegerType()).add(OFFSET_COLUMN, LongType())
    files: dict[int, list[tuple[str, int, int]]] = {}
    for item in reader.entries(first, end):
        offsets = list(item.offsets)
        for file in item.files:
            path, number = str(reader.data_path(item, file)), file.partition
            files.setdefault(number, []).append((path, file.checksum, offsets[number]))
            offsets[number] += file.record_count
    # Spark takes each of its types as one Arrow type alone, times in microseconds say.
    taken = to_arrow_schema(schema, timezone="UTC")
    slices: list[InputPartition] = [
        RecordsSlice(number if is_placed else None, files[number], taken)
        for number in sorted(files)
    ]
    return ScanPlan(schema, slices)


def _kind_of(value: Any) -> str:
    if isinstance(value, int) and value not in _INT64:
        return "json"
    return _KINDS.get(type(value), "json")


def _root(options: Mapping[str, str], source: str) -> Location:
    root = locate(_needed(options, "pipeline", source)).absolute()
    read_metadata(root)  # says what is wrong if there is no pipeline
    return root


def _needed(options: Mapping[str, str], name: str, source: str) -> str:
    value = options.get(name)
    if not value:
        raise UsageError(f"format({source!r}) needs the option {name!r}")
    return value


PLANS = {SNAPSHOT_FORMAT: plan_snapshot_scan, LOG_FORMAT: plan_log_scan}
