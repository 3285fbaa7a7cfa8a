"""A store in an object store: its writers, fenced by conditional writes, and its readers."""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from stillframe.errors import Damaged, Fenced, StoreError, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.storage import lease
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import object_store_of, storage_of
from stillframe.store.bucket_writer import BucketWriter
from stillframe.store.history import (
    SnapshotBegan,
    SnapshotPublished,
    WriterChanged,
    lost_snapshots,
    readable_history,
)
from stillframe.store.manifest import MANIFEST, Tombstone
from stillframe.store.sealed_json import seal
from stillframe.store.store import Store
from tests.s3_servers import at_night
from tests.store import keyed_samples as keyed
from tests.store.samples import DESCRIPTION, publish_while_read, snapshot_of

ONE, TWO, THREE, FOUR = (SnapshotId("A", number) for number in (1, 2, 3, 4))


@pytest.fixture(params=["memory", *at_night("fake_gcs_bucket", "azurite_bucket")])
def place(request: pytest.FixtureRequest) -> ObjectPath:
    """An empty place in an object store: at night also in each emulator."""
    if request.param == "memory":
        return ObjectPath(f"memory://test-{secrets.token_hex(8)}", "money")
    return ObjectPath(request.getfixturevalue(request.param), "money")


@pytest.fixture
def store(place: ObjectPath) -> Iterator[Store]:
    """A new store there, in its first epoch."""
    with contextlib.closing(Store.create(place, description=DESCRIPTION)) as made:
        made.raise_epoch(None)
        yield made


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease ends at once: what a program does that was frozen for longer than its lease."""
    monkeypatch.setattr(lease, "LEASE_S", 0.01)
    monkeypatch.setattr(lease.Lease, "_renew", lambda _: None)


def test_what_was_published_is_read(store: Store, place: ObjectPath) -> None:
    """By its writer and by readers, and every byte is verified."""
    entry = store.publish(snapshot_of(1))
    assert entry.directory == place / "snapshots" / "A-1"
    reader = Store.open(place)
    assert reader.entries() == store.entries() == [entry]
    assert reader.load(ONE).state == snapshot_of(1).state
    assert reader.tables(ONE)["processes"].num_rows == entry.process_count
    assert reader.verify_all(lambda *_: None) == 1
    assert reader.current() == entry


def test_a_publication_takes_few_requests(store: Store, place: ObjectPath) -> None:
    """One for the start of the snapshot, one per file, and one for the manifest; none lists."""
    bucket = object_store_of(place)
    store.publish(snapshot_of(1))
    before = bucket.counts.requests
    store.history.append(SnapshotBegan(TWO))
    entry = store.publish(snapshot_of(2))
    file_count = len(storage_of(place).children(entry.directory)) - 1
    assert bucket.counts.requests - before - 1 <= file_count + 3


def test_a_snapshot_that_is_published_meanwhile_is_not_damaged(
    store: Store, place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest came after a reader had found none: there were only its tables."""
    store.publish(snapshot_of(1))
    publish_while_read(place / "snapshots" / "A-1" / "manifest.json", monkeypatch)
    entries, damages = Store.open(place).listing()
    assert ([entry.id for entry in entries], damages) == ([ONE], {})


def test_a_list_takes_one_request_for_each_snapshot(store: Store, place: ObjectPath) -> None:
    """And about twenty."""
    bucket = object_store_of(place)
    for number in range(1, 11):
        store.publish(snapshot_of(number))
    before = bucket.counts.requests
    reader = Store.open(place)
    assert len(reader.listing()[0]) == 10
    assert reader.current() is not None
    assert reader.epoch == 1
    assert bucket.counts.requests - before <= 20 + 10


def test_the_epoch_and_savepoints_last(store: Store, place: ObjectPath) -> None:
    """A new writer continues with what the one before left."""
    store.publish(snapshot_of(1))
    store.save(ONE, "before")
    store.close()
    with contextlib.closing(Store.open_writer(place)) as again:
        assert (again.epoch, again.savepoints) == (1, {"before": ONE})
        assert again.raise_epoch(ONE) == 2
        with pytest.raises(UsageError, match="is of epoch 1"):
            again.publish(snapshot_of(2))
    assert Store.open(place).restored_from == ONE


