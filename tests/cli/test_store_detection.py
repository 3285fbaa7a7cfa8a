"""``spark detect``: the answer of ``detect``, over all epochs."""

import json
from pathlib import Path
from typing import Any

import pytest

from stillframe.cli import tasks
from stillframe.errors import Unavailable
from stillframe.model import SnapshotId
from stillframe.store.store import Store
from tests.cli.conftest import Call, publish, purses, state_of
from tests.cli.test_detection import PURSES

pytest.importorskip("pyspark", reason="needs PySpark")
HERE = ("--master", "local[2]")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("predicate", ["loss", "deadlock"])
def test_it_says_what_detect_says(call: Call, money: Path, predicate: str) -> None:
    """A yes and a no in the same words, with the same exit code; and a table."""
    result = call("spark", "detect", money, predicate, *PURSES, *HERE)
    alone = call("detect", money, predicate, *PURSES)
    assert (result.exit_code, result.stderr) == (alone.exit_code, alone.stderr)
    rows = [line.split()[:2] for line in result.stdout.splitlines()[2:]]
    if predicate == "loss":
        assert rows == [["A-3", "yes"], ["A-1", "no"], ["A-2", "no"]]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_json_says_what_detect_says_and_more(call: Call, money: Path) -> None:
    """The same document, with the epochs and a row for each snapshot."""
    result = call("spark", "detect", money, "loss", *PURSES, *HERE, "--json")
    found = json.loads(result.stdout)
    alone = json.loads(call("detect", money, "loss", *PURSES, "--json").stdout)
    assert {name: found[name] for name in alone} == alone
    assert (found["first_of_all"], len(found["snapshots"])) == ("A-3", 3)
    assert found["epochs"] == [{"epoch": 1, "snapshot_count": 3, "first": "A-3"}]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_all_epochs_are_looked_at(call: Call, tmp_path: Path) -> None:
    """What held before a restore is told; what did not stay then is no stable predicate. A present
    epoch without snapshots is what it began from."""
    path = tmp_path / "restored"
    store = Store.create(path, description=purses.description)
    store.raise_epoch(None)
    publish(store, 1, state_of(100, "", []))
    publish(store, 2, state_of(95, "", []))
    store.raise_epoch(SnapshotId("A", 2))
    now = call("detect", path, "loss", *PURSES).stderr
    assert now == call("spark", "detect", path, "loss", *PURSES, *HERE).stderr
    assert now.startswith("yes: loss holds in A-2, and has since A-2, of 1 snapshot: ")
    store.raise_epoch(SnapshotId("A", 1))
    publish(store, 3, state_of(100, "", []))
    result = call("spark", "detect", path, "loss", *PURSES, *HERE)
    assert result.exit_code == 1
    assert result.stderr == (
        "no: loss does not hold in A-3: all is there: 200 coins\n"
        "of all 3 snapshots in 2 epochs it held first in A-2, in epoch 1; it held in 1 epoch and "
        "stayed in each\n"
    )
    store.raise_epoch(None)
    publish(store, 4, state_of(95, "", []))
    publish(store, 5, state_of(100, "", []))
    store.raise_epoch(None)
    publish(store, 6, state_of(95, "", []))
    store.close()
    result = call("spark", "detect", path, "loss", *PURSES, *HERE)
    assert result.exit_code == 1
    assert "no: loss is not stable: it held in snapshot A-4 and not in A-5" in result.stderr
    assert "it held first in A-2, in epoch 1; it held in 3 epochs\n" in result.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_damaged_snapshot_is_named_after_the_answer(call: Call, money: Path) -> None:
    """Exit 2, though the others say yes."""
    (money / "snapshots" / "A-1" / "manifest.json").write_bytes(b"?")
    (money / "snapshots" / "A-2" / "channels.parquet").write_bytes(b"?")
    sql = "select snapshot, true from snapshots"
    result = call("spark", "detect", money, sql, *HERE)
    assert result.exit_code == 2
    yes, left_out, error = result.stderr.splitlines()
    assert yes.startswith("yes: select snapshot, true from snapshots holds in A-3")
    assert left_out == "not asked, damaged: A-1, A-2"
    assert error.startswith("Error: snapshot A-1 could not be asked: ")
    assert [line.split()[1] for line in result.stdout.splitlines()[2:]] == ["?", "?", "yes"]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_table_is_capped(call: Call, tmp_path: Path) -> None:
    """20 of 30 rows are shown, which is said."""
    store = Store.create(tmp_path / "many", description=purses.description)
    store.raise_epoch(None)
    for number in range(1, 31):
        publish(store, number, state_of(100, "", []))
    store.close()
    sql = "select snapshot, sequence > 29 from snapshots"
    result = call("spark", "detect", tmp_path / "many", sql, *HERE)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 22
    assert "and 10 more snapshots (--json has all)" in result.stderr


def test_without_spark_it_says_what_to_install(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing extra is no bug: exit 2 with the command that helps."""

    def unavailable(*_: Any, **__: Any) -> None:
        raise Unavailable("PySpark is not installed: pip install 'stillframe[spark]'")

    monkeypatch.setattr(tasks, "spark_session", unavailable)
    result = call("spark", "detect", money, "loss", *PURSES)
    assert (result.exit_code, "pip install 'stillframe[spark]'" in result.stderr) == (2, True)
