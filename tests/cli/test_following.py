"""``spark follow``: a line for each verdict as it comes, and the exit code."""

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs PySpark")

from pyspark.sql.streaming.query import StreamingQuery

from stillframe.cli import following
from stillframe.errors import Unavailable
from tests.cli.conftest import Call

HERE = ("--master", "local[2]")


@pytest.mark.spark
def test_verdicts_are_lines_and_are_not_repeated(
    call: Call, money: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One JSON line for each; from a checkpoint only those that are new; exit 1 if one is wrong."""

    def wait(query: StreamingQuery, _stop_s: float | None) -> None:
        query.processAllAvailable()
        query.stop()

    monkeypatch.setattr(following, "_wait", wait)
    options = ("--checkpoint", tmp_path / "checkpoint", "--json", *HERE)
    result = call("spark", "follow", money, *options)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["snapshot"], row["verdict"]) for row in rows] == [
        (f"A-{number}", "consistent") for number in (1, 2, 3)
    ]
    assert rows[0]["initiated_at"] == "1970-01-01T00:16:40Z"
    assert "yes: 3 snapshots, 3 consistent" in result.stderr
    again = call("spark", "follow", money, *options)
    assert (again.exit_code, again.stdout) == (0, "")
    path = money / "snapshots" / "A-2" / "messages.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    wrong = call("spark", "follow", money, *HERE)
    assert wrong.exit_code == 1
    assert "snapshot A-2: inconsistent" in wrong.stdout
    assert "no: 3 snapshots, 2 consistent, 1 inconsistent" in wrong.stderr


def test_what_is_missing_is_named_before_spark_starts(
    call: Call, money: Path, tmp_path: Path
) -> None:
    """A store, an event log, and lengths of time."""
    for arguments, named in (
        ((tmp_path / "nowhere",), "does not exist"),
        ((money, "--log", tmp_path / "nowhere"), "nowhere"),
        ((money, "--timeout", "long"), "--timeout 'long' is no duration"),
        ((money, "--for", "0"), "--for '0' is no duration"),
    ):
        result = call("spark", "follow", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert named in result.stderr


def test_without_spark_it_says_what_to_install(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing extra is no bug: exit 2 with the command that helps."""

    def unavailable(**_: object) -> None:
        raise Unavailable("PySpark is not installed: pip install 'stillframe[spark]'")

    monkeypatch.setattr(following, "spark_session", unavailable)
    result = call("spark", "follow", money)
    assert result.exit_code == 2
    assert "pip install 'stillframe[spark]'" in result.stderr
