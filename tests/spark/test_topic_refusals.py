"""Topics, sessions and records with which a pipeline could not be exact: errors say what to do.

The queries read rows of Spark's source ``rate`` with the columns of its source for Kafka: what is
refused before a query starts needs no record.
"""

import importlib
import json
import os
import re
import signal
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.errors import NotConsistent, StillframeError, Unavailable, UsageError
from stillframe.model import Abandoned, Reason
from stillframe.pipeline import Manifest, Pipeline, channel, kafka, kafka_channel
from stillframe.pipeline.checkpoint import START
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.kafka import Broker
from stillframe.pipeline.metadata import checkpoint_path, read_metadata
from stillframe.pipeline.retained import shortage
from stillframe.pipeline.topics import HEADER, Counting, Label, counting, join_topic
from stillframe.spark import checkpoint_location, queries, to_channel
from stillframe.spark import topics as spark_topics
from stillframe.spark.queries import start_query
from stillframe.spark.topics import (
    _check_attempts,
    _check_keys,
    _records,
    check_topics_of,
    counted,
    kafka_options,
)
from tests.kafka_topics import create_again
from tests.ports import free_port
from tests.spark.flows import wait_until

pytestmark = pytest.mark.spark

ADMIN: Any = importlib.import_module("confluent_kafka.admin")
RETAIN = "spark.sql.streaming.minBatchesToRetain"
SOURCE = (
    "cast(null as binary) as key",
    "cast(string(value) as binary) as value",
    "'in' as topic",
    "0 as partition",
    "value as offset",
    "timestamp",
    "0 as timestampType",
)
HEADERS = "cast(array() as array<struct<key:string,value:binary>>) as headers"


@dataclass
class Till:
    """A service that writes a log."""

    sent: int = 0


@pytest.fixture
def servers(kafka_address: str) -> str:
    """Return the address of the broker."""
    return kafka_address


@pytest.fixture
def topics(servers: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """The topics of one test, by channel."""
    test = re.sub(r"[^\w.-]", "-", request.node.name)[:150]
    names = {channel: f"{test}.{channel}" for channel in ("in", "between", "out")}
    create(servers, *names.values())
    return names


@pytest.fixture
def pipeline(tmp_path: Path, servers: str, topics: dict[str, str]) -> Pipeline:
    """Two queries, and the topics before, between and after them."""
    ends: dict[str, dict[str, Any]] = {
        "in": {"targets": ["first"]},
        "between": {"source": "first", "targets": ["second"]},
        "out": {"source": "second"},
    }
    return Pipeline.create(
        tmp_path / "refusals.pipeline",
        queries=["first", "second"],
        channels=[
            kafka_channel(name, topic=topics[name], servers=servers, **of)
            for name, of in ends.items()
        ],
    )


def create(servers: str, *names: str, **settings: str) -> None:
    """Create topics of two partitions, and wait until a broker leads them. The words of a setting
    have _ for a dot."""
    config = {name.replace("_", "."): value for name, value in settings.items()}
    admin = ADMIN.AdminClient({"bootstrap.servers": servers})
    made = admin.create_topics([ADMIN.NewTopic(name, 2, 1, config=config) for name in names])
    for future in made.values():
        future.result()
    wait_until(lambda: all(is_led(servers, name) for name in names))


def is_led(servers: str, topic: str) -> bool:
    """Return whether a topic can be asked for its ends."""
    with Broker(servers) as broker:
        try:
            return broker.end_offsets(topic).keys() == {0, 1}
        except StillframeError:
            return False


def produce(topic: Topic, *labels: bytes | None, partition: int = 0) -> None:
    """Write a record for each value of a header; None: without one."""
    producer = Producer({"bootstrap.servers": topic.servers})
    for label in labels:
        headers: Any = [] if label is None else [(HEADER, label)]
        producer.produce(topic.topic, b"1", partition=partition, headers=headers)
    producer.flush()


def joined(pipeline: Pipeline, channel: str) -> Counting:
    """Let the source of a channel join as one that found an empty topic."""
    topic = pipeline.dataflow.topic(channel)
    join_topic(pipeline.path, topic, {0: 0, 1: 0})
    return counting(pipeline.path, read_metadata(pipeline.path), topic)


def rows(spark: SparkSession, *more: str, **options: str) -> DataFrame:
    """Return a streaming DataFrame like one of Spark's source for Kafka, and with its options."""
    source = spark.readStream.format("rate").option("startingOffsets", "earliest")
    return source.options(**options).load().selectExpr(*SOURCE, *more)


def check(servers: str, topic: str) -> None:
    """Check a topic as a query does before it starts."""
    one = Topic(name="one", topic=topic, servers=servers, source=None, targets=("first",))
    with Broker(servers) as broker:
        broker.check(one)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cleanup_policy": "compact"}, r"is compacted, .*: set its cleanup.policy to delete"),
        ({"cleanup_policy": "compact,delete"}, r"is compacted, .*: set its cleanup.policy"),
        (
            {"retention_bytes": "1000"},
            r"deletes records above 1000 bytes, .*: set its retention.bytes to -1$",
        ),
        (
            {"retention_ms": "86399999"},
            r"deletes records after 86400 s, .*ms to 86400000 \(a day\)",
        ),
    ],
    ids=["compacted", "both", "bytes", "time"],
)
def test_a_topic_that_does_not_keep_records_is_refused(
    servers: str, settings: dict[str, str], message: str, request: pytest.FixtureRequest
) -> None:
    """A restore needs every record since the snapshot; the error has the topic and the setting."""
    name = request.node.callspec.id
    create(servers, name, **settings)
    with pytest.raises(UsageError, match=rf"channel one: the topic {name} {message}"):
        check(servers, name)


