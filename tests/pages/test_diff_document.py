"""What a page shows of two snapshots: what ``stillframe diff`` finds, bounded."""

from pathlib import Path

from stillframe.model import SnapshotId
from stillframe.pages.snapshot_documents import KEYS_MAX, diff_document
from stillframe.store.diff import diff_snapshots
from stillframe.store.store import Store
from tests.store import keyed_samples


def keyed_store(path: Path, *contents: dict[str, int]) -> Store:
    """Return a store of snapshots in which P holds these accounts, each based on the one before."""
    store = Store.create(path, description=keyed_samples.DESCRIPTION)
    store.raise_epoch(None)
    before, base = keyed_samples.nothing(), None
    for number, accounts in enumerate(contents, 1):
        now = keyed_samples.nothing() | {"accounts": accounts}
        nothing = keyed_samples.nothing()
        parts = [
            keyed_samples.part("P", before, now, base),
            keyed_samples.part("Q", nothing, nothing, base),
        ]
        store.publish(keyed_samples.snapshot_of(number, parts))
        before, base = now, SnapshotId("P", number)
    store.close()
    return Store.open(path)


def test_of_a_keyed_field_each_key_is_there_that_differs(tmp_path: Path) -> None:
    """Added, removed or changed, with both values; the others are not."""
    store = keyed_store(tmp_path / "store", {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5, "d": 4})
    document = diff_document(store, SnapshotId("P", 1), SnapshotId("P", 2))
    (accounts,) = (each for each in document["fields"] if each["field"] == "accounts")
    rows = {
        row["key"]["text"]: (row.get("before", {}).get("text"), row.get("after", {}).get("text"))
        for row in accounts["keys"]
    }
    assert rows == {'"b"': ("2", "5"), '"c"': ("3", None), '"d"': (None, "4")}
    counts = [accounts[f"{what}_count"] for what in ("added", "removed", "changed")]
    assert counts == [1, 1, 1]


def test_of_many_keys_some_are_shown_and_all_counted(tmp_path: Path) -> None:
    """A page stays small."""
    store = keyed_store(tmp_path / "store", {}, {f"k{n}": n for n in range(1000)})
    document = diff_document(store, SnapshotId("P", 1), SnapshotId("P", 2))
    (accounts,) = (each for each in document["fields"] if each["field"] == "accounts")
    assert len(accounts["keys"]) == KEYS_MAX
    assert accounts["keys_left_out_count"] == 1000 - KEYS_MAX
    assert accounts["added_count"] == 1000


def test_it_finds_what_diff_finds(tmp_path: Path) -> None:
    """The same fields; and of one and the same snapshot nothing."""
    store = keyed_store(tmp_path / "store", {"a": 1}, {"a": 2})
    one, other = SnapshotId("P", 1), SnapshotId("P", 2)
    document = diff_document(store, one, other)
    found = diff_snapshots(store, one, other)
    assert [(f["process"], f["field"]) for f in document["fields"]] == [
        (f.process, f.field) for f in found.fields
    ]
    same = diff_document(store, one, one)
    assert (same["is_equal"], same["fields"], same["channels"]) == (True, [], [])
