"""Snapshots and channels of a pipeline in an object store, read by Spark."""

import secrets

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stillframe.errors import Damaged
from stillframe.pipeline import Pipeline
from stillframe.spark import diff, log_records
from stillframe.spark.scan_planner import plan_log_scan, plan_snapshot_scan
from stillframe.spark.slices import LOG_FORMAT, SNAPSHOT_FORMAT, SlicesReader
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from tests.pipeline.money import TOTAL, leave_behind, line


def used(place: Location) -> Pipeline:
    """Return a pipeline ``mint -> till`` with two snapshots, and two records in transit."""
    pipeline = line(place)
    leave_behind(pipeline, 5, 7, 11, received_count=1)
    pipeline.snapshot("unaligned")
    leave_behind(pipeline, 13)
    pipeline.snapshot("unaligned")
    return pipeline


def damage(pipeline: Pipeline) -> None:
    """Change a byte of a data file."""
    data = pipeline.path / "channels" / "coins" / "epoch-1" / "data"
    storage = storage_of(data)
    path = storage.children(data)[0].location
    content, _ = storage.read(path, bytes_max=2**20)
    storage.put(path, content[:-1] + b"?")


def test_a_plan_reads_every_record_and_verifies_it() -> None:
    """In memory, without a JVM: what a task does on an executor."""
    pipeline = used(ObjectPath(f"memory://test-{secrets.token_hex(8)}", "run"))
    options = {"pipeline": str(pipeline.path), "channel": "coins"}
    plan = plan_log_scan(options)
    reader = SlicesReader([])
    found = [row for one in plan.slices for b in reader.read(one) for row in b.to_pylist()]
    assert [(row["amount"], row["_offset"]) for row in found] == [
        (5, 0),
        (7, 1),
        (11, 2),
        (13, 3),
    ]
    options |= {"snapshot": "run-1"}
    plan = plan_snapshot_scan(options)
    found = [row for one in plan.slices for b in reader.read(one) for row in b.to_pylist()]
    assert [row["amount"] for row in found] == [7, 11]
    damage(pipeline)
    with pytest.raises(Damaged, match="was changed since it was written"):
        [list(reader.read(one)) for one in plan_log_scan({**options, "snapshot": "run-2"}).slices]


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_a_pipeline_in_an_object_store(
    spark: SparkSession, spark_bucket: ObjectPath
) -> None:
    """Its log, a channel and a service at a snapshot, and a difference; damage is an error."""
    pipeline = used(spark_bucket / "run")
    assert {row["amount"] for row in log_records(spark, pipeline, "coins").collect()} == {
        5,
        7,
        11,
        13,
    }
    snapshot = spark.read.format(SNAPSHOT_FORMAT).option("pipeline", str(pipeline.path))
    channel = snapshot.options(snapshot="run-1", channel="coins").load()
    assert {row["amount"] for row in channel.collect()} == {7, 11}
    changed = {row["key"]: row for row in diff(spark, pipeline, "run-1", "run-2", "mint").collect()}
    assert changed["balance"]["before"] == str(TOTAL - 23)
    damage(pipeline)
    log = spark.read.format(LOG_FORMAT).options(pipeline=str(pipeline.path), channel="coins")
    with pytest.raises(PySparkException, match="was changed since it was written"):
        log.load().collect()
