"""A query must read what it is declared to read, what a service committed, and all of it."""

import re
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from stillframe.errors import UsageError
from stillframe.pipeline import Pipeline, kafka_channel
from stillframe.pipeline.metadata import Segment, read_metadata
from stillframe.pipeline.topics import counting, join_topic
from stillframe.spark import counted, topics
from stillframe.spark.kafka_sources import check_reads, plan_of
from tests.pipeline.topic_services import Till

pytestmark = pytest.mark.spark


class Went(Exception):
    """Nothing was wrong so far."""


@pytest.mark.parametrize("level", [None, "read_uncommitted", "read_committed"])
def test_uncommitted_records_are_refused(
    tmp_path: Path, spark: SparkSession, level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of an aborted transaction may have the label of a later one, so the DataFrame of
    a topic that a service writes must have the option that leaves them out."""
    pipeline = Pipeline.create(
        tmp_path / "p.pipeline",
        queries=["sums"],
        services={"till": Till},
        channels=[
            kafka_channel(
                "orders", topic="orders", servers="127.0.0.1:1", source="till", targets=["sums"]
            )
        ],
    )
    options = {} if level is None else {"kafka.isolation.level": level}
    frame = _source(spark, startingOffsets="earliest", **options)
    monkeypatch.setattr(topics, "join_topics", _go)
    if level == "read_committed":
        with pytest.raises(Went):
            counted(frame, pipeline, "sums", "orders")
        return
    with pytest.raises(UsageError, match=r"set the source's option kafka\.isolation\.level to"):
        counted(frame, pipeline, "sums", "orders")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"failondataloss": "False"}, "leave out the source's option failOnDataLoss"),
        # Spark starts at the latest ones then.
        ({}, "set the source's option startingOffsets to earliest"),
        ({"startingoffsets": '{"orders":{"0":7}}'}, "set the source's option startingOffsets to"),
        (
            {"startingOffsets": "earliest", "startingtimestamp": "7"},
            "leave out the source's option startingTimestamp",
        ),
        (
            {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"orders":{"0":7}}'},
            "leave out the source's option startingOffsetsByTimestamp",
        ),
        ({"startingOffsets": " Earliest"}, None),
    ],
)
def test_records_are_not_skipped(
    tmp_path: Path,
    spark: SparkSession,
    options: dict[str, str],
    words: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither those that Kafka has deleted, nor those from before the query first started: options
    of Spark's source do so, and the error says which."""
    channel = kafka_channel("orders", topic="orders", servers="127.0.0.1:1", targets=["sums"])
    pipeline = Pipeline.create(tmp_path / "p.pipeline", queries=["sums"], channels=[channel])
    monkeypatch.setattr(topics, "join_topics", _go)
    with pytest.raises(Went if words is None else UsageError, match=words):
        counted(_source(spark, **options), pipeline, "sums", "orders")


KAFKA = {"startingOffsets": "earliest", "kafka.bootstrap.servers": "127.0.0.1:2, 127.0.0.1:1"}
OTHERS = {**KAFKA, "kafka.bootstrap.servers": "10.0.0.1:1"}


@pytest.fixture
def shop(tmp_path: Path) -> Pipeline:
    """Orders from outside, unique ones of another query, and what no query reads."""
    servers = "127.0.0.1:1"
    pipeline = Pipeline.create(
        tmp_path / "p.pipeline",
        queries=["dedup", "sums"],
        channels=[
            kafka_channel("orders", topic="orders", servers=servers, targets=["sums"]),
            kafka_channel("unique", topic="u", servers=servers, source="dedup", targets=["sums"]),
            kafka_channel("left", topic="left", servers=servers, source="sums"),
        ],
    )
    join_topic(pipeline.path, pipeline.dataflow.topic("unique"), {})
    return pipeline


def refused(shop: Pipeline, frame: DataFrame) -> str:
    """Return why the query that reads a DataFrame is refused; empty if it is not."""
    try:
        check_reads(plan_of(frame), shop.path, read_metadata(shop.path), "sums")
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({**KAFKA, "subscribe": "orders"}, None),
        (
            {**KAFKA, "subscribe": "orders,refx"},
            "does not read one topic with each .*subscribe='orders,refx'.*its own",
        ),
        (
            {"KAFKA.Bootstrap.Servers": "127.0.0.1:1", "SUBSCRIBE": "refx"},
            "topic refx .*subscribe='refx'.* no channel",
        ),
        (
            {**KAFKA, "subscribePattern": "or.*"},
            r"subscribePattern='or\.\*'.* channels orders, uni",
        ),
        (
            {**KAFKA, "assign": '{"orders":[0]}'},
            "these partitions only, .*read each topic with its",
        ),
        (
            {**KAFKA, "subscribe": "refx"},
            r"topic refx .* no channel .*targets=\['sums'\]\), and us",
        ),
        ({**KAFKA, "subscribe": "left"}, "topic left .* no target of channel left: declare it"),
        ({**OTHERS, "subscribe": "orders"}, "topic orders at 10.0.0.1:1 .* at 127.0.0.1:1: if the"),
        ({**KAFKA, "subscribe": "u"}, r"topic u of channel unique without counted \(subscribe='u'"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}, "to earliest$"),
        ({}, None),
    ],
)
def test_a_query_reads_what_it_is_declared_to_read(
    spark: SparkSession, shop: Pipeline, options: dict[str, str], words: str | None
) -> None:
    """Alone or beside what is ``counted``, and other sources are no topics. The error names the
    query, the topic, the option and what to write instead."""
    other = counted_by_hand(_source(spark, **KAFKA, subscribe="u"), shop)
    for frame in (_source(spark, **options), other.union(_source(spark, **options))):
        found = refused(shop, frame)
        assert re.search(words, found) if words else not found
        assert not words or "orders" in options.get("subscribe", "") or "sums" in found


