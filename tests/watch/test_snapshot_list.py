"""The list of snapshots: all of them can be reached, some at a time."""

import contextlib
import secrets
from pathlib import Path

from stillframe.model import SnapshotId
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.store.store import Store
from stillframe.store.writer import local
from stillframe.watch.snapshot_list import store_snapshots
from tests.watch.published import PAIR, new_store, publish


def test_every_snapshot_is_on_one_page(tmp_path: Path) -> None:
    """The newest first, without a gap or a repetition, whatever was dropped."""
    with contextlib.closing(new_store(tmp_path)) as store:
        snapshots = store_snapshots(Store.open(store.path))
        assert snapshots.poll() == ([], [])
        numbers = [*range(1, 30)]
        for number in numbers:
            publish(store, number)
        new, gone = snapshots.poll()
        assert ([i.number for i in new], gone) == (numbers, [])
        assert snapshots.poll() == ([], [])
        for number in (7, 8, 20):
            store.drop(f"A-{number}")
            numbers.remove(number)
        new, gone = snapshots.poll()
        assert (new, sorted(i.number for i in gone)) == ([], [7, 8, 20])
        assert snapshots.count == len(numbers)
        told: list[int] = []
        before = None
        while rows := snapshots.rows_before(before, 4):
            assert len(rows) <= 4
            told += [row["number"] for row in rows]
            before = told[-1]
        assert told == numbers[::-1]


def test_a_row_says_what_the_store_says(tmp_path: Path) -> None:
    """Times, sizes and savepoints; a damaged one is said to be, and is not left out."""
    with contextlib.closing(new_store(tmp_path)) as store:
        publish(store, 1)
        publish(store, 2)
        store.save(SnapshotId("A", 1), "kept")
        snapshots = store_snapshots(Store.open(store.path))
        snapshots.poll()
        second, first = snapshots.rows_before(None)
        (entry, _) = store.entries()
        assert first["savepoints"] == ("kept",)
        assert (first["bytes"], first["duration_s"], first["number"]) == (entry.bytes, 0.5, 1)
        assert second["message_count"] == 0
        manifest = local(entry.directory) / "manifest.json"
        manifest.write_text(manifest.read_text().replace("1", "2", 1))
        damaged = snapshots.rows_before(2)[0]
        assert damaged["id"] == "A-1"
        assert "manifest.json" in damaged["error"]
        assert snapshots.rows([SnapshotId("A", 9)]) == []


def test_only_what_is_published_is_listed_in_an_object_store() -> None:
    """A snapshot is new when its manifest is there, and not when its tables are."""
    place = ObjectPath(f"memory://{secrets.token_hex(8)}", "store")
    with contextlib.closing(Store.create(place, description=PAIR.description)) as store:
        store.raise_epoch(None)
        snapshots = store_snapshots(Store.open(place))
        publish(store, 1)
        storage, unfinished = storage_of(place), place / "snapshots" / "A-2"
        storage.put(unfinished / "processes.parquet", b"x")
        assert snapshots.poll() == ([SnapshotId("A", 1)], [])
        assert snapshots.poll() == ([], [])
        assert snapshots.count == 1
        storage.delete([unfinished / "processes.parquet"])
        publish(store, 2)
        assert snapshots.poll() == ([SnapshotId("A", 2)], [])
        store.drop("A-1")
        assert snapshots.poll() == ([], [SnapshotId("A", 1)])