@pytest.mark.parametrize("retention_ms", ["86400000", "-1"])
def test_a_topic_that_keeps_records_is_taken(servers: str, retention_ms: str) -> None:
    """A day is enough, and so is no limit."""
    name = f"kept{retention_ms}"
    create(servers, name, retention_ms=retention_ms)
    check(servers, name)


def test_a_missing_topic_is_refused_and_not_created(servers: str) -> None:
    """Brokers create a topic that a client asks for, and a misspelt one would stay empty."""
    for _ in range(2):
        with pytest.raises(UsageError, match=rf"no topic misspelt at {servers}: create it first$"):
            check(servers, "misspelt")


def test_a_broker_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time that a broker may take, the error says why and what to check."""
    monkeypatch.setattr(kafka, "TIMEOUT_S", 0.5)
    servers = f"127.0.0.1:{free_port()}"
    words = (
        rf"Kafka at {servers} does not answer .*Connection refused.*: check that the brokers run"
    )
    with pytest.raises(Unavailable, match=words):
        check(servers, "topic")


def test_ctrl_c_ends_the_wait_for_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that accepts a connection and never answers is not waited for any longer."""
    monkeypatch.setattr(kafka, "TIMEOUT_S", 300.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def interrupt() -> None:
            connection, _ = silent.accept()
            with connection:
                connection.recv(1)
                os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            check(f"127.0.0.1:{silent.getsockname()[1]}", "topic")
        thread.join()


def session(master: str, **settings: str) -> DataFrame:
    """Return what stands for a DataFrame of a session with these settings."""
    context = SimpleNamespace(
        master=master,
        getConf=lambda: {name.replace("_", "."): value for name, value in settings.items()},
    )
    return cast("DataFrame", SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context)))


ONE_ATTEMPT = {"spark_task_maxFailures": "1", "spark_stage_maxConsecutiveAttempts": "1"}


