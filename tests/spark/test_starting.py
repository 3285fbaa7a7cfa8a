"""A query that runs keeps restores away: one comes before it starts, or after its end."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from stillframe.errors import Unavailable
from stillframe.pipeline import Pipeline, channel, locks
from stillframe.pipeline.locks import Lock, is_running, participant_lock
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.spark.queries import read_channels, start_query, to_channel
from tests.spark import flows

VALUE = pa.schema([("v", pa.int64())])


@dataclass
class Source:
    """The service that writes; it remembers nothing."""

    sent: int = 0


def make_pipeline(path: Path, *, has_end: bool) -> Pipeline:
    """Make a pipeline of a service and a query, with a snapshot; `has_end` if the query writes."""
    ends = [channel("end", VALUE, source="all")] if has_end else []
    values = channel("values", VALUE, source="source", targets=["all"])
    made = Pipeline.create(
        path, queries=["all"], services={"source": Source}, channels=[values, *ends]
    )
    with join("source", pipeline=path, state=Source()):
        pass
    assert isinstance(made.snapshot(timeout_s=10), Manifest)
    return made


@pytest.fixture
def restored_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A pipeline that somebody restores just before a query of it is first locked."""
    made = make_pipeline(tmp_path / "restored.pipeline", has_end=True)

    def restore_first(root: Path, name: str) -> Lock:
        if made.epoch == 1:
            made.restore()
        return participant_lock(root, name)

    monkeypatch.setattr("stillframe.spark.queries.participant_lock", restore_first)
    return made


@pytest.mark.spark
@pytest.mark.slow
def test_a_query_that_is_started_during_a_restore_is_of_the_new_epoch(
    spark: SparkSession, restored_first: Pipeline
) -> None:
    """All of it: what it reads, its checkpoint, and where it writes."""
    frame = read_channels(spark, restored_first, "all", "values")
    query = start_query(frame, restored_first, "all", output_mode="append")
    with join("source", pipeline=restored_first.path, state=Source()) as me:
        me.append("values", pa.table({"v": [7]}, schema=VALUE))
    flows.stop_queries(restored_first, [query])
    assert restored_first.epoch == 2
    assert flows.records(restored_first, "end", None, -1) == [{"v": 7}]


@pytest.mark.spark
def test_a_sink_that_is_made_during_a_restore_is_of_the_new_epoch(
    spark: SparkSession, restored_first: Pipeline
) -> None:
    """What to_channel returned writes where the new epoch reads."""
    append = to_channel(restored_first, "end")
    append(spark.createDataFrame([(7,)], "v long"), 0)
    assert restored_first.epoch == 2
    assert flows.records(restored_first, "end", None, -1) == [{"v": 7}]


class Stream:
    """Stands for a streaming DataFrame, its writer and its query. When the test says so, Spark's
    Java process is gone, as if it had no memory left, and the driver's Python goes on."""

    isActive = False  # noqa: N815 - Spark's

    def __init__(self) -> None:
        self.is_gone = threading.Event()
        self.go: Any = None
        self.errors = list[str]()

    def same(self, *arguments: Any) -> "Stream":
        """Stand for all that goes before the start."""
        return self

    sparkSession = writeStream = property(same)  # noqa: N815 - Spark's
    queryName = outputMode = option = options = start = same  # noqa: N815 - Spark's

    def exception(self) -> str:
        """Return why the query has ended."""
        return self.errors.pop() if self.errors else "None"

    def foreachBatch(self, go: Any) -> "Stream":  # noqa: N802 - Spark's
        """Remember what is called for each micro-batch."""
        self.go = go
        return self

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's
        """Fail when Java is gone."""
        self.is_gone.wait()
        raise ConnectionRefusedError("nobody listens")


def test_a_start_is_over_when_spark_has_initialized_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark shows two words for that, one after the other: the next query must not start yet."""
    pipeline = make_pipeline(tmp_path / "p", has_end=False)
    monkeypatch.setattr("stillframe.spark.queries.check_sources", lambda *_: None)
    shown = ["Initializing StreamExecution", "Initializing sources", "Getting offsets from p"]
    left = [*shown]
    status = property(lambda _: {"message": left.pop(0)})
    monkeypatch.setattr(Stream, "isActive", True)
    monkeypatch.setattr(Stream, "status", status, raising=False)
    stream = Stream()
    start_query(cast(DataFrame, stream), pipeline, "all", each_batch=lambda *_: None)
    stream.is_gone.set()
    assert left == []


def test_a_start_in_which_sources_were_too_slow_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has begun. Another error is for the caller, and so is the same one each time."""
    pipeline = make_pipeline(tmp_path / "p", has_end=False)
    monkeypatch.setattr("stillframe.spark.queries.check_sources", lambda *_: None)
    slow, said = "Python worker failed to connect back.", list[str]()
    for errors, count in ([slow, slow, "no such column"], 2), ([slow] * 9, 5):
        stream = Stream()
        stream.errors = errors[::-1]
        start_query(
            cast(DataFrame, stream), pipeline, "all", each_batch=lambda *_: None, report=said.append
        )
        stream.is_gone.set()
        flows.wait_until(lambda: not is_running(pipeline.path, "all"))
        sentence = "the sources of query all did not start in ten seconds, so it starts again"
        assert said == [sentence] * count
        said.clear()


def test_a_start_that_takes_long_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which query is being started, how many run, and when it has started."""
    pipeline = make_pipeline(tmp_path / "p", has_end=False)
    monkeypatch.setattr("stillframe.spark.queries.check_sources", lambda *_: None)
    monkeypatch.setattr("stillframe.spark.queries.NOTICE_S", 0.0)
    stream, said = Stream(), list[str]()
    reported = threading.Event()

    def report(words: str) -> None:
        said.append(words)
        reported.set()

    monkeypatch.setattr(Stream, "start", lambda self, *_: reported.wait() and self)
    start_query(cast(DataFrame, stream), pipeline, "all", each_batch=lambda *_: None, report=report)
    stream.is_gone.set()
    assert said[0] == f"starting query all of {pipeline.path}; 0 of 1 queries run"
    assert said[1].startswith("query all has started, after ")


def test_no_restore_comes_before_a_sink_has_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query is over, and its lock is held until a sink that still runs is done: the epoch that
    it sees does not change meanwhile. A micro-batch that would begin afterwards is refused."""
    pipeline = make_pipeline(tmp_path / "p", has_end=False)
    monkeypatch.setattr(locks, "WAIT_S", 0.3)
    monkeypatch.setattr("stillframe.spark.queries.check_sources", lambda *_: None)
    stream, numbers = Stream(), []

    def slow_sink(batch: DataFrame, number: int) -> None:
        stream.is_gone.set()
        with pytest.raises(Unavailable, match="all is running"):
            pipeline.restore()
        assert pipeline.epoch == 1
        numbers.append(number)

    start_query(cast(DataFrame, stream), pipeline, "all", each_batch=slow_sink)
    stream.go(None, 0)
    flows.wait_until(lambda: not is_running(pipeline.path, "all"))
    with pytest.raises(Unavailable, match=r"micro-batch 1 of query all .* start the query again"):
        stream.go(None, 1)
    assert numbers == [0]
    pipeline.restore()
    assert pipeline.epoch == 2