def test_a_place_that_is_something_else_is_refused(place: ObjectPath) -> None:
    """As a directory would be."""
    with pytest.raises(UsageError, match="does not exist"):
        Store.open(place)
    storage_of(place).put(place / "notes.txt", b"1")
    with pytest.raises(UsageError, match="is not a store"):
        Store.open_writer(place)
    with pytest.raises(UsageError, match=r"not empty and is not a store; it contains notes\.txt"):
        Store.create(place, description=DESCRIPTION)


def test_a_lease_that_is_none_is_named(store: Store, place: ObjectPath) -> None:
    """That object is to be deleted, and not the store."""
    store.close()
    storage_of(place).put(place / "lease.json", b"{}")
    with pytest.raises(StoreError, match=r"lease\.json is not a lease .*: delete that object"):
        Store.open_writer(place)


def test_a_store_with_snapshots_is_not_made_anew(store: Store, place: ObjectPath) -> None:
    """One without snapshots is taken over, and its epoch rises further."""
    store.close()
    with contextlib.closing(Store.create(place, description=DESCRIPTION)) as again:
        assert again.raise_epoch(None) == 2
        again.publish(snapshot_of(1, epoch=2))
    with pytest.raises(UsageError, match="already has snapshots"):
        Store.create(place, description=DESCRIPTION)


def test_one_writer_at_a_time(store: Store, place: ObjectPath) -> None:
    """A lease that is renewed keeps a second one out, and names the first."""
    with pytest.raises(Unavailable, match=r"in use by another program .*: process \d+ on"):
        Store.open_writer(place)
    store.publish(snapshot_of(1))


@pytest.mark.usefixtures("hasty")
def test_a_fenced_writer_publishes_nothing(place: ObjectPath) -> None:
    """Whatever it tries after another one took over, is refused, and is told once."""
    told: list[str] = []
    frozen = Store.create(place, description=DESCRIPTION)
    frozen.lost = lambda: told.append("lost")
    frozen.raise_epoch(None)
    frozen.publish(snapshot_of(1))
    frozen.publish(snapshot_of(2))
    frozen.history.append(SnapshotBegan(THREE))
    with contextlib.closing(Store.open_writer(place)) as new:
        new.raise_epoch(TWO)
        for act in (
            lambda: frozen.publish(snapshot_of(3)),
            lambda: frozen.publish(snapshot_of(4)),
            lambda: frozen.raise_epoch(ONE),
            lambda: frozen.save(ONE, "mine"),
            lambda: frozen.history.append(SnapshotBegan(FOUR)),
            lambda: frozen.drop("A-1"),
        ):
            with pytest.raises(Fenced):
                act()
        assert told == ["lost"]
        assert [entry.id for entry in new.entries()] == [ONE, TWO]
        assert Store.open(place).epoch == 2
        frozen.close()
        assert new.publish(snapshot_of(5, epoch=2)).sequence == 3
    reader = Store.open(place)
    assert [str(entry.id) for entry in reader.entries()] == ["A-1", "A-2", "A-5"]
    assert reader.verify_all(lambda *_: None) == 3


@pytest.mark.usefixtures("hasty")
def test_who_asks_late_is_told_that_it_lost(place: ObjectPath) -> None:
    """A supervisor imports the code of users after it has opened its store, and may be frozen
    meanwhile; if it takes over processes that run, it writes nothing that would be refused."""
    frozen = Store.create(place, description=DESCRIPTION)
    frozen.raise_epoch(None)
    with contextlib.closing(Store.open_writer(place)):
        with pytest.raises(Fenced):
            frozen.history.append(SnapshotBegan(ONE))
        told: list[str] = []
        frozen.lost = lambda: told.append("lost")
        assert told == ["lost"]
    frozen.close()


