"""Streaming queries of a pipeline in a Spark driver: read channels, write channels, start.

A query that is started here takes part in snapshots automatically: its source evaluates the barrier
rules between micro-batches (``spark.scan_planner``), its sink appends each micro-batch once
(``to_channel``). What would make its snapshots wrong is refused before it starts.
"""

import contextlib
import functools
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stillframe.durable_files import checksum_of
from stillframe.errors import Damaged, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline import checkpoint
from stillframe.pipeline.dataflow import Log, Topic, schema_difference
from stillframe.pipeline.locks import Lock, is_running, participant_lock
from stillframe.pipeline.log import DataFile, LogWriter
from stillframe.pipeline.metadata import Metadata, begin_taking_part, read_metadata
from stillframe.pipeline.outages import Outages
from stillframe.pipeline.pipeline import Pipeline
from stillframe.pipeline.query_batches import note_batch, note_start
from stillframe.pipeline.query_runs import QueryRun, begin_run, current_run
from stillframe.pipeline.snapshot_manifest import Manifest, published_ids, read_manifest
from stillframe.spark.kafka_sources import check_reads, plan_of, running_query
from stillframe.spark.session import (
    add_package,
    check_reachable,
    check_version,
    checkpoint_address,
    require_classic,
)
from stillframe.spark.sink import WRITTEN, writer_into
from stillframe.spark.slices import CHANNELS_FORMAT
from stillframe.spark.source import ChannelSource, RecordsSource, SnapshotSource
from stillframe.spark.topics import (
    KAFKA,
    check_is_new,
    check_positions,
    check_sink_options,
    check_topics_of,
    join_topics,
    settled_at,
    topic_appender,
    topic_comparison,
)
from stillframe.storage.location import Location, ObjectPath, locate

EachBatch = Callable[[DataFrame, int], None]
_STARTING = "Initializing"
_POLL_S = 0.02
ATTEMPT_COUNT_MAX = 6
"""How often a query is started whose sources do not start in time."""
_TOO_SLOW = "failed to connect back"
"""What Spark says of them."""
NOTICE_S = 1.0
"""How long a start takes before it is reported, in seconds."""
_TIMES = "spark.sql.parquet.outputTimestampType"
_ASYNC = "asyncprogresstracking"
_REFUSED_TRIGGERS = {
    "realTime": "real-time mode has no micro-batches to end at a barrier",
    "continuous": "continuous processing has no micro-batches to end at a barrier",
}
_RELATION = "StreamingRelation"
_AFTER_ANALYZED = "== Optimized Logical Plan =="
_OURS = re.compile(r"StreamingRelationV2 (?:\S+, )?stillframe, ", re.IGNORECASE)
_OPTIONS = re.compile(r" stillframe, .*?\[(.*)\], \[", re.IGNORECASE)
_PIPELINE = re.compile(
    r"\bpipeline=(.*?)(?:$|, (?:query|channels|maxRowsPerTrigger)=)", re.IGNORECASE
)
_QUERY = re.compile(r"\bquery=([\w.-]+)(?:,|$)", re.IGNORECASE)
_CHANNELS = re.compile(r"\bchannels=([\w., -]*)(?:,|$)", re.IGNORECASE)
_lent: dict[tuple[Location, str], tuple[Lock, Metadata, QueryRun]] = {}
"""The locks that ``to_channel`` took, and the runs: a query may write several channels. What a
program began it keeps, even if it loses its lease, and another one begins the next run."""
_settled: dict[tuple[Location, str], float] = {}
"""When no record of an earlier run can reach a topic any more, for each query in ``_lent``."""


def register(spark: SparkSession, *others: type[DataSource]) -> None:
    """Let a session know the three formats of ``spark.source``, and `others`. Unavailable says that
    Spark is too old, or does not register Stillframe's sources in this session."""
    add_package(spark)
    check_version(spark.version)
    sources: tuple[type[DataSource], ...] = (ChannelSource, SnapshotSource, RecordsSource)
    for source in (*sources, *others):
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
            raise Unavailable(
                "this session was created with newSession() from one that has Stillframe's "
                "sources, and Spark does not register them here: use that session"
            ) from error


