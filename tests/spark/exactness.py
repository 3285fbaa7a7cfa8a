"""Judges one run of the pipeline of ``flows``: snapshots in every mode while it runs, one restore.

``python -m tests.spark.exactness`` goes through every store, mode and arrangement of partitions,
and so do the tests at night. Their short form is one run with every store, every kind of query and
a snapshot in every mode: its queries keep their states in different stores.
"""

import datetime
import functools
import itertools
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from stillframe.pipeline import Pipeline
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.protocol.aligner import Mode
from stillframe.spark.session import spark_session
from stillframe.storage.location import Location, locate
from tests.spark import flows

TIMEOUT_S = 300.0
WITH_BARRIERS = (Mode.ALIGNED, Mode.UNALIGNED, Mode.AT_LEAST_ONCE)


class Case(msgspec.Struct, frozen=True):
    """A state store, or ``MIXED``; the partition counts of the logs `left` and `right`; the modes
    of the snapshots to go back to, one after the other."""

    store: str
    left: int
    right: int
    restored: tuple[Mode, ...] = WITH_BARRIERS

    def __str__(self) -> str:
        return f"{self.store}-{self.left}-{self.right}"

    def stores(self) -> dict[str, str]:
        """Return the store of each query that there is with it."""
        if self.store == MIXED:
            return MIXED_STORES
        queries = [name for name in MIXED_STORES if name != "totals" or self.store != "hdfs"]
        return dict.fromkeys(queries, self.store)


MIXED = "mixed"
MIXED_STORES = {
    "counts": "rocksdb-changelog",
    "pairs": "rocksdb-format-2",
    "recent": "hdfs",
    "distinct": "rocksdb-changelog-format-2",
    "windows": "hdfs",
    "totals": "rocksdb",
}
"""query -> the store that it has in the short form; ``hdfs`` cannot hold what ``totals`` keeps."""

EVERY_CASE = [
    Case(store, *partitions)
    for store, partitions in itertools.product(flows.STORES, [(1, 3), (3, 1)])
]

SHORT_CASE = Case(MIXED, 1, 3, (Mode.UNALIGNED,))
"""Restores of aligned snapshots are in many other tests, and of one at least once in
``test_barriers``."""


def judge(spark: SparkSession, root: Location, case: Case) -> None:
    """Run, take snapshots, run to the end, go back, run to the end again; judge it all.

    Raises:
        AssertionError: a state or an output is not what it must be.
    """
    stores = case.stores()
    pipeline = flows.make_pipeline(
        root, left=case.left, right=case.right, has_totals="totals" in stores
    )
    taken, turn_count = _run_with_snapshots(spark, pipeline, stores)
    unbroken = flows.outputs(pipeline)
    judge_end(*_inputs(pipeline), unbroken, {})
    for manifest in taken.values():
        judge_states(spark, pipeline, manifest, stores)
    for mode in case.restored:
        chosen = taken[mode]
        pipeline.restore(str(chosen.snapshot))
        queries = flows.start_queries(spark, pipeline, stores)
        flows.feed_up_to(pipeline, turn_count)
        flows.stop_queries(pipeline, queries)
        found = flows.outputs(pipeline)
        judge_end(*_inputs(pipeline), found, duplicate_counts(chosen))
        if mode is not Mode.AT_LEAST_ONCE:
            assert found == unbroken


def _inputs(pipeline: Pipeline) -> tuple[list[Any], list[Any]]:
    left, right = (flows.records(pipeline, log, None, -1) for log in ("left", "right"))
    return left, right


