"""What a driver does on a real cluster, for ``test_cluster``.

It runs the soak's pipeline to its end, with a snapshot on the way (at night in each of two modes),
goes back to it and to the end again. REPORT is one JSON object: which Python the executors have,
and what of the outputs was not as computed.
"""

import concurrent.futures
import json
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline
from stillframe.pipeline.service import join
from stillframe.spark.queries import checkpoint_location
from tests.nightly import by_night
from tests.soak.pipeline_driver import watch
from tests.soak.pipeline_outputs import differences, outputs
from tests.soak.pipeline_shop import (
    FRESH_COUNT,
    QUERIES,
    Books,
    Feed,
    create,
    expected,
    orders_of,
    query_states,
    start_queries,
)
from tests.spark.standalone import cluster_session

ACTION_COUNT = by_night(12, check=6)
MODE_AT = by_night({4: "aligned", 8: "unaligned"}, check={3: "unaligned"})
"""After which action of the feed a snapshot is taken in which mode."""

POLL_S = 0.02


def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say on an executor which Python it has, and what that cannot import."""
    import importlib.util  # noqa: PLC0415 - this function travels alone
    import sys  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    package = importlib.util.find_spec("stillframe")
    for _ in batches:
        yield pa.RecordBatch.from_pydict(
            {
                "prefix": [sys.prefix],
                "has_msgspec": [importlib.util.find_spec("msgspec") is not None],
                "package": [None if package is None else package.origin],
                "place": [str(Path.cwd())],
            }
        )


def books(pipeline: Pipeline, order_count: int) -> None:
    """Be the service ``books`` until it has so many orders."""
    state = Books()
    with join("books", pipeline=pipeline.path, state=state) as me:
        if state.is_done(order_count):
            return
        for channel, table in me:
            if channel == "unique":
                state.book(table)
            else:
                me.append("payments", state.pay(table))
            if state.is_done(order_count):
                return


def run(spark: SparkSession, pipeline: Pipeline) -> list[str]:
    """Run the pipeline to its end; return the ids of the snapshots taken on the way."""
    queries = start_queries(spark, pipeline)
    stopping = threading.Event()
    for query in queries:
        threading.Thread(target=watch, args=(query, stopping), daemon=True).start()
    taken = []
    state = Feed()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        booking = pool.submit(books, pipeline, ACTION_COUNT * FRESH_COUNT)
        with join("feed", pipeline=pipeline.path, state=state) as me:
            while state.actions < ACTION_COUNT:
                me.append("orders", orders_of(state.actions))
                state.actions += 1
                me.boundary()
                if pipeline.epoch == 1 and state.actions in MODE_AT:
                    asked = pool.submit(pipeline.snapshot, MODE_AT[state.actions])
                    while not concurrent.futures.wait([asked], timeout=POLL_S).done:
                        me.boundary()
                    outcome = asked.result()
                    assert not isinstance(outcome, Abandoned), str(outcome)
                    taken.append(str(outcome.snapshot))
        booking.result()
    for query in queries:
        query.processAllAvailable()
    stopping.set()
    for query in queries:
        query.stop()
    return taken


def wrong(spark: SparkSession, pipeline: Pipeline) -> list[str]:
    """Return what of the outputs is not as computed from the input."""
    report = pipeline.path.with_name("states.json")
    checkpoints = {name: checkpoint_location(pipeline, name) for name in QUERIES}
    report.write_text(json.dumps(query_states(spark, checkpoints)))
    return differences(outputs(pipeline, report), expected(ACTION_COUNT))


def main(directory: str, cluster: str, report: str) -> None:
    """Run on a cluster and write down what there was to see."""
    root = Path(directory)
    spark = cluster_session(cluster)
    pipeline = create(root)
    taken = run(spark, pipeline)
    found = {"at first": wrong(spark, pipeline)}
    for snapshot in taken:
        pipeline.restore(snapshot)
        run(spark, pipeline)
        found[f"after going back to {snapshot}"] = wrong(spark, pipeline)
    schema = "prefix string, has_msgspec boolean, package string, place string"
    rows = spark.range(0, 40, 1, 40).mapInArrow(look, schema).distinct().collect()
    Path(report).write_text(
        json.dumps({"executors": [row.asDict() for row in rows], "wrong": found})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
