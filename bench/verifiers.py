"""Ways to verify the snapshots of an event log: ours on Spark, and what it is compared with.

Each is a program of its own that reads directories from standard input, and for each prints how
many seconds it took and the most memory that one process had, as JSON.

``spark`` is ours. ``numpy`` is a plain program in one thread with the same counting and judging.
``duckdb`` and ``polars`` count what each cut has of each channel and compare both ends and what was
recorded; that messages are in order within the time between two cuts they do not look at, which is
in their favour. ``scan`` is Spark reading the same columns, and nothing else: the floor.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stillframe.analytics.log_checks import (
    COUNTS,
    FAULTS,
    GAPS,
    aggregate_splits,
    check_group,
    plan_splits,
)
from stillframe.storage.location import Location, ObjectPath, locate
from stillframe.storage.opened import storage_of

COLUMNS = ("event", "channel", "number", "snapshot", "recorded")
KIB = 1024
Verifier = Callable[[Any], int]
"""Verifies the event log at that location; returns how many snapshots are consistent."""

DUCKDB = """
WITH log AS (
    SELECT parse_path(filename)[-2] AS process, event, kind, channel, number, snapshot, recorded
    FROM read_parquet('{log}/e1/*/events-*.parquet', filename = true)
),
cuts AS (SELECT process, snapshot, event AS cut FROM log WHERE kind = 'recorded'),
counted AS (
    SELECT m.process, m.channel, c.snapshot, c.cut,
        count(*) AS n, min(m.number) AS low, max(m.number) AS high
    FROM (SELECT process, event, channel, number FROM log WHERE number IS NOT NULL) m
    ASOF LEFT JOIN cuts c ON m.process = c.process AND m.event <= c.cut
    GROUP BY ALL
),
every AS (
    SELECT c.process, k.channel, c.snapshot, c.cut,
        coalesce(n, 0) AS n, low, high
    FROM cuts c JOIN (SELECT DISTINCT process, channel FROM counted) k ON c.process = k.process
    LEFT JOIN counted n ON n.process = c.process AND n.channel = k.channel
        AND n.snapshot = c.snapshot
),
summed AS (
    SELECT *, sum(n) OVER (PARTITION BY process, channel ORDER BY cut) AS total FROM every
),
placed AS (
    SELECT *, n = 0 OR (high = total AND low = total - n + 1) AS follows FROM summed
),
markers AS (
    SELECT channel, snapshot, count(*) AS accepted, first(recorded) AS recorded
    FROM log WHERE kind = 'marker accepted' GROUP BY ALL
),
sent_markers AS (
    SELECT channel, snapshot, count(*) AS sent FROM log WHERE kind = 'marker sent' GROUP BY ALL
),
judged AS (
    SELECT s.snapshot, s.follows AND r.follows AND s.total >= r.total
        AND m.accepted = 1 AND k.sent = 1
        AND CASE WHEN s.total = r.total THEN len(m.recorded) = 0
            ELSE m.recorded[1].first = r.total + 1 AND m.recorded[1].count = s.total - r.total END
        AS is_right
    FROM placed s
    JOIN placed r ON s.channel = r.channel AND s.snapshot = r.snapshot AND s.process <> r.process
    JOIN markers m ON m.channel = s.channel AND m.snapshot = s.snapshot
    JOIN sent_markers k ON k.channel = s.channel AND k.snapshot = s.snapshot
    WHERE starts_with(s.channel, s.process || '->')
)
SELECT count(*) FROM (
    SELECT snapshot FROM judged GROUP BY snapshot HAVING bool_and(is_right) AND count(*) = {count}
)
"""


def _session() -> object:
    from stillframe.spark import spark_session  # noqa: PLC0415 - others need no Spark

    return spark_session()


def spark() -> Verifier:
    """Ours."""
    session = _session()
    from stillframe.analytics.log_verification import log_pieces, verify  # noqa: PLC0415
    from stillframe.analytics.snapshot_verdicts import CONSISTENT  # noqa: PLC0415

    def run(log: Location) -> int:
        rows = verify(log_pieces(session, log)).collect()  # type: ignore[arg-type]
        return sum(row["verdict"] == CONSISTENT and row["snapshot"] is not None for row in rows)

    return run


def scan() -> Verifier:
    """Spark reads the same columns."""
    session = _session()

    def run(log: Location) -> int:
        if isinstance(log, ObjectPath):
            files = [str(one.location) for one in storage_of(log).files_below(log)]
        else:
            files = [str(path) for path in log.rglob("*.parquet")]
        rows = session.read.parquet(*files).select(*COLUMNS)  # type: ignore[attr-defined]
        rows.write.format("noop").mode("overwrite").save()
        return 0

    return run


def numpy() -> Verifier:
    """One thread, no Spark."""
    pa.set_cpu_count(1)

    def run(log: Path) -> int:
        batch = pa.RecordBatch.from_pylist(plan_splits(log))
        counts = pa.Table.from_batches(aggregate_splits([batch]), COUNTS)
        keys = pc.binary_join_element_wise(
            counts["source"], pc.fill_null(counts["target"], ""), "->"
        )
        wrong: set[str | None] = set()
        seen: set[str | None] = set()
        for key in pc.unique(keys).to_pylist():
            source, _, target = key.partition("->")
            found = check_group((1, source, target or None), counts.filter(pc.equal(keys, key)))
            snapshots = found["snapshot"]
            seen |= {*pc.unique(snapshots).to_pylist()}
            is_wrong = pc.is_in(found["what"], pa.array([*FAULTS, *GAPS]))
            wrong |= {*snapshots.filter(is_wrong).to_pylist()}
        return len(seen - wrong - {None})

    return run


def duckdb() -> Verifier:
    """SQL, on all cores."""
    import duckdb as database  # noqa: PLC0415

    def run(log: Path) -> int:
        processes = len(list((log / "e1").iterdir()))
        sql = DUCKDB.format(log=log, count=processes * (processes - 1))
        with database.connect() as connection:
            found = connection.execute(sql).fetchone()
        assert found is not None
        return int(found[0])

    return run


def polars() -> Verifier:
    """Data frames, on all cores."""
    from bench.polars_verifier import verify  # noqa: PLC0415

    return verify


VERIFIERS: dict[str, Callable[[], Verifier]] = {
    "scan": scan,
    "spark": spark,
    "numpy": numpy,
    "duckdb": duckdb,
    "polars": polars,
}


def _peak_bytes() -> int:
    """Return the most memory that this program, or a process of Spark's for its Python functions,
    has ever had.

    Not by ``getrusage``: it counts what the program that started this one had.
    """
    statuses = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            lines = (path / "status").read_text().splitlines()
            fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            is_python = b"pyspark.daemon" in (path / "cmdline").read_bytes()
            high_bytes = int(fields.get("VmHWM", "0 kB").split()[0]) * KIB
            statuses[int(path.name)] = int(fields["PPid"]), high_bytes, is_python
    ours, frontier = [statuses[os.getpid()][1]], [os.getpid()]
    while frontier:
        parent = frontier.pop()
        found = [pid for pid, (its_parent, _, _) in statuses.items() if its_parent == parent]
        ours += [statuses[pid][1] for pid in found if statuses[pid][2]]
        frontier += found
    return max(ours)


def main(name: str) -> None:
    """Verify each log that is named on standard input."""
    verify = VERIFIERS[name]()
    for line in sys.stdin:
        began = time.perf_counter()
        count = verify(locate(line.strip()))
        took_s = time.perf_counter() - began
        print(json.dumps({"count": count, "took_s": took_s, "peak_bytes": _peak_bytes()}))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
