"""A query must read what a service committed, and nothing else."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

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
    # The plan of every streaming source has its options, and the one for Kafka is not needed here.
    source = spark.readStream.format("rate")
    frame = (source if level is None else source.option("kafka.isolation.level", level)).load()
    frame = frame.selectExpr("value AS headers", "value AS partition", "value AS offset")
    monkeypatch.setattr(topics, "join_topics", _go)
    if level == "read_committed":
        with pytest.raises(Went):
            counted(frame, pipeline, "sums", "orders")
        return
    with pytest.raises(UsageError, match=r"set the source's option kafka\.isolation\.level to"):
        counted(frame, pipeline, "sums", "orders")


def test_records_that_kafka_has_deleted_are_not_skipped(
    tmp_path: Path, spark: SparkSession
) -> None:
    """An option of Spark's source does so; the error says which."""
    channel = kafka_channel("orders", topic="orders", servers="127.0.0.1:1", targets=["sums"])
    pipeline = Pipeline.create(tmp_path / "p.pipeline", queries=["sums"], channels=[channel])
    frame = spark.readStream.format("rate").option("failondataloss", "False").load()
    with pytest.raises(UsageError, match="leave out the source's option failOnDataLoss"):
        counted(frame, pipeline, "sums", "orders")


def _go(*args: object) -> None:
    raise Went
