"""All manifests of a store at once, also while somebody writes to it."""

from pathlib import Path

import pytest

from stillframe.analytics import manifests
from stillframe.errors import Damaged, StoreError, UsageError
from stillframe.model import SnapshotId
from stillframe.store.store import Store
from tests.analytics import bank


def test_entries_are_those_of_the_store(tmp_path: Path) -> None:
    """The same, with chains and savepoints, in the order of publishing."""
    store = bank.make_store(tmp_path / "store", snapshot_count=12)
    writer = Store.open_writer(store)
    writer.save(SnapshotId("P1", 3), "payday")
    writer.close()
    published = manifests.read_published(store)
    assert published.entries() == Store.open(store).entries()
    assert published.find("payday") == SnapshotId("P1", 3)
    assert published.find("P1-12") == SnapshotId("P1", 12)
    with pytest.raises(UsageError, match=r"no snapshot P1-99 in .*; there are P1-1, P1-2, P1-3"):
        published.find("P1-99")


def test_a_comparison_takes_all_manifests(tmp_path: Path) -> None:
    """An empty store, and one with a manifest that was changed, are refused."""
    with pytest.raises(UsageError, match="holds no snapshot yet: there is nothing to compare"):
        manifests.read_complete(bank.make_store(tmp_path / "empty", snapshot_count=0))
    store = bank.make_store(tmp_path / "store", snapshot_count=2)
    assert list(manifests.read_complete(store).manifests) == [SnapshotId("P1", n) for n in (1, 2)]
    path = store / "snapshots" / "P1-2" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"P1", b"P2", 1))
    with pytest.raises(Damaged, match=r"P1-2/manifest\.json was changed"):
        manifests.read_complete(store)


def test_work_is_done_again_if_what_it_read_went(tmp_path: Path) -> None:
    """A snapshot that was dropped meanwhile is no damage; the second time it is not asked for."""
    store = bank.make_store(tmp_path / "store", snapshot_count=3)
    writer = Store.open_writer(store)
    seen = []

    def work(published: manifests.Published) -> int:
        seen.append([str(snapshot) for snapshot in published.manifests])
        if len(seen) == 1:
            writer.drop("P1-2")
            raise Damaged("a file is missing")
        return len(published.manifests)

    assert manifests.while_published(store, work) == 2
    assert seen == [["P1-1", "P1-2", "P1-3"], ["P1-1", "P1-3"]]
    writer.close()


def test_what_is_damaged_stays_so(tmp_path: Path) -> None:
    """If the manifests say what they said, also beside a new one, the error is true."""
    store = bank.make_store(tmp_path / "store", snapshot_count=1)
    writer = Store.open_writer(store)
    calls = []

    def work(published: manifests.Published) -> None:
        calls.append(published)
        writer.publish(bank.snapshot(1 + len(calls)))
        raise Damaged("a file was changed")

    with pytest.raises(Damaged, match="a file was changed"):
        manifests.while_published(store, work)
    assert len(calls) == 1
    writer.close()


def test_what_is_no_snapshot_is_named(tmp_path: Path) -> None:
    """So is a directory that is no store."""
    store = bank.make_store(tmp_path / "store", snapshot_count=1)
    (store / "snapshots" / "mine").mkdir()
    with pytest.raises(StoreError, match="mine is not a snapshot: move it out of the store"):
        manifests.read_published(store)
    with pytest.raises(UsageError, match="does not exist"):
        manifests.read_published(tmp_path / "nowhere")
