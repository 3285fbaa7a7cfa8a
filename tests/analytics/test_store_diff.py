"""In what two snapshots differ, on Spark: what ``stillframe diff`` and plain dicts say, too."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from stillframe.analytics import diff_store
from stillframe.analytics.store_diff import Difference
from stillframe.errors import UsageError
from stillframe.model import Batch, Channel, ChannelState, GlobalState, SnapshotId
from stillframe.process import Process
from stillframe.store.store import Store
from tests.analytics import bank
from tests.analytics.chains import make_chains
from tests.nightly import by_night
from tests.store import keyed_samples, samples

pytestmark = pytest.mark.spark


def encoded(value: Any) -> bytes:
    """Return what a value is recorded as."""
    return msgspec.msgpack.encode(value)


def changes(old: dict[Any, Any], new: dict[Any, Any]) -> dict[str, list[Any]]:
    """Return the keys that were added, removed and changed."""
    return {
        "added": [key for key in new if key not in old],
        "removed": [key for key in old if key not in new],
        "changed": [key for key in new if key in old and encoded(old[key]) != encoded(new[key])],
    }


def rows(frame: Any) -> list[tuple[Any, ...]]:
    """Return rows as tuples, sorted."""
    return sorted(map(tuple, frame.collect()), key=repr)


def is_empty(found: Difference) -> bool:
    """Return whether nothing differs."""
    return not any(
        getattr(found, name).count() for name in ("fields", "keys", "channels", "messages")
    )


@pytest.mark.nightly(part="verdicts")
@pytest.mark.parametrize(
    ("seed", "numbers"), [(2, (7, 8)), (3, (8, 2)), *by_night([(1, (1, 8)), (4, (6, 7))], check=[])]
)
def test_keys_differ_as_dicts_do(
    spark: SparkSession, tmp_path: Path, seed: int, numbers: tuple[int, int]
) -> None:
    """Added, removed and changed, whatever the snapshots are based on, in either order."""
    cuts = make_chains(tmp_path / "store", seed)
    one, other = (SnapshotId("P", number) for number in numbers)
    found = rows(diff_store(spark, tmp_path / "store", str(one), str(other)).keys)
    expected = [
        (process, field, change, len(keys))
        for process in keyed_samples.BANKS
        for field in cuts[one][process]
        for change, keys in changes(cuts[one][process][field], cuts[other][process][field]).items()
        if keys
    ]
    counted: dict[tuple[Any, ...], int] = {}
    for process, field, change, *_ in found:
        counted[process, field, change] = counted.get((process, field, change), 0) + 1
    assert sorted((*place, count) for place, count in counted.items()) == sorted(expected)
    for process, field, change, key, before, after in found:
        assert (before is None, after is None) == (change == "added", change == "removed")
        if field == "accounts":
            for text, snapshot in ((before, one), (after, other)):
                held = cuts[snapshot][process]["accounts"]
                assert text is None or held[json.loads(key)] == json.loads(text)


def test_a_snapshot_does_not_differ_from_itself(spark: SparkSession, tmp_path: Path) -> None:
    """Nor from one that says the same in other files."""
    make_chains(tmp_path / "store", 5)
    assert is_empty(diff_store(spark, tmp_path / "store", "P-6", "P-6"))


def test_keys_and_values_are_shown_as_json(spark: SparkSession, tmp_path: Path) -> None:
    """A Struct is an object, a key that is one a list; None is null, and no row is no value."""
    empty, now = keyed_samples.nothing(), keyed_samples.nothing()
    place = keyed_samples.Place(1, 'a "b"')
    now["seats"] = {place: keyed_samples.Guest("Ä", None)}
    now["accounts"] = {"x": 7}
    store = Store.create(tmp_path / "store", description=keyed_samples.DESCRIPTION)
    store.raise_epoch(None)
    for number, held in ((1, empty), (2, now)):
        parts = [keyed_samples.whole(name, held) for name in keyed_samples.BANKS]
        store.publish(keyed_samples.snapshot_of(number, parts))
    store.close()
    found = diff_store(spark, tmp_path / "store", "P-1", "P-2")
    assert [row[1:] for row in rows(found.keys) if row[0] == "P"] == [
        ("accounts", "added", '"x"', None, "7"),
        ("seats", "added", '[1,"a \\"b\\""]', None, '{"name":"Ä","age":null}'),
    ]
    assert rows(found.fields) == [("T", "balance", "1", "2")]
    gone = rows(diff_store(spark, tmp_path / "store", "P-2", "P-1").keys)
    assert {(row[2], row[5]) for row in gone} == {("removed", None)}


def test_fields_of_every_kind_are_compared(spark: SparkSession, tmp_path: Path) -> None:
    """Text, floats with the sign of zero, booleans and lists."""
    store = Store.create(tmp_path / "store", description=samples.DESCRIPTION)
    store.raise_epoch(None)
    changed: dict[str, Process] = {
        "A": samples.Account(balance=1, name='"', history=[1]),
        "T": samples.Till(balance=-0.0, is_open=False),
    }
    unchanged: dict[str, Process] = {"T": samples.Till(balance=0.0)}
    store.publish(samples.snapshot_of(1, samples.global_state({}, unchanged)))
    store.publish(samples.snapshot_of(2, samples.global_state({}, changed)))
    store.close()
    assert rows(diff_store(spark, tmp_path / "store", "A-1", "A-2").fields) == [
        ("A", "balance", "100.0", "1.0"),
        ("A", "history", "[]", "[1]"),
        ("A", "name", '""', '"\\""'),
        ("T", "balance", "0.0", "-0.0"),
        ("T", "is_open", "true", "false"),
    ]


def with_messages(number: int, amounts: list[int], *, received: int = 10) -> Any:
    """Return a snapshot of the bank with transfers of these amounts on P1->P2."""
    made = bank.snapshot(number)
    messages = [encoded(bank.Transfer(amount)) for amount in amounts]
    batches = (Batch.of(received + 1, messages),) if messages else ()
    channels = tuple(
        ChannelState(bank.CAUGHT, received + len(amounts), received, batches)
        if state.channel == bank.CAUGHT
        else ChannelState(state.channel, 9, 9, ())
        for state in made.state.channels
    )
    state = GlobalState(made.state.processes, channels)
    return msgspec.structs.replace(made, state=state)


def test_channels_differ_in_counts_and_messages(spark: SparkSession, tmp_path: Path) -> None:
    """A message that has another content differs, also where all counts are the same."""
    store = Store.create(tmp_path / "store", description=bank.TOPOLOGY.description)
    store.raise_epoch(None)
    store.publish(with_messages(1, [1, 2, 3]))
    store.publish(with_messages(2, [1, 7, 3]))
    store.publish(with_messages(3, [3], received=12))
    store.close()
    same_counts = diff_store(spark, tmp_path / "store", "P1-1", "P1-2")
    assert rows(same_counts.messages) == [
        ("P1", "P2", 12, "after", "Transfer", '{"amount":7}'),
        ("P1", "P2", 12, "before", "Transfer", '{"amount":2}'),
    ]
    assert [row.asDict() for row in same_counts.channels.collect()] == [
        {
            "source": "P1",
            "target": "P2",
            **{f"sent_count_{side}": 13 for side in ("before", "after")},
            **{f"received_count_{side}": 10 for side in ("before", "after")},
            **{f"message_count_{side}": 3 for side in ("before", "after")},
            **{f"only_{side}": 1 for side in ("before", "after")},
        }
    ]
    fewer = diff_store(spark, tmp_path / "store", "P1-1", "P1-3")
    [row] = fewer.channels.collect()
    assert (row["received_count_before"], row["received_count_after"]) == (10, 12)
    assert (row["only_before"], row["only_after"]) == (2, 0)
    assert [found[2:4] for found in rows(fewer.messages)] == [(11, "before"), (12, "before")]


def test_after_a_change_of_code_both_are_compared(spark: SparkSession, tmp_path: Path) -> None:
    """What only one of them has has no value in the other."""
    store = Store.create(tmp_path / "store", description=bank.TOPOLOGY.description)
    store.raise_epoch(None)
    store.publish(bank.snapshot(1))
    store.raise_epoch(SnapshotId("P1", 1), description=keyed_samples.DESCRIPTION)
    held = keyed_samples.nothing() | {"accounts": {"a": 1}}
    parts = [keyed_samples.whole(name, held) for name in keyed_samples.BANKS]
    store.publish(msgspec.structs.replace(keyed_samples.snapshot_of(2, parts), epoch=2))
    store.close()
    found = diff_store(spark, tmp_path / "store", "P1-1", "P-2")
    assert ("P1", "balance", "90", None) in rows(found.fields)
    assert ("T", "balance", None, "2") in rows(found.fields)
    assert [row[:4] for row in rows(found.keys)] == [
        ("P", "accounts", "added", '"a"'),
        ("Q", "accounts", "added", '"a"'),
    ]
    assert {Channel(row["source"], row["target"]) for row in found.channels.collect()} == set(
        bank.TOPOLOGY.description.channels
    )
    assert found.messages.count() == 5


def test_an_unknown_snapshot_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """With those that there are."""
    store = bank.make_store(tmp_path / "store", snapshot_count=2)
    with pytest.raises(UsageError, match=r"no snapshot P1-9 in the store .* are P1-1, P1-2"):
        diff_store(spark, store, "P1-1", "P1-9")
