"""A micro-batch that Spark runs again, because it did not see its commit."""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.pipeline import Pipeline, channel, checkpoint
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.metadata import checkpoint_path, read_metadata
from stillframe.pipeline.service import join
from stillframe.spark.queries import read_channels, start_query

pytestmark = [pytest.mark.slow, pytest.mark.spark]
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
EVENT = pa.schema([("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
WINDOW = pa.schema([("start", pa.timestamp("us", "UTC")), ("total", pa.int64())])
SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


@dataclass
class Feed:
    """The service that writes."""

    count: int = 0


@pytest.fixture
def configured(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with a state store whose commits name what belongs to them."""
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)


def start(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    """Start a query that adds up by minute, and forgets minutes that are over."""
    frame = read_channels(spark, pipeline, "minutes", "in").withWatermark("at", "0 seconds")
    minutes = frame.groupBy(functions.window("at", "1 minute").alias("minute")).agg(
        functions.sum("v").alias("total")
    )
    return start_query(
        minutes.select(functions.col("minute.start").alias("start"), "total"), pipeline, "minutes"
    )


def feed(pipeline: Pipeline, *minutes: int) -> None:
    """Append a record for each minute after noon."""
    rows = [{"at": NOON + datetime.timedelta(minutes=m), "v": m + 1} for m in minutes]
    with join("feed", pipeline=pipeline.path, state=Feed()) as me:
        me.append("in", pa.Table.from_pylist(rows, schema=EVENT))


def test_a_batch_that_is_run_again_keeps_state_and_watermark(
    configured: SparkSession, tmp_path: Path
) -> None:
    """Killed after the records of a micro-batch were appended and before its commit: run again, it
    appends nothing, and what comes after is as if nothing had happened."""
    pipeline = Pipeline.create(
        tmp_path / "p",
        queries=["minutes"],
        services={"feed": Feed},
        channels=[
            channel("in", EVENT, source="feed", targets=["minutes"]),
            channel("out", WINDOW, source="minutes"),
        ],
    )
    query = start(configured, pipeline)
    for minutes in ((0, 0, 1), (2, 3)):
        feed(pipeline, *minutes)
        query.processAllAvailable()
    query.stop()
    place = checkpoint_path(pipeline.path, 1, "minutes")
    last = checkpoint.last_committed(place)
    assert last is not None
    for name in (f"{last.batch}", f".{last.batch}.crc"):
        (place / "commits" / name).unlink()
    query = start(configured, pipeline)
    query.processAllAvailable()
    for minute in (4, 5):
        feed(pipeline, minute)
        query.processAllAvailable()
    query.stop()
    head = read_metadata(pipeline.path)
    log = LogReader(pipeline.path, head.dataflow.log("out"), head.segments["out"])
    tables = [log.table(item) for item in log.entries(0, log.tail(0))]
    rows = pa.concat_tables(tables).to_pylist()
    found = {(row["start"] - NOON).seconds // 60: row["total"] for row in rows}
    assert len(rows) == len(found)
    assert found == {0: 2, 1: 2, 2: 3, 3: 4}