@pytest.mark.parametrize(
    ("master", "settings", "message"),
    [
        ("local[2]", {"spark_speculation": "true"}, r"^with spark.speculation .*: turn it off$"),
        ("local[2,3]", {}, r"a second time: set master to local\[N\]\. A micro-batch"),
        ("local[*, 2]", {}, r"set master to local\[N\]\."),
        ("local-cluster[2,1,1]", {}, r"set spark.task.maxFailures to 1 and spark.stage.maxCons"),
        ("spark://one:7077", {}, r"set spark.task.maxFailures to 1 and spark.stage.maxConsecutive"),
        (
            "yarn",
            {**ONE_ATTEMPT, "spark_task_maxFailures": "4"},
            r"set spark.task.maxFailures to 1",
        ),
    ],
)
def test_a_session_that_repeats_tasks_is_refused(
    master: str, settings: dict[str, str], message: str
) -> None:
    """A task that runs twice writes its records twice; the error names the setting."""
    with pytest.raises(UsageError, match=message):
        _check_attempts(session(master, **settings))


@pytest.mark.parametrize(
    ("master", "settings"),
    [
        ("local", {}),
        ("local[2]", {"spark_speculation": "false"}),
        ("local[*]", {}),
        ("local[2,1]", {}),
        ("local[2, 1]", {}),
        ("spark://one:7077", ONE_ATTEMPT),
    ],
)
def test_a_session_that_repeats_no_task_is_taken(master: str, settings: dict[str, str]) -> None:
    """On this machine Spark runs a task once unless it is told otherwise."""
    _check_attempts(session(master, **settings))


def test_a_frame_without_headers_is_refused(spark: SparkSession, pipeline: Pipeline) -> None:
    """The label of a record is a header; the error names the option."""
    with pytest.raises(UsageError, match=r"option includeHeaders to true, and use counted before"):
        counted(rows(spark), pipeline, "second", "between")


def test_options_have_the_headers(pipeline: Pipeline, topics: dict[str, str]) -> None:
    """The options for a channel are enough to read it."""
    options = kafka_options(pipeline, "between")
    assert options["subscribe"] == topics["between"]
    assert options["includeHeaders"] == "true"
    assert options["startingOffsets"] == "earliest"


def test_a_query_that_is_no_target_is_refused(spark: SparkSession, pipeline: Pipeline) -> None:
    """What it reads would be missing in the cut."""
    with pytest.raises(UsageError, match=r"first is no target of channel between: declare it as"):
        counted(rows(spark, HEADERS), pipeline, "first", "between")


def test_a_declared_topic_that_is_not_read_is_refused(
    spark: SparkSession, pipeline: Pipeline, topics: dict[str, str]
) -> None:
    """Its position would be missing in the cut; the error has the call that is needed."""
    words = (
        rf"use counted\(frame, pipeline, 'first', 'in'\) on the DataFrame of topic {topics['in']}"
    )
    with pytest.raises(UsageError, match=words):
        start_query(rows(spark, HEADERS), pipeline, "first")
    assert not checkpoint_path(pipeline.path, 1, "first").exists()


def test_a_declared_log_that_is_not_read_is_refused(
    spark: SparkSession, tmp_path: Path, servers: str, topics: dict[str, str]
) -> None:
    """A query that reads a topic and a log is checked for both; the error has the call."""
    numbers = pa.schema([("n", pa.int64())])
    pipeline = Pipeline.create(
        tmp_path / "both.pipeline",
        queries=["first"],
        services={"till": Till},
        channels=[
            kafka_channel("in", topic=topics["in"], servers=servers, targets=["first"]),
            channel("cash", numbers, source="till", targets=["first"]),
            kafka_channel("out", topic=topics["out"], servers=servers, source="first"),
        ],
    )
    frame = counted(rows(spark, HEADERS), pipeline, "first", "in").select("value")
    words = r"reads none of cash: create it with read_channels\(spark, pipeline, 'first', 'cash'\)"
    with pytest.raises(UsageError, match=words):
        start_query(frame, pipeline, "first")
    assert not checkpoint_path(pipeline.path, 1, "first").exists()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (
            None,
            "query first of .* reads topic refx at .*subscribe='refx'.*, which is no channel of",
        ),
        ("elsewhere", "query first does not run at its checkpoint in the pipeline, .*: start it "),
    ],
)
def test_a_query_that_its_program_starts_is_compared_in_its_first_micro_batch(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path, place: str | None, words: str
) -> None:
    """``to_channel`` sees no DataFrame before that: it finds the query that runs at the checkpoint,
    and the sources in its plan."""
    own = counted(rows(spark, HEADERS), pipeline, "first", "in")
    more = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "refx"}
    frame = own.union(rows(spark, HEADERS, **more)).select("value")
    append = to_channel(pipeline, "between", adopt=False)
    try:
        at = checkpoint_location(pipeline, "first") if place is None else str(tmp_path / place)
        writer = frame.writeStream.foreachBatch(append).option("checkpointLocation", at)
        with pytest.raises(PySparkException, match=words):
            writer.start().awaitTermination()
    finally:
        queries._lent.pop((pipeline.path, "first"))[0].release()


