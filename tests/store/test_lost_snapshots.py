"""A snapshot that was published and is gone is lost, unless a writer removed it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillframe.errors import Damaged, StoreError
from stillframe.model import SnapshotId
from stillframe.store import writer as writer_module
from stillframe.store.history import NEWER, SnapshotPublished, SnapshotRemoved, lost_snapshots
from stillframe.store.layout import SNAPSHOTS, is_published
from stillframe.store.store import Store
from tests.store.samples import DESCRIPTION, publish

COUNT = 4


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of four snapshots; its history has them as a run writes it."""
    path = tmp_path / "store"
    writer = Store.create(path, description=DESCRIPTION)
    writer.raise_epoch(None)
    publish(writer, *range(1, COUNT + 1))
    for entry in writer.entries():
        writer.history.append(SnapshotPublished(entry.id, is_removal_noted=True))
    writer.close()
    return path


def write(store: Path, change: Callable[[Store], Any]) -> None:
    """Do `change` as the store's writer."""
    writer = Store.open_writer(store)
    try:
        change(writer)
        writer.settle()
    finally:
        writer.close()


def take_away(store: Path) -> SnapshotId:
    """Delete the directory of the second snapshot, and return its name."""
    second = Store.open(store).entries()[1].id
    shutil.rmtree(store / SNAPSHOTS / str(second))
    return second


def test_what_is_there_or_was_removed_is_not_lost(store: Path) -> None:
    """Neither what retention removes, nor what is dropped by name."""
    assert lost_snapshots(store) == []
    write(store, lambda writer: writer.drop(str(writer.entries()[0].id)))
    write(store, lambda writer: writer.keep(1))
    assert len(Store.open(store).entries()) < COUNT - 1
    assert lost_snapshots(store) == []


def test_a_deleted_directory_is_found_and_its_loss_can_be_accepted(store: Path) -> None:
    """``verify`` names it and what to do; ``drop`` does it, and lets its savepoint go."""
    write(store, lambda writer: writer.save(writer.entries()[1].id, "good"))
    second = take_away(store)
    assert lost_snapshots(store) == [second]
    with pytest.raises(Damaged, match=rf"{second} is missing.*'stillframe delete .* {second}'"):
        Store.open(store).verify_all(lambda *_: None)
    write(store, lambda writer: writer.drop(str(second)))
    assert lost_snapshots(store) == []
    assert Store.open(store).savepoints == {}
    assert Store.open(store).verify_all(lambda *_: None) == COUNT - 1


def test_what_an_older_version_published_is_not_accused(store: Path) -> None:
    """It did not write down what it removed."""
    (store / NEWER).unlink()
    writer = Store.open_writer(store)
    for entry in writer.entries():
        writer.history.append(SnapshotPublished(entry.id))
    writer.close()
    take_away(store)
    assert lost_snapshots(store) == []


def test_a_removal_may_be_noted_first(store: Path) -> None:
    """One thread notes what it removed before another notes that it was published."""
    gone = SnapshotId("A", COUNT + 1)

    def note(writer: Store) -> None:
        writer.history.append(SnapshotRemoved(gone))
        writer.history.append(SnapshotPublished(gone, is_removal_noted=True))

    write(store, note)
    assert lost_snapshots(store) == []


def test_what_is_removed_meanwhile_is_not_lost(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader asks again about what it does not find: its removal may have been written since."""
    first = Store.open(store).entries()[0].id
    there = is_published

    def removed_before(path: Path, snapshot: SnapshotId) -> bool:
        if snapshot == first:
            monkeypatch.setattr("stillframe.store.history.is_published", there)
            write(store, lambda writer: writer.drop(str(first)))
        return there(path, snapshot)

    monkeypatch.setattr("stillframe.store.history.is_published", removed_before)
    assert lost_snapshots(store) == []


def test_a_crash_in_a_removal_loses_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is on the disk before the directory goes."""

    def crash(_: Path) -> None:
        raise StoreError("the machine went down")

    first = Store.open(store).entries()[0].id
    monkeypatch.setattr(writer_module, "sync", crash)
    with pytest.raises(StoreError, match="went down"):
        write(store, lambda writer: writer.drop(str(first)))
    assert not (store / SNAPSHOTS / str(first)).exists()
    assert lost_snapshots(store) == []


def test_a_full_disk_does_not_keep_a_snapshot_from_being_removed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing makes the room that the line needs; it is written with the next."""
    first = Store.open(store).entries()[0].id

    def drop_on_a_full_disk(writer: Store) -> None:
        past = writer.history
        with monkeypatch.context() as full:
            full.setattr("os.pwrite", lambda *_: 0)
            writer.drop(str(first))
        assert not (store / SNAPSHOTS / str(first)).exists()
        assert past is writer.history

    write(store, drop_on_a_full_disk)
    assert lost_snapshots(store) == []


def test_a_damaged_history_accuses_nothing_and_says_so(store: Path) -> None:
    """The damaged line could be that of the removal. It blocks no other removal."""
    write(store, lambda writer: writer.drop(str(writer.entries()[0].id)))
    path = store / NEWER
    lines = path.read_bytes().splitlines(keepends=True)
    (removal,) = [number for number, line in enumerate(lines) if b"SnapshotRemoved" in line]
    lines[removal] = lines[removal].replace(b"SnapshotRemoved", b"SnapshotRemowed")
    path.write_bytes(b"".join(lines))
    with pytest.raises(Damaged, match=f"line {removal + 1} of "):
        lost_snapshots(store)
    with pytest.raises(Damaged, match=f"line {removal + 1} of "):
        Store.open(store).verify_all(lambda *_: None)
    second = Store.open(store).entries()[0].id
    write(store, lambda writer: writer.drop(str(second)))
    assert second not in {entry.id for entry in Store.open(store).entries()}