def _run_with_snapshots(
    spark: SparkSession, pipeline: Pipeline, stores: Mapping[str, str]
) -> tuple[dict[Mode, Manifest], int]:
    """Take a snapshot in each mode while records flow, then let everything end."""
    queries = flows.start_queries(spark, pipeline, stores)
    ended = threading.Event()
    turn_counts: list[int] = []

    def go() -> None:
        turn_counts.append(flows.feed_along(pipeline, ended))

    writer = threading.Thread(target=go, daemon=True)
    writer.start()
    taken = {}
    try:
        flows.wait_until(lambda: flows.committed_turns(pipeline) > flows.LAG_MAX)
        for mode in WITH_BARRIERS:
            outcome = pipeline.snapshot(mode, timeout_s=TIMEOUT_S)
            assert isinstance(outcome, Manifest), outcome
            taken[mode] = outcome
    finally:
        ended.set()
        writer.join()
        flows.stop_queries(pipeline, queries)
    return taken, turn_counts[0]


def judge_states(
    spark: SparkSession, pipeline: Pipeline, manifest: Manifest, stores: Mapping[str, str]
) -> None:
    """Compare each query's state at a snapshot with a computation in batch from the logs."""
    for cut in manifest.channels:
        received, sent = sum(cut.received_counts), sum(cut.sent_counts)
        assert received == sent - cut.record_count + cut.duplicate_count
        if manifest.mode is Mode.ALIGNED:
            assert received == sent, f"{cut.log} to {cut.target} should be empty"
        if manifest.mode is not Mode.AT_LEAST_ONCE:
            assert cut.duplicate_count == 0

    def read(query: str, log: str) -> list[dict[str, Any]]:
        end = manifest.fragment(query).positions[log]
        rows = flows.records(pipeline, log, manifest, end)
        (cut,) = (c for c in manifest.channels if (c.target, c.log) == (query, log))
        assert len(rows) == sum(cut.received_counts)
        return rows

    def state(query: str, **options: str) -> list[dict[str, Any]]:
        with flows.configured(spark, stores[query]):
            place = manifest.pinned(pipeline.path, query)
            return flows.state_of(spark, place, manifest.last_batches.get(query), **options)

    end = manifest.fragment("windows").barriers["windowed"]
    closed = flows.records(pipeline, "windowed", manifest, end)
    for query in pipeline.dataflow.queries:
        compare_state(query, read, functools.partial(state, query), closed)


def compare_state(
    query: str,
    read: Callable[[str, str], list[dict[str, Any]]],
    state: Callable[..., list[dict[str, Any]]],
    closed: list[dict[str, Any]],
) -> None:
    """Compare a query's state with a computation from the records that it has read.

    Args:
        query: its name.
        read: returns what a query has read of a channel.
        state: returns the state of the query; it takes options of Spark's format ``statestore``.
        closed: the windows that the query `windows` has put out.
    """
    kept, expected = kept_state(query, state, closed), expected_state(query, read)
    assert kept == expected, f"the state of {query}: {kept}, not {expected}"


def expected_state(query: str, read: Callable[[str, str], list[dict[str, Any]]]) -> Any:
    """Return what the state of a query must be after the records that it has read, and of `windows`
    what it has put out, too; None if it has no state."""
    computations: dict[str, Callable[[], Any]] = {
        "counts": lambda: totals_of(read(query, "left") + read(query, "right")),
        "pairs": lambda: {
            log: Counter((row["k"], row["v"]) for row in read(query, log))
            for log in ("left", "right")
        },
        "distinct": lambda: {row["v"] for row in read(query, "left")},
        "recent": lambda: {row["l"] for row in read(query, "paired")},
        "windows": lambda: windows_of(read(query, "left")),
        "totals": lambda: totals_of(read(query, "right")),
    }
    return computations[query]() if query in computations else None


def kept_state(
    query: str, state: Callable[..., list[dict[str, Any]]], closed: list[dict[str, Any]]
) -> Any:
    """Return the state of a query as ``expected_state`` has it."""
    computations: dict[str, Callable[[], Any]] = {
        "counts": lambda: {(row["k"], row["count"], row["sum"]) for row in state()},
        "pairs": lambda: {
            log: Counter((row["k"], row[column]) for row in state(joinSide=log))
            for log, column in (("left", "l"), ("right", "r"))
        },
        "distinct": lambda: {row["v"] for row in state()},
        "recent": lambda: {row["v"] for row in state()},
        "windows": lambda: _kept_windows(state(), closed),
        "totals": lambda: {(row["k"], row["n"], row["s"]) for row in state(stateVarName="total")},
    }
    return computations[query]() if query in computations else None