def test_every_kind_of_source_is_looked_at(
    spark: SparkSession, shop: Pipeline, tmp_path: Path
) -> None:
    """One of Spark's older interface, too. One whose options cannot be found may read a topic, so
    it is refused; a table that is read once is no streaming source."""
    text = spark.readStream.format("text")
    assert not refused(shop, text.load(str(tmp_path)))
    kafka = text.options(**OTHERS, subscribe="refx").load(str(tmp_path))
    assert "reads topic refx" in refused(shop, kafka)
    assert not refused(shop, kafka.sparkSession.range(1))
    output = plan_of(kafka).output()
    jvm, none = spark.sparkContext._jvm, plan_of(kafka).origin().objectName()
    assert jvm is not None
    logical = jvm.org.apache.spark.sql.catalyst.plans.logical
    unknown = logical.LocalRelation(output, output.take(0), True, none)
    with pytest.raises(UsageError, match="of the kind LocalRelation, and it is not known"):
        check_reads(unknown, shop.path, read_metadata(shop.path), "sums")


def counted_by_hand(frame: DataFrame, shop: Pipeline) -> DataFrame:
    """Return what ``counted`` returns, without a broker."""
    one = counting(shop.path, read_metadata(shop.path), shop.dataflow.topic("unique"))
    return frame.where(one.condition())


def test_a_topic_is_counted_by_each_source_that_reads_it(
    spark: SparkSession, shop: Pipeline
) -> None:
    """A self-join of what is ``counted`` is; beside it, a source that is not counts what a restore
    took back, and so does a DataFrame from before that restore."""
    raw = _source(spark, **KAFKA, subscribe="u")
    one = counted_by_hand(raw, shop)
    assert not refused(shop, one.alias("l").join(one.alias("r"), "offset").selectExpr("l.offset"))
    assert "without counted" in refused(shop, one.union(raw))
    assert "without counted" in refused(shop, raw.where("offset > 1"))
    head = read_metadata(shop.path)
    later = {**head.batches, "dedup": (*head.batches["dedup"], Segment(head.epoch + 1, 3))}
    restored = msgspec.structs.replace(head, epoch=head.epoch + 1, batches=later)
    with pytest.raises(UsageError, match=r"was restored since the DataFrame of channel unique"):
        check_reads(plan_of(one), shop.path, restored, "sums")


def test_counted_takes_one_topic(
    spark: SparkSession, shop: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a DataFrame with others it could not say which records count."""
    monkeypatch.setattr(topics, "join_topics", _go)
    for options, words in (
        ({"subscribe": "orders,refx"}, "its own source"),
        ({"assign": '{"orders":[0]}'}, "none that is added later"),
        ({"subscribe": "u"}, r"reads topic u, and the channel is topic orders: use kafka_options"),
    ):
        with pytest.raises(UsageError, match=words):
            counted(_source(spark, **KAFKA, **options), shop, "sums", "orders")


def _source(spark: SparkSession, **options: str) -> DataFrame:
    """Return what stands for a DataFrame of a topic. The plan of every streaming source has its
    options, and the one for Kafka is not needed here."""
    frame = spark.readStream.format("rate").options(**options).load()
    headers = "cast(array() AS array<struct<key:string,value:binary>>) AS headers"
    return frame.selectExpr(headers, "1 AS partition", "value AS offset", "'u' AS topic")


def _go(*args: object) -> None:
    raise Went
