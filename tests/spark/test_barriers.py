"""Barriers and Spark's micro-batches: idle inputs, runs that end by themselves, foreign sources."""

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stillframe.pipeline import Pipeline, channel, checkpoint
from stillframe.pipeline.metadata import checkpoint_path
from stillframe.pipeline.pending_snapshot import pending_request
from stillframe.pipeline.service import JoinedService, join
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.spark.queries import read_channels, start_query, to_channel, with_barriers
from tests.nightly import by_night
from tests.spark import flows

VALUE = pa.schema([("v", pa.int64())])
MODES = ["aligned", "unaligned", "at-least-once"]


@dataclass
class Source:
    """A service that writes; it remembers nothing."""

    sent: int = 0


def append(me: JoinedService, log: str, *values: int) -> None:
    """Append records."""
    me.append(log, pa.table({"v": list(values)}, schema=VALUE))


def last_batch(pipeline: Pipeline, query: str) -> int | None:
    """Return the newest committed micro-batch."""
    path = checkpoint_path(pipeline.path, pipeline.epoch, query)
    found = checkpoint.last_committed(path)
    return None if found is None else found.batch


def values_of(pipeline: Pipeline, log: str) -> list[int]:
    """Return what a log holds."""
    return sorted(row["v"] for row in flows.records(pipeline, log, None, -1))


def has_more(pipeline: Pipeline, count: int) -> bool:
    """Return whether more than `count` records were put out."""
    return len(values_of(pipeline, "end")) > count


def snapshot(pipeline: Pipeline, mode: str = "aligned") -> Manifest:
    """Take a snapshot that is not given up."""
    outcome = pipeline.snapshot(mode, timeout_s=300)
    assert isinstance(outcome, Manifest), outcome
    return outcome


@contextmanager
def being_taken(pipeline: Pipeline, mode: str = "aligned") -> Iterator[list[Manifest]]:
    """Let a snapshot be under way in the body; it is published when the body has ended."""
    taken: list[Manifest] = []
    thread = threading.Thread(target=lambda: taken.append(snapshot(pipeline, mode)), daemon=True)
    thread.start()
    flows.wait_until(lambda: pending_request(pipeline.path) is not None)
    yield taken
    thread.join()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.nightly(part="pipelines")
