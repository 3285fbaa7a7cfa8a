"""``store compact``: which tables there are, and where."""

import json
from pathlib import Path

import duckdb
import pytest

from tests.cli.conftest import Call

pytest.importorskip("pyspark", reason="needs PySpark")
HERE = ("--master", "local[2]")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_tables_can_be_asked_by_any_engine(call: Call, money: Path, tmp_path: Path) -> None:
    """The money in states and on channels, in each snapshot, in one question to DuckDB."""
    result = call("store", "compact", money, "--out", tmp_path / "out", *HERE)
    assert result.exit_code == 0, result.output
    lines = [line.split()[:3] for line in result.stdout.splitlines()]
    assert ["processes", "6", "1"] in lines
    assert ["messages", "15", "1"] in lines
    assert "3 snapshots added, 0 removed: 3 snapshots in" in result.stdout
    tables = tmp_path / "out" / "v000001"
    answer = duckdb.sql(
        f"""select _snapshot, sum(coins)::int from (
            select _snapshot, balance as coins from '{tables}/processes/*.parquet' union all
            select _snapshot, amount from '{tables}/messages/*.parquet'
        ) group by _snapshot order by _snapshot"""
    )
    assert answer is not None
    assert answer.fetchall() == [("A-1", 200), ("A-2", 200), ("A-3", 201)]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_json_says_what_was_done(call: Call, money: Path, tmp_path: Path) -> None:
    """One document; what is gone by retention is named."""
    call("store", "compact", money, "--out", tmp_path / "out", "--snapshot", "A-1", *HERE)
    result = call(
        "store", "compact", money, "--out", tmp_path / "out", "--keep", 1, *HERE, "--json"
    )
    found = json.loads(result.stdout)
    assert (found["added"], found["removed"], found["snapshot_count"]) == (["A-3"], ["A-1"], 1)
    assert found["directory"] == str(tmp_path / "out" / "v000002")
    assert {row["table"]: row["row_count"] for row in found["tables"]} == {
        "snapshots": 1,
        "processes": 2,
        "channels": 2,
        "messages": 5,
    }


def test_wrong_input_is_named_before_spark_starts(call: Call, money: Path, tmp_path: Path) -> None:
    """No store, no such snapshot; exit 2, and nothing is made."""
    out = tmp_path / "out"
    result = call("store", "compact", tmp_path / "nowhere", "--out", out)
    assert (result.exit_code, "does not exist" in result.stderr) == (2, True)
    result = call("store", "compact", money, "--out", out, "--snapshot", "A-9")
    assert result.exit_code == 2
    assert "there is no snapshot A-9" in result.stderr
    assert not out.exists()