@pytest.mark.usefixtures("hasty")
def test_a_store_that_is_lost_while_it_is_opened_is_not_given(
    place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no one to tell yet."""
    Store.create(place, description=DESCRIPTION).close()
    load, writers = Store._load_published, list[BucketWriter]()

    def load_while_frozen(store: Store) -> None:
        load(store)
        assert isinstance(store._writer, BucketWriter)
        store._writer._lose_lease()
        writers.append(store._writer)

    monkeypatch.setattr(Store, "_load_published", load_while_frozen)
    with pytest.raises(Fenced, match="has taken over"):
        Store.open_writer(place)
    assert len(writers) == 1


@pytest.mark.usefixtures("hasty")
def test_of_two_that_publish_and_take_over_one_is_first(place: ObjectPath) -> None:
    """What the first writer published before the second one looked is there for both."""
    first = Store.create(place, description=DESCRIPTION)
    first.raise_epoch(None)
    first.history.append(SnapshotBegan(ONE))
    first.publish(snapshot_of(1))
    with contextlib.closing(Store.open_writer(place)) as second:
        assert [entry.id for entry in second.entries()] == [ONE]
        assert second.history.pending == (ONE,)  # that it was published was not written down
    first.close()


@pytest.mark.usefixtures("hasty")
def test_a_late_manifest_finds_a_tombstone(place: ObjectPath) -> None:
    """It is what remains of a snapshot that began, whose writer was replaced; no reader sees it."""
    first = Store.create(place, description=DESCRIPTION)
    first.raise_epoch(None)
    first.history.append(SnapshotBegan(ONE))
    with contextlib.closing(Store.open_writer(place)) as second:
        content, _ = storage_of(place).read(place / "snapshots" / "A-1" / MANIFEST, bytes_max=999)
        assert content == seal(Tombstone(snapshot=ONE))
        with pytest.raises(FileExistsError):
            storage_of(place).put_if_absent(place / "snapshots" / "A-1" / MANIFEST, b"late")
        second.raise_epoch(None)
        assert second.entries() == []
        assert second.listing() == ([], {})
        with pytest.raises(UsageError, match="there is no snapshot A-1"):
            second.load(ONE)
        assert second.current() is None
        assert second.history.last_number == 1
    first.close()
    assert Store.open(place).entries() == []


def test_removed_snapshots_leave_nothing(store: Store, place: ObjectPath) -> None:
    """With or without ``keep``; the history says that they were removed."""
    for number in range(1, 6):
        store.history.append(SnapshotBegan(SnapshotId("A", number)))
        store.publish(snapshot_of(number))
        published = SnapshotPublished(SnapshotId("A", number), is_removal_noted=True)
        store.history.append(published)
    assert store.drop("A-2") is None
    store.keep(2)
    store.settle()
    assert [entry.id.number for entry in Store.open(place).entries()] == [4, 5]
    left = storage_of(place).children(place / "snapshots")
    assert [one.location.name for one in left] == ["A-4", "A-5"]
    store.close()
    assert lost_snapshots(place) == []


def test_what_a_dead_writer_left_is_cleared_up(store: Store, place: ObjectPath) -> None:
    """Files without a manifest, and a snapshot whose removal was noted."""
    storage = storage_of(place)
    store.publish(snapshot_of(1))
    store.publish(snapshot_of(2))
    store.publish(snapshot_of(10))
    store.drop("A-1")
    manifest, _ = storage.read(place / "snapshots" / "A-2" / MANIFEST, bytes_max=10**6)
    store.close()
    storage.put(place / "snapshots" / "A-9" / "processes.parquet", b"half")
    # A duplicate of the request that wrote it, which was late.
    storage.put(place / "snapshots" / "A-1" / MANIFEST, manifest)
    with contextlib.closing(Store.open_writer(place)) as again:
        assert [entry.id for entry in again.entries()] == [TWO, SnapshotId("A", 10)]
    files = [one.location for one in storage.files_below(place / "snapshots")]
    assert {one.parent.name for one in files} == {"A-2", "A-9", "A-10"}
    assert [one.name for one in files if one.parent.name == "A-9"] == [MANIFEST]  # a tombstone


def test_a_snapshot_is_published_once(store: Store) -> None:
    """Again, it is refused, and the first one stays."""
    store.publish(snapshot_of(1))
    with pytest.raises(UsageError, match="already in the store"):
        store.publish(snapshot_of(1))
    store.publish(snapshot_of(2))
    store.verify(ONE)


def test_changed_bytes_are_found(store: Store, place: ObjectPath) -> None:
    """In a manifest and in a file, with the address of the object."""
    entry = store.publish(snapshot_of(1))
    store.publish(snapshot_of(2))
    storage = storage_of(place)
    reader = Store.open(place)
    for name in ("processes.parquet", MANIFEST):
        content, _ = storage.read(entry.directory / name, bytes_max=10**6)
        storage.put(entry.directory / name, content[:-9] + b"x" + content[-8:])
        with pytest.raises(Damaged, match=f"{entry.directory}/{name} was changed"):
            reader.verify(ONE)
        storage.put(entry.directory / name, content)
    reader.verify(ONE)
    storage.delete([entry.directory / "processes.parquet"])
    with pytest.raises(Damaged, match=r"processes\.parquet is missing"):
        reader.verify(ONE)


def test_the_history_rolls_over(store: Store, place: ObjectPath) -> None:
    """Objects stay short, and no count or number is lost."""
    for number in range(1, 1500):
        snapshot = SnapshotId("A", number)
        if number % 100 == 0:
            store.history.append(SnapshotBegan(snapshot))
        store.history.append(SnapshotPublished(snapshot, is_removal_noted=True))
    store.close()
    sizes = {one.location.name: one.byte_count for one in storage_of(place).children(place)}
    assert sizes["history.1.ndjson"] is not None
    assert max(sizes["history.1.ndjson"] or 0, sizes["history.ndjson"] or 0) < 2**18
    with contextlib.closing(Store.open_writer(place)) as again:
        assert again.history.last_number == 1499
        assert (again.history.counts.begun, again.history.counts.published) == (14, 1499)
        assert again.history.pending == ()
    assert isinstance(readable_history(place)[0][-1].what, WriterChanged)


def test_keyed_fields_are_rewritten_in_full(place: ObjectPath) -> None:
    """Long chains are cut, and old bases are removed, as in a directory."""
    with contextlib.closing(Store.create(place, description=keyed.DESCRIPTION)) as store:
        store.raise_epoch(None)
        before = {bank: keyed.nothing() for bank in keyed.BANKS}
        for number in range(1, 41):
            base = SnapshotId("P", number - 1) if number > 1 else None
            now = {bank: {**held, "accounts": {"k": number}} for bank, held in before.items()}
            parts = [keyed.part(bank, before[bank], now[bank], base) for bank in keyed.BANKS]
            store.publish(keyed.snapshot_of(number, parts))
            before = now
        store.keep(2)
        store.settle()
        newest = store.entries()[-1]
        assert newest.chain_length <= 16
    reader = Store.open(place)
    assert reader.verify_all(lambda *_: None) == len(reader.entries())
    names = {one.location.name for one in storage_of(place).files_below(newest.directory)}
    assert len([name for name in names if "accounts" in name]) == 1


def test_a_directory_of_an_object_store_is_refused(store: Store, tmp_path: Path) -> None:
    """Copied file by file, its head is of another version."""
    assert isinstance(store.path, ObjectPath)
    for one in storage_of(store.path).files_below(store.path):
        assert isinstance(one.location, ObjectPath)
        path = tmp_path / one.location.relative_to(store.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage_of(store.path).read(one.location, bytes_max=10**6)[0])
    with pytest.raises(Exception, match="has format 3, and this version"):
        Store.open(tmp_path)


def test_opening_takes_no_request_for_each_snapshot_but_its_manifest(place: ObjectPath) -> None:
    """What a crash left of a rewriting is found in the one listing."""
    with contextlib.closing(Store.create(place, description=keyed.DESCRIPTION)) as store:
        store.raise_epoch(None)
        for number in range(1, 21):
            parts = [
                keyed.part(bank, keyed.nothing(), keyed.nothing(), None) for bank in keyed.BANKS
            ]
            store.publish(keyed.snapshot_of(number, parts))
    left = place / "snapshots" / "P-7" / "Bank_accounts.changes.parquet"
    storage_of(place).put(left, b"left")
    before = object_store_of(place).counts.requests
    with contextlib.closing(Store.open_writer(place)) as store:
        assert object_store_of(place).counts.requests - before < 2 * 20 + 15
        assert not storage_of(place).exists(left)
        assert store.verify_all(lambda *_: None) == 20
