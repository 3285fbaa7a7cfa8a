"""A small pipeline with a query of every stateful kind, and what its states must be.

    feed -> left, right    left, right -> counts (both channels in one source)
                           left + right -> pairs (two sources) -> paired -> recent (a chain)
                           left -> distinct      left -> windows       right -> totals

The records of a turn of `feed` follow from its number alone, so a run that was taken back sends the
same ones again. Every turn from the second on has a record that is an hour late: a watermark that
was lost would let it in.
"""

import contextlib
import datetime
import functools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from stillframe.pipeline import Pipeline, channel, checkpoint
from stillframe.pipeline.locks import is_running, poll_s
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.pending_snapshot import pending_request
from stillframe.pipeline.query_runs import current_run
from stillframe.pipeline.service import JoinedService, join
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.spark.queries import read_channels, start_query
from stillframe.spark.session import checkpoint_address
from stillframe.storage.location import Location
from stillframe.storage.reading import read_file

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
EVENT = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
COUNTED = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("s", pa.int64())])
KEYS = pa.schema([("v", pa.int64())])
PAIR = pa.schema([("k", pa.int64()), ("l", pa.int64()), ("r", pa.int64()), EVENT.field("at")])
WINDOW = pa.schema([("start", pa.timestamp("us", "UTC")), ("n", pa.int64())])
ROWS_PER_TURN = 4
LAG_MAX = 8
"""How many turns the feed may be ahead of the query `counts`."""

STORES = {
    "hdfs": ("HDFSBackedStateStoreProvider", False, 1),
    "rocksdb": ("RocksDBStateStoreProvider", False, 1),
    "rocksdb-changelog": ("RocksDBStateStoreProvider", True, 1),
    "rocksdb-format-2": ("RocksDBStateStoreProvider", False, 2),
    "rocksdb-changelog-format-2": ("RocksDBStateStoreProvider", True, 2),
}
"""name -> state store provider, changelog checkpointing, checkpoint format version."""


@dataclass
class Feed:
    """The state of the service that writes: the turns that it has taken."""

    turn: int = 0