def read_channels(
    spark: SparkSession, pipeline: Pipeline, query: str, *channels: str, rows_max: int | None = None
) -> DataFrame:
    """Return the records of one or several channels as a streaming DataFrame for `query`.

    Args:
        spark: the session.
        pipeline: the pipeline.
        query: the name of the query that reads; it must read each of its declared channels exactly
            once.
        channels: names of channels with the same columns.
        rows_max: about how many records a micro-batch may have, shared by the channels; None for
            all there are. Records appended together are not divided, each channel gives at least
            one such item, and up to half as many more are taken to leave no rest before a barrier.

    Raises:
        UsageError: there is no such query or channel, or the query is not a target of the channel.
        Unavailable: Spark is older than 4.2.
    """
    register(spark)
    for name in channels:
        pipeline.dataflow.log(name)
    options = {"pipeline": str(pipeline.path), "query": query, "channels": ",".join(channels)}
    if rows_max is not None:
        options["maxRowsPerTrigger"] = str(rows_max)
    return spark.readStream.format(CHANNELS_FORMAT).options(**options).load()


def with_barriers(frame: DataFrame, pipeline: Pipeline, query: str) -> DataFrame:
    """Return a streaming DataFrame from another source (Kafka, files), fit for a pipeline's query.

    A query that reads no channel starts snapshots itself. It needs a Stillframe source, which is
    called between its micro-batches: this function adds one without records. Use it on the source,
    before any operator that keeps state.
    """
    spark = frame.sparkSession
    register(spark)
    options = {"pipeline": str(pipeline.path), "query": query, "channels": ""}
    none = spark.readStream.format(CHANNELS_FORMAT).schema(frame.schema).options(**options).load()
    return frame.union(none)


def to_channel(
    pipeline: Pipeline,
    channel: str,
    *,
    adopt: str | Literal[False] | None = None,
    options: Mapping[str, str] | None = None,
) -> EachBatch:
    """Return a function for ``foreachBatch`` that appends each micro-batch to a channel, once.

    ``start_query`` does this for every channel that a query is declared to write; use it directly
    only where you start the query yourself, at ``checkpoint_location``. Until the program ends, no
    other program may write this channel. The first micro-batch fails if the query reads a topic
    that it is not declared to read, or without ``counted``.

    Args:
        pipeline: the pipeline.
        channel: the name of a channel that is a log, or a topic of Kafka. For a topic the
            micro-batch has the columns of Spark's sink ``kafka``, without ``topic``.
        adopt: as for ``start_query``.
        options: those of Spark's sink ``kafka`` for the topic, as for ``start_query``.

    Raises:
        UsageError: there is no such channel. An option cannot be set for it.
        Damaged: the checkpoint of the query that writes it was edited or deleted.
        Unavailable: another program runs that query.
    """
    flow = pipeline.dataflow
    topic = next((one for one in flow.topics if one.name == channel), None)
    source = flow.log(channel).source if topic is None else topic.source
    if source is None:
        raise UsageError(f"no query of the pipeline writes channel {channel}: declare its source")
    flow.check_participant(source, "query")
    check_sink_options(options or {}, source, [] if topic is None else [topic])
    key = (pipeline.path, source)
    if key not in _lent:
        if flow.topics:
            join_topics(pipeline.path, flow, source)
        lock = participant_lock(pipeline.path, source)
        _hold(pipeline, source, lock)
        try:
            # Now no restore of the pipeline can happen any more.
            head = read_metadata(pipeline.path)
            _lent[key] = lock, head, _begin_run(pipeline.path, head, source, adopt, _say)
        except BaseException:
            lock.release()
            raise
    lock, head, run = _lent[key]
    check = _Check(pipeline, source, lock, _say)
    if topic is None:
        append = _appender(pipeline.path, head, head.dataflow.log(channel), run)
    else:
        append = _own_topic_appender(head, topic, run, check, options or {})
    checked: str | None = None

    def append_if_ours(batch: DataFrame, number: int) -> None:
        nonlocal checked
        if head.dataflow.topics:
            # Only now there is a session to look at. The program may start the query repeatedly.
            running = running_query(batch, source, checkpoint_address(run.checkpoint))
            if checked != (this := str(running.runId())):
                check_topics_of(batch, pipeline.path, head, source)
                check_reads(running.analyzedPlan(), pipeline.path, head, source)
                checked = this
        check(number)
        append(batch, number)

    return append_if_ours


