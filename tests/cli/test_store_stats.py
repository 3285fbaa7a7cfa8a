"""``store stats``: how the snapshots of a store went, as tables and as JSON."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillframe.cli import spark_session
from stillframe.errors import Unavailable
from stillframe.eventlog.reader import SegmentHeader, schema_with, segment_path
from tests.cli.conftest import Call

pytest.importorskip("pyspark", reason="needs PySpark")
HERE = ("--master", "local[2]")


def write_log(log: Path) -> Path:
    """Write the event log of a snapshot A-1 whose marker took 30 ms from A to B."""
    steps = {
        "A": [("recorded", None, 1000), ("marker sent", "A->B", 2000)],
        "B": [("marker accepted", "A->B", 32000), ("recorded", None, 32000)],
    }
    for process, rows in steps.items():
        span = SegmentHeader(
            process=process, epoch=1, number=1, event_count=0, sent={}, received={}
        )
        path = segment_path(log, span, is_complete=True)
        path.parent.mkdir(parents=True)
        named = [
            {"event": 0, "kind": kind, "channel": channel, "snapshot": "A-1", "at": at}
            for kind, channel, at in rows
        ]
        pq.write_table(pa.Table.from_pylist(named, schema=schema_with(span)), path)
    return log


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_tables_show_snapshots_figures_channels_and_markers(
    call: Call, money: Path, tmp_path: Path
) -> None:
    """A row for each snapshot, each figure, each channel, and each hop of the slowest markers."""
    log = write_log(tmp_path / "log")
    (hop,) = json.loads(call("store", "stats", money, "--event-log", log, "--json", *HERE).stdout)[
        "marker_paths"
    ]
    assert (hop["snapshot"], hop["hop"], hop["held_ms"]) == ("A-1", 1, 1.0)
    result = call("store", "stats", money, "--event-log", log, *HERE)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    listed = [line[0] for line in lines if line and line[0].startswith("A-")]
    assert listed == ["A-1", "A-2", "A-3", "A->B", "A-1"]
    assert "over 3 snapshots" in result.stdout
    assert ["A->B", "5", "5", "5"] in [line[:4] for line in lines]
    assert ["A-1", "A->B", "1.0", "ms", "30.0", "ms"] in lines
    assert "includes the difference of their clocks" in result.stdout


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_json_has_rows(call: Call, money: Path) -> None:
    """One document, with times in UTC; channels on which nothing was are left out of those. A
    damaged snapshot is named, with exit code 1."""
    manifest = money / "snapshots" / "A-2" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b" ")
    result = call("store", "stats", money, "--json", *HERE)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [row["snapshot"] for row in found["snapshots"]] == ["A-1", "A-3"]
    assert found["snapshots"][0]["initiated_at"] == "1970-01-01T00:16:40Z"
    assert found["in_transit"][0] == {
        "snapshot": "A-1",
        "source": "A",
        "target": "B",
        "message_count": 5,
    }
    assert found["marker_paths"] is None
    assert [one["id"] for one in found["damaged"]] == ["A-2"]
    assert "FAIL: snapshot A-2 is left out: " in result.stderr
    assert "manifest.json was changed" in result.stderr


def test_there_must_be_a_snapshot(call: Call, empty: Path) -> None:
    """An empty store is told apart from none, before Spark is started."""
    result = call("store", "stats", empty)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "holds no snapshot yet" in result.stderr


def test_without_spark_it_says_what_to_install(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing extra is no bug: exit 2 with the command that helps."""

    def unavailable(**_: object) -> None:
        raise Unavailable("PySpark is not installed: pip install 'stillframe[spark]'")

    monkeypatch.setattr(spark_session, "spark_session", unavailable)
    result = call("store", "stats", money)
    assert result.exit_code == 2
    assert "pip install 'stillframe[spark]'" in result.stderr