def test_a_frame_from_before_a_restore_is_refused(spark: SparkSession, pipeline: Pipeline) -> None:
    """It would count the records that the restore took back."""
    joined(pipeline, "between")
    joined(pipeline, "out")
    frame = counted(rows(spark, HEADERS), pipeline, "first", "in")
    taken = pipeline.snapshot()
    assert isinstance(taken, Manifest), taken
    pipeline.restore(str(taken.snapshot))
    with pytest.raises(
        UsageError, match=r"was restored since the DataFrame of channel in was made"
    ):
        start_query(frame, pipeline, "first")


def test_a_topic_that_is_created_again_under_a_running_query(
    spark: SparkSession, servers: str, topics: dict[str, str], tmp_path: Path
) -> None:
    """The query fails before its next micro-batch has an effect, and does not start again."""
    entry = kafka_channel("in", topic=topics["in"], servers=servers, targets=["first"])
    one = Pipeline.create(tmp_path / "one.pipeline", queries=["first"], channels=[entry])
    done: list[int] = []
    again = f"topic {topics['in']} was deleted and created again"

    def start() -> StreamingQuery:
        frame = counted(rows(spark, HEADERS), one, "first", "in")
        return start_query(frame, one, "first", each_batch=lambda _, number: done.append(number))

    query = start()
    try:
        wait_until(lambda: bool(done) or not query.isActive)
        create_again(servers, topics["in"])
        del done[:-1]
        with pytest.raises(PySparkException, match=again):
            query.awaitTermination()
    finally:
        query.stop()
    assert len(done) <= 2, "one may have begun before"
    with pytest.raises(NotConsistent, match=again):
        start()


def test_a_session_that_retains_too_little_is_refused(
    spark: SparkSession, pipeline: Pipeline
) -> None:
    """With one micro-batch of each query there is hardly ever a cut; the error has the setting."""
    frame = counted(rows(spark, HEADERS), pipeline, "first", "in")
    before = spark.conf.get(RETAIN)
    spark.conf.set(RETAIN, "1")
    try:
        with pytest.raises(UsageError, match=rf"with {RETAIN}=1 .*: set it to 2 or more; 100 is"):
            start_query(frame, pipeline, "first")
        spark.conf.set(RETAIN, "2")
        check_topics_of(frame, pipeline.path, read_metadata(pipeline.path), "first")
    finally:
        spark.conf.set(RETAIN, str(before))


