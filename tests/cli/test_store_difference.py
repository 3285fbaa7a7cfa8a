"""``store diff``: what ``diff`` says, by Spark."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe.model import Batch, Channel, ChannelState, Snapshot
from stillframe.store.store import Store
from tests.cli.conftest import Call
from tests.shapes import same_shape
from tests.store import keyed_samples as keyed

pytest.importorskip("pyspark", reason="needs PySpark")

from stillframe.analytics import store_diff as spark_difference
from stillframe.analytics.store_diff import Difference
from tests.cli.frames import frame, without_spark

HERE = ("--master", "local[2]")


def removed(number: int) -> dict[str, Any]:
    """Return that a key was removed."""
    row = {"process": "P", "field": "accounts", "change": "removed", "key": f'"k{number}"'}
    return row | {"before": str(number), "after": None}


SIDES = ("before", "after")
KEY = {"process": "P", "field": "accounts", "change": "changed", "key": '"k0"'}
CANNED = Difference(
    fields=frame({"process": "A", "field": "note", "before": '""', "after": f'"{"x" * 200}"'}),
    keys=frame(KEY | {"before": "0", "after": "7"}, *map(removed, range(1, 30))),
    channels=frame(
        {"source": "A", "target": "B"}
        | {f"sent_count_{side}": 1015 for side in SIDES}
        | {f"received_count_{side}": 1010 for side in SIDES}
        | {f"message_count_{side}": 5 for side in SIDES}
        | {f"only_{side}": 1 for side in SIDES}
    ),
    messages=frame(
        *(
            {"source": "A", "target": "B", "number": 15, "side": side}
            | {"kind": "Coin", "message": f'{{"amount":{amount}}}'}
            for amount, side in enumerate(SIDES, 1)
        )
    ),
)
"""What ``analytics.store_diff`` could have found."""
NOTHING = Difference(fields=frame(), keys=frame(), channels=frame(), messages=frame())
Find = Callable[[Difference], None]


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Find:
    """Let something have been found without Spark."""

    def find(found: Difference) -> None:
        without_spark(monkeypatch)
        monkeypatch.setattr(spark_difference, "difference", lambda *_: found)

    return find


def test_what_differs_is_shown_as_diff_does(call: Call, money: Path, find: Find) -> None:
    """Fields, keys, channels, and messages in transit in only one; of many keys the first, which is
    said; exit 1 as for 'diff'."""
    find(CANNED)
    result = call("store", "diff", money, "A-1", "A-3")
    assert result.exit_code == 1, result.output
    assert "\nand 10 more (--json has all)\n" in result.stdout
    assert result.stdout.endswith("\nA-1 and A-3 differ in 1 field, 30 keys and 1 channel\n")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[3][:3] == ["A", "note", '""']
    assert f'"{"x" * 56}...' in result.stdout
    assert ["P", "accounts", "0", "29", "1"] in lines
    assert ["P", "accounts", "removed", '"k19"', "19"] in lines
    assert ["P", "accounts", "removed", '"k20"', "20"] not in lines
    assert ["A->B", *("1,015",) * 2, *("1,010",) * 2, "5", "5", "1", "1"] in lines
    assert ["A->B", "15", "A-1", "Coin", '{"amount":1}'] in lines
    assert ["A->B", "15", "A-3", "Coin", '{"amount":2}'] in lines


def test_the_same_is_a_yes(call: Call, money: Path, find: Find) -> None:
    """Exit 0, and nothing but words."""
    find(NOTHING)
    result = call("store", "diff", money, "A-1", "A-1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "A-1 and A-1 record the same states and the same messages\n"


def with_a_message(made: Snapshot) -> Snapshot:
    """Return a snapshot with one message in transit, whose content depends on the snapshot."""
    hello = msgspec.msgpack.encode(keyed.Hello(int(made.initiated_at)))
    state = ChannelState(Channel("P", "Q"), 1, 0, (Batch.of(1, [hello]),))
    channels = tuple(
        state if other.channel == state.channel else other for other in made.state.channels
    )
    return msgspec.structs.replace(
        made, state=msgspec.structs.replace(made.state, channels=channels)
    )


def store_of_two(path: Path) -> Path:
    """Make a store with P-1, in which the bank P has k0, k1 and k2, and P-2, in which it has one
    other, and none of the former but k0, which has another value."""
    store = Store.create(path, description=keyed.DESCRIPTION)
    store.raise_epoch(None)
    empty = keyed.nothing()
    for number, held in enumerate(({"k0": 0, "k1": 1, "k2": 2}, {"k0": 7, "new": 1}), 1):
        parts = [keyed.whole("P", empty | {"accounts": held}), keyed.whole("Q", empty)]
        store.publish(with_a_message(keyed.snapshot_of(number, parts)))
    store.close()
    return path


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_spark_finds_what_differs(call: Call, money: Path, find: Find, tmp_path: Path) -> None:
    """All of it as JSON: each field, key, channel and message; counts are of all keys."""
    store = store_of_two(tmp_path / "store")
    result = call("store", "diff", store, "P-1", "P-2", *HERE, "--json")
    assert result.exit_code == 1, result.output
    assert "P-1 and P-2 differ in 1 field, 4 keys and 1 channel" in result.stderr
    found = json.loads(result.stdout)
    find(CANNED)
    same_shape(json.loads(call("store", "diff", money, "A-1", "A-3", "--json").stdout), found)
    assert found["is_equal"] is False
    assert found["fields"] == [{"process": "T", "field": "balance", "before": "1", "after": "2"}]
    assert found["key_counts"] == [
        {"process": "P", "field": "accounts"}
        | {"added_count": 1, "removed_count": 2, "changed_count": 1}
    ]
    assert [(row["change"], row["key"], row["before"], row["after"]) for row in found["keys"]] == [
        ("added", '"new"', None, "1"),
        ("changed", '"k0"', "0", "7"),
        ("removed", '"k1"', "1", None),
        ("removed", '"k2"', "2", None),
    ]
    assert [(row["only_before"], row["only_after"]) for row in found["channels"]] == [(1, 1)]
    assert [(row["side"], row["message"]) for row in found["messages"]] == [
        ("after", '{"at":2}'),
        ("before", '{"at":1}'),
    ]


def test_an_unknown_snapshot_is_named_before_spark_starts(call: Call, money: Path) -> None:
    """With those that there are; exit 2."""
    result = call("store", "diff", money, "A-1", "A-9")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no snapshot A-9 in the store" in result.stderr
