"""A driver that goes back to an early snapshot, and is killed: run by ``test_corruption``.

    python -m tests.spark.rewinding DIRECTORY first    30 micro-batches of v=1, back to number 12,
                                                       12 micro-batches of v=1000, wait for the end
    python -m tests.spark.rewinding DIRECTORY second   one more micro-batch; prints the sums

A pipeline of its own for each state store runs beside the others. The settings are those with which
going back by hand gave wrong sums (24 for 12013) fastest.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.metadata import checkpoint_path
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.spark.queries import read_channels, start_query
from stillframe.spark.session import spark_session
from tests.nightly import by_night
from tests.spark import flows

ONES = 30
BACK_TO = 12
SNAPSHOTS_AFTER = (5, BACK_TO, 13, 20)
THOUSANDS = 12
VALUE = pa.schema([("v", pa.int64())])
SUM = pa.schema([("s", pa.int64())])
STORES = by_night(
    ("hdfs", "rocksdb", "rocksdb-changelog", "rocksdb-changelog-format-2"),
    check=("hdfs", "rocksdb-changelog"),
)
"""In the short form those that gave wrong sums, and no error, when taken back by hand."""


@dataclass
class Source:
    """The service that writes; it remembers nothing."""

    sent: int = 0


def main(directory: Path, phase: str) -> None:
    """Run one phase."""
    spark = spark_session(app_name="rewinding", master="local[2]")
    spark.conf.set("spark.sql.streaming.stateStore.maintenanceInterval", "500ms")
    sessions = {name: flows.configure(spark, name) for name in STORES}
    for session in sessions.values():
        session.conf.set("spark.sql.shuffle.partitions", "1")
    pipelines = {name: make_pipeline(directory / f"{name}.pipeline") for name in STORES}
    if phase == "first":
        go_back(sessions, pipelines)
    else:
        queries = start(sessions, pipelines)
        one_batch(pipelines, queries, 1000)
        stop(pipelines, queries)
        sums = {name: read_sums(sessions[name], pipelines[name]) for name in STORES}
        sys.stdout.write(f"{json.dumps(sums)}\n")
    sys.stdout.write("done\n")
    sys.stdout.flush()
    sys.stdin.read()  # killed here


def go_back(sessions: Mapping[str, SparkSession], pipelines: Mapping[str, Pipeline]) -> None:
    """Run on ones, take snapshots on the way, go back to an early one, and run on thousands."""
    queries = start(sessions, pipelines)
    chosen: dict[str, Manifest] = {}
    for batch in range(ONES):
        one_batch(pipelines, queries, 1)
        if batch in SNAPSHOTS_AFTER:
            for name, pipeline in pipelines.items():
                outcome = pipeline.snapshot()
                assert isinstance(outcome, Manifest), outcome
                if batch == BACK_TO:
                    chosen[name] = outcome
    stop(pipelines, queries)
    for name, pipeline in pipelines.items():
        pipeline.restore(str(chosen[name].snapshot))
    queries = start(sessions, pipelines)
    for _ in range(THOUSANDS):
        one_batch(pipelines, queries, 1000)


def make_pipeline(root: Path) -> Pipeline:
    """Make or open a pipeline: a service, a query that adds up, and what that puts out."""
    return Pipeline.create(
        root,
        queries=["sums"],
        services={"source": Source},
        channels=[
            channel("values", VALUE, source="source", targets=["sums"]),
            channel("summed", SUM, source="sums"),
        ],
    )


def start(
    sessions: Mapping[str, SparkSession], pipelines: Mapping[str, Pipeline]
) -> dict[str, StreamingQuery]:
    """Start the query of every pipeline."""
    queries = {}
    for name, pipeline in pipelines.items():
        values = read_channels(sessions[name], pipeline, "sums", "values")
        sums = values.groupBy().agg(functions.sum("v").alias("s"))
        queries[name] = start_query(sums, pipeline, "sums", output_mode="update")
    return queries


def stop(pipelines: Mapping[str, Pipeline], queries: Mapping[str, StreamingQuery]) -> None:
    """Stop the query of every pipeline."""
    for name, pipeline in pipelines.items():
        flows.stop_queries(pipeline, [queries[name]])


def one_batch(
    pipelines: Mapping[str, Pipeline], queries: Mapping[str, StreamingQuery], value: int
) -> None:
    """Let every query run one micro-batch with one record."""
    for pipeline in pipelines.values():
        with join("source", pipeline=pipeline.path, state=Source()) as me:
            me.append("values", pa.table({"v": [value]}, schema=VALUE))
    for query in queries.values():
        query.processAllAvailable()


def read_sums(spark: SparkSession, pipeline: Pipeline) -> dict[str, int]:
    """Return the sum as the state has it, as it was put out, and as the log has it."""
    path = checkpoint_path(pipeline.path, pipeline.epoch, "sums")
    (row,) = spark.read.format("statestore").load(str(path)).collect()
    put_out = flows.records(pipeline, "summed", None, -1)
    values = flows.records(pipeline, "values", None, -1)
    return {
        "state": row["value"]["sum"],
        "put out": put_out[-1]["s"],
        "log": sum(value["v"] for value in values),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
