"""A store outlives a change of code: old snapshots are read by the topology that they are of."""

from pathlib import Path

import pytest

from stillframe.errors import Damaged, UsageError
from stillframe.model import Channel, SnapshotId
from stillframe.process import Message, Process
from stillframe.store import manifest
from stillframe.store.store import Store
from stillframe.store.writer import local
from stillframe.topology import Topology
from tests.store.samples import DESCRIPTION, global_state, publish, snapshot_of


class Tip(Message):
    """Money for nothing."""

    cents: int


class Purse(Process):
    """Another class of another time."""

    cents: int = 7
    owner: str = "me"

    def receive(self, channel: Channel, message: Tip) -> None:
        """Take it."""


NEW = Topology({"A": Purse(), "B": Purse()}, [("A", "B")])
OLD_ID, NEW_ID = SnapshotId("A", 1), SnapshotId("A", 2)


def changed_store(path: Path) -> Store:
    """Return a store, open for writing, with a snapshot of the old and one of the new topology."""
    store = Store.create(path, description=DESCRIPTION)
    store.raise_epoch(None)
    publish(store, 1)
    assert store.raise_epoch(OLD_ID, NEW.description) == 2
    state = global_state({("A", "B"): [Tip(3)]}, topology=NEW)
    store.publish(snapshot_of(2, state, epoch=2))
    return store


def test_each_snapshot_is_of_its_own_topology(tmp_path: Path) -> None:
    """Both are listed, read and verified, by who changed it and by who opens it later."""
    store = changed_store(tmp_path / "store")
    for each in (store, Store.open(store.path)):
        assert [entry.id for entry in each.entries()] == [OLD_ID, NEW_ID]
        assert each.description == NEW.description
        assert each.description_of(OLD_ID) == DESCRIPTION
        assert each.description_of(NEW_ID) == NEW.description
        assert each.load(OLD_ID).state == snapshot_of(1).state
        assert [state.kind for state in each.load(NEW_ID).state.processes] == ["Purse", "Purse"]
        assert each.verify_all(lambda entry, count: None) == 2
    store.close()


def test_a_reader_follows_a_change(tmp_path: Path) -> None:
    """Who opened the store before the change reads what was published after it."""
    store = Store.create(tmp_path / "store", description=DESCRIPTION)
    store.raise_epoch(None)
    publish(store, 1)
    readers = [Store.open(store.path) for _ in range(3)]
    store.raise_epoch(OLD_ID, NEW.description)
    store.publish(snapshot_of(2, global_state(topology=NEW), epoch=2))
    assert len(readers[0].entries()) == 2
    assert readers[1].load(NEW_ID).epoch == 2
    found = readers[2].current()
    assert found is not None
    assert found.id == NEW_ID
    store.close()


def test_only_the_present_topology_is_published(tmp_path: Path) -> None:
    """After the change a snapshot of the old topology is refused."""
    store = changed_store(tmp_path / "store")
    with pytest.raises(UsageError, match="does not match the topology"):
        store.publish(snapshot_of(3, epoch=2))
    store.close()


def test_there_and_back_again(tmp_path: Path) -> None:
    """A former topology becomes the present one, and each is kept once."""
    store = changed_store(tmp_path / "store")
    store.raise_epoch(OLD_ID, DESCRIPTION)
    publish(store, 3)
    store.close()
    writer = Store.open_writer(store.path)
    assert writer.description == DESCRIPTION
    assert writer.description_of(NEW_ID) == NEW.description
    assert writer.verify_all(lambda entry, count: None) == 3
    current = writer.current()
    assert current is not None
    assert current.id == SnapshotId("A", 3)
    writer.close()


def test_a_former_topology_without_snapshots_is_forgotten(tmp_path: Path) -> None:
    """What no snapshot is of takes no room, and a snapshot of it is not taken for one of ours."""
    store = Store.create(tmp_path / "store", description=DESCRIPTION)
    store.raise_epoch(None)
    store.raise_epoch(None, NEW.description)
    store.publish(snapshot_of(1, global_state(topology=NEW), epoch=2))
    other = Store.create(tmp_path / "other", description=DESCRIPTION)
    other.raise_epoch(None)
    publish(other, 2)
    (local(other.path) / "snapshots" / "A-2").rename(local(store.path) / "snapshots" / "A-2")
    with pytest.raises(Damaged, match="another topology"):
        store.entries()
    other.close()
    store.close()


def test_former_topologies_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than are kept is refused, and nothing is changed."""
    monkeypatch.setattr(manifest, "FORMER_COUNT_MAX", 1)
    store = changed_store(tmp_path / "store")
    with pytest.raises(UsageError, match="delete the snapshots of the oldest"):
        store.raise_epoch(NEW_ID, Topology({"A": Purse()}, []).description)
    assert (store.epoch, store.description) == (2, NEW.description)
    store.close()