def test_settings_of_the_producer_reach_the_sink(
    spark: SparkSession, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options of ``start_query`` that begin with "kafka." are for the sink of a topic."""
    sinks = []

    def write(labelled: DataFrame, sink: dict[str, str]) -> None:
        sinks.append(sink)
        raise RuntimeError("one micro-batch is enough")

    monkeypatch.setattr(spark_topics, "_write", write)
    frame = counted(rows(spark, HEADERS), pipeline, "first", "in").select("value")
    query = start_query(frame, pipeline, "first", options={"kafka.compression.type": "lz4"})
    with pytest.raises(PySparkException, match="one micro-batch is enough"):
        query.awaitTermination()
    assert [sink["kafka.compression.type"] for sink in sinks] == ["lz4"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("value as key",), r"the DataFrame of query first has no column value for Kafka$"),
        (("value", "timestamp"), r"has the column timestamp: it may have key, value, headers and"),
        (("value", "'t' as topic"), r"has the column topic: it may have key, value, headers and"),
    ],
)
def test_columns_that_are_not_written_are_refused(
    spark: SparkSession, columns: tuple[str, ...], message: str
) -> None:
    """What Kafka does not take is not left out in silence."""
    topic = Topic(name="between", topic="t", servers="a:1", source="first", targets=())
    frame = spark.sql("select 1 as value, now() as timestamp").selectExpr(*columns)
    with pytest.raises(UsageError, match=message):
        _records(frame, topic)


def test_a_partition_that_is_null_is_refused(spark: SparkSession) -> None:
    """The producer would choose one, and the record would not be found when it is repeated."""
    topic = Topic(name="between", topic="t", servers="a:1", source="first", targets=())
    rows = spark.sql("select '1' as value, explode(array(0, null)) as partition")
    with pytest.raises(PySparkException, match="of channel between has a null: leave it out, or"):
        _records(rows, topic).collect()
    assert [row.partition for row in _records(rows.dropna(), topic).collect()] == [0]


UNIQUE = Topic(
    name="sums", topic="t", servers="a:1", source="first", targets=(), has_unique_keys=True
)


def test_a_channel_with_unique_keys_needs_a_column_key(spark: SparkSession) -> None:
    """Else all records of an interrupted micro-batch would have the same key: none."""
    words = "channel sums is declared with has_unique_keys, and the DataFrame .* no column key$"
    with pytest.raises(UsageError, match=words):
        _records(spark.sql("select 1 as value"), UNIQUE)


@pytest.mark.parametrize("keys", ["'a', 'b', 'a'", "'a', null"], ids=["repeated", "null"])
def test_keys_that_are_not_unique_are_refused_before_a_comparison(
    spark: SparkSession, keys: str
) -> None:
    """One record in the topic would stand for all with its key; the error names the channel."""
    records = _records(spark.sql(f"select explode(array({keys})) as key, 'v' as value"), UNIQUE)
    words = (
        "channel sums is declared with has_unique_keys, and micro-batch 7 of query first, .* twice"
    )
    with pytest.raises(UsageError, match=words):
        _check_keys(records, UNIQUE, Label(b"w" * 8, 1, 7))
    _check_keys(records.dropna(subset="key").dropDuplicates(["key"]), UNIQUE, Label(b"w" * 8, 1, 7))


FOREIGN = {"no label": None, "another writer": b"w" * 20, "another length": b"w"}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_record_fails_the_query(
    spark: SparkSession, pipeline: Pipeline, kind: str
) -> None:
    """A record that its writer did not write is no reason to guess: the query fails, and the error
    names the topic, the partition and the offset."""
    one = joined(pipeline, "between")
    label = FOREIGN[kind]
    header = "" if label is None else f"named_struct('key', '{HEADER}', 'value', X'{label.hex()}')"
    headers = f"cast(array({header}) as array<struct<key:string,value:binary>>) as headers"
    frame = spark.range(7, 8).selectExpr("'t' as topic", "1 as partition", "id as offset", headers)
    words = r"record with offset 7 in partition 1 of topic t was not written by first, .*between"
    with pytest.raises(PySparkException, match=words):
        frame.where(one.condition()).collect()


def commit_first(pipeline: Pipeline, query: str, positions: dict[str, dict[int, int]]) -> None:
    """Make what looks like a checkpoint after micro-batch 0, with positions on topics."""
    path = checkpoint_path(pipeline.path, 1, query)
    for directory in ("offsets", "commits"):
        (path / directory).mkdir(parents=True)
    (path / "metadata").write_text(json.dumps({"id": query}))
    plan = [json.dumps({topic: positions[topic]}) for topic in positions]
    batch = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1000, "conf": {}})
    (path / "offsets" / "0").write_text("\n".join(["v1", batch, *plan]))
    (path / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_record_abandons_a_snapshot(
    pipeline: Pipeline, topics: dict[str, str], kind: str
) -> None:
    """It is not known whether the cut would be consistent; the reason names the record."""
    one = joined(pipeline, "between")
    joined(pipeline, "out")
    produce(one.topic, one.label(1, 0).encoded, FOREIGN[kind], partition=1)
    commit_first(pipeline, "first", {topics["in"]: {0: 0, 1: 0}})
    commit_first(pipeline, "second", {topics["between"]: {0: 0, 1: 2}})
    outcome = pipeline.snapshot()
    assert isinstance(outcome, Abandoned)
    assert outcome.reason is Reason.NOT_CONSISTENT
    words = (
        rf"offset 1 in partition 1 of topic {topics['between']} has .*, and only first may write"
    )
    assert re.search(words, outcome.detail)


def test_a_query_that_did_not_read_a_declared_topic_abandons_a_snapshot(
    pipeline: Pipeline, topics: dict[str, str]
) -> None:
    """Its DataFrame left out what ``counted`` returned; the reason has channel and topic."""
    joined(pipeline, "between")
    joined(pipeline, "out")
    commit_first(pipeline, "first", {"another": {0: 0}})
    outcome = pipeline.snapshot()
    assert isinstance(outcome, Abandoned)
    words = rf"declared to read the channel in, but .*not read the topic {topics['in']}: read every"
    assert re.search(words, outcome.detail)


def test_a_checkpoint_that_was_reset_by_hand_is_refused(
    pipeline: Pipeline, topics: dict[str, str]
) -> None:
    """If the topic has a later micro-batch than the one that starts, records would be lost."""
    one = joined(pipeline, "between")
    produce(one.topic, *(one.label(1, batch).encoded for batch in (3, 4)))
    words = rf"topic {topics['between']} has records of micro-batch 4 of query first.*: restore the"
    with Broker(one.topic.servers) as broker:
        with pytest.raises(NotConsistent, match=words):
            broker.span_of(one, one.label(1, 0))
        assert broker.span_of(one, one.label(1, 4)).keys() == {0}


def test_a_foreign_record_ends_the_search_for_an_interrupted_micro_batch(
    pipeline: Pipeline, topics: dict[str, str]
) -> None:
    """A writer does not write after another one; the error names the record."""
    one = joined(pipeline, "between")
    produce(one.topic, one.label(1, 3).encoded, b"w" * 20)
    words = rf"offset 1 in partition 0 of topic {topics['between']} has the label of another writer"
    with Broker(one.topic.servers) as broker, pytest.raises(StillframeError, match=words):
        broker.span_of(one, one.label(1, 4))


def test_a_query_that_retains_hardly_enough_is_reported() -> None:
    """A warning names the query that needed most of what it retains, and the setting; not if it
    needed half, nor while Spark still keeps all of the epoch, which a restore begins with one."""
    words = (
        "the cut needed the newest 6 of the 10 micro-batches that Spark retains of query b; the "
        f"next snapshots may find none: raise {RETAIN} of b to 24"
    )
    retained, beginnings = {"a": [5, 6], "b": list(range(5, 15))}, {"a": START, "b": 4}
    assert shortage({"a": 1, "b": 6}, retained, beginnings) == words
    assert shortage({"a": 1, "b": 5}, retained, beginnings) is None
    assert shortage({"a": 2, "b": 5}, {**retained, "a": [START, 0]}, beginnings) is None
    assert shortage({"b": 2}, {"b": [START, 0]}, {"b": START}) is None
    assert shortage({"b": 1}, {"b": [7]}, {"b": 7}) is None
