"""Queries of pipelines in object stores: how seldom they look, and real runs."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from stillframe.errors import Unavailable, UsageError
from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline
from stillframe.pipeline.locks import LeasedLock, participant_lock
from stillframe.pipeline.metadata import MetadataWriter, read_metadata
from stillframe.pipeline.query_runs import begin_run
from stillframe.spark import queries, sink
from stillframe.spark.scan_planner import IDLE_POLL_S, ChannelStreamReader
from stillframe.storage.files import names
from stillframe.storage.location import ObjectPath, locate
from stillframe.storage.opened import requests_to, storage_of
from tests import nightly
from tests.pipeline.test_object_checkpoint import in_memory
from tests.spark import s3_queries
from tests.spark.exactness import SHORT_CASE
from tests.spark.outside import jars
from tests.spark.test_s3 import ROOT


def test_an_idle_query_looks_seldom() -> None:
    """One request for the pipeline, and one for each channel, twice a second."""
    pipeline = s3_queries.make(str(in_memory()))
    begin_run(pipeline.path, read_metadata(pipeline.path), "sums", lambda place: None)
    lock = participant_lock(pipeline.path, "sums")
    assert lock.acquire()
    source = ChannelStreamReader(
        {"pipeline": str(pipeline.path), "query": "sums", "channels": "numbers"}
    )
    start = source.initialOffset()
    assert source.latestOffset(start, ReadAllAvailable()) == start
    before, began = requests_to(pipeline.path), time.monotonic()
    for _ in range(2):
        assert source.latestOffset(start, ReadAllAvailable()) == start
    after = requests_to(pipeline.path)
    assert time.monotonic() - began > 1.5 * IDLE_POLL_S
    assert before is not None
    assert after is not None
    assert after.requests - before.requests <= 2 * 2 + 1  # and perhaps a renewal of the lease
    s3_queries.feed_up_to(pipeline, 10)
    assert source.latestOffset(start, ReadAllAvailable()) == {"stillframe": {"numbers": 1}}
    lock.release()


def test_a_source_that_starts_during_another_start_refuses() -> None:
    """It is of a driver that is replaced, and would record its checkpoint for the next run."""
    pipeline = s3_queries.make(str(in_memory()))
    head, lock = read_metadata(pipeline.path), participant_lock(pipeline.path, "sums")
    begin_run(pipeline.path, head, "sums", lambda place: None)
    assert lock.acquire()
    options = {"pipeline": str(pipeline.path), "query": "sums", "channels": "numbers"}

    def look(place: object) -> None:
        with pytest.raises(Unavailable, match="another program is starting query sums"):
            ChannelStreamReader(options).initialOffset()

    begin_run(pipeline.path, head, "sums", look)
    ChannelStreamReader(options).initialOffset()
    lock.release()


def test_a_program_keeps_the_run_that_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it was frozen after ``to_channel``: in the checkpoint of another driver, or in
    the logs of another epoch, it would write beside the present one."""
    monkeypatch.setattr(queries, "checkpoint_address", str)
    pipeline = s3_queries.make(str(in_memory()))
    head = read_metadata(pipeline.path)
    made = []
    monkeypatch.setattr(queries, "_appender", lambda root, *more: made.append(more))
    queries.to_channel(pipeline, "summed")
    own = queries.checkpoint_location(pipeline, "sums")
    other = begin_run(pipeline.path, head, "sums", lambda place: None)
    MetadataWriter(pipeline.path).replace(last_epoch=2)
    assert str(other.checkpoint) != own
    assert queries.checkpoint_location(pipeline, "sums") == own
    queries.to_channel(pipeline, "summed")
    assert made[0] == made[1]
    queries._lent.pop((pipeline.path, "sums"))[0].release()


def test_a_driver_that_lost_its_lease_begins_no_micro_batch() -> None:
    """Another one may run the query by now."""
    lock = LeasedLock(ObjectPath(f"memory://test-{secrets.token_hex(8)}", "sums.lease"))
    assert lock.try_acquire()
    pipeline = s3_queries.make(str(in_memory()))
    check = queries._Check(pipeline, "sums", lock, lambda sentence: None)
    run = queries._Run(lock, "sums", check)
    with run.micro_batch(1):
        lock._lost.set()
    with pytest.raises(Unavailable, match="took the place of query sums"), run.micro_batch(2):
        pass
    lock.release()