def _own_topic_appender(
    head: Metadata, topic: Topic, run: QueryRun, check: "_Check", options: Mapping[str, str]
) -> EachBatch:
    """Return what writes a topic for a query that its program starts itself."""
    assert topic.source is not None
    key = (check.root, topic.source)
    planned = checkpoint.planned_batch(run.checkpoint)
    writers: list[EachBatch] = []

    def append(batch: DataFrame, number: int) -> None:
        if not writers:
            if key not in _settled:
                _settled[key] = settled_at(*key, batch.sparkSession, _say)
            writers.append(
                topic_appender(
                    check.root,
                    head,
                    topic,
                    planned=planned,
                    settled=_settled[key],
                    report=_say,
                    outages=check.outages,
                    check=check.now,
                    options=options,
                )
            )
        writers[0](batch, number)

    return append


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")


def checkpoint_location(pipeline: Pipeline, query: str) -> str:
    """Return the place that the checkpoint of a query must have in the present epoch, as Spark
    takes it.

    Call it after ``to_channel``: from then on it does not change.
    """
    pipeline.dataflow.check_participant(query, "query")
    if (pipeline.path, query) in _lent:
        _, _, run = _lent[pipeline.path, query]
    else:
        run = current_run(pipeline.path, read_metadata(pipeline.path).epoch, query)
    return checkpoint_address(run.checkpoint)


def start_query(
    frame: DataFrame,
    pipeline: Pipeline,
    query: str,
    *,
    output_mode: str = "append",
    trigger: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    each_batch: EachBatch | None = None,
    adopt: str | Literal[False] | None = None,
    report: Callable[[str], object] = _say,
) -> StreamingQuery:
    """Start a query of a pipeline: each micro-batch goes to every channel that it writes.

    Args:
        frame: a streaming DataFrame that reads the query's channels (``read_channels``).
        pipeline: the pipeline.
        query: its name, as the pipeline declares it.
        output_mode: ``append``, ``update`` or ``complete``.
        trigger: arguments for Spark's ``trigger``, for example ``{"availableNow": True}``.
        options: further options for Spark's ``writeStream``. Those that begin with ``kafka.`` are
            for the sink of each topic that the query writes: how Kafka's producer collects and
            compresses records, for example ``kafka.compression.type``.
        each_batch: called with each micro-batch and its number after the channels have it, for
            sinks of your own. After a crash it is called again for the same number; after a restore
            the numbers of the abandoned timeline come again with other records. No restore of the
            pipeline can happen before a call has returned: ``pipeline.epoch`` stays the same in it,
            and what it writes is of that epoch.
        adopt: the checkpoint of the query from before it joined the pipeline: its option
            ``checkpointLocation``. The query continues from a copy of it. It is not looked at once
            the query has a checkpoint in the pipeline. False if it begins without one, although its
            topic has records: they are of another program.
        report: receives a sentence before and after a start that takes longer than a second: each
            source starts a Python process; and one if the query has to wait for what an earlier
            run may still write. By default it goes to standard error.

    Raises:
        UsageError: there is no such query, or it writes nothing. It has no checkpoint, and its
            topic has records that it may have written. `frame` has no Stillframe source, one of
            another query, or leaves out a channel that the query is declared to read. It reads a
            topic that the query is not declared to read, or without ``counted``. Its
            columns are not those of a channel that it writes. An option cannot be combined with
            snapshots. The session is one of Spark Connect.
        Damaged: its checkpoint was edited or deleted.
        Unavailable: another program runs this query.
    """
    require_classic(frame.sparkSession)
    pipeline.dataflow.check_participant(query, "query")
    given = options or {}
    check_options(trigger or {}, given)
    sink = _of_sink(given, query, pipeline.dataflow.outgoing_topics(query))
    if pipeline.dataflow.topics:
        join_topics(pipeline.path, pipeline.dataflow, query)
    lock = participant_lock(pipeline.path, query)
    check = _Check(pipeline, query, lock, report)
    _hold(pipeline, query, lock)
    run = _Run(lock, query, check)
    try:
        # Now no restore of the pipeline can happen any more.
        head = read_metadata(pipeline.path)
        outgoing, topics = head.dataflow.outgoing(query), head.dataflow.outgoing_topics(query)
        if not outgoing and not topics and each_batch is None:
            raise UsageError(
                f"query {query} writes no channel and has no each_batch: Spark would not run it; "
                "give it a channel without targets, or a sink"
            )
        _check_columns(frame, outgoing, query)
        _check_reading(frame, pipeline.path, head, query)
        check_reachable(spark := frame.sparkSession, checkpoint_address(pipeline.path))
        settled = settled_at(pipeline.path, query, spark, report) if topics else 0.0
        begun = _begin_run(pipeline.path, head, query, adopt, report)
        appenders = [_appender(pipeline.path, head, log, begun) for log in outgoing]
        appenders += [
            topic_appender(
                pipeline.path,
                head,
                topic,
                planned=checkpoint.planned_batch(begun.checkpoint),
                settled=settled,
                report=report,
                outages=check.outages,
                check=check.now,
                options=sink,
            )
            for topic in topics
        ]

        def go(batch: DataFrame, number: int) -> None:
            with run.micro_batch(number), _kept(batch, len(appenders) + (each_batch is not None)):
                for append in appenders:
                    append(batch, number)
                if each_batch is not None:
                    each_batch(batch, number)

        writer = frame.writeStream.queryName(query).outputMode(output_mode).foreachBatch(go)
        writer = writer.options(**given).option(
            "checkpointLocation", checkpoint_address(begun.checkpoint)
        )
        if trigger:
            writer = writer.trigger(**trigger)
        with _reported(pipeline, query, report):
            started = _started(writer, query, report)
    except BaseException:
        run.end()
        raise
    threading.Thread(target=run.end_with, args=(started,), daemon=True).start()
    return started