def _kept_windows(
    kept: list[dict[str, Any]], put_out: list[dict[str, Any]]
) -> dict[datetime.datetime, int]:
    """Return the windows that are in the state or were put out: none is in both."""
    open_windows = {window["start"]: n for window, n in (row.values() for row in kept)}
    closed = {row["start"].replace(tzinfo=None): row["n"] for row in put_out}
    assert not open_windows.keys() & closed.keys()
    return open_windows | closed


def judge_end(
    left: list[dict[str, Any]],
    right: list[dict[str, Any]],
    found: Mapping[str, Counter[Any]],
    duplicates: Mapping[str, int],
) -> None:
    """Compare what a finished run has put out with a computation in batch from what it has read.

    Args:
        left: the records of that channel.
        right: the records of that one.
        found: what it has put out.
        duplicates: how many records each query received twice.
    """
    if "counted" in found:
        assert found["counted"].total() == len(left) + len(right) + duplicates.get("counts", 0)
    if "seen" in found:
        assert found["seen"] == Counter({(v,): 1 for v in {row["v"] for row in left}})
    if "seen-pairs" in found:
        assert found["seen-pairs"].keys() == {(row[1],) for row in found["paired"]}
        assert set(found["seen-pairs"].values()) == {1}
    if "paired" in found:
        pairs = pairs_of(left, right)
        assert found["paired"].keys() == pairs.keys()
        if not duplicates.get("pairs"):
            assert found["paired"] == pairs
    truth = windows_of(left)
    for start, n in found.get("windowed", ()):
        exact = truth[start.replace(tzinfo=None)]
        assert exact <= n <= exact + duplicates.get("windows", 0)
    if "totalled" in found:
        assert found["totalled"].total() == len(right) + duplicates.get("totals", 0)


def pairs_of(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> Counter[Any]:
    """Return what the query `pairs` puts out of these records."""
    return Counter(
        (row["k"], row["v"], other["v"], row["at"])
        for row in left
        for other in right
        if row["k"] == other["k"]
    )


def duplicate_counts(manifest: Manifest) -> dict[str, int]:
    """Return how many records each query will receive twice after a restore to a snapshot."""
    counts: Counter[str] = Counter()
    for cut in manifest.channels:
        counts[cut.target] += cut.duplicate_count
    return counts


def totals_of(rows: list[dict[str, Any]]) -> set[tuple[int, int, int]]:
    """Return of each key how many records there are, and the sum of their values."""
    counts: Counter[int] = Counter()
    sums: Counter[int] = Counter()
    for row in rows:
        counts[row["k"]] += 1
        sums[row["k"]] += row["v"]
    return {(k, n, sums[k]) for k, n in counts.items()}


def windows_of(rows: list[dict[str, Any]]) -> dict[datetime.datetime, int]:
    """Return the windows of the records that are not late: how many are in each."""
    counts: Counter[datetime.datetime] = Counter()
    for row in rows:
        if row["v"] >= 0:
            at = row["at"].replace(tzinfo=None)
            counts[at - datetime.timedelta(seconds=at.second % 20)] += 1
    return dict(counts)


def main() -> None:
    """Judge every case, one after the other, or the named ones; below an address, or in a directory
    of their own."""
    where, *names = sys.argv[1:] or [""]
    spark = spark_session(app_name="exactness", master="local[2]")
    for case in (one for one in [SHORT_CASE, *EVERY_CASE] if str(one) in names or not names):
        with tempfile.TemporaryDirectory() as directory:
            judge(spark, locate(where or directory) / f"{case}.pipeline", case)
        sys.stdout.write(f"{case}: exact\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
