"""A writer of a store in an object store is overtaken between two of its requests, and wakes."""

import contextlib
import secrets
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest

from stillframe.errors import Fenced, StillframeError, UsageError
from stillframe.model import SnapshotId
from stillframe.storage import lease, object_store, remote
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.store import bucket_history, copying
from stillframe.store import store as store_module
from stillframe.store.bucket_writer import BucketWriter
from stillframe.store.history import SnapshotAbandoned, SnapshotBegan
from stillframe.store.snapshot_directory import NewObjects
from stillframe.store.store import Store
from tests.storage.faulty import Died, Fault, faulty, restarted
from tests.store.test_bucket_faults import buckets, place, publish

__all__ = ["buckets", "place"]


def another(place: ObjectPath) -> Store:
    """Open the store for writing while another writer is frozen."""
    with restarted():
        return Store.open_writer(place)


def verified(place: ObjectPath) -> list[int]:
    """Return the numbers of the snapshots of a store, every byte of which is read."""
    store = Store.open(place)
    store.verify_all(lambda *_: None)
    return [entry.id.number for entry in store.entries()]


def frozen(owner: Any, name: str, first: Callable[[], object]) -> Any:
    """Let `first` happen before the first call of a method: whoever calls it is frozen there."""
    real, calls = getattr(owner, name), []

    def method(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            first()
        return real(*arguments)

    return mock.patch.object(owner, name, method)


def full_at_once() -> Any:
    """Let the newest snapshot be rewritten in full as soon as something is maintained."""
    return mock.patch.object(store_module, "CHAIN_LENGTH_MAX", 0)


def held_back(key: str, held: list[tuple[ObjectPath, bytes]]) -> Any:
    """Let the first write of an object not arrive: the request is late, and is in `held`."""
    real = object_store.ObjectStore._put

    def put(bucket: Any, location: ObjectPath, content: bytes, *more: Any) -> Any:
        if not held and str(location).endswith(key):
            held.append((location, content))
            raise bucket._api.exceptions.GenericError("TimedOut")
        return real(bucket, location, content, *more)

    return mock.patch.object(object_store.ObjectStore, "_put", put)


def test_a_writer_that_opens_late_deletes_no_file_that_is_in_use(place: ObjectPath) -> None:
    """It lists while its successor has written files, and not yet the manifest."""
    real = object_store.ObjectStore.files_below
    listed: list[Any] = []

    def files_below(bucket: Any, directory: ObjectPath) -> Any:
        if listed or directory.name != "snapshots":
            return real(bucket, directory)
        listed.append(None)

        def look() -> None:
            listed.append(real(bucket, directory))

        successor = another(place)
        with frozen(NewObjects, "publish", look):
            publish(successor, successor.history.last_number + 1)
        return listed[-1]

    with mock.patch.object(object_store.ObjectStore, "files_below", files_below):
        Store.open_writer(place)
    assert verified(place) == [1, 2, 3, 4, 5]


def test_a_late_rewriting_brings_no_snapshot_back(place: ObjectPath) -> None:
    """Its successor has removed the snapshot meanwhile."""
    first = Store.open_writer(place)

    def successor_removes() -> None:
        successor = another(place)
        for number in (5, 6, 7):
            publish(successor, number)
        successor.keep(1)
        successor.settle()

    with frozen(BucketWriter, "replace_manifest", successor_removes), full_at_once():
        first.keep(100)
        with pytest.raises(StillframeError):
            first.settle()
    assert 4 not in verified(place)


def test_two_that_rewrite_with_other_bytes_agree(place: ObjectPath) -> None:
    """Releases of Arrow differ: a manifest lists what is there."""
    first = Store.open_writer(place)
    write = pq.write_table

    def successor_rewrites() -> None:
        successor = another(place)
        old = {"version": "1.0"}
        with mock.patch.object(pq, "write_table", lambda *a, **k: write(*a, **k | old)):
            successor.keep(100)
            successor.settle()

    with frozen(BucketWriter, "replace_manifest", successor_rewrites), full_at_once():
        first.keep(100)
        with pytest.raises(Fenced):
            first.settle()
    assert verified(place) == [1, 2, 3, 4]


def test_a_writer_that_opens_late_keeps_full_files(place: ObjectPath) -> None:
    """A dead writer left one; a successor uses it by now."""
    dead = Store.open_writer(place)
    dying = mock.patch.object(BucketWriter, "replace_manifest", side_effect=Died)
    with dying, full_at_once(), contextlib.suppress(BaseException):
        dead.keep(100)
        dead.settle()

    def successor_rewrites() -> None:
        successor = another(place)
        with full_at_once():
            successor.keep(100)
            successor.settle()

    with frozen(BucketWriter, "remove_unlisted", successor_rewrites), restarted():
        Store.open_writer(place)
    assert verified(place) == [1, 2, 3, 4]


def test_a_late_manifest_of_an_abandoned_snapshot_finds_a_tombstone(place: ObjectPath) -> None:
    """Although its writer died, and had said that it was abandoned; however late it is."""
    first, held = Store.open_writer(place), list[tuple[ObjectPath, bytes]]()
    at_once = mock.patch.object(remote, "REPEAT_S", 0.0)
    with held_back("P-5/manifest.json", held), at_once, pytest.raises(StillframeError):
        publish(first, 5)
    first.history.append(SnapshotAbandoned(SnapshotId("P", 5), "NOT_PUBLISHED", (), ""))
    first.history.append(SnapshotBegan(SnapshotId("P", 6)))
    successor = another(place)
    with pytest.raises(FileExistsError):
        storage_of(place).put_if_absent(*held[0])
    for number in (7, 8, 9):
        publish(successor, number)
    successor.keep(1)
    successor.close()
    kept = verified(place)
    with contextlib.closing(another(place)), pytest.raises(FileExistsError):
        storage_of(place).put_if_absent(*held[0])
    assert verified(place) == kept
    assert 9 in kept


def test_a_stop_in_order_settles_what_is_unknown(place: ObjectPath) -> None:
    """What was reported as abandoned is not there afterwards."""
    first = Store.open_writer(place)
    lost = lambda request: Fault.LOST if request.key.endswith("manifest.json") else None  # noqa: E731
    with faulty(place, lost, repeat_s=0.0), pytest.raises(StillframeError):
        publish(first, 5)
    first.history.append(SnapshotAbandoned(SnapshotId("P", 5), "NOT_PUBLISHED", (), ""))
    first.close()
    assert verified(place) == [1, 2, 3, 4]


def test_a_late_duplicate_brings_no_snapshot_back(place: ObjectPath) -> None:
    """The repeated request was answered, and the snapshot was removed, before the first one."""
    first, held = Store.open_writer(place), list[tuple[ObjectPath, bytes]]()
    with held_back("P-6/manifest.json", held):
        publish(first, 6)
    for number in (7, 8, 9):
        publish(first, number)
    first.keep(1)
    first.settle()
    storage_of(place).put_if_absent(*held[0])
    assert verified(place)[-1] == 9
    assert 6 not in verified(place)
    for store in (Store.open(place), first):
        with pytest.raises(UsageError, match="no snapshot P-6"):
            store.entry(SnapshotId("P", 6))
        with pytest.raises(UsageError, match="no snapshot P-6"):
            store.load(SnapshotId("P", 6))
    first.close()
    with contextlib.closing(another(place)):
        assert not storage_of(place).exists(held[0][0])


def test_an_older_history_is_not_replaced_late(place: ObjectPath) -> None:
    """A writer that was about to start a new object has lost both."""
    first = Store.open_writer(place)

    def successor_rolls_over() -> None:
        successor = another(place)
        for number in range(20, 24):
            publish(successor, number)
        successor.keep(1)
        successor.settle()
        publish(successor, 24)
        successor.close()

    often = mock.patch.object(bucket_history, "FILE_BYTES_MAX", 300)
    rolling = frozen(bucket_history.BucketHistory, "_roll_over", successor_rolls_over)
    with often, rolling, pytest.raises(Fenced):
        publish(first, 6)
    assert verified(place)[-1] == 24


def test_an_end_that_comes_before_the_start_ends_it(place: ObjectPath) -> None:
    """The start waited for the object store until after the deadline of the snapshot."""
    with contextlib.closing(Store.open_writer(place)) as store:
        history, late = store.history, SnapshotId("P", 9)
        is_late, may_go = threading.Event(), threading.Event()

        def wait() -> None:
            is_late.set()
            may_go.wait()

        with frozen(object_store.ObjectStore, "replace_if_unchanged", wait):
            begin = threading.Thread(target=history.append, args=(SnapshotBegan(late),))
            begin.start()
            is_late.wait()
            history.append(SnapshotAbandoned(late, "NOT_PUBLISHED", (), "too late"))
            may_go.set()
            begin.join()
        assert history.pending == ()
    with contextlib.closing(Store.open_writer(place)) as store:
        assert store.history.pending == ()
        assert store.history.last_number == 9


def test_a_copy_that_was_overtaken_changes_no_store(place: ObjectPath) -> None:
    """Another copy was complete meanwhile, and a system runs on it."""
    target = ObjectPath(f"memory://{secrets.token_hex(8)}", "copy")
    live: list[Store] = []

    def another_copy() -> None:
        with restarted():
            copying.copy_store(place, target, lambda *_: None)
        live.append(another(target))
        publish(live[0], 5)

    with frozen(copying, "_copy_snapshot", another_copy), pytest.raises(StillframeError):
        copying.copy_store(place, target, lambda *_: None)
    publish(live[0], 6)
    assert verified(target) == [1, 2, 3, 4, 5, 6]


def test_a_lease_that_is_lost_while_a_store_is_opened_counts(place: ObjectPath) -> None:
    """The writer is not opened."""
    clear_up = BucketWriter._clear_up

    def overtaken(writer: BucketWriter) -> None:
        writer._lose_lease()
        clear_up(writer)

    with mock.patch.object(BucketWriter, "_clear_up", overtaken), pytest.raises(Fenced):
        Store.open_writer(place)


def test_events_do_not_wait_for_an_unknown_head(place: ObjectPath) -> None:
    """The head could not be written; no request is sent for an event."""
    with contextlib.closing(Store.open_writer(place)) as store:
        with faulty(place, lambda request: Fault.REFUSED, repeat_s=0.0) as requests:
            with pytest.raises(StillframeError):
                store.save(SnapshotId("P", 4), "mine")
            count = len(requests.sent)
            with mock.patch.object(bucket_history, "WRITE_INTERVAL_S", 3600.0):
                store.history.append(SnapshotAbandoned(SnapshotId("P", 9), "DEADLINE", (), ""))
                assert len(requests.sent) == count
        store.save(SnapshotId("P", 4), "mine")


def test_a_renewal_without_an_answer_costs_nothing(
    place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one finds the lease as this program left it."""
    monkeypatch.setattr(lease, "LEASE_S", 0.4)
    with contextlib.closing(Store.open_writer(place)) as store:
        lost = threading.Event()
        store.lost = lost.set
        renewed = threading.Semaphore(0)

        def plan(request: Any) -> Fault | None:
            if not request.key.endswith("lease.json") or request.method != "put":
                return None
            renewed.release()
            return Fault.LOST

        with faulty(place, plan, repeat_s=0.0):
            renewed.acquire()
        assert not lost.wait(0.3)
        publish(store, 5)