def _started(
    writer: DataStreamWriter, query: str, report: Callable[[str], object]
) -> StreamingQuery:
    """Start a query, and wait until it has initialized its sources.

    Spark gives the Python process of each source ten seconds to start, and then ends the query. On
    a busy machine that is too short: nothing has begun yet, so the query is started again. Queries
    that all started at once would delay each other.
    """
    for left in reversed(range(ATTEMPT_COUNT_MAX)):
        started = writer.start()
        while started.isActive and started.status["message"].startswith(_STARTING):
            time.sleep(_POLL_S)
        if not (left and _TOO_SLOW in str(started.exception())):
            break
        report(f"the sources of query {query} did not start in ten seconds, so it starts again")
    return started


def _check_columns(frame: DataFrame, outgoing: Sequence[Log], query: str) -> None:
    """Refuse a DataFrame that does not have the columns of the logs that its query writes."""
    for log in outgoing:
        columns = to_arrow_schema(frame.schema, timezone="UTC")
        if (wrong := schema_difference(log.arrow_schema, columns)) is not None:
            raise UsageError(f"query {query} does not fit channel {log.name}: {wrong}")


@contextlib.contextmanager
def _reported(pipeline: Pipeline, query: str, report: Callable[[str], object]) -> Iterator[None]:
    """Report a start, which the body waits for, and which of all queries run, if it takes long."""
    began = time.monotonic()

    def notify() -> None:
        names = pipeline.dataflow.queries
        running = sum(is_running(pipeline.path, name) for name in names if name != query)
        report(f"starting query {query} of {pipeline.path}; {running} of {len(names)} queries run")

    notice = threading.Timer(NOTICE_S, notify)
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()
        notice.join()  # or both reports could come the wrong way round
    if (took_s := time.monotonic() - began) > NOTICE_S:
        report(f"query {query} has started, after {took_s:.1f} s")


