"""A store is copied to another place, and is the same there."""

import contextlib
import itertools
import secrets
from pathlib import Path

import pytest

from stillframe.errors import Damaged, Fenced, Unavailable, UsageError
from stillframe.storage import lease
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.store.copying import copy_store
from stillframe.store.history import EpochBegan, readable_history
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.store.writer import local
from tests.storage.faulty import Died, Fault, faulty, nth, restarted
from tests.store.samples import DESCRIPTION, publish


def bucket() -> ObjectPath:
    """Return an empty place in an object store."""
    return ObjectPath(f"memory://{secrets.token_hex(8)}", "store")


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A store in a directory: three snapshots, a savepoint, and the second epoch."""
    with contextlib.closing(Store.create(tmp_path / "one", description=DESCRIPTION)) as store:
        store.raise_epoch(None)
        publish(store, 1, 2)
        store.save(store.entries()[0].id, "first")
        store.history.append(EpochBegan(2, store.entries()[1].id))
        store.raise_epoch(store.entries()[1].id)
        publish(store, 3)
        return local(store.path)


def content_of(place: Location) -> object:
    """Return what a store says of itself, after every byte was verified."""
    store = Store.open(place)
    store.verify_all(lambda *_: None)
    entries = [(e.id, e.sequence, e.epoch, e.published_at, e.savepoints) for e in store.entries()]
    events = [str(line.what) for line in readable_history(place)[0]]
    known = [event for event in events if not event.startswith("WriterChanged")]
    return store.epoch, store.restored_from, store.savepoints, entries, known


def no_progress(*_: object) -> None:
    """Show nothing."""


def test_there_and_back_again(original: Path, tmp_path: Path) -> None:
    """From a directory to an object store, to another one, and back to a directory."""
    places: list[Location] = [original, bucket(), bucket(), tmp_path / "two"]
    for source, target in itertools.pairwise(places):
        assert len(copy_store(source, target, no_progress)) == 3
        assert content_of(target) == content_of(original)
    with contextlib.closing(Store.open_writer(tmp_path / "two")) as store:
        publish(store, 4)
        assert [entry.sequence for entry in store.entries()] == [1, 2, 3, 4]


def test_an_interrupted_copy_is_no_store_and_goes_on(original: Path) -> None:
    """Whatever request was the last one."""
    for number in itertools.count(1):
        target = bucket()
        plan = nth(number, Fault.DEATH_AFTER)
        with faulty(target, plan) as requests, contextlib.suppress(Died):
            copy_store(original, target, no_progress)
        if not requests.is_dead:
            break
        with restarted():
            if not storage_of(target).exists(target / "store.json"):
                with pytest.raises((UsageError, Damaged)):
                    Store.open(target)
                copy_store(original, target, no_progress)
        assert content_of(target) == content_of(original)


def test_what_is_there_is_kept(original: Path, tmp_path: Path) -> None:
    """A store, other files, and a store that is in use are refused."""
    with pytest.raises(UsageError, match="is a store already"):
        copy_store(original, original, no_progress)
    target = bucket()
    storage_of(target).put(target / "notes.txt", b"1")
    with pytest.raises(UsageError, match=r"not empty; it contains notes\.txt"):
        copy_store(original, target, no_progress)
    with contextlib.closing(Store.open_writer(original)), pytest.raises(Unavailable):
        copy_store(original, tmp_path / "two", no_progress)
    assert not (tmp_path / "two").exists()


def test_damage_is_not_copied(original: Path) -> None:
    """The file is named, and the copy is no store."""
    file = original / "snapshots" / "A-2" / "processes.parquet"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    target = bucket()
    with pytest.raises(Damaged, match=r"A-2/processes\.parquet was changed"):
        copy_store(original, target, no_progress)
    assert not storage_of(target).exists(target / "store.json")


def test_a_copy_of_a_store_that_was_taken_over_is_refused(
    original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program was frozen for so long, and its lease has not told it: else the copy would have a
    history with snapshots that it lacks."""
    source, target = bucket(), bucket()
    copy_store(original, source, no_progress)

    def frozen(entry: SnapshotEntry, _: int) -> None:
        if entry.id.number == 3:
            with contextlib.closing(Store.open_writer(source)) as other:
                publish(other, 4)

    monkeypatch.setattr(lease, "_has_ended", lambda _: True)
    with pytest.raises(Fenced, match=r"has taken over memory://.*: the copy is not complete"):
        copy_store(source, target, frozen)
    assert not storage_of(target).exists(target / "store.json")
