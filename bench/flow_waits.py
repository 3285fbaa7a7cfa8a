"""How long snapshots take: without a backlog, with one, and what they cost while nothing flows."""

import statistics
import threading
import time

from pyspark.sql import DataFrame, SparkSession

from bench.flows import (
    TIMEOUT_S,
    Feed,
    Feeding,
    chain,
    directory,
    records,
    running,
    show,
    start_chain,
    take_snapshot,
    took_s,
)
from bench.measure import median
from stillframe.pipeline import Pipeline, checkpoint
from stillframe.pipeline.metadata import checkpoint_path
from stillframe.pipeline.snapshot_manifest import Manifest, snapshot_path
from stillframe.spark.queries import read_channels, start_query

IDLE_S = 8.0
LATENCY_COUNT = 12
BACKLOGS = (10, 100)
SLOW_BATCH_S = 0.25


def measure_latency(spark: SparkSession) -> None:
    """Measure aligned snapshots of chains without a backlog, against the time of a micro-batch."""
    rows = []
    for hops in (1, 3):
        with directory() as at:
            pipeline = chain(at, hops)
            queries = start_chain(spark, pipeline, hops)
            item = records(100, 1)
            next_at = [0.0]

            def is_due(_: int, next_at: list[float] = next_at) -> bool:
                now = time.monotonic()
                if now < next_at[0]:
                    return False
                next_at[0] = now + 0.1
                return True

            with running(*queries), Feeding(pipeline, is_due, item):
                take_snapshot(pipeline, "aligned")
                latencies = [
                    took_s(take_snapshot(pipeline, "aligned")) for _ in range(LATENCY_COUNT)
                ]
                batch_s = statistics.median(
                    progress.durationMs["triggerExecution"] / 1000
                    for query in queries
                    for progress in query.recentProgress
                    if progress.numInputRows
                )
            rows.append(
                [
                    f"{hops}",
                    f"{batch_s * 1000:.0f}",
                    f"{median(latencies) * 1000:.0f}",
                    f"{max(latencies) * 1000:.0f}",
                    f"{median(latencies) / (2 * batch_s * hops):.2f} (wanted 1)",
                ]
            )
    show(
        f"latency: aligned snapshots without a backlog, median of {LATENCY_COUNT}",
        [
            "queries in a chain",
            "micro-batch ms",
            "complete ms",
            "slowest ms",
            "of 2 x batch x hops",
        ],
        rows,
    )


def committed_batches(pipeline: Pipeline) -> int:
    """Return how many micro-batches the queries have committed."""
    found = [
        checkpoint.last_committed(checkpoint_path(pipeline.path, 1, query))
        for query in pipeline.dataflow.queries
    ]
    return sum(one.batch + 1 for one in found if one is not None)


def measure_idle(spark: SparkSession) -> None:
    """Count the micro-batches that snapshots cost while nothing flows."""
    with directory() as at:
        pipeline = chain(at, 2)
        queries = start_chain(spark, pipeline, 2)
        with running(*queries):
            with pipeline.join_service("feed", state=Feed()) as me:
                me.append("in", records(100, 1))
            for query in queries:
                query.processAllAvailable()
            before = committed_batches(pipeline)
            outcomes: list[object] = []
            with pipeline.snapshot_every(1.0, happened=outcomes.append):
                time.sleep(IDLE_S)
            batch_count = committed_batches(pipeline) - before
    show(
        f"idle: two queries, nothing flows for {IDLE_S:.0f} s",
        ["snapshots published", "micro-batches for them"],
        [
            [
                f"{sum(isinstance(outcome, Manifest) for outcome in outcomes)}",
                f"{batch_count} (wanted 0)",
            ]
        ],
    )


def measure_backpressure(spark: SparkSession) -> None:
    """Compare the modes where a slow query has a backlog of many micro-batches."""
    rows = []
    for backlog in BACKLOGS:
        for mode in ("unaligned", "aligned"):
            with directory() as at:
                pipeline = chain(at, 2)
                manifest = _with_backlog(spark, pipeline, backlog, mode)
                place = snapshot_path(pipeline.path, manifest.snapshot)
                written = sum(
                    path.stat().st_size
                    for path in place.rglob("*")
                    if path.is_file() and path.stat().st_nlink == 1
                )
            rows.append(
                [
                    f"{backlog}",
                    mode,
                    f"{took_s(manifest):.2f}",
                    f"{manifest.record_count:,}",
                    f"{written:,}",
                ]
            )
    show(
        f"back-pressure: a slow query ({SLOW_BATCH_S:.2f} s a micro-batch and more) behind a fast "
        "one",
        ["backlog, micro-batches", "mode", "complete s", "records on channels", "bytes written"],
        rows,
    )


def _with_backlog(spark: SparkSession, pipeline: Pipeline, backlog: int, mode: str) -> Manifest:
    """Take a snapshot while the second query has so many micro-batches before it."""
    first = start_query(read_channels(spark, pipeline, "q1", "in", rows_max=1), pipeline, "q1")
    with running(first):
        with pipeline.join_service("feed", state=Feed()) as me:
            for seed in range(backlog):
                me.append("in", records(100, seed))
        first.processAllAvailable()
        began = threading.Event()

        def slowly(_batch: DataFrame, _number: int) -> None:
            began.set()
            time.sleep(SLOW_BATCH_S)

        second = start_query(
            read_channels(spark, pipeline, "q2", "from-q1", rows_max=1),
            pipeline,
            "q2",
            each_batch=slowly,
        )
        with running(second):
            began.wait(TIMEOUT_S)
            return take_snapshot(pipeline, mode)