class _Check:
    """Raises an error if a query may not write any more: another program runs it, or a topic of it
    was created again. It waits for brokers that are away."""

    def __init__(
        self, pipeline: Pipeline, query: str, lock: Lock, report: Callable[[str], object]
    ) -> None:
        self.root = pipeline.path
        self._is_held = functools.partial(lock.check_held, "query", query)
        self._compare = topic_comparison(pipeline.path, pipeline.dataflow, query)
        self.outages = Outages(f"query {query}", report, self._is_held)
        self._query = query
        self._has_topics = bool(pipeline.dataflow.topics)
        self._epoch: int | None = None

    def __call__(self, batch: int) -> None:
        """Check it for a micro-batch that begins."""
        self.outages.through(self.now)
        if self._has_topics:
            # The lock is held: no restore begins another epoch.
            self._epoch = self._epoch or read_metadata(self.root).epoch
            note_batch(self.root, self._epoch, self._query, batch)

    def now(self) -> None:
        """As a call, but raise BrokerAway at once."""
        self._is_held()
        self._compare()


class _Run:
    """A query that this driver runs, from taking its lock to releasing it. Spark's Java process may
    end while a Python sink is at work: the lock is held until that has returned, and no other
    micro-batch begins."""

    def __init__(self, lock: Lock, query: str, check: Callable[[int], None]) -> None:
        self._lock = lock
        self._check = check
        self._query = query
        self._busy = threading.Lock()
        self._is_over = False

    @contextlib.contextmanager
    def micro_batch(self, number: int) -> Iterator[None]:
        """Do a micro-batch in the body, if the run is not over."""
        with self._busy:
            if self._is_over:
                raise Unavailable(
                    f"micro-batch {number} of query {self._query} started after the end of its "
                    "run, and was not written: start the query again"
                )
            self._check(number)
            yield

    def end(self) -> None:
        """Let another program run the query, when the present micro-batch is done."""
        with self._busy:
            self._is_over = True
            self._lock.release()

    def end_with(self, started: StreamingQuery) -> None:
        """End the run when Spark has ended the query, or has ended itself."""
        try:
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                started.awaitTermination()
        finally:
            self.end()


def _hold(pipeline: Pipeline, query: str, lock: Lock) -> None:
    begin_taking_part(pipeline.path)
    if not lock.acquire():
        raise Unavailable(
            f"query {query} of {pipeline.path} is already running, and a channel has one "
            "writer: stop the other one first"
        )


def _begin_run(
    root: Location,
    head: Metadata,
    query: str,
    adopt: str | Literal[False] | None,
    report: Callable[[str], object],
) -> QueryRun:
    """Return the run that starts now, and check the checkpoint that it continues, or adopts."""
    present = current_run(root, head.epoch, query).checkpoint
    if not checkpoint.has_started(present):
        if adopt is None:
            check_is_new(root, head.dataflow, query)
        elif adopt is not False:
            checkpoint.adopt(locate(adopt), present)
            note_start(root, head, query)

    def check(place: Location) -> None:
        check_checkpoint(root, head, query, place)

    if isinstance(root, ObjectPath):
        run = begin_run(root, head, query, check)
    else:
        run = current_run(root, head.epoch, query)
        check(run.checkpoint)
    check_positions(root, head.dataflow, query, run.checkpoint)
    if (words := note_start(root, head, query)) is not None:
        report(words)
    return run


def _appender(root: Location, head: Metadata, log: Log, run: QueryRun) -> EachBatch:
    writer = LogWriter(root, log, head, run=run.number)

    def append(frame: DataFrame, batch: int) -> None:
        written = writer.last_batch()
        if written is not None and written >= batch:
            # Spark runs a micro-batch again whose commit it did not see. Its records are here, but
            # its state, and how far its watermark comes, are known only from running it.
            frame.write.format("noop").mode("overwrite").save()
            return
        files = _write(frame, log, writer.data_directory, f"batch-{batch}-{uuid.uuid4().hex}")
        if files:
            writer.append_files(files, batch=batch)

    return append


