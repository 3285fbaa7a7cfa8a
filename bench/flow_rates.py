"""Records per second: our source beside Spark's own, and a query with and without snapshots."""

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from bench.flows import RECORDS, Feed, Feeding, directory, records, running, show
from bench.measure import median
from stillframe.pipeline import Pipeline, channel, checkpoint
from stillframe.pipeline.metadata import checkpoint_path
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.spark.queries import read_channels, start_query

SUMS = pa.schema([("key", pa.int64()), ("count", pa.int64()), ("amount", pa.float64())])
SOURCE_RECORDS = 10_000_000
SOURCE_ITEM_RECORDS = 100_000
SOURCE_BATCH_ITEMS = 10
SOURCE_ROUND_COUNT = 5
COST_WINDOW_S = 6.0
COST_ROUND_COUNT = 9
COST_ITEM_RECORDS = 50_000
COST_LEAD_ITEMS = 12


def sums(frame: DataFrame) -> DataFrame:
    """Count and add up by key."""
    counted = frame.groupBy("key").agg(F.count("*").alias("count"), F.sum("amount").alias("amount"))
    return counted.select("key", "count", "amount")


def measure_source(spark: SparkSession) -> None:
    """Compare our source with Spark's own Parquet file source, on the same files."""
    with directory() as at:
        pipeline = Pipeline.create(
            at / "source",
            queries=["reader"],
            services={"feed": Feed},
            channels=[channel("in", RECORDS, source="feed", targets=["reader"], partition_count=2)],
        )
        with pipeline.join_service("feed", state=Feed()) as me:
            for seed in range(SOURCE_RECORDS // SOURCE_ITEM_RECORDS):
                me.append("in", records(SOURCE_ITEM_RECORDS, seed))

        def count(frame: DataFrame) -> DataFrame:
            return frame.agg(F.count("*").alias("count"), F.sum("amount"), F.max("name"))

        def files() -> list[Done]:
            done: list[Done] = []
            place = at / "files"
            shutil.rmtree(place, ignore_errors=True)
            reader = spark.readStream.schema("key LONG, amount DOUBLE, name STRING").option(
                "maxFilesPerTrigger", 2 * SOURCE_BATCH_ITEMS
            )
            frame = reader.parquet(str(pipeline.path / "channels/in/epoch-1/data"))
            query = (
                frame.writeStream.foreachBatch(
                    lambda batch, _: done.append(Done(count(batch).collect()[0][0]))
                )
                .option("checkpointLocation", str(place))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            return done

        def ours() -> list[Done]:
            done: list[Done] = []
            shutil.rmtree(pipeline.path / "checkpoints", ignore_errors=True)
            batch_records = SOURCE_BATCH_ITEMS * SOURCE_ITEM_RECORDS
            query = start_query(
                read_channels(spark, pipeline, "reader", "in", rows_max=batch_records),
                pipeline,
                "reader",
                trigger={"availableNow": True},
                each_batch=lambda batch, _: done.append(Done(count(batch).collect()[0][0])),
            )
            query.awaitTermination()
            return done

        rates = _take_turns({"Parquet file source": files, "stillframe": ours})
    ratio = _ratio(rates["stillframe"], rates["Parquet file source"])
    show(
        f"source: {SOURCE_RECORDS:,} records in micro-batches of a million, same files, from the "
        f"end of the first one on, median of {SOURCE_ROUND_COUNT} rounds",
        ["way", "records /s", "of Spark's own"],
        [
            ["Parquet file source", f"{median(rates['Parquet file source']):,.0f}", ""],
            ["stillframe", f"{median(rates['stillframe']):,.0f}", f"{ratio:.0%} (wanted 80%)"],
        ],
    )


@dataclass(frozen=True)
class Done:
    """A micro-batch that was read: so many records, and when it was done, in seconds."""

    record_count: int
    at_s: float = field(default_factory=time.monotonic)


def _take_turns(ways: dict[str, Callable[[], list[Done]]]) -> dict[str, list[float]]:
    """Return records per second of each way, round by round: from the end of the first micro-batch,
    so that the start of the query does not count, to that of the last."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(SOURCE_ROUND_COUNT + 1):
        for name, way in ways.items():
            first, *others = way()
            found = first.record_count + sum(done.record_count for done in others)
            if found != SOURCE_RECORDS:
                raise RuntimeError(f"{name} read {found} records of {SOURCE_RECORDS}")
            if round_number:  # the first one warms up
                rate = (found - first.record_count) / (others[-1].at_s - first.at_s)
                rates[name].append(rate)
    return rates


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the median of the ratios of neighbours."""
    return median([one / other for one, other in zip(ours, theirs, strict=True)])


def one_query(at: Path) -> Pipeline:
    """Make a pipeline of a feeding service and a query that counts by key."""
    return Pipeline.create(
        at / "cost",
        queries=["sums"],
        services={"feed": Feed},
        channels=[
            channel("in", RECORDS, source="feed", targets=["sums"], partition_count=2),
            channel("out", SUMS, source="sums"),
        ],
    )


def measure_cost(spark: SparkSession) -> None:
    """Compare the throughput of a stateful query without and with a snapshot every second."""
    modes = ("none", "aligned", "unaligned")
    rates: dict[str, list[float]] = {mode: [] for mode in modes}
    counts = dict.fromkeys(modes, 0)
    with directory() as at:
        pipeline = one_query(at)
        done = [0]

        frame = read_channels(
            spark, pipeline, "sums", "in", rows_max=COST_LEAD_ITEMS // 2 * COST_ITEM_RECORDS
        )
        query = start_query(sums(frame), pipeline, "sums", output_mode="update")

        def read_items() -> int:
            found = checkpoint.last_committed(checkpoint_path(pipeline.path, 1, "sums"))
            return 0 if found is None else found.positions["in"]

        def has_room(item_count: int) -> bool:
            if item_count - done[0] >= COST_LEAD_ITEMS:
                done[0] = read_items()
            return item_count - done[0] < COST_LEAD_ITEMS

        with running(query), Feeding(pipeline, has_room, records(COST_ITEM_RECORDS, 1)):
            while read_items() < 4 * COST_LEAD_ITEMS:
                time.sleep(0.05)
            for _ in range(COST_ROUND_COUNT):
                for mode in modes:
                    rate, count = _window(pipeline, mode, read_items)
                    rates[mode].append(rate)
                    counts[mode] += count
        rows = [
            [
                mode,
                f"{median(rates[mode]):,.0f}",
                f"{counts[mode] / (COST_ROUND_COUNT * COST_WINDOW_S):.2f}",
                "" if mode == "none" else f"{_ratio(rates[mode], rates['none']):.2f} (wanted 0.97)",
            ]
            for mode in modes
        ]
    show(
        f"cost: a stateful query with all the work it can do, median of {COST_ROUND_COUNT} windows",
        ["a snapshot every second", "records /s", "snapshots /s", "of none"],
        rows,
    )


def _window(pipeline: Pipeline, mode: str, read_items: Callable[[], int]) -> tuple[float, int]:
    """Return records per second over one window, and how many snapshots were published in it."""
    outcomes: list[object] = []
    with contextlib.ExitStack() as stack:
        if mode != "none":
            stack.enter_context(
                pipeline.snapshot_every(1.0, mode=mode, keep=3, happened=outcomes.append)
            )
        before, began = read_items(), time.monotonic()
        time.sleep(COST_WINDOW_S)
        # To the end of a micro-batch, so that none is counted by halves.
        last = read_items()
        while (now := read_items()) == last:
            time.sleep(0.001)
        rate = (now - before) * COST_ITEM_RECORDS / (time.monotonic() - began)
    return rate, sum(isinstance(outcome, Manifest) for outcome in outcomes)