def test_a_task_writes_one_file_under_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt another one; without records none."""
    context = SimpleNamespace(partitionId=lambda: 3)
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
    directory = in_memory() / "batch-7-a"
    batches = [pa.record_batch({"v": values}) for values in ([1, 2], [], [3])]
    write = sink.writer_into(directory)
    answers = [answer.to_pylist()[0] for _ in range(2) for answer in write(batches)]
    assert sorted(answer["name"] for answer in answers) == sorted(names(directory))
    for answer in answers:
        assert answer["name"].startswith("part-00003-")
        assert (answer["partition"], answer["record_count"]) == (3, 3)
        content, _ = storage_of(directory).read(directory / answer["name"], bytes_max=2**20)
        assert zlib.crc32(content) == answer["checksum"]
        assert pq.read_table(pa.BufferReader(content)).to_pydict() == {"v": [1, 2, 3]}
    assert list(write([pa.record_batch({"v": pa.array([], pa.int64())})])) == []


def test_spark_cannot_write_into_memory() -> None:
    """A checkpoint is a directory or in S3."""
    pipeline = s3_queries.make(str(in_memory()))
    with pytest.raises(UsageError, match="cannot hold a checkpoint of Spark"):
        queries.checkpoint_location(pipeline, "sums")


MANAGER = (
    "--conf spark.sql.streaming.checkpointFileManagerClass="
    "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
)
"""The setting of docs/spark-cluster.md that saves requests to S3. Spark refuses HDFS with it."""


class Driver:
    """A program with the queries, which can be killed."""

    def __init__(self, store: str, address: str) -> None:
        # Spark has what HDFS needs.
        words = f"--jars {','.join(map(str, jars('s3a')))} {MANAGER}" if "s3:" in address else ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.s3_queries", store],
            cwd=ROOT,
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"{words} pyspark-shell"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, pipeline: Pipeline) -> None:
        """Start the queries of a pipeline."""
        self._ask(f"{pipeline.path}")

    def run(self, pipeline: Pipeline, count: int) -> None:
        """Run them until they have read so many numbers, and judge what they have put out."""
        self.start(pipeline)
        s3_queries.feed_up_to(pipeline, count)
        self._ask("")
        s3_queries.judge(pipeline, count)

    def _ask(self, line: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline(), "the driver ended"

    def kill(self) -> None:
        """Kill it and its Java process, wherever they are."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@contextlib.contextmanager
def driver(store: str, address: str) -> Iterator[Driver]:
    """Run a driver until the body ends, which kills it."""
    running = Driver(store, address)
    try:
        yield running
    finally:
        running.kill()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("bucket", "store"),
    [
        ("moto_bucket", "hdfs"),
        *(
            pytest.param(bucket, store, marks=pytest.mark.nightly(part="storage", only=True))
            for bucket in ("versitygw_bucket", "hdfs")
            for store in ("hdfs", "rocksdb-changelog", "rocksdb-format-2")
        ),
    ],
)
def test_a_killed_driver_a_restore_and_a_fork(
    bucket: str, store: str, request: pytest.FixtureRequest
) -> None:
    """Two stateful queries in a row end as computed each time."""
    address = str(request.getfixturevalue(bucket))
    pipeline = s3_queries.make(f"{address}/sums")
    with driver(store, address) as first:
        first.start(pipeline)
        s3_queries.feed_up_to(pipeline, 20)
        taken = pipeline.snapshot(timeout_s=300)
        assert not isinstance(taken, Abandoned), taken
        s3_queries.feed_up_to(pipeline, 30)
    forked = pipeline.fork(taken.snapshot, f"{address}/fork", name="fork")
    with driver(store, address) as second:
        if nightly.SEED is not None:
            second.run(pipeline, 80)
        pipeline.restore(taken.snapshot)
        second.run(pipeline, 40)
        if nightly.SEED is not None:
            second.run(forked, 60)
    assert forked.latest().record_count == taken.record_count
    pipeline.snapshot()
    pipeline.delete(taken.snapshot)
    assert names(locate(f"{address}/sums/snapshots")) == ["sums-2"]
    left = locate(f"{address}/sums/checkpoints/epoch-1")
    assert storage_of(left).files_below(left) == []


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.nightly(part="storage", only=True)
def test_states_at_snapshots_in_a_bucket_are_exact(versitygw_bucket: str) -> None:
    """As in directories: every kind of query, each with another store, and a snapshot in each
    mode."""
    packages = ",".join(map(str, jars("s3a")))
    said: Any = subprocess.run(
        [sys.executable, "-m", "tests.spark.exactness", versitygw_bucket, str(SHORT_CASE)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"--jars {packages} pyspark-shell"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr[-3000:]