def _write(frame: DataFrame, log: Log, directory: Location, name: str) -> list[DataFile]:
    """Let the executors write a micro-batch; return the files with records, by partition."""
    count = log.partition_count
    spread = (
        frame.repartition(count, *(f"`{name}`" for name in log.key))
        if log.key
        else frame.coalesce(count)
    )
    if isinstance(directory, ObjectPath):
        rows = spread.mapInArrow(writer_into(directory / name), WRITTEN).collect()
        return [DataFile(f"{name}/{file}", *rest) for file, *rest in sorted(map(tuple, rows))]
    with _times_in_microseconds(frame.sparkSession):
        spread.write.option("compression", "zstd").parquet(f"file://{directory / name}")
    files = []
    for path in sorted((directory / name).glob("part-*.parquet")):
        record_count = pq.read_metadata(path).num_rows
        if record_count:
            partition = int(path.name.split("-")[1])
            file = f"{name}/{path.name}"
            files.append(DataFile(file, partition, record_count, checksum_of(path)))
    return files


@contextlib.contextmanager
def _times_in_microseconds(spark: SparkSession) -> Iterator[None]:
    """Write times as services do: INT96, Spark's default, ends in 2262 for others. Parquet's writer
    has no option for it, but a micro-batch has its own session."""
    before = spark.conf.get(_TIMES, None)
    spark.conf.set(_TIMES, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_TIMES)
        else:
            spark.conf.set(_TIMES, before)


@contextlib.contextmanager
def _kept(batch: DataFrame, use_count: int) -> Any:
    """Keep a micro-batch while several sinks use it: each would compute it and its state again."""
    if use_count < 2:
        yield
        return
    batch.persist()
    try:
        yield
    finally:
        batch.unpersist()


def check_options(trigger: Mapping[str, Any], options: Mapping[str, str]) -> None:
    """Refuse ways to run a query that cannot be combined with snapshots."""
    for name, reason in _REFUSED_TRIGGERS.items():
        if trigger.get(name) is not None:
            raise UsageError(f"the trigger {name} cannot be combined with snapshots: {reason}")
    for name, value in options.items():
        if name.lower().startswith(_ASYNC) and str(value).lower() not in ("false", ""):
            raise UsageError(
                f"the option {name} cannot be combined with snapshots: with asynchronous "
                "progress tracking a micro-batch begins before the previous one is committed; "
                "leave it out"
            )
        if name.lower() == "checkpointlocation":
            raise UsageError(
                "the checkpoint of a query is in its pipeline (checkpoint_location): leave out "
                "the option checkpointLocation"
            )


def _of_sink(options: Mapping[str, str], query: str, topics: Sequence[Topic]) -> dict[str, str]:
    """Return those of a query's options that are for the sinks of its topics, and not for Spark's
    ``writeStream``; errors are as for ``check_sink_options``."""
    names = [name for name in options if name.lower().startswith(KAFKA) or name.lower() == "topic"]
    sink = {name: options[name] for name in names}
    check_sink_options(sink, query, topics)
    return sink


def _check_reading(frame: DataFrame, root: Location, head: Metadata, query: str) -> None:
    """Refuse a DataFrame that does not read what the query is declared to read."""
    if head.dataflow.topics:
        check_reads(plan_of(frame), root, head, query)
        check_topics_of(frame, root, head, query)
    # No barrier travels in a topic: a query that reads nothing else needs no source of ours.
    if head.dataflow.incoming(query) or not head.dataflow.topics:
        check_sources(frame, root, head, query)


