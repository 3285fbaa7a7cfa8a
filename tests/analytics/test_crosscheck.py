"""Verdicts of micro-batches with those of an event log: as of the whole log, which is read once."""

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from stillframe.analytics import log_verification
from stillframe.analytics.log_verification import CrossCheck, log_pieces, verify
from stillframe.analytics.snapshot_verdicts import CONSISTENT, VERDICTS
from stillframe.eventlog.reader import list_segments, schema_with, segment_path
from tests.eventlogs import Execution, Log, corrupt, span_of, table_of, write, write_part
from tests.nightly import by_night

pytestmark = pytest.mark.spark
SEED = 1990
EXECUTION_COUNT = by_night(30, check=8)
Snapshots = list[tuple[str, int]]
"""Names, and epochs."""


def ended(spark: SparkSession, snapshots: Snapshots) -> DataFrame:
    """Return a micro-batch of snapshots of which the store says no ill."""
    named = [
        {field.name: None for field in VERDICTS}
        | {"snapshot": name, "epoch": epoch, "verdict": CONSISTENT}
        for name, epoch in snapshots
    ]
    return spark.createDataFrame(named, from_arrow_schema(VERDICTS))


class Reading:
    """Counts the rows of an event log that are read."""

    def __init__(self, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._log = log
        self._counted = log_verification.counted
        self._row_count = 0
        monkeypatch.setattr(log_verification, "counted", self._count)

    def _count(self, pieces: DataFrame) -> DataFrame:
        paths = {Path(row["path"]) for row in pieces.collect()}
        self._row_count += sum(
            part.row_count for part in list_segments(self._log) if part.path in paths
        )
        return self._counted(pieces)

    def taken(self) -> int:
        """Return how many since the last time."""
        count, self._row_count = self._row_count, 0
        return count


def write_some(log: Log, directory: Path, part: int, begin: int, end: int | None = None) -> None:
    """Write rows of P0 as a file that is complete, or that is still being written if `end` is not
    known: five rows then."""
    span = span_of(log, "P0", 1, part, begin)
    streamed = segment_path(directory, span, is_complete=False)
    streamed.parent.mkdir(parents=True, exist_ok=True)
    streamed.unlink(missing_ok=True)
    if end is not None:
        path = segment_path(directory, span, is_complete=True)
        write_part(path, span, table_of(log["P0"][begin:end]), 1000)
        return
    schema = schema_with(span)
    with pa.OSFile(str(streamed), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        stream.write_table(table_of(log["P0"][begin : begin + 5]).cast(schema))


def test_a_file_that_is_complete_is_read_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the log is by then, and also when its oldest files have been removed. One that
    is still being written is read again."""
    chance = random.Random(SEED)
    log = max((Execution(chance).log() for _ in range(50)), key=lambda log: len(log["P0"]))
    assert len(log["P0"]) > 25
    write(log, tmp_path, 1, chance)
    shutil.rmtree(tmp_path / "e1" / "P0")
    others = sum(len(rows) for name, rows in log.items() if name != "P0")
    write_some(log, tmp_path, 1, 0, 10)
    write_some(log, tmp_path, 2, 10)
    reading, check = Reading(tmp_path, monkeypatch), CrossCheck(spark, tmp_path)
    check.rows(ended(spark, [("P9-1", 1)]))
    assert reading.taken() == others + 15
    check.rows(ended(spark, [("P9-2", 1)]))
    assert reading.taken() == 5
    write_some(log, tmp_path, 2, 10, 20)
    write_some(log, tmp_path, 3, 20)
    check.rows(ended(spark, [("P9-3", 1)]))
    assert reading.taken() == 15
    segment_path(tmp_path, span_of(log, "P0", 1, 1, 0), is_complete=True).unlink()
    check.rows(ended(spark, [("P9-4", 1)]))
    assert reading.taken() == 5


def named(log: Log, epoch: int) -> Log:
    """Return a log with names of snapshots that no other epoch has."""

    def name(snapshot: str | None) -> str | None:
        return snapshot and f"{snapshot.partition('-')[0]}-{10 * epoch + int(snapshot[-1])}"

    return {
        process: [row._replace(snapshot=name(row.snapshot)) for row in rows]
        for process, rows in log.items()
    }


@pytest.mark.nightly(part="verdicts")
def test_verdicts_are_those_of_the_whole_log(spark: SparkSession, tmp_path: Path) -> None:
    """Of right logs and wrong ones, in any order, while their last files come and their first go:
    those that all files give which are there."""
    chance = random.Random(SEED)
    snapshots: Snapshots = []
    for epoch in range(1, EXECUTION_COUNT + 1):
        log = Execution(chance).log()
        changed = corrupt(log, chance) if epoch % 2 else None
        log = named(log if changed is None else changed[0], epoch)
        write(log, tmp_path, epoch, chance)
        names = {row.snapshot for rows in log.values() for row in rows if row.snapshot}
        snapshots += [(name, epoch) for name in names]
    snapshots.sort()
    chance.shuffle(snapshots)
    first, last = files_at_the_ends(tmp_path)
    check = CrossCheck(spark, tmp_path)
    seen = set()
    for number in range(3):
        for path, content in last.items():
            path.write_bytes(content) if number else path.unlink()
        for path in first if number == 2 else ():
            path.unlink()
        some = snapshots[number::3]
        whole: dict[str, dict[str, Any]] = {
            row["snapshot"]: row.asDict(recursive=True)
            for row in verify(log_pieces(spark, tmp_path)).collect()
        }
        for row in check.rows(ended(spark, some)):
            assert row["log"] == whole.get(row["snapshot"]), f"{SEED=}, {number=}"
            seen.add(row["verdict"])
    assert seen == {"consistent", "inconsistent", "incomplete"}


def files_at_the_ends(log: Path) -> tuple[list[Path], dict[Path, bytes]]:
    """Return the first files of processes that have three or more, and the last of those that have
    two or more, with what they hold."""
    files = [sorted(directory.iterdir()) for directory in sorted(log.glob("e*/*"))]
    first = [paths[0] for paths in files if len(paths) > 2]
    last = {paths[-1]: paths[-1].read_bytes() for paths in files if len(paths) > 1}
    assert first
    assert last
    return first, last
