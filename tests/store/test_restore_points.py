"""A death goes back to restore points, and those form a chain: each cut is later than the last."""

from pathlib import Path

import msgspec
import pytest

from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.store.store import Store
from tests.store.samples import DESCRIPTION, snapshot_of


def publish(store: Store, number: int, initiated_at: float, completed_at: float) -> SnapshotId:
    """Publish a snapshot that was under way from one time to another."""
    taken = msgspec.structs.replace(
        snapshot_of(number, epoch=store.epoch), initiated_at=initiated_at, completed_at=completed_at
    )
    return store.publish(taken).id


def current(store: Store) -> SnapshotId | None:
    """Return what a death goes back to, as the writer and any reader see it."""
    entry, seen = store.current(), Store.open(store.path).current()
    assert entry == seen
    return entry.id if entry else None


def test_of_snapshots_that_overlap_one_is_a_restore_point(tmp_path: Path) -> None:
    """Their cuts may cross, so a process could be taken to before a cut that was announced as
    safe."""
    store = Store.create(tmp_path / "store", description=DESCRIPTION)
    store.raise_epoch(None)
    first = publish(store, 1, 10.0, 20.0)
    publish(store, 2, 15.0, 25.0)
    assert current(store) == first
    third = publish(store, 3, 20.0, 30.0)
    assert current(store) == third
    publish(store, 4, 29.0, 40.0)
    assert current(store) == third
    store.close()
    again = Store.open_writer(tmp_path / "store")
    assert current(again) == third
    assert [entry.is_restore_point for entry in again.entries()] == [True, False, True, False]
    again.close()


def test_the_first_of_an_epoch_is_a_restore_point(tmp_path: Path) -> None:
    """What an older epoch had under way at the same time does not matter."""
    store = Store.create(tmp_path / "store", description=DESCRIPTION)
    store.raise_epoch(None)
    first = publish(store, 1, 10.0, 20.0)
    store.raise_epoch(first)
    assert current(store) == first
    second = publish(store, 2, 11.0, 12.0)
    assert current(store) == second
    store.close()


def test_a_restore_point_that_was_deleted_is_said(tmp_path: Path) -> None:
    """While others are there, one of them has to be named; a store without any starts from the
    initial states."""
    path = tmp_path / "store"
    store = Store.create(path, description=DESCRIPTION)
    store.raise_epoch(None)
    first, second = publish(store, 1, 10.0, 20.0), publish(store, 2, 20.0, 30.0)
    store.raise_epoch(second)
    store.close()
    for file in (path / "snapshots" / str(second)).iterdir():
        file.unlink()
    (path / "snapshots" / str(second)).rmdir()
    with pytest.raises(UsageError, match=f"there are {first}|there is no snapshot {second}"):
        Store.open(path).current()
    for file in (path / "snapshots" / str(first)).iterdir():
        file.unlink()
    (path / "snapshots" / str(first)).rmdir()
    fresh = Store.create(path, description=DESCRIPTION)
    assert fresh.current() is None
    assert fresh.raise_epoch(None) == 3
    fresh.close()
