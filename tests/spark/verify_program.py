"""What a driver does on a real cluster, for ``test_cluster``.

It verifies an event log of some hundred snapshots, at night a thousand, with one message too early
in one process: without Spark, on the cluster, and on the cluster with an executor that is killed
while it counts. REPORT is one JSON object with the verdicts of each.
"""

import concurrent.futures
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from bench.made_log import make_log
from stillframe.analytics.log_checks import FAULTS
from stillframe.analytics.log_verification import log_pieces, verify
from stillframe.eventlog.reader import HEADER_KEY
from tests.analytics.test_log_checks import found_in
from tests.nightly import by_night
from tests.spark.standalone import EXECUTOR, cluster_session, running

ROW_COUNT = by_night(2_000_000, check=250_000)
POLL_S = 0.01
FIELDS = ("epoch", "snapshot", "verdict", "event_count", "message_count", "fault_count")

Rows = list[list[Any]]


def spoil(log: Path) -> None:
    """Let a process accept two messages of a channel in the other order, after half of its rows."""
    path = min(log.rglob("events-*.parquet"))
    span = pq.read_metadata(path).metadata[HEADER_KEY].decode()
    table = pq.read_table(path)
    numbers = table.column("number").to_pylist()
    channels = table.column("channel").to_pylist()
    first = next(
        place
        for place in range(len(numbers) // 2, len(numbers))
        if numbers[place] is not None and channels[place].endswith("->P0")
    )
    other = next(
        place
        for place in range(first + 1, len(numbers))
        if numbers[place] is not None and channels[place] == channels[first]
    )
    numbers[first], numbers[other] = numbers[other], numbers[first]
    index = table.column_names.index("number")
    spoiled = table.set_column(index, "number", pa.array(numbers, pa.int64()))
    with pq.ParquetWriter(path, spoiled.schema, store_schema=False) as writer:
        writer.add_key_value_metadata({HEADER_KEY.decode(): span})
        writer.write_table(spoiled)


def alone(log: Path) -> Rows:
    """Return the verdicts as this program finds them by itself."""
    found = found_in(log)
    rows: dict[str | None, list[Any]] = {}
    for snapshot in pc.unique(found.column("snapshot")).to_pylist():
        is_of_it = (
            pc.is_null(found.column("snapshot"))
            if snapshot is None
            else pc.equal(found.column("snapshot"), snapshot)
        )
        ours = found.filter(is_of_it).to_pylist()
        faults = sum(row["what"] in FAULTS for row in ours)
        cuts = [row["first"] for row in ours if row["what"] == "cut"]
        rows[snapshot] = [
            1,
            snapshot,
            "inconsistent" if faults else "consistent",
            sum(cuts) if cuts else None,
            sum(row["count"] for row in ours if row["what"] == "in transit"),
            faults,
        ]
    return sorted(rows.values(), key=str)


def rows_of(verdicts: DataFrame) -> Rows:
    """Return verdicts in an order."""
    return sorted(([row[name] for name in FIELDS] for row in verdicts.collect()), key=str)


def with_one_killed(spark: SparkSession, log: Path) -> tuple[Rows, int]:
    """Return the verdicts, found while an executor is killed, and how many tasks failed."""
    tracker = spark.sparkContext.statusTracker()
    failed: dict[int, int] = {}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: rows_of(verify(log_pieces(spark, log))))
        is_killed = False
        while not asked.done():
            for stage in tracker.getActiveStageIds():
                found = tracker.getStageInfo(stage)
                if found is None:
                    continue
                failed[stage] = found.numFailedTasks
                if found.numActiveTasks > 1 and not is_killed:
                    os.kill(
                        running(EXECUTOR, str(spark.sparkContext.applicationId))[0], signal.SIGKILL
                    )
                    is_killed = True
            time.sleep(POLL_S)
        return asked.result(), sum(failed.values())


def main(directory: str, cluster: str, report: str) -> None:
    """Verify three times and write down what was found."""
    root = Path(directory)
    log = root / "log"
    make_log(log, ROW_COUNT)
    spoil(log)
    spark = cluster_session(cluster)
    on_cluster = rows_of(verify(log_pieces(spark, log)))
    killed, failed_task_count = with_one_killed(spark, log)
    said = {
        "alone": alone(log),
        "on the cluster": on_cluster,
        "with one killed": killed,
        "failed_task_count": failed_task_count,
    }
    Path(report).write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
