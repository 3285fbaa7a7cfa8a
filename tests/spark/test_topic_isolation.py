"""A query must read what a service committed, nothing else, and all of it."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from stillframe.errors import UsageError
from stillframe.pipeline import Pipeline, kafka_channel
from stillframe.spark import counted, topics
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


def _source(spark: SparkSession, **options: str) -> DataFrame:
    """Return what stands for a DataFrame of a topic. The plan of every streaming source has its
    options, and the one for Kafka is not needed here."""
    frame = spark.readStream.format("rate").options(**options).load()
    return frame.selectExpr("value AS headers", "value AS partition", "value AS offset")


def _go(*args: object) -> None:
    raise Went
