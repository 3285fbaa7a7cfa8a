"""Judges runs of queries that topics of Kafka join: cuts that are found while records flow.

The state of each query at a cut, and what it has written, are compared with a computation from the
records of the topics alone: those that count on the timeline of the cut, and lie before the
positions of the query. Then the pipeline is restored to some cuts, and must end as one that never
was.

Each comparison must also report a cut that is wrong: that of the idle pipeline, altered by one
micro-batch, record or entry.

``python -m tests.spark.topic_exactness KAFKA CASE=PLACE...`` judges cases, each below a directory
or an address. ``KAFKA`` is the address of a broker.
"""

import contextlib
import functools
import json
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.model import SnapshotId
from stillframe.pipeline.checkpoint import OFFSET_KEY, START
from stillframe.pipeline.dataflow import Dataflow
from stillframe.pipeline.kafka import KafkaRecord
from stillframe.pipeline.metadata import Segment, read_metadata
from stillframe.pipeline.query_runs import current_run
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.spark.session import spark_session
from stillframe.storage.location import Location, ObjectPath, locate
from stillframe.storage.reading import read_file
from tests.spark import exactness, flows, topic_flows

Item = TypeVar("Item", bound=msgspec.Struct)
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
        self.ends: dict[SnapshotId, tuple[topic_flows.Ends, topic_flows.Ends]] = {}

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

    def found_cut(self) -> Manifest:
        """Return the newest consistent cut; remember where the topics ended before and after it was
        found."""
        before = topic_flows.topic_ends(self.pipeline)
        outcome = self.pipeline.snapshot()
        assert isinstance(outcome, Manifest), outcome
        self.ends[outcome.snapshot] = before, topic_flows.topic_ends(self.pipeline)
        return outcome

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
    idle = run.found_cut()
    unbroken = run.outputs()
    judge_end(run, unbroken)
    for manifest in (*cuts, idle):
        judge_cut(run, manifest)
    judge_wrong_cuts(run, idle)
    for number in case.restored:
        run.pipeline.restore(str(cuts[number].snapshot))
        queries = run.start(*case.queries)
        run.settle(queries)
        again = run.found_cut()
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
        cuts.append(run.found_cut())
        may_commit.set()
        if case.late:
            queries += run.start(case.late)
            cuts.append(run.found_cut())
    run.kafka.add_partition([topic.name for topic in pipeline.dataflow.topics])
    with _fed(run, queries):
        cuts.append(run.found_cut())
    if case.held:
        assert last_batch(cuts[0], case.held) == START
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


def judge_cut(run: Run, manifest: Manifest) -> None:
    """Compare where a cut lies on each channel with what is in it, and what each query has in its
    state and has written with what follows from what it has read."""
    judge_topics(run, manifest)
    judge_logs(run, manifest)
    for query in run.case.queries:
        place = manifest.pinned(run.pipeline.path, query)
        judge_positions(manifest, query, place)
        judge_state(run, manifest, query, place)
        judge_output(run, manifest, query)


def judge_topics(run: Run, manifest: Manifest) -> None:
    """Compare the ends of the topics with those before and after the cut was found, and with the
    positions of their targets."""
    before, after = run.ends[manifest.snapshot]
    for one in manifest.topics:
        first, last = before[one.channel], after[one.channel]
        assert first.keys() <= one.ends.keys() <= last.keys(), f"the ends of {one.channel}"
        for partition, end in one.ends.items():
            read = max((at.get(partition, 0) for at in one.positions.values()), default=0)
            least = max(first.get(partition, 0), read)
            assert least <= end <= last[partition], f"the ends of {one.channel}"


def judge_logs(run: Run, manifest: Manifest) -> None:
    """Compare the ends of the logs with the micro-batches of their entries, and what is known of
    each channel with its entries."""
    for log in manifest.dataflow.logs:
        reader, last = (
            manifest.reader(run.pipeline.path, log.name),
            last_batch(manifest, log.source),
        )
        for entry in reader.entries(0, reader.tail(0)):
            if entry.record_count:
                batch = entry.content.batch
                assert batch is not None
                is_before = entry.number < manifest.barriers[log.name]
                assert is_before == (batch <= last), f"the end of {log.name}"
    for cut in manifest.channels:
        position = manifest.fragment(cut.target).positions[cut.log]
        assert (cut.position, cut.barrier) == (position, manifest.barriers[cut.log])
        assert position <= cut.barrier, f"{cut.target} has read past the end of {cut.log}"
        for end, counts in ((position, cut.received_counts), (cut.barrier, cut.sent_counts)):
            rows = flows.records(run.pipeline, cut.log, manifest, end)
            assert len(rows) == sum(counts), f"the records of {cut.log} to {cut.target}"


