"""What snapshots could not hold is refused before anything starts; the error says what to do."""

import datetime
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from stillframe.durable_files import checksum_of
from stillframe.errors import Damaged, Unavailable, UsageError
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.locks import is_running, participant_lock
from stillframe.pipeline.log import read_records
from stillframe.pipeline.metadata import checkpoint_path
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.spark.queries import (
    _write,
    check_options,
    read_channels,
    start_query,
    to_channel,
)
from stillframe.spark.session import check_version
from stillframe.spark.slices import record_batches
from tests.spark import flows

VALUE = pa.schema([("v", pa.int64())])


@dataclass
class Source:
    """The service that writes; it remembers nothing."""

    sent: int = 0


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """A service, a query, and what the query puts out."""
    return Pipeline.create(
        tmp_path / "refusals.pipeline",
        queries=["sums"],
        services={"source": Source},
        channels=[
            channel("values", VALUE, source="source", targets=["sums"]),
            channel("first", VALUE, source="sums"),
            channel("second", VALUE, source="sums"),
        ],
    )


@pytest.fixture
def values(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """What the query reads."""
    return read_channels(spark, pipeline, "sums", "values")


def nothing_started(pipeline: Pipeline) -> bool:
    """Return whether neither a checkpoint nor a running query is there."""
    return not checkpoint_path(pipeline.path, 1, "sums").exists() and not is_running(
        pipeline.path, "sums"
    )


@pytest.mark.parametrize("version", ["3.5.1", "4.0.0", "4.1.9-SNAPSHOT"])
def test_old_spark_is_refused(version: str) -> None:
    """Before 4.2 a Python source cannot end a micro-batch; the error says which version can."""
    words = rf"PySpark {version} is too old: 4\.2 or later is needed.*: pip install 'stillframe"
    with pytest.raises(Unavailable, match=words):
        check_version(version)


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0", "4.10.1", "5.0.0-preview1"])
def test_later_spark_is_taken(version: str) -> None:
    """Versions are compared as numbers."""
    check_version(version)


@pytest.mark.parametrize(
    ("trigger", "options", "message"),
    [
        ({"realTime": "5 seconds"}, {}, "real-time mode has no micro-batches"),
        ({"continuous": "1 second"}, {}, "continuous processing has no micro-batches"),
        ({}, {"asyncProgressTrackingEnabled": "true"}, "leave it out"),
        ({}, {"ASYNCPROGRESSTRACKINGENABLED": "True"}, "leave it out"),
        ({}, {"checkpointLocation": "elsewhere"}, "leave out the option checkpointLocation"),
    ],
)
def test_ways_to_run_without_ends_of_batches_are_refused(
    trigger: dict[str, Any], options: dict[str, str], message: str
) -> None:
    """Real-time mode, continuous processing, asynchronous progress, a checkpoint elsewhere."""
    with pytest.raises(UsageError, match=message):
        check_options(trigger, options)


@pytest.mark.spark
def test_such_a_query_is_not_started(pipeline: Pipeline, values: DataFrame) -> None:
    """start_query asks before it does anything."""
    with pytest.raises(UsageError, match="real-time"):
        start_query(values, pipeline, "sums", trigger={"realTime": "5 seconds"})
    assert nothing_started(pipeline)


@pytest.mark.spark
def test_settings_of_kafka_without_a_topic_are_refused(
    pipeline: Pipeline, values: DataFrame
) -> None:
    """Nothing would follow them: neither a query nor a function for a log takes them."""
    options = {"kafka.compression.type": "lz4"}
    words = "the option kafka.compression.type is for topics, and query sums writes none"
    with pytest.raises(UsageError, match=words):
        start_query(values, pipeline, "sums", options=options)
    with pytest.raises(UsageError, match=words):
        to_channel(pipeline, "first", options=options)
    assert nothing_started(pipeline)


@pytest.mark.spark
def test_other_columns_are_not_started(pipeline: Pipeline, values: DataFrame) -> None:
    """A query whose columns are not those of its channel is refused, and both are named."""
    with pytest.raises(UsageError, match="sums does not fit channel first: column 1 is 'w'"):
        start_query(values.selectExpr("v as w"), pipeline, "sums")
    assert nothing_started(pipeline)


@pytest.mark.spark
def test_two_writers_of_a_channel_are_refused(pipeline: Pipeline, values: DataFrame) -> None:
    """While another program runs the query, neither it nor a channel of it can be started."""
    other = participant_lock(pipeline.path, "sums")
    assert other.try_acquire()
    try:
        with pytest.raises(Unavailable, match="stop the other one first"):
            start_query(values, pipeline, "sums")
        with pytest.raises(Unavailable, match="stop the other one first"):
            to_channel(pipeline, "first")
    finally:
        other.release()
    assert nothing_started(pipeline)


@pytest.mark.spark
@pytest.mark.slow
def test_a_foreign_sink_is_found_at_once(
    pipeline: Pipeline, values: DataFrame, tmp_path: Path
) -> None:
    """A query that reads as one of the pipeline and writes past its channels plans nothing."""
    own = tmp_path / "own-checkpoint"

    def start() -> None:
        writer = values.writeStream.format("console").option("checkpointLocation", str(own))
        with pytest.raises(StreamingQueryException) as raised:
            writer.start().awaitTermination()
        found.append(str(raised.value))

    found: list[str] = []
    while not found or "failed to connect back" in found[-1]:
        start()
    assert "was not started with start_query, and its sink was not made by to_channel" in found[-1]
    assert not list((own / "offsets").glob("[0-9]*"))


@pytest.mark.spark
@pytest.mark.slow
def test_a_checkpoint_of_its_own_is_found_at_once(
    pipeline: Pipeline, values: DataFrame, tmp_path: Path
) -> None:
    """to_channel with another checkpointLocation ends at the first micro-batch, both are named."""
    append(pipeline)
    appends = [to_channel(pipeline, "first"), to_channel(pipeline, "second")]

    def both(batch: DataFrame, number: int) -> None:
        for each in appends:
            each(batch, number)

    found = ""
    while not found or "failed to connect back" in found:
        writer = values.writeStream.foreachBatch(both)
        query = writer.option("checkpointLocation", str(tmp_path / "own")).start()
        with pytest.raises(StreamingQueryException) as raised:
            query.awaitTermination()
        found = str(raised.value)
    assert "checkpointLocation set to the result of checkpoint_location" in found


def append(pipeline: Pipeline) -> None:
    """Append one record."""
    with join("source", pipeline=pipeline.path, state=Source()) as me:
        me.append("values", pa.table({"v": [1]}, schema=VALUE))


def edits(checkpoint: Path) -> Iterator[str]:
    """Go back by hand in the ways that people do; name the place that was changed."""
    yield "nothing"
    for names in (("offsets", "commits"), ("commits",), ("offsets",), ("metadata",), ("",)):
        for name in names:
            place = checkpoint / name
            if place.is_dir() and name:
                for path in (*place.glob("[1-9]*"), *place.glob(".[1-9]*")):
                    path.unlink()
            elif name:
                place.unlink()
            else:
                shutil.rmtree(place)
        yield " and ".join(names) or "everything"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("has_channels", [True, False], ids=["channels", "own-sink"])
def test_going_back_by_hand_is_refused(
    spark: SparkSession, tmp_path: Path, has_channels: bool
) -> None:
    """The naive way back is refused before a query starts, whether or not it writes channels.

    And a restore is refused as long as the query runs.
    """
    ends = [channel("summed", VALUE, source="sums")] if has_channels else []
    values = channel("values", VALUE, source="source", targets=["sums"])
    pipeline = Pipeline.create(
        tmp_path / "edited.pipeline",
        queries=["sums"],
        services={"source": Source},
        channels=[values, *ends],
    )
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    frame = read_channels(spark, pipeline, "sums", "values").groupBy().agg({"v": "sum"})
    frame = frame.toDF("v")
    arguments: dict[str, Any] = {"each_batch": lambda batch, number: batch.collect()}
    query = start_query(frame, pipeline, "sums", output_mode="update", **arguments)
    append(pipeline)
    query.processAllAvailable()
    taken = pipeline.snapshot()
    assert isinstance(taken, Manifest)
    for _ in range(3):
        append(pipeline)
        query.processAllAvailable()
    with pytest.raises(Unavailable, match="sums is running"):
        pipeline.restore()
    flows.stop_queries(pipeline, [query])

    path = checkpoint_path(pipeline.path, 1, "sums")
    shutil.copytree(path, tmp_path / "kept")
    for done in edits(path):
        if done != "nothing":
            with pytest.raises(Damaged, match=r"restore the pipeline from a snapshot instead"):
                start_query(frame, pipeline, "sums", output_mode="update", **arguments)
            assert not is_running(pipeline.path, "sums"), done
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(tmp_path / "kept", path)
    pipeline.restore()
    query = start_query(frame, pipeline, "sums", output_mode="update", **arguments)
    flows.stop_queries(pipeline, [query])


@pytest.mark.spark
def test_times_are_written_in_microseconds(spark: SparkSession, pipeline: Pipeline) -> None:
    """As services write them, whatever the session says, which keeps its own choice."""
    rows = "select timestamp'9999-12-31 23:59:59.999999' as at"
    frame = spark.sql(rows)
    log = channel("times", pa.schema([("at", pa.timestamp("us", tz="UTC"))]), source="sums")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    directory = pipeline.path / "written"
    directory.mkdir()
    try:
        (file,) = _write(frame, log, directory, "batch-0")
        assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96"
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    path = directory / file.name
    assert pq.ParquetFile(path).schema.column(0).physical_type == "INT64"
    (at,) = pq.read_table(path, partitioning=None)["at"].to_pylist()
    assert (at.year, at.microsecond) == (9999, 999999)


TIMES = (
    "0001-01-01 00:00:00.000001",
    "1582-10-04 12:00:00",
    "1677-09-21 00:12:43.145224",
    "1969-12-31 23:59:59.999999",
    "2262-04-11 23:47:16.854776",
    "9999-12-31 23:59:59.999999",
)
"""At both ends of what nanoseconds since 1970 hold in 64 bits, and beyond."""


@pytest.mark.spark
def test_times_of_an_older_version_are_read_as_they_were(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Services, our source and Spark read INT96, which Spark wrote then, in nested columns too."""
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = spark.createDataFrame([(text,) for text in TIMES], "t string").selectExpr(
        "t", "timestamp(t) at", "array(timestamp(t)) many", "named_struct('at', timestamp(t)) one"
    )
    try:
        rows.coalesce(1).write.parquet(f"file://{tmp_path / 'old'}")
        (path,) = (tmp_path / "old").glob("*.parquet")
        assert pq.ParquetFile(path).schema.column(1).physical_type == "INT96"
        again = spark.read.parquet(f"file://{path}").selectExpr("t", "string(at) at").collect()
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
        spark.conf.unset("spark.sql.session.timeZone")
    for text, at in again:
        assert at == text
    time = pa.timestamp("us", tz="UTC")
    fields = [("t", pa.string()), ("at", time)]
    fields += [("many", pa.list_(time)), ("one", pa.struct([("at", time)]))]
    schema = pa.schema(fields)
    checksum = checksum_of(path)
    expected = [
        datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC) for text in TIMES
    ]
    batches = record_batches([(str(path), checksum)], schema)
    for table in (read_records(path, schema, checksum), pa.Table.from_batches(list(batches))):
        assert table["at"].to_pylist() == expected
        assert table["many"].to_pylist() == [[at] for at in expected]
        assert table["one"].to_pylist() == [{"at": at} for at in expected]