def events(side: str, turn: int) -> pa.Table:
    """Return the records that a turn appends to `left` or `right`."""
    first = turn * ROWS_PER_TURN
    rows = [
        {"k": (i if side == "left" else i * 3) % 40, "v": i // 2, "at": _at(turn)}
        for i in range(first, first + ROWS_PER_TURN)
    ]
    if turn > 0:
        rows.append({"k": 0, "v": -turn, "at": _at(turn) - datetime.timedelta(hours=1)})
    return pa.Table.from_pylist(rows, schema=EVENT)


def _at(turn: int) -> datetime.datetime:
    return NOON + datetime.timedelta(hours=2, seconds=10 * turn)


def totals_processor() -> StatefulProcessor:
    """Return what counts and sums by key in a value state; its class travels by value."""

    class Totals(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._total = handle.getValueState("total", "n long, s long")

        def handleInputRows(  # noqa: N802 - Spark's
            self,
            key: Any,
            rows: Iterator[pd.DataFrame],
            timerValues: Any,  # noqa: N803 - Spark's
        ) -> Iterator[pd.DataFrame]:
            n, s = self._total.get() or (0, 0)
            for frame in rows:
                n, s = n + len(frame), s + int(frame["v"].sum())
            self._total.update((n, s))
            yield pd.DataFrame({"k": [key[0]], "n": [n], "s": [s]})

        def close(self) -> None:
            pass

    return Totals()


def make_pipeline(root: Location, *, left: int, right: int, has_totals: bool) -> Pipeline:
    """Make the pipeline; `left` and `right` are the partition counts of those logs."""
    totals = ["totals"] if has_totals else []
    ends = [channel("totalled", COUNTED, source="totals")] if has_totals else []
    return Pipeline.create(
        root,
        queries=["counts", "pairs", "recent", "distinct", "windows", *totals],
        services={"feed": Feed},
        channels=[
            channel(
                "left",
                EVENT,
                source="feed",
                targets=["counts", "pairs", "distinct", "windows"],
                partition_count=left,
            ),
            channel(
                "right",
                EVENT,
                source="feed",
                targets=["counts", "pairs", *totals],
                partition_count=right,
                key=["k"],
            ),
            channel("paired", PAIR, source="pairs", targets=["recent"], partition_count=right),
            channel("counted", COUNTED, source="counts"),
            channel("seen", KEYS, source="distinct"),
            channel("seen-pairs", KEYS, source="recent"),
            channel("windowed", WINDOW, source="windows", partition_count=left),
            *ends,
        ],
    )


def settings_of(store: str) -> dict[str, str]:
    """Return the settings of a session whose new queries keep their state in `store`."""
    provider, has_changelog, version = STORES[store]
    prefix = "spark.sql.streaming.stateStore"
    return {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        f"{prefix}.providerClass": f"org.apache.spark.sql.execution.streaming.state.{provider}",
        f"{prefix}.rocksdb.changelogCheckpointing.enabled": str(has_changelog).lower(),
        f"{prefix}.checkpointFormatVersion": str(version),
        f"{prefix}.minDeltasForSnapshot": "5",
    }


def configure(spark: SparkSession, store: str) -> SparkSession:
    """Return a session of its own whose new queries keep their state in `store`. Spark lets it know
    our sources only if `spark` itself has not been told of them."""
    session = spark.newSession()
    for name, value in settings_of(store).items():
        session.conf.set(name, value)
    return session


@contextlib.contextmanager
def configured(spark: SparkSession, store: str) -> Iterator[None]:
    """Let new queries of a session keep their state in `store` while the body runs."""
    settings = settings_of(store)
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def start_queries(
    spark: SparkSession, pipeline: Pipeline, stores: Mapping[str, str]
) -> list[StreamingQuery]:
    """Start every query of the pipeline; `stores` names where each keeps its state."""
    read = functools.partial(read_channels, spark, pipeline)
    started = []
    for query in ("counts", "pairs", "recent", "distinct", "windows", "totals"):
        if query in pipeline.dataflow.queries:
            frame, mode = computation(query, read)
            with configured(spark, stores[query]):
                started.append(start_query(frame, pipeline, query, output_mode=mode))
    return started


def computation(query: str, read: Callable[..., DataFrame]) -> tuple[DataFrame, str]:
    """Return what a query computes, and its output mode. `read` takes the query and the names of
    channels, and returns their records."""
    count = functions.count("*").alias("n")
    if query == "counts":
        both = read(query, "left", "right").groupBy("k")
        return both.agg(count, functions.sum("v").alias("s")), "update"
    if query == "pairs":
        left = read(query, "left").selectExpr("k", "v as l", "at")
        right = read(query, "right").selectExpr("k", "v as r")
        return left.join(right, "k").select("k", "l", "r", "at"), "append"
    if query == "recent":
        paired = read(query, "paired").withWatermark("at", "1 day").selectExpr("l as v", "at")
        return paired.dropDuplicatesWithinWatermark(["v"]).select("v"), "append"
    if query == "distinct":
        return read(query, "left").select("v").dropDuplicates(["v"]), "append"
    if query == "windows":
        timed = read(query, "left").withWatermark("at", "10 seconds")
        windows = timed.groupBy(functions.window("at", "20 seconds").alias("w")).agg(count)
        return windows.select("w.start", "n"), "append"
    assert query == "totals"
    totals = read(query, "right").groupBy("k")
    frame = totals.transformWithStateInPandas(
        totals_processor(), "k long, n long, s long", "Update", "None"
    )
    return frame, "update"


def stop_queries(pipeline: Pipeline, queries: list[StreamingQuery]) -> None:
    """Let every query finish what is there, stop it, and wait until its lock is free.

    Twice, because the last ones read what the first ones write.
    """
    for query in (*queries, *queries):
        query.processAllAvailable()
    for query in queries:
        query.stop()
    wait_until(lambda: not any(is_running(pipeline.path, q) for q in pipeline.dataflow.queries))


def wait_until(is_true: Callable[[], bool], timeout_s: float = 300.0) -> None:
    """Wait for a condition that the file system shows."""
    pause = threading.Event()
    until = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < until, f"nothing came in {timeout_s} seconds"
        pause.wait(0.02)


def committed_turns(pipeline: Pipeline) -> int:
    """Return how many items of `left` the query `counts` has accounted for."""
    path = current_run(pipeline.path, pipeline.epoch, "counts").checkpoint
    found = checkpoint.last_committed(path)
    return 0 if found is None else found.positions["left"]


def can_be_late(pipeline: Pipeline) -> bool:
    """Return whether the query `windows` drops late records from its next micro-batch on.

    Spark compares them with the watermark that the micro-batch before had.
    """
    path = current_run(pipeline.path, pipeline.epoch, "windows").checkpoint
    found = checkpoint.last_committed(path)
    if found is None:
        return False
    plan = read_file(path / "offsets" / str(found.batch), bytes_max=2**20).decode().split("\n")
    return int(json.loads(plan[1])["batchWatermarkMs"]) > 0


def feed_along(pipeline: Pipeline, ended: threading.Event) -> int:
    """Append turns, a little ahead of the queries and right behind each barrier, until `ended`.

    Returns:
        the number of turns taken since the pipeline was made.
    """
    state = Feed()
    seen = None
    with join("feed", pipeline=pipeline.path, state=state) as me:
        while not ended.is_set():
            request = pending_request(pipeline.path)
            me.boundary()
            is_waiting = state.turn > 0 and (
                state.turn - committed_turns(pipeline) >= LAG_MAX or not can_be_late(pipeline)
            )
            if request is not None and request.snapshot != seen:
                seen = request.snapshot
                _take_turn(me, state)
            elif is_waiting:
                ended.wait(poll_s(pipeline.path))
            else:
                _take_turn(me, state)
    return state.turn


def feed_up_to(pipeline: Pipeline, turn_count: int) -> None:
    """Append the turns that are missing, from where the service stands."""
    state = Feed()
    with join("feed", pipeline=pipeline.path, state=state) as me:
        assert state.turn < turn_count, "nothing is left to do after the restore"
        while state.turn < turn_count:
            _take_turn(me, state)
            me.boundary()


def _take_turn(me: JoinedService, state: Feed) -> None:
    me.append("left", events("left", state.turn))
    me.append("right", events("right", state.turn))
    state.turn += 1


def records(pipeline: Pipeline, log: str, manifest: Manifest | None, end: int) -> list[Any]:
    """Return the records of a log before entry `end`, on the timeline of `manifest` or now."""
    head = read_metadata(pipeline.path)
    segments = head.segments if manifest is None else manifest.segments
    reader = LogReader(pipeline.path, pipeline.dataflow.log(log), segments[log])
    end = reader.tail(0) if end < 0 else end
    return [row for item in reader.entries(0, end) for row in reader.table(item).to_pylist()]


def outputs(pipeline: Pipeline) -> dict[str, Counter[Any]]:
    """Return what the ends of the pipeline hold: of running counts the last of each key."""
    return {
        log.name: output(log.name, records(pipeline, log.name, None, -1))
        for log in pipeline.dataflow.logs
        if log.name not in ("left", "right")
    }


def output(channel: str, rows: list[Any]) -> Counter[Any]:
    """Return the records at an end of the pipeline: of running counts the last of each key."""
    if channel not in ("counted", "totalled"):
        return Counter(tuple(row.values()) for row in rows)
    found: Counter[Any] = Counter()
    for row in rows:
        found[row["k"]] = max(found[row["k"]], row["n"])
    return found


def state_of(
    spark: SparkSession, checkpoint: Location, batch: int | None, **options: str
) -> list[dict[str, Any]]:
    """Return a query's state after a micro-batch, if there is one, read by Spark: a row's key and
    value columns in one."""
    if batch is None:
        return []
    path = checkpoint_address(checkpoint)
    reader = spark.read.format("statestore").option("batchId", batch).options(**options)
    rows = reader.load(path).select("key", "value").collect()
    return [_columns(row["key"]) | _columns(row["value"]) for row in rows]


def _columns(row: Any) -> dict[str, Any]:
    return {} if row is None else dict(row.asDict(recursive=True))