def judge_positions(manifest: Manifest, query: str, place: Location) -> None:
    """Compare the positions of a query with the plan of its micro-batch in a checkpoint. Its state
    need not show them: a record that it has seen before changes nothing."""
    found, batch = positions_of(manifest, query), last_batch(manifest, query)
    if batch == START:
        assert not any(any(at.values()) for at in found.values()), f"the positions of {query}"
    else:
        assert found == planned(manifest.dataflow, place, batch), f"the positions of {query}"


def positions_of(manifest: Manifest, query: str) -> dict[str, dict[int, int]]:
    """Return where a query is on each channel that it reads; a log is as one partition."""
    logs = manifest.fragment(query).positions
    topics = {one.channel: one.positions for one in manifest.topics}
    return {log: {0: at} for log, at in logs.items()} | {
        channel: dict(positions[query])
        for channel, positions in topics.items()
        if query in positions
    }


def planned(flow: Dataflow, checkpoint: Location, batch: int) -> dict[str, dict[int, int]]:
    """Return what ``positions_of`` must be after a micro-batch, as Spark has planned it."""
    channels = {topic.topic: topic.name for topic in flow.topics}
    plan = read_file(checkpoint / "offsets" / str(batch), bytes_max=2**20).decode()
    found = {}
    for line in plan.split("\n")[2:]:
        for name, offset in json.loads(line).items():
            if name == OFFSET_KEY:
                found.update({log: {0: at} for log, at in offset.items()})
            else:
                found[channels[name]] = {int(partition): at for partition, at in offset.items()}
    return found


def judge_state(run: Run, manifest: Manifest, query: str, place: Location) -> None:
    """Compare the state of a query, in a checkpoint, with what follows from what it has read."""
    batch = manifest.last_batches.get(query)
    windowed = put_out(run, manifest, query).get("windowed", ())
    closed = [{"start": start, "n": n} for start, n in windowed]
    with flows.configured(run.spark, run.case.store_of(query)):
        state = functools.partial(flows.state_of, run.spark, place, batch)
        exactness.compare_state(query, reader(run, manifest), state, closed)


def judge_output(run: Run, manifest: Manifest, query: str) -> None:
    """Compare what a query has written with what follows from what it has read."""
    compare_output(query, reader(run, manifest), put_out(run, manifest, query))


def reader(run: Run, manifest: Manifest) -> Callable[[str, str], list[dict[str, Any]]]:
    """Return a function that returns what a query has read of a channel."""

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

    return read


def put_out(run: Run, manifest: Manifest, query: str) -> dict[str, Counter[Any]]:
    """Return what a query has written on each of its channels."""

    def written(channel: str) -> list[dict[str, Any]]:
        if channel in run.case.logs:
            end = manifest.fragment(query).barriers[channel]
            return flows.records(run.pipeline, channel, manifest, end)
        last = last_batch(manifest, query)
        return run.rows(
            channel,
            manifest.batches[query],
            lambda record: record.label is not None and record.label.batch <= last,
        )

    return {
        one.name: flows.output(one.name, written(one.name))
        for one in manifest.dataflow.channels
        if one.source == query
    }


def last_batch(manifest: Manifest, query: str) -> int:
    """Return the last micro-batch of a query at a cut; `START` if it had none."""
    return manifest.last_batches.get(query, START)


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
    assert [*put_out.values()] == [expected], f"the output of {query}"


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


# --- wrong cuts

WrongCut = tuple[str, Callable[[], None]]
"""What must be reported of a wrong cut, and a function that judges it."""


def judge_wrong_cuts(run: Run, manifest: Manifest) -> None:
    """Alter an exact cut of the idle pipeline in one place after the other, and assert that each
    time the comparison that is meant for it fails."""
    wrong = [*wrong_topics(run, manifest), *wrong_logs(run, manifest)]
    for query in run.case.queries:
        wrong += wrong_queries(run, manifest, query)
    for expected, judge_wrong in wrong:
        assert expected in _report(judge_wrong), f"the judge does not report {expected}"


def _report(judge_wrong: Callable[[], None]) -> str:
    try:
        judge_wrong()
    except AssertionError as error:
        return str(error)
    return ""


