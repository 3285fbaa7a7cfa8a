"""Snapshots of a pipeline with topics, as Spark reads them: channels, records, states, the filter.

The pipeline is that of ``tests.topics``; only the states are those of a query that has run.
"""

import functools
import json
import shutil
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from stillframe.errors import UsageError
from stillframe.pipeline import Manifest, Pipeline
from stillframe.spark import checkpoint_location, diff, log_records, query_state, register
from tests.cli.conftest import Call, call
from tests.topics import TopicShop

__all__ = ["call"]

pytestmark = pytest.mark.spark

COUNTER = """
def amounts(view):
    return {"words": sum(row["value"]["count"] for row in view.states("words"))}
"""


def test_topics_are_read_as_they_were_at_the_cut(
    spark: SparkSession, topic_shop: TopicShop
) -> None:
    """Counts for each partition, the records in flight, and all up to the cut."""
    snapshot = str(topic_shop.snapshot().snapshot)
    topic_shop.write("unique", "later", batch=2)
    register(spark)
    options = {"pipeline": str(topic_shop.pipeline.path), "snapshot": snapshot}
    reader = spark.read.format("stillframe.snapshot").options(**options)
    columns = ["log", "target", "partition", "position", "end", "record_count"]
    table = reader.option("table", "channels").load().select(*columns)
    assert sorted(map(tuple, table.collect())) == [
        ("orders", "dedup", 0, 2, 3, 1),
        ("orders", "dedup", 1, 2, 3, 1),
        ("unique", "sums", 0, 1, 2, 1),
        ("unique", "sums", 1, 1, 1, 0),
    ]
    reader = spark.read.format("stillframe.snapshot").options(**options)
    [found] = reader.option("channel", "unique").load().collect()
    assert (found.key, bytes(found.value)) == (None, b"c")
    assert (found.partition, found.offset) == (0, 1)
    assert [header.key for header in found.headers] == ["trace", "stillframe"]
    assert found.timestamp.timestamp() > 0
    with pytest.raises(AnalysisException, match="read it with log_records"):
        reader.option("channel", "totals").load()
    shop = topic_shop.pipeline
    up_to = log_records(spark, shop, "unique", snapshot).select(F.expr("string(value)"))
    assert sorted(row[0] for row in up_to.collect()) == ["a", "b", "c"]
    assert log_records(spark, shop, "unique").count() == 4


def test_the_filter_in_sql_decides_as_the_iterator_does(
    spark: SparkSession, topic_shop: TopicShop
) -> None:
    """Of records of two timelines, now and at a cut; another writer's record is an error."""
    shop, name = topic_shop.pipeline, topic_shop.topics["unique"]
    snapshot = str(topic_shop.snapshot().snapshot)
    topic_shop.write("unique", "lost", batch=2)
    topic_shop.commit("dedup", 2, orders={0: 3, 1: 3})
    shop.restore(snapshot)
    topic_shop.write("unique", "d", batch=2)
    ends = topic_shop.broker.end_offsets(name)
    records = topic_shop.broker.records(name, {p: (0, end) for p, end in ends.items()})
    headers = "headers array<struct<key string, value binary>>"
    every = spark.createDataFrame(
        [
            (name, r.partition, r.offset, (r.value or b"").decode(), list(r.headers))
            for r in records
        ],
        f"topic string, partition int, offset bigint, value string, {headers}",
    )
    for at, expected in ((None, ["a", "b", "c", "d"]), (snapshot, ["a", "b", "c"])):
        counted = every.where(shop.topic_filter("unique", snapshot=at).condition())
        assert sorted(row.value for row in counted.collect()) == expected
    strange = every.withColumn("headers", F.expr("slice(headers, 1, 1)"))
    with pytest.raises(Exception, match="was not written by dedup"):
        strange.where(shop.topic_filter("unique").condition()).collect()


def run_words(spark: SparkSession, shop: Pipeline, texts: Path, word: str) -> Manifest:
    """Let the query count a word more, and take a snapshot."""
    (texts / f"{word}.json").write_text(json.dumps({"word": word}))
    counts = spark.readStream.schema("word string").json(str(texts)).groupBy("word").count()
    location = checkpoint_location(shop, "words")
    query = counts.writeStream.format("noop").outputMode("update")
    query.option("checkpointLocation", location).trigger(
        availableNow=True
    ).start().awaitTermination()
    taken = shop.snapshot("retained")
    assert isinstance(taken, Manifest)
    return taken


def test_states_at_retained_cuts_are_read_and_compared(
    spark: SparkSession, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the query has gone on, and its own checkpoint is deleted; predicates see them."""
    texts = tmp_path / "texts"
    texts.mkdir()
    shop = Pipeline.create(tmp_path / "shop.pipeline", queries=["words"], channels=[])
    first = run_words(spark, shop, texts, "a")
    second = run_words(spark, shop, texts, "b")
    shutil.rmtree(shop.path / "checkpoints")
    state = query_state(spark, shop, first.snapshot, "words")
    assert [(row.key.word, row.value["count"]) for row in state.collect()] == [("a", 1)]
    [change] = diff(spark, shop, first.snapshot, second.snapshot, "words").collect()
    assert (change.change, change.key, change.after) == ("added", Row(word="b"), Row(count=1))
    view = shop.view(second.snapshot, query_states=functools.partial(query_state, spark, shop))
    assert sorted(row["key"]["word"] for row in view.states("words")) == ["a", "b"]
    with pytest.raises(UsageError, match="Spark is needed"):
        shop.view().states("words")
    (tmp_path / "counter.py").write_text(COUNTER)
    monkeypatch.chdir(tmp_path)
    result = call("pipeline", "detect", shop.path, "loss", "--sum", "counter:amounts")
    assert result.exit_code == 0
    assert "1 amounts too much: words 2" in result.stdout