def check_sources(frame: DataFrame, root: Location, head: Metadata, query: str) -> None:
    """Refuse a DataFrame without a Stillframe source, with one of another query, or without a
    channel that the query is declared to read: its snapshots would never be complete.

    Spark shows sources only in its plan, as text, and may cut off, hide or change parts of it: what
    is not found there is not refused.
    """
    try:
        explained = frame.sparkSession.sql("explain extended select * from {frame}", frame=frame)
        plan, is_whole, _ = explained.collect()[0][0].partition(_AFTER_ANALYZED)
    except PySparkException:
        return  # whatever is wrong with it, Spark says when it starts
    relations = [line for line in plan.splitlines() if _RELATION in line]
    if not is_whole or not relations:
        return
    logs = [log.name for log in head.dataflow.incoming(query)]
    ours = [line for line in relations if _OURS.search(line)]
    if not ours:
        what = (
            f"reads none of {', '.join(logs)}: create it with "
            f"read_channels({', '.join(['spark', 'pipeline', *map(repr, (query, *logs))])})"
            if logs
            else "has no Stillframe source that waits at barriers: wrap its source in "
            f"with_barriers(frame, pipeline, {query!r})"
        )
        raise UsageError(
            f"query {query} of {root} cannot take part in snapshots, because its DataFrame {what}"
        )
    unread: set[str] | None = set(logs)
    for line in ours:
        options = match[1] if (match := _OPTIONS.search(line)) else ""
        _check_reader(options, root, query)
        channels = _CHANNELS.search(options)
        if channels is None:
            unread = None
        elif unread is not None:
            unread -= {name.strip() for name in channels[1].split(",")}
    if unread:
        raise UsageError(
            f"query {query} of {root} is declared to read {', '.join(sorted(unread))}, but its "
            "DataFrame does not: read every declared channel exactly once"
        )


def _check_reader(options: str, root: Location, query: str) -> None:
    """Refuse a source that reads as another query, as far as its options can be seen."""
    found = _QUERY.search(options)
    name = found[1] if found else query
    found = _PIPELINE.search(options)
    place = found[1] if found else str(root)
    try:
        where = locate(place)
        if isinstance(where, Path) and isinstance(root, Path):
            is_other = not where.samefile(root)
        else:
            is_other = where != root
    except (OSError, ValueError, UsageError):
        place, is_other = str(root), False
    if is_other or name != query:
        raise UsageError(
            f"the DataFrame of query {query} of {root} reads as query {name} of {place}, and "
            "would follow the barriers of that one: create it with read_channels or "
            f"with_barriers for {query!r}; to use records of another pipeline, let a service of "
            "this one write them to a channel"
        )


def check_checkpoint(root: Location, head: Metadata, query: str, path: Location) -> None:
    """Refuse a checkpoint, in `path`, that was rolled back or edited by hand. It is refused if it
    is behind the snapshots of this epoch, the one that it began from, or the query's logs, or
    contradicts them. Damaged manifests and snapshots that are dropped meanwhile are passed over."""
    advice = (
        f"the checkpoint {path} was edited or deleted, and its state would be silently wrong: "
        "restore the pipeline from a snapshot instead"
    )
    if (wrong := checkpoint.contradiction(path)) is not None:
        raise Damaged(f"{advice} ({wrong})")
    found = checkpoint.last_committed(path)
    planned = checkpoint.planned_batch(path)
    for manifest in _of_epoch(root, head):
        state = manifest.fragment(query).query
        if state is None or state.batch is None:
            continue
        if found is None or found.batch < state.batch:
            raise Damaged(f"snapshot {manifest.snapshot} has micro-batch {state.batch}; {advice}")
        pinned = manifest.pinned(root, query)
        if manifest.epoch == head.epoch and not checkpoint.agrees(path, pinned, state.batch):
            raise Damaged(
                f"snapshot {manifest.snapshot} has a different micro-batch {state.batch}; {advice}"
            )
    for log in head.dataflow.outgoing(query):
        written = LogWriter(root, log, head).last_batch()
        if written is not None and (planned is None or written > planned):
            raise Damaged(f"channel {log.name} has records of micro-batch {written}; {advice}")


def _of_epoch(root: Location, head: Metadata) -> Iterator[Manifest]:
    """Yield the snapshots of the present epoch, the newest first, then the one it began from."""
    for snapshot in reversed(published_ids(root)):
        manifest = _if_whole(root, snapshot)
        if manifest is not None and manifest.epoch != head.epoch:
            break  # numbers only rise, and epochs with them
        if manifest is not None:
            yield manifest
    if head.restored_from is not None:
        began = _if_whole(root, head.restored_from)
        if began is not None:
            yield began


def _if_whole(root: Location, snapshot: SnapshotId) -> Manifest | None:
    """Return a manifest, or None if it is damaged or its snapshot was dropped."""
    try:
        return read_manifest(root, snapshot)
    except (Damaged, UsageError):
        return None
