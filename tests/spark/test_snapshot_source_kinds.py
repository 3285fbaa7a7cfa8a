"""Query states of a join and of ``transformWithState`` at a snapshot, in both state stores."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession, functions
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import verify_files
from stillframe.spark import diff, query_state, read_channels, start_query

EVENT = pa.schema([("k", pa.int64()), ("v", pa.int64())])
PAIR = pa.schema([("k", pa.int64()), ("l", pa.int64()), ("r", pa.int64())])
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
STORES = "org.apache.spark.sql.execution.streaming.state"


@dataclass
class Feed:
    """The state of a service that remembers nothing."""


def totals_processor() -> StatefulProcessor:
    """Return what keeps by key a sum and, in a map, counts; its class travels by value."""

    class Totals(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._total = handle.getValueState("total", "s long")
            self._seen = handle.getMapState("seen", "v long", "n long")

        def handleInputRows(  # noqa: N802 - Spark's
            self,
            key: Any,
            rows: Iterator[Row],
            timerValues: Any,  # noqa: N803 - Spark's
        ) -> Iterator[Row]:
            (total,) = self._total.get() or (0,)
            for row in rows:
                total += row.v
                (count,) = self._seen.getValue((row.v,)) or (0,)
                self._seen.updateValue((row.v,), (count + 1,))
            self._total.update((total,))
            yield Row(k=key[0], v=total)

        def close(self) -> None:
            pass

    return Totals()


def feed(pipeline: Pipeline, left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    """Append records to both logs."""
    with join("feed", pipeline=pipeline.path, state=Feed()) as me:
        for log, pairs in (("left", left), ("right", right)):
            me.append(log, pa.table(list(zip(*pairs, strict=True)), schema=EVENT))
        me.boundary()


def start_all(spark: SparkSession, pipeline: Pipeline) -> None:
    """Let both queries work off what is there: the join in Spark's usual state store, the other in
    RocksDB, without which there is no ``transformWithState``."""

    def run(frame: DataFrame, query: str, store: str, mode: str) -> None:
        spark.conf.set(PROVIDER, f"{STORES}.{store}StateStoreProvider")
        trigger: Mapping[str, Any] = {"availableNow": True}
        start_query(frame, pipeline, query, output_mode=mode, trigger=trigger).awaitTermination()

    left = read_channels(spark, pipeline, "pairs", "left").selectExpr("k", "v AS l")
    right = read_channels(spark, pipeline, "pairs", "right").selectExpr("k AS rk", "v AS r")
    pairs = left.join(right, left.k == right.rk).select("k", "l", "r")
    totals = read_channels(spark, pipeline, "totals", "left").groupBy("k")
    summed = totals.transformWithState(totals_processor(), "k long, v long", "Update", "None")
    try:
        run(pairs, "pairs", "HDFSBacked", "append")
        run(summed, "totals", "RocksDB", "update")
    finally:
        spark.conf.unset(PROVIDER)


@pytest.fixture(scope="module")
def kinds(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A pipeline at rest with savepoints before and after a second round of records."""
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    pipeline = Pipeline.create(
        tmp_path_factory.mktemp("pipelines") / "kinds",
        queries=["pairs", "totals"],
        services={"feed": Feed},
        channels=[
            channel("left", EVENT, source="feed", targets=["pairs", "totals"]),
            channel("right", EVENT, source="feed", targets=["pairs"]),
            channel("paired", PAIR, source="pairs"),
            channel("summed", EVENT, source="totals"),
        ],
    )
    feed(pipeline, [(1, 10), (1, 11), (2, 20)], [(1, 7)])
    start_all(spark, pipeline)
    assert not isinstance(pipeline.savepoint("first", "unaligned"), Abandoned)
    feed(pipeline, [(1, 12), (2, 20)], [(3, 9)])
    start_all(spark, pipeline)
    assert not isinstance(pipeline.savepoint("second", "unaligned"), Abandoned)
    return pipeline


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return columns of a small table, sorted."""
    return sorted(tuple(row) for row in frame.select(*columns).collect())


@pytest.mark.spark
@pytest.mark.slow
def test_each_side_of_a_join_is_read(spark: SparkSession, kinds: Pipeline) -> None:
    """All records of a side, several of a key; and what came to it between two snapshots."""
    left = query_state(spark, kinds, "first", "pairs", joinSide="left")
    assert rows(left, "value.k", "value.l") == [(1, 10), (1, 11), (2, 20)]
    right = query_state(spark, kinds, "second", "pairs", joinSide="right")
    assert rows(right, "value.rk", "value.r") == [(1, 7), (3, 9)]
    came = diff(spark, kinds, "first", "second", "pairs", joinSide="left")
    assert rows(came, "change", "after.k", "after.l") == [("added", 1, 12), ("added", 2, 20)]
    verify_files(kinds.path, kinds.find("first"), lambda size: None)


@pytest.mark.spark
@pytest.mark.slow
def test_the_variables_of_transform_with_state_are_read(
    spark: SparkSession, kinds: Pipeline
) -> None:
    """Each state variable by its name: a value, and a map with a row per entry."""
    first = query_state(spark, kinds, "first", "totals", stateVarName="total")
    assert rows(first, "key.k", "value.s") == [(1, 21), (2, 20)]
    changed = diff(spark, kinds, "first", "second", "totals", stateVarName="total")
    expected = [("changed", 1, 21, 33), ("changed", 2, 20, 40)]
    assert rows(changed, "change", "key.k", "before.s", "after.s") == expected
    entries = diff(spark, kinds, "first", "second", "totals", stateVarName="seen")
    found = rows(entries, "change", "key.k", "user_map_key.v", "after.n")
    assert found == [("added", 1, 12, 1), ("changed", 2, 20, 2)]
    verify_files(kinds.path, kinds.find("second"), lambda size: None)


@pytest.mark.spark
@pytest.mark.slow
def test_operators_are_counted_from_the_sink(spark: SparkSession, tmp_path: Path) -> None:
    """Of a query that counts after it has removed duplicates, 0 is the count."""
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    pipeline = Pipeline.create(
        tmp_path / "distinct",
        queries=["distinct"],
        services={"feed": Feed},
        channels=[
            channel("left", EVENT, source="feed", targets=["distinct"]),
            channel("right", EVENT, source="feed"),
            channel("counted", EVENT, source="distinct"),
        ],
    )
    feed(pipeline, [(1, 10), (1, 10), (1, 11), (2, 20)], [(1, 7)])
    distinct = read_channels(spark, pipeline, "distinct", "left").dropDuplicates(["k", "v"])
    counts = distinct.groupBy("k").agg(functions.count("v").alias("v"))
    trigger = {"availableNow": True}
    start_query(
        counts, pipeline, "distinct", output_mode="update", trigger=trigger
    ).awaitTermination()
    assert not isinstance(pipeline.savepoint("all", "unaligned"), Abandoned)
    last = query_state(spark, pipeline, "all", "distinct")
    assert rows(last, "key.k", "value.count") == [(1, 2), (2, 1)]
    first = query_state(spark, pipeline, "all", "distinct", operator=1)
    assert rows(first, "key.k", "key.v") == [(1, 10), (1, 11), (2, 20)]


@pytest.mark.slow
def test_the_package_is_imported_without_pyspark() -> None:
    """Names that need PySpark say so when they are asked for, not before."""
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import stillframe.spark as s; from stillframe.errors import Unavailable\n"
        "try: s.query_state\n"
        "except Unavailable as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert "pip install 'stillframe[spark]'" in done.stdout
