"""Deadlock in the wait-for graphs of many snapshots at once, as DataFrames.

For thousands of graphs: each task takes complete snapshots, one after the other, and evaluates each
in plain arrays (``detect.wait_for_graph``, linear in the waits). From a graph that is too large for
a task, rounds of joins first remove the processes that can proceed, until the rest fits. Tasks
need no more than Arrow and numpy.
"""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_schema

from stillframe.detect.wait_for_graph import (
    Graph,
    blocked_for_ever,
    deadlock_text,
    ring_text,
    rings,
)
from stillframe.errors import UsageError
from stillframe.spark.session import add_package

WAITS_SCHEMA = (
    "snapshot STRING, "  # P1-17
    "process STRING, "  # that is blocked
    "waits_for STRING, "  # another; a row for each that nothing is in transit from
    "needs_all BOOLEAN"  # whether it needs a message from each of them, or from any
)
_NAMES = pa.list_(pa.string())
DEADLOCKS_SCHEMA = pa.schema(
    [
        ("snapshot", pa.string()),
        ("processes", _NAMES),  # all that are deadlocked, sorted
        ("rings", pa.list_(pa.struct([("processes", _NAMES), ("is_cycle", pa.bool_())]))),
        ("sentence", pa.string()),  # the same for people
    ]
)
WAIT_COUNT_MAX = 2_000_000
"""How many waits of one snapshot one task evaluates; it needs up to 1 kB of memory for each."""
ROUND_COUNT_MAX = 50
"""How many rounds are made over a graph that does not fit into one task."""

_TASKS_PER_CORE = 4


def deadlocks(
    waits: DataFrame, *, wait_count_max: int = WAIT_COUNT_MAX, known_count_max: int | None = None
) -> DataFrame:
    """Return a row (`DEADLOCKS_SCHEMA`) for each snapshot in which processes are deadlocked.

    Its sentences are those of ``detect.predicate``. A first job counts the waits of each snapshot,
    and of one that has too many the rounds run as well, before this returns.

    Args:
        waits: `WAITS_SCHEMA`; a process without a row in a snapshot is not blocked in it.
        wait_count_max: how many waits of one snapshot one task can take.
        known_count_max: how many there are of any snapshot at most, if that is known: if they fit,
            they are not counted.

    Raises:
        UsageError: columns are missing; or of one snapshot more waits are left than a task takes
            after all rounds.
    """
    columns = [column.split() for column in WAITS_SCHEMA.split(", ")]
    missing = [name for name, _ in columns if name not in waits.columns]
    if missing:
        raise UsageError(
            f"the waits lack the column {missing[0]}; they have {', '.join(waits.columns)}: pass "
            f"them as {WAITS_SCHEMA}"
        )
    add_package(waits.sparkSession)
    waits = waits.select(*(F.col(name).cast(kind).alias(name) for name, kind in columns))
    if known_count_max is not None and known_count_max <= wait_count_max:
        return _deadlocks_in(waits)
    large = list(_counts(waits, above=wait_count_max))
    if not large:
        return _deadlocks_in(waits)
    is_large = F.col("snapshot").isin(large)
    left = _without_free(waits.where(is_large), wait_count_max)
    return _deadlocks_in(waits.where(~is_large).unionByName(left))


def _counts(waits: DataFrame, *, above: int) -> dict[str, int]:
    """Return the snapshots with more waits than that, and how many they have."""
    counts = waits.groupBy("snapshot").count().where(F.col("count") > above)
    return {row["snapshot"]: row["count"] for row in counts.collect()}


def _without_free(waits: DataFrame, wait_count_max: int) -> DataFrame:
    """Return the waits of the processes not known to proceed, few enough for one task."""
    counts = _counts(waits, above=0)
    for _ in range(ROUND_COUNT_MAX):
        waits = _after_round(waits).localCheckpoint()
        before, counts = counts, _counts(waits, above=0)
        if counts == before or max(counts.values(), default=0) <= wait_count_max:
            break
    for snapshot, count in counts.items():
        if count > wait_count_max:
            raise UsageError(
                f"snapshot {snapshot} has {count:,} unresolved waits, more than the "
                f"{wait_count_max:,} that one task takes: raise wait_count_max, and give tasks 1 "
                "kB of memory per wait"
            )
    return waits


