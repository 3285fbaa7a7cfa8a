"""``store assemble``: what became of each snapshot, in a table and in JSON."""

import json
from pathlib import Path

import msgspec
import pytest

from stillframe.model import Fragment
from tests.analytics import bank
from tests.cli.conftest import Call, rows_and_words
from tests.fragments import write_fragments

pytest.importorskip("pyspark", reason="needs PySpark")
HERE = ("--master", "local[2]")


def lacking(fragment: Fragment) -> Fragment | None:
    """P3 has lost what it recorded of the second snapshot, and P2 miscounted in the third."""
    name = (str(fragment.snapshot), fragment.state.process)
    if name == ("P1-2", "P3"):
        return None
    if name == ("P1-3", "P2"):
        return msgspec.structs.replace(fragment, sent_counts={"P1": 2, "P3": 3})
    return fragment


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_whole_incomplete_and_wrong_ones_are_told_apart(call: Call, tmp_path: Path) -> None:
    """Who is missing is named; fragments that contradict each other are a no."""
    snapshots = [bank.snapshot(number) for number in (1, 2, 3)]
    parts, out = tmp_path / "parts", tmp_path / "out"
    write_fragments(parts, bank.TOPOLOGY.description, snapshots, change=lacking)
    result = call("store", "assemble", parts, "--out", out, *HERE)
    assert result.exit_code == 1, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["P1-1", "1", "consistent", "3"] in lines
    assert "there is no fragment of P3" in result.stdout
    assert "channel P2->P1: 2 sent - 3 received = -1, but 0 messages were recorded" in result.stdout
    assert f"1 snapshot added to {out}; 1 incomplete; 1 inconsistent" in result.stdout
    listed = call("list", out)
    assert [row[0] for row in rows_and_words(listed.stdout)[0]] == ["P1-1"]

    write_fragments(
        parts,
        bank.TOPOLOGY.description,
        [bank.snapshot(2)],
        change=lambda fragment: fragment if fragment.state.process == "P3" else None,
        times=lambda snapshot, process: (0.5, 30.0),
    )
    result = call("store", "assemble", parts, "--out", out, "--timeout", "20s", *HERE, "--json")
    assert result.exit_code == 1
    found = {row["snapshot"]: row for row in json.loads(result.stdout)["snapshots"]}
    assert found.keys() == {"P1-2", "P1-3"}
    assert (found["P1-2"]["verdict"], found["P1-2"]["late"]) == ("consistent", ["P3"])
    assert found["P1-2"]["completed_at"] == "1970-01-01T00:00:30Z"
    assert "1 with fragments that arrived late" in result.stderr


def test_wrong_input_is_named_before_spark_starts(call: Call, tmp_path: Path) -> None:
    """Something else than fragments, or nothing; exit 2, and nothing is made."""
    out = tmp_path / "out"
    result = call("store", "assemble", tmp_path / "nowhere", "--out", out)
    assert (result.exit_code, "holds no fragments" in result.stderr) == (2, True)
    (tmp_path / "something").mkdir()
    result = call("store", "assemble", tmp_path, "--out", out)
    assert result.exit_code == 2
    assert "holds files that are not fragments" in result.stderr
    result = call("store", "assemble", tmp_path, "--out", out, "--timeout", "soon")
    assert (result.exit_code, "--timeout 'soon' is not a duration" in result.stderr) == (2, True)
    assert not out.exists()
