"""``spark diff``: what ``diff`` says, by Spark."""

import json
from pathlib import Path

import pytest

from stillframe.store.store import Store
from tests.cli.conftest import Call
from tests.store import keyed_samples as keyed

pytest.importorskip("pyspark", reason="needs PySpark")
HERE = ("--master", "local[2]")


def keyed_store(path: Path, count: int) -> Path:
    """Make a store with P-1, in which the bank P has `count` accounts, and P-2, in which it has one
    other, and none of the former but k0, which has another value."""
    store = Store.create(path, description=keyed.DESCRIPTION)
    store.raise_epoch(None)
    empty = keyed.nothing()
    states = [{f"k{n}": n for n in range(count)}, {"k0": 7, "new": 1}]
    for number, held in enumerate(states, 1):
        parts = [keyed.whole("P", empty | {"accounts": held}), keyed.whole("Q", empty)]
        store.publish(keyed.snapshot_of(number, parts))
    store.close()
    return path


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_what_differs_is_shown_as_diff_does(call: Call, money: Path) -> None:
    """A field; and a message that only one caught; exit 1 as for 'diff'."""
    result = call("spark", "diff", money, "A-1", "A-2", *HERE)
    assert result.exit_code == 1, result.output
    assert "A-1 and A-2 differ in 1 field, 0 keys and 0 channels" in result.stderr
    assert result.stdout.splitlines()[3].split()[:3] == ["A", "note", '""']
    assert "x" * 3 + "..." in result.stdout
    result = call("spark", "diff", money, "A-1", "A-3", *HERE)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["A->B", "15", "15", "10", "10", "5", "5", "1", "1"] in lines
    assert ["A->B", "15", "A-1", "Coin", '{"amount":1}'] in lines
    assert ["A->B", "15", "A-3", "Coin", '{"amount":2}'] in lines


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_same_is_a_yes(call: Call, money: Path) -> None:
    """Exit 0, and nothing but words."""
    result = call("spark", "diff", money, "A-1", "A-1", *HERE)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "record the same states and the same messages" in result.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_of_many_keys_the_first_are_shown_and_json_has_all(call: Call, tmp_path: Path) -> None:
    """Counts are of all."""
    store = keyed_store(tmp_path / "store", 30)
    result = call("spark", "diff", store, "P-1", "P-2", *HERE)
    assert result.exit_code == 1
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["P", "accounts", "1", "29", "1"] in lines
    assert "and 11 more (--json has all)" in result.stderr
    result = call("spark", "diff", store, "P-1", "P-2", *HERE, "--json")
    found = json.loads(result.stdout)
    assert not found["is_equal"]
    assert found["key_counts"] == [
        {
            "process": "P",
            "field": "accounts",
            "added_count": 1,
            "removed_count": 29,
            "changed_count": 1,
        }
    ]
    assert len(found["keys"]) == 31
    assert found["keys"][1] == {
        "process": "P",
        "field": "accounts",
        "change": "changed",
        "key": '"k0"',
        "before": "0",
        "after": "7",
    }


def test_an_unknown_snapshot_is_named_before_spark_starts(call: Call, money: Path) -> None:
    """With those that there are; exit 2."""
    result = call("spark", "diff", money, "A-1", "A-9")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no snapshot A-9 in the store" in result.stderr