def test_idle_queries_run_no_micro_batch_for_a_snapshot(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Barriers of every mode travel a chain without data; what comes after them is in no
    snapshot."""
    pipeline = Pipeline.create(
        tmp_path / "idle.pipeline",
        queries=["one", "two"],
        services={"a": Source, "b": Source},
        channels=[
            channel("busy", VALUE, source="a", targets=["one"]),
            channel("silent", VALUE, source="b", targets=["one"]),
            channel("between", VALUE, source="one", targets=["two"]),
            channel("end", VALUE, source="two"),
        ],
    )
    one = read_channels(spark, pipeline, "one", "busy", "silent")
    queries = [start_query(one, pipeline, "one", output_mode="append")]
    two = read_channels(spark, pipeline, "two", "between")
    queries.append(start_query(two, pipeline, "two", output_mode="append"))
    with (
        join("a", pipeline=pipeline.path, state=Source()) as a,
        join("b", pipeline=pipeline.path, state=Source()),
    ):
        append(a, "busy", 1, 2)
    for query in (*queries, *queries):
        query.processAllAvailable()
    before = [last_batch(pipeline, name) for name in ("one", "two")]
    taken = [snapshot(pipeline, mode) for mode in MODES * by_night(10, check=1)]
    assert {(made.record_count, made.duplicate_count) for made in taken} == {(0, 0)}
    assert [last_batch(pipeline, name) for name in ("one", "two")] == before
    with join("a", pipeline=pipeline.path, state=Source()) as a:
        append(a, "busy", 3)
    flows.stop_queries(pipeline, queries)
    assert values_of(pipeline, "end") == [1, 2, 3]
    for made in taken[-len(MODES) :]:
        pipeline.restore(str(made.snapshot))
        assert values_of(pipeline, "end") == [1, 2]


def two_sources(root: Path) -> Pipeline:
    """Make a pipeline whose one query reads what two services write."""
    return Pipeline.create(
        root,
        queries=["all"],
        services={"a": Source, "b": Source},
        channels=[
            channel("left", VALUE, source="a", targets=["all"]),
            channel("right", VALUE, source="b", targets=["all"]),
            channel("end", VALUE, source="all"),
        ],
    )


@pytest.mark.spark
@pytest.mark.slow
def test_a_barrier_does_not_end_a_run_with_available_now(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Such a run reads everything that is there, also behind a barrier, and records unaligned."""
    pipeline = two_sources(tmp_path / "now.pipeline")
    with (
        join("a", pipeline=pipeline.path, state=Source()) as a,
        join("b", pipeline=pipeline.path, state=Source()) as b,
    ):
        append(a, "left", 1)
        append(b, "right", 2)
        with being_taken(pipeline) as taken:
            a.boundary()  # the barrier is on `left` now, and not on `right`
            append(a, "left", 3)
            append(a, "left", 4)
            frame = read_channels(spark, pipeline, "all", "left", "right", rows_max=1)
            query = start_query(
                frame, pipeline, "all", output_mode="append", trigger={"availableNow": True}
            )
            query.awaitTermination()
            assert values_of(pipeline, "end") == [1, 2, 3, 4]
            b.boundary()
    (manifest,) = taken
    assert manifest.record_count == 2
    assert manifest.fragment("all").query is not None


@pytest.mark.spark
@pytest.mark.slow
def test_at_least_once_announces_what_is_received_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing is held; what was read behind a barrier comes again after a restore, and no more."""
    pipeline = two_sources(tmp_path / "twice.pipeline")
    frame = read_channels(spark, pipeline, "all", "left", "right")
    query = start_query(frame, pipeline, "all", output_mode="append")
    with (
        join("a", pipeline=pipeline.path, state=Source()) as a,
        join("b", pipeline=pipeline.path, state=Source()) as b,
    ):
        append(a, "left", 1)
        append(b, "right", 2)
        with being_taken(pipeline, "at-least-once") as taken:
            a.boundary()  # the barrier is on `left` now, and not on `right`
            append(a, "left", 3, 4)
            query.processAllAvailable()
            assert values_of(pipeline, "end") == [1, 2, 3, 4]
            b.boundary()
        flows.stop_queries(pipeline, [query])
    (manifest,) = taken
    assert manifest.duplicate_count == 2
    pipeline.restore()
    query = start_query(frame, pipeline, "all", output_mode="append")
    with join("a", pipeline=pipeline.path, state=Source()) as a:
        append(a, "left", 3, 4)
    flows.stop_queries(pipeline, [query])
    assert values_of(pipeline, "end") == [1, 2, 3, 3, 4, 4]


@pytest.mark.spark
@pytest.mark.slow
def test_a_query_that_reads_files_begins_snapshots(spark: SparkSession, tmp_path: Path) -> None:
    """with_barriers: Spark's own file source goes back with the snapshot, offsets and all."""
    files = tmp_path / "files"
    files.mkdir()
    pipeline = Pipeline.create(
        tmp_path / "files.pipeline",
        queries=["root"],
        channels=[channel("end", VALUE, source="root")],
    )
    frame = spark.readStream.schema("v long").json(f"file://{files}")
    frame = with_barriers(frame, pipeline, "root").dropDuplicates(["v"])
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    query = start_query(frame, pipeline, "root", output_mode="append")

    def add(*values: int) -> None:
        text = "".join(f'{{"v": {value}}}\n' for value in values)
        partial = tmp_path / "partial"
        partial.write_text(text)
        partial.rename(files / f"{values[0]}.json")
        query.processAllAvailable()

    add(1, 2)
    taken = snapshot(pipeline)
    add(2, 3)
    flows.stop_queries(pipeline, [query])
    assert values_of(pipeline, "end") == [1, 2, 3]
    pipeline.restore(str(taken.snapshot))
    assert values_of(pipeline, "end") == [1, 2]
    query = start_query(frame, pipeline, "root", output_mode="append")
    add(3, 4)
    flows.stop_queries(pipeline, [query])
    assert values_of(pipeline, "end") == [1, 2, 3, 4]


@pytest.mark.spark
@pytest.mark.slow
def test_a_query_that_reads_the_clock_begins_snapshots(spark: SparkSession, tmp_path: Path) -> None:
    """with_barriers: Spark's rate source goes on after a restore with the number that follows."""
    pipeline = Pipeline.create(
        tmp_path / "rate.pipeline",
        queries=["root"],
        channels=[channel("end", VALUE, source="root")],
    )
    rate = spark.readStream.format("rate").option("rowsPerSecond", 5).option("numPartitions", 1)
    frame = rate.load().selectExpr("value as v")
    frame = with_barriers(frame, pipeline, "root")
    for _ in range(2):
        query = start_query(frame, pipeline, "root", output_mode="append")
        count = len(values_of(pipeline, "end"))
        flows.wait_until(functools.partial(has_more, pipeline, count))
        taken = snapshot(pipeline)
        query.stop()
        flows.stop_queries(pipeline, [])
        pipeline.restore(str(taken.snapshot))
        values = values_of(pipeline, "end")
        assert values == list(range(len(values)))
    assert len(values) > count


@pytest.mark.spark
@pytest.mark.slow
def test_a_micro_batch_that_spark_runs_twice_is_appended_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark repeats a micro-batch whose commit it did not see; files of no item are no records."""
    pipeline = Pipeline.create(
        tmp_path / "again.pipeline",
        queries=["all"],
        channels=[channel("end", VALUE, source="all", partition_count=3, key=["v"])],
    )
    append_batch = to_channel(pipeline, "end")
    for batch, first in ((0, 0), (0, 0), (1, 10), (1, 10), (0, 0)):
        append_batch(spark.range(first, first + 10).toDF("v"), batch)
    assert values_of(pipeline, "end") == list(range(20))