def _after_round(waits: DataFrame) -> DataFrame:
    """Return the waits without those of processes that can proceed: others are not blocked."""
    keys = ["snapshot", "process"]
    blocked = waits.select("snapshot", F.col("process").alias("waits_for")).distinct()
    is_blocked = blocked.withColumn("is_blocked", F.lit(True))  # noqa: FBT003 - a value
    free = (
        waits.join(is_blocked, ["snapshot", "waits_for"], "left")
        .groupBy(*keys)
        .agg(
            F.first("needs_all").alias("needs_all"),
            F.count("is_blocked").alias("blocked_count"),
            F.count("*").alias("count"),
        )
        .where(
            F.when(F.col("needs_all"), F.col("blocked_count") == 0).otherwise(
                F.col("blocked_count") < F.col("count")
            )
        )
    )
    return waits.join(free.select(*keys), keys, "left_anti")


def _deadlocks_in(waits: DataFrame) -> DataFrame:
    task_count = _TASKS_PER_CORE * waits.sparkSession.sparkContext.defaultParallelism
    together = waits.repartition(task_count, "snapshot").groupBy("snapshot")
    return together.applyInArrow(_deadlock, from_arrow_schema(DEADLOCKS_SCHEMA))


def _deadlock(waits: pa.Table) -> pa.Table:
    """Return a row of `DEADLOCKS_SCHEMA` for a snapshot, or none."""
    snapshot = waits.column("snapshot")[0].as_py()
    names, graph = _numbered(snapshot, waits)
    blocked = blocked_for_ever(graph)
    if not any(blocked):
        return DEADLOCKS_SCHEMA.empty_table()
    found, texts = [], []
    among: set[int] = set()
    for ring in rings(graph, blocked):
        processes = [names[number] for number in ring.processes]
        found.append({"processes": processes, "is_cycle": ring.is_cycle})
        texts.append(ring_text(processes, None if ring.is_cycle else _words(names, graph, ring[0])))
        among.update(ring.processes)
    deadlocked = [number for number, is_blocked in enumerate(blocked) if is_blocked]
    behind = [names[number] for number in deadlocked if number not in among]
    row = {
        "snapshot": snapshot,
        "processes": [names[number] for number in deadlocked],
        "rings": found,
        "sentence": deadlock_text(texts, behind),
    }
    return pa.Table.from_pylist([row], schema=DEADLOCKS_SCHEMA)


def _words(names: list[str], graph: Graph, processes: list[int]) -> dict[str, str]:
    """Return in words which processes each waits for, as ``Waiting`` does."""
    return {
        names[number]: (" and " if graph.needs_all[number] else " or ").join(
            names[target] for target in graph.targets[number]
        )
        for number in processes
    }


def _numbered(snapshot: str, waits: pa.Table) -> tuple[list[str], Graph]:
    """Return the names in a snapshot, sorted, and its graph; refuse waits that contradict."""
    if any(column.null_count for column in waits.columns):
        raise UsageError(f"a wait of snapshot {snapshot} has a null: give {WAITS_SCHEMA}")
    ends = pa.chunked_array(waits.column("process").chunks + waits.column("waits_for").chunks)
    encoded = ends.combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    count = len(order)
    rank = np.empty(count, np.int64)
    rank[order.to_numpy()] = np.arange(count)
    sources, targets = np.split(rank[encoded.indices.to_numpy()], 2)
    needs_all = np.zeros(count, np.bool_)
    stated = waits.column("needs_all").to_numpy()
    needs_all[sources] = stated
    names = encoded.dictionary.take(order).to_pylist()
    wrong = np.flatnonzero(needs_all[sources] != stated)
    if len(wrong):
        raise UsageError(
            f"process {names[sources[wrong[0]]]} of snapshot {snapshot} waits for all in one row "
            "and for any in another: use the same needs_all in all its rows"
        )
    edges = np.unique(sources * count + targets)
    flat = (edges % count).tolist()
    ends_at = np.cumsum(np.bincount(edges // count, minlength=count)).tolist()
    parts = itertools.pairwise([0, *ends_at])
    return names, Graph([flat[a:b] for a, b in parts], needs_all.tolist())