def wrong_queries(run: Run, manifest: Manifest, query: str) -> Iterator[WrongCut]:
    """Yield cuts that have a query one micro-batch too early, or one record before or after its
    position on a channel."""
    place = current_run(run.pipeline.path, manifest.epoch, query).checkpoint
    if exactness.expected_state(query, reader(run, manifest)) is not None:
        early = with_batch(manifest, query, before_last_change(run, manifest, query, place))
        report = f"the state of {query}"
        yield report, functools.partial(judge_state, run, early, query, place)
    for channel, at in positions_of(manifest, query).items():
        for step in (-1, 1):
            off = with_positions(manifest, query, {channel: at | {0: at[0] + step}})
            report = f"the positions of {query}"
            yield report, functools.partial(judge_positions, off, query, place)


def before_last_change(run: Run, manifest: Manifest, query: str, place: Location) -> int:
    """Return the micro-batch before the newest one that changed the state of a query. Others have
    no records, or only those that a deduplication drops."""
    kept = exactness.expected_state(query, reader(run, manifest))
    for batch in range(last_batch(manifest, query) - 1, START, -1):
        at = planned(manifest.dataflow, place, batch)
        earlier = exactness.expected_state(query, reader(run, with_positions(manifest, query, at)))
        if earlier != kept:
            return batch
    return START


def with_batch(manifest: Manifest, query: str, batch: int) -> Manifest:
    """Return a cut with another micro-batch of a query."""
    fragment = manifest.fragment(query)
    assert fragment.query is not None
    state = msgspec.structs.replace(fragment.query, batch=None if batch == START else batch)
    fragments = _with(manifest.fragments, fragment, query=state)
    return msgspec.structs.replace(manifest, fragments=fragments)


def with_positions(
    manifest: Manifest, query: str, positions: Mapping[str, dict[int, int]]
) -> Manifest:
    """Return a cut with other positions of a query, on some channels."""
    fragment, topics = manifest.fragment(query), manifest.topics
    logs = {log: positions[log][0] for log in fragment.positions if log in positions}
    for one in manifest.topics:
        if one.channel in positions:
            at = one.positions | {query: positions[one.channel]}
            topics = _with(topics, one, positions=at)
    fragments = _with(manifest.fragments, fragment, positions=fragment.positions | logs)
    return msgspec.structs.replace(manifest, topics=topics, fragments=fragments)


def wrong_topics(run: Run, manifest: Manifest) -> Iterator[WrongCut]:
    """Yield cuts with another end of a topic, and those that have the source of a topic before the
    newest micro-batch from which a target has read."""
    for one in manifest.topics:
        for step in (-1, 1):
            topics = _with(manifest.topics, one, ends=one.ends | {0: one.ends[0] + step})
            off = msgspec.structs.replace(manifest, topics=topics)
            yield f"the ends of {one.channel}", functools.partial(judge_topics, run, off)
        source = manifest.dataflow.topic(one.channel).source
        for target, positions in one.positions.items() if source is not None else ():
            assert source is not None
            newest = max(
                record.label.batch
                for record in run.records[one.channel]
                if record.label is not None
                and is_on(manifest.batches[source], record)
                and record.offset < positions.get(record.partition, 0)
            )
            early = with_batch(manifest, source, newest - 1)
            yield "read and never written", functools.partial(judge_output, run, early, target)


def wrong_logs(run: Run, manifest: Manifest) -> Iterator[WrongCut]:
    """Yield cuts with the end of a log before its newest records, and with other numbers of records
    of a channel."""
    for fragment in manifest.fragments:
        for log, end in fragment.barriers.items():
            entries = manifest.reader(run.pipeline.path, log).entries(0, end)
            newest = max(entry.number for entry in entries if entry.record_count)
            barriers = fragment.barriers | {log: newest}
            fragments = _with(manifest.fragments, fragment, barriers=barriers)
            off = msgspec.structs.replace(manifest, fragments=fragments)
            yield f"the end of {log}", functools.partial(judge_logs, run, off)
    for cut in manifest.channels:
        for name in ("received_counts", "sent_counts"):
            counts = getattr(cut, name)
            channels = _with(manifest.channels, cut, **{name: (counts[0] - 1, *counts[1:])})
            off = msgspec.structs.replace(manifest, channels=channels)
            report = f"the records of {cut.log} to {cut.target}"
            yield report, functools.partial(judge_logs, run, off)


def _with(items: tuple[Item, ...], one: Item, **changes: Any) -> tuple[Item, ...]:
    """Return items, of which one is changed."""
    return tuple(msgspec.structs.replace(it, **changes) if it is one else it for it in items)


# --- cases

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
