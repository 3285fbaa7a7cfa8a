"""Judges runs of queries that topics of Kafka join: cuts that are found while records flow.

The state of each query at a cut, and what it has written, are compared with a computation from the
records of the topics alone: those that count on the timeline of the cut, and lie before the
positions of the query. Then the pipeline is restored to some cuts, and must end as one that never
was.

``python -m tests.spark.topic_exactness KAFKA CASE=PLACE...`` judges cases, each below a directory
or an address. ``KAFKA`` is the address of a broker.
"""

import contextlib
import functools
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.pipeline import Pipeline
from stillframe.pipeline.kafka import KafkaRecord
from stillframe.pipeline.metadata import Segment, read_metadata
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.spark.session import spark_session
from stillframe.storage.location import Location, ObjectPath, locate
from tests.spark import exactness, flows, topic_flows

ALL = ("counts", "pairs", "recent", "distinct", "windows", "totals", "ping", "pong")
MIXED_STORES = exactness.MIXED_STORES
ABORTABLE = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager",
)
"""The setting of docs/spark-cluster.md that saves requests to S3."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """How the pipeline is arranged.

    Attributes:
        name: of the case.
        queries: those of ``topic_flows`` that it has, upstream first.
        store: the state store of each, as ``flows.STORES`` has it, or ``mixed``.
        partition_count: of each topic at first.
        late: the query that is started after the first cut; it writes only logs.
        held: the query whose first micro-batch, already written, is committed after the first cut.
        logs: the channels that are logs and not topics.
        is_remote: whether the pipeline is in S3, and not in a directory.
        restored: the numbers of the cuts to go back to, one after the other.
    """

    name: str
    queries: tuple[str, ...] = ALL
    store: str = exactness.MIXED
    partition_count: int
    late: str = ""
    held: str = ""
    logs: tuple[str, ...] = ()
    is_remote: bool = False
    restored: tuple[int, ...] = (0, -1)

    def __str__(self) -> str:
        return self.name

    def store_of(self, query: str) -> str:
        """Return where a query keeps its state."""
        return MIXED_STORES.get(query, "hdfs") if self.store == exactness.MIXED else self.store


class Run:
    """A pipeline of a case, with what its queries wrote and read."""

    def __init__(self, spark: SparkSession, servers: str, root: Location, case: Case) -> None:
        self.spark = spark
        self.case = case
        self.kafka = topic_flows.Kafka(servers, secrets.token_hex(4), case.partition_count)
        self.pipeline = topic_flows.make_pipeline(root, self.kafka, case.queries, case.logs)
        flow = self.pipeline.dataflow
        self.outside = [topic.name for topic in flow.topics if topic.source is None]
        self.records: Mapping[str, list[KafkaRecord]] = {}

    def start(self, *queries: str, **arguments: Any) -> list[StreamingQuery]:
        """Start queries."""
        return [
            topic_flows.start_query(
                self.spark,
                self.pipeline,
                query,
                self.case.store_of(query),
                self.kafka.partition_count,
                **arguments,
            )
            for query in queries
        ]

    def settle(self, queries: list[StreamingQuery]) -> None:
        """Wait until every query has finished what is there, round the cycle too."""
        for _ in range(topic_flows.HOPS + 1 if "pong" in self.case.queries else 2):
            for query in queries:
                query.processAllAvailable()

    def rows(
        self, channel: str, timeline: tuple[Segment, ...], counts: Callable[[KafkaRecord], bool]
    ) -> list[dict[str, Any]]:
        """Return the records of a topic that count on a timeline of its writer, of those with
        `counts`."""
        return [
            topic_flows.row_of(channel, record)
            for record in self.records[channel]
            if is_on(timeline, record) and counts(record)
        ]

    def outputs(self) -> dict[str, Counter[Any]]:
        """Return what counts now of each channel that a query writes."""
        metadata = read_metadata(self.pipeline.path)
        self.records = topic_flows.topic_records(self.pipeline)
        found = {}
        for one in self.pipeline.dataflow.channels:
            if one.source is not None:
                rows = (
                    flows.records(self.pipeline, one.name, None, -1)
                    if one.name in self.case.logs
                    else self.rows(one.name, metadata.batches[one.source], lambda record: True)
                )
                found[one.name] = flows.output(one.name, rows)
        return found

    def fed(self, channel: str) -> list[dict[str, Any]]:
        """Return every record that was sent into the pipeline on a channel."""
        return self.rows(channel, (), lambda record: True) if channel in self.outside else []


def is_on(timeline: tuple[Segment, ...], record: KafkaRecord) -> bool:
    """Return whether a record counts: it has no label, or that of the epoch in which the timeline
    has its micro-batch."""
    label = record.label
    if label is None:
        return True
    epochs = [segment.epoch for segment in timeline if segment.first <= label.batch]
    return epochs[-1:] == [label.epoch]


def judge(spark: SparkSession, servers: str, root: Location, case: Case) -> None:
    """Run, find cuts, run to the end, go back, run to the end again; judge it all.

    Raises:
        AssertionError: a state or an output is not what it must be.
    """
    run = Run(spark, servers, root, case)
    cuts = run_with_cuts(run)
    unbroken = run.outputs()
    judge_end(run, unbroken)
    for manifest in cuts:
        judge_cut(run, manifest)
    for number in case.restored:
        run.pipeline.restore(str(cuts[number].snapshot))
        queries = run.start(*case.queries)
        run.settle(queries)
        again = found_cut(run.pipeline)
        flows.stop_queries(run.pipeline, queries)
        found = run.outputs()
        judge_end(run, found)
        assert found == unbroken
        judge_cut(run, again)


def run_with_cuts(run: Run) -> list[Manifest]:
    """Find cuts while records flow: before a query has begun, soon after, and with more partitions
    than at first. Then let everything end."""
    case, pipeline = run.case, run.pipeline
    run.kafka.take_turn(run.outside)
    may_commit, has_written = threading.Event(), threading.Event()

    def hold(batch: DataFrame, number: int) -> None:
        has_written.set()
        may_commit.wait(exactness.TIMEOUT_S)

    queries = []
    for query in case.queries:
        if query != case.late:
            queries += run.start(query, **({"each_batch": hold} if query == case.held else {}))
    if "windows" in case.queries:
        flows.wait_until(functools.partial(flows.can_be_late, pipeline))
    if case.held:
        flows.wait_until(has_written.is_set)
    # No cut is before the ball that was in its topic when the pipeline was made.
    for ping in (query for query in queries if query.name == "ping"):
        flows.wait_until(lambda ping=ping: ping.lastProgress is not None)  # type: ignore[misc]
    cuts = []
    with _fed(run, queries):
        cuts.append(found_cut(pipeline))
        may_commit.set()
        if case.late:
            queries += run.start(case.late)
            cuts.append(found_cut(pipeline))
    run.kafka.add_partition([topic.name for topic in pipeline.dataflow.topics])
    with _fed(run, queries):
        cuts.append(found_cut(pipeline))
    if case.held:
        assert last_batch(cuts[0], case.held) == -1
    run.settle(queries)
    flows.stop_queries(pipeline, queries)
    return cuts


@contextlib.contextmanager
def _fed(run: Run, queries: list[StreamingQuery]) -> Iterator[None]:
    """Write turn after turn while the body runs, from one turn before it on."""
    ended = threading.Event()
    enough = run.kafka.turn_count + 1
    writer = threading.Thread(
        target=run.kafka.feed, args=(run.outside, queries[0], ended), daemon=True
    )
    writer.start()
    try:
        flows.wait_until(lambda: run.kafka.turn_count >= enough)
        yield
    finally:
        ended.set()
        writer.join()


def found_cut(pipeline: Pipeline) -> Manifest:
    """Return the newest consistent cut."""
    outcome = pipeline.snapshot()
    assert isinstance(outcome, Manifest), outcome
    return outcome


def judge_cut(run: Run, manifest: Manifest) -> None:
    """Compare what each query has in its state at a cut, and what it has written, with what follows
    from what it has read."""

    def read(query: str, channel: str) -> list[dict[str, Any]]:
        if channel in run.case.logs:
            end = manifest.fragment(query).positions[channel]
            return flows.records(run.pipeline, channel, manifest, end)
        [cut] = [one for one in manifest.topics if one.channel == channel]
        positions = cut.positions[query]
        source = manifest.dataflow.topic(channel).source
        timeline = () if source is None else manifest.batches[source]

        def is_before(record: KafkaRecord) -> bool:
            is_read = record.offset < positions.get(record.partition, 0)
            if is_read and record.label is not None and is_on(timeline, record):
                assert source is not None
                assert record.label.batch <= last_batch(manifest, source), "read and never written"
            return is_read

        return run.rows(channel, timeline, is_before)

    def written(query: str, channel: str) -> Counter[Any]:
        if channel in run.case.logs:
            end = manifest.fragment(query).barriers[channel]
            rows = flows.records(run.pipeline, channel, manifest, end)
        else:
            last = last_batch(manifest, query)
            rows = run.rows(
                channel,
                manifest.batches[query],
                lambda record: record.label is not None and record.label.batch <= last,
            )
        return flows.output(channel, rows)

    for query in run.case.queries:
        put_out = {
            one.name: written(query, one.name)
            for one in manifest.dataflow.channels
            if one.source == query
        }
        closed = [{"start": start, "n": n} for start, n in put_out.get("windowed", ())]
        with flows.configured(run.spark, run.case.store_of(query)):
            state = functools.partial(flows.state_of, run.spark, run.pipeline, manifest, query)
            exactness.compare_state(query, read, state, closed)
        compare_output(query, read, put_out)


def last_batch(manifest: Manifest, query: str) -> int:
    """Return the last micro-batch of a query at a cut; -1 if it had none."""
    state = manifest.fragment(query).query
    assert state is not None
    return -1 if state.batch is None else state.batch


def compare_output(
    query: str,
    read: Callable[[str, str], list[dict[str, Any]]],
    put_out: Mapping[str, Counter[Any]],
) -> None:
    """Compare what a query has written with a computation from the records that it has read."""
    if query in ("counts", "totals"):
        channels = ("left", "right") if query == "counts" else ("right",)
        rows = [row for channel in channels for row in read(query, channel)]
        expected = Counter(row["k"] for row in rows)
    elif query == "pairs":
        expected = exactness.pairs_of(read(query, "left"), read(query, "right"))
    elif query == "distinct":
        expected = Counter({(v,): 1 for v in {row["v"] for row in read(query, "left")}})
    elif query == "recent":
        expected = Counter({(v,): 1 for v in {row["l"] for row in read(query, "paired")}})
    elif query in ("ping", "pong"):
        channels = ("balls", "back") if query == "ping" else ("forth",)
        rows = [row for channel in channels for row in read(query, channel)]
        expected = Counter((row["ball"], row["hops"] - 1) for row in rows if row["hops"] > 0)
    else:
        assert query == "windows", "its state and its output are compared together"
        return
    assert [*put_out.values()] == [expected], query


def judge_end(run: Run, found: Mapping[str, Counter[Any]]) -> None:
    """Compare what a finished run has put out with a computation from what was sent into it."""
    left, right = (run.fed(channel) for channel in ("left", "right"))
    exactness.judge_end(left, right, found, {})
    assert set(found.get("windowed", Counter()).values()) <= {1}
    if "ping" in run.case.queries:
        expected = {"forth": Counter[Any](), "back": Counter[Any]()}
        balls = [row["ball"] for row in run.fed("balls")]
        if "back" not in run.case.logs:
            balls.append(topic_flows.FIRST_BALL)
            expected["back"][topic_flows.FIRST_BALL, topic_flows.HOPS] = 1
        for ball in balls:
            for hop in range(topic_flows.HOPS):
                expected["back" if hop % 2 else "forth"][ball, topic_flows.HOPS - 1 - hop] = 1
        assert {name: found[name] for name in expected} == expected


SHORT_CASES = (
    Case(
        name="short-1",
        queries=("counts", "pairs", "recent", "totals"),
        partition_count=1,
        late="totals",
        held="pairs",
        logs=("totalled",),
        restored=(0,),
    ),
    Case(
        name="short-3",
        queries=("windows", "ping", "pong"),
        store="rocksdb-changelog-format-2",
        partition_count=3,
        held="pong",
        is_remote=True,
        restored=(-1,),
    ),
)


def _case_at_night(store: str, partition_count: int, where: str, **more: Any) -> Case:
    # HDFS-backed stores cannot hold what this query keeps.
    queries = tuple(query for query in ALL if (store, query) != ("hdfs", "totals"))
    name = f"{store}-{partition_count}-{where}"
    return Case(
        name=name,
        queries=queries,
        store=store,
        partition_count=partition_count,
        is_remote=where == "s3",
        **more,
    )


NIGHT_CASES = (
    _case_at_night("hdfs", 1, "s3", held="pairs"),
    _case_at_night("hdfs", 3, "directory", held="pong", logs=("paired",)),
    _case_at_night("rocksdb", 1, "directory", held="pong", logs=("paired", "seen")),
    _case_at_night("rocksdb", 3, "s3", late="totals", logs=("totalled",)),
    _case_at_night("rocksdb-changelog", 1, "s3", held="pairs", logs=("forth",)),
    _case_at_night("rocksdb-changelog", 3, "directory", late="recent", logs=("seen-pairs",)),
    _case_at_night("rocksdb-format-2", 1, "directory", held="totals"),
    _case_at_night("rocksdb-format-2", 3, "s3", held="pairs", logs=("back",)),
    _case_at_night("rocksdb-changelog-format-2", 1, "s3", late="counts", logs=("counted",)),
    _case_at_night("rocksdb-changelog-format-2", 3, "directory", held="distinct"),
)
"""Each store with both numbers of partitions and both kinds of place, and these two together."""
SELDOM = ("spark.sql.streaming.pollingDelay", "200ms")
"""How often an idle query asks Kafka where its topics end: each time about each partition."""
CASES = {case.name: case for case in (*SHORT_CASES, *NIGHT_CASES)}


@contextlib.contextmanager
def suited_to(spark: SparkSession, root: Location) -> Iterator[None]:
    """Let new queries of a session write checkpoints as it is best for their place."""
    if not isinstance(root, ObjectPath):
        yield
        return
    spark.conf.set(*ABORTABLE)
    try:
        yield
    finally:
        spark.conf.unset(ABORTABLE[0])


def main() -> None:
    """Judge cases."""
    servers, *places = sys.argv[1:]
    spark = spark_session(app_name="topic-exactness", master="local[2]")
    spark.conf.set(*SELDOM)
    for name, _, where in (place.partition("=") for place in places):
        root = locate(where) / f"{name}.pipeline"
        with suited_to(spark, root):
            judge(spark, servers, root, CASES[name])
        sys.stdout.write(f"{name}: exact\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
