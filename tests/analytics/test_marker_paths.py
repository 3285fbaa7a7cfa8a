"""The way of the markers, from the process that recorded first to the last that arrived."""

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from stillframe.analytics.log_events import marker_paths
from stillframe.analytics.snapshot_stats import marker_steps
from stillframe.errors import UsageError
from stillframe.eventlog.reader import SegmentHeader, schema_with, segment_path

pytestmark = pytest.mark.spark

T0 = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
Step = tuple[str, str, str | None, float]
"""Process, kind, channel, and milliseconds after the first."""

RING: list[Step] = [
    ("P1", "recorded", None, 0.0),
    ("P1", "marker sent", "P1->P2", 0.5),
    ("P1", "marker sent", "P1->P3", 0.5),
    ("P2", "marker accepted", "P1->P2", 2.5),
    ("P2", "recorded", None, 2.5),
    ("P2", "marker sent", "P2->P3", 4.5),
    ("P3", "marker accepted", "P2->P3", 5.0),
    ("P3", "recorded", None, 5.0),
    ("P3", "marker sent", "P3->P1", 5.0),
    ("P3", "marker accepted", "P1->P3", 8.0),
    ("P1", "marker accepted", "P3->P1", 11.0),
]
"""The marker on P1->P3 is overtaken by the way over P2; that on P3->P1 is the last."""


def write(
    log: Path,
    steps: list[Step],
    snapshot: str = "P1-7",
    epoch: int = 1,
    *,
    is_complete: bool = True,
) -> None:
    """Write steps, and an action each, as the event log of each process."""
    for process in {step[0] for step in steps}:
        own = [step for step in steps if step[0] == process]
        rows = [{"event": 1, "kind": "internal"}]
        rows += [
            {
                "event": 1,
                "kind": kind,
                "channel": channel,
                "snapshot": snapshot,
                "at": T0 + datetime.timedelta(milliseconds=at),
            }
            for _, kind, channel, at in own
        ]
        directory = log / f"e{epoch}" / process
        directory.mkdir(parents=True, exist_ok=True)
        number = 1 + len(list(directory.iterdir()))
        span = SegmentHeader(
            process=process, epoch=epoch, number=number, event_count=0, sent={}, received={}
        )
        path = segment_path(log, span, is_complete=is_complete)
        table = pa.Table.from_pylist(rows, schema=schema_with(span))
        if is_complete:
            pq.write_table(table, path)
            continue
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)


def hops(paths: DataFrame) -> list[tuple[object, ...]]:
    """Return the hops in order."""
    return [tuple(row) for row in paths.orderBy("snapshot", "hop").collect()]


def test_the_way_to_the_last_marker_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """Each hop says how long the process held it, how long it travelled, and when it was there."""
    write(tmp_path, RING)
    assert hops(marker_paths(marker_steps(spark, tmp_path))) == [
        ("P1-7", 1, "P1", "P2", 0.5, 2.0, 2.5),
        ("P1-7", 2, "P2", "P3", 2.0, 0.5, 5.0),
        ("P1-7", 3, "P3", "P1", 0.0, 6.0, 11.0),
    ]


def test_files_that_are_still_written_are_read_too(spark: SparkSession, tmp_path: Path) -> None:
    """The first steps are in files that are complete, and the last are not; or none are."""
    write(tmp_path / "log", RING[:6])
    write(tmp_path / "log", RING[6:], is_complete=False)
    found = hops(marker_paths(marker_steps(spark, tmp_path / "log")))
    assert [(*hop[2:4], hop[6]) for hop in found] == [
        ("P1", "P2", 2.5),
        ("P2", "P3", 5.0),
        ("P3", "P1", 11.0),
    ]
    write(tmp_path / "live", RING, is_complete=False)
    assert len(hops(marker_paths(marker_steps(spark, tmp_path / "live")))) == 3


def test_the_last_marker_can_come_back_on_its_way(spark: SparkSession, tmp_path: Path) -> None:
    """It may end at a process that it came through before: the way back goes on behind that."""
    back: list[Step] = [
        ("P3", "marker sent", "P3->P2", 5.0),
        ("P2", "marker accepted", "P3->P2", 20.0),
    ]
    write(tmp_path, RING + back)
    found = hops(marker_paths(marker_steps(spark, tmp_path)))
    assert [hop[2:4] for hop in found] == [("P1", "P2"), ("P2", "P3"), ("P3", "P2")]


def test_snapshots_are_told_apart_and_each_may_have_several_initiators(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A process that recorded before any marker came is where its way begins."""
    write(tmp_path, RING)
    second: list[Step] = [
        ("P1", "recorded", None, 0.0),
        ("P1", "marker sent", "P1->P2", 1.0),
        ("P2", "recorded", None, 0.5),
        ("P2", "marker sent", "P2->P3", 0.5),
        ("P2", "marker accepted", "P1->P2", 2.0),
        ("P3", "marker accepted", "P2->P3", 3.5),
        ("P3", "recorded", None, 3.5),
    ]
    write(tmp_path, second, "P1-8", epoch=2)
    found = hops(marker_paths(marker_steps(spark, tmp_path)))
    assert [hop for hop in found if hop[0] == "P1-8"] == [("P1-8", 1, "P2", "P3", 0.0, 3.0, 3.0)]
    assert len([hop for hop in found if hop[0] == "P1-7"]) == 3


def test_what_is_not_in_the_log_is_unknown(spark: SparkSession, tmp_path: Path) -> None:
    """If a process's log is lost, the milliseconds there are null, and the way is still told."""
    write(tmp_path, [step for step in RING if step[0] != "P2"])
    found = hops(marker_paths(marker_steps(spark, tmp_path)))
    assert found == [
        ("P1-7", 1, "P2", "P3", None, None, None),
        ("P1-7", 2, "P3", "P1", 0.0, 6.0, None),
    ]


def test_clocks_that_differ_lead_nobody_in_a_circle(spark: SparkSession, tmp_path: Path) -> None:
    """A hop can take less than no time; the way ends all the same."""
    odd: list[Step] = [
        ("P1", "marker accepted", "P2->P1", 1.0),
        ("P1", "recorded", None, 2.0),
        ("P1", "marker sent", "P1->P2", 2.0),
        ("P2", "marker accepted", "P1->P2", 0.5),
        ("P2", "recorded", None, 0.6),
        ("P2", "marker sent", "P2->P1", 0.6),
    ]
    write(tmp_path, odd)
    found = hops(marker_paths(marker_steps(spark, tmp_path)))
    assert ("P1", "P2") in [hop[2:4] for hop in found]
    assert -1.5 in [hop[5] for hop in found]


def test_a_snapshot_whose_markers_never_came_has_no_way(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One that was abandoned at once is no error."""
    write(tmp_path, [("P1", "recorded", None, 0.0), ("P1", "marker sent", "P1->P2", 0.0)])
    assert hops(marker_paths(marker_steps(spark, tmp_path))) == []


def test_there_must_be_an_event_log(spark: SparkSession, tmp_path: Path) -> None:
    """A directory without one is told what belongs there."""
    with pytest.raises(UsageError, match="holds no event log: write one"):
        marker_steps(spark, tmp_path)
