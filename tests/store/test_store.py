"""The store as its users see it: one writer, readers, epochs, and the files in other hands."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from stillframe.errors import Damaged, StoreError, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.process import Process
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.store.writer import local
from stillframe.topology import Topology
from tests.store.conformance import check_store
from tests.store.samples import DESCRIPTION, Account, Transfer, global_state, publish, snapshot_of

ID = SnapshotId("A", 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store in its first epoch."""
    made = Store.create(tmp_path / "store", description=DESCRIPTION, reference="bank:topology")
    made.raise_epoch(None)
    yield made
    made.close()


def test_a_directory_is_a_store(tmp_path: Path) -> None:
    """The store on disk passes what every store must."""
    names = (tmp_path / str(number) for number in range(100))
    check_store(lambda description: Store.create(next(names), description=description))


def test_what_was_created_is_opened_again(store: Store) -> None:
    """Description, reference, epoch and snapshots are the same for whoever opens the store."""
    publish(store, 1)
    store.raise_epoch(ID)
    reader = Store.open(store.path)
    assert reader.description == DESCRIPTION
    assert (reader.reference, reader.epoch, reader.restored_from) == ("bank:topology", 2, ID)
    assert reader.entries() == store.entries()
    assert reader.path == store.path
    reader.verify(ID)


def test_a_reader_sees_what_is_published_later(store: Store) -> None:
    """A reader that was opened first follows the writer's epoch and snapshots."""
    reader = Store.open(store.path)
    publish(store, 1)
    assert reader.current() == store.current()
    store.raise_epoch(None)
    assert (reader.epoch, reader.current()) == (2, None)


def test_a_reader_cannot_write(store: Store) -> None:
    """Publishing or raising the epoch takes a writer, and the error says so."""
    reader = Store.open(store.path)
    with pytest.raises(UsageError, match="open_writer"):
        reader.publish(snapshot_of(1))
    with pytest.raises(UsageError, match="open_writer"):
        reader.raise_epoch(None)


def test_there_is_one_writer(store: Store) -> None:
    """A second writer is refused until the first closes; closing twice does nothing."""
    with pytest.raises(Unavailable, match="in use"):
        Store.open_writer(store.path)
    with pytest.raises(Unavailable, match="in use"):
        Store.create(store.path, description=DESCRIPTION)
    store.close()
    store.close()
    second = Store.open_writer(store.path)
    second.close()


def test_a_writer_goes_on_where_the_last_one_was(store: Store) -> None:
    """The sequence goes on, and what a crash left is removed."""
    publish(store, 1)
    store.close()
    left = local(store.path) / "snapshots" / ".A-2.partial"
    left.mkdir()
    (left / "processes.parquet").write_bytes(b"half")
    writer = Store.open_writer(store.path)
    assert not left.exists()
    publish(writer, 2)
    assert [(str(e.id), e.sequence) for e in writer.entries()] == [("A-1", 1), ("A-2", 2)]
    writer.close()


def test_a_partial_snapshot_is_nothing_to_a_reader(store: Store) -> None:
    """A snapshot that is being written is in no list and has no number yet."""
    (local(store.path) / "snapshots" / ".A-9.partial").mkdir()
    assert (Store.open(store.path).entries(), store.next_number()) == ([], 1)


def test_a_store_without_snapshots_is_taken_over(store: Store) -> None:
    """A start that died before its first snapshot does not block the next one."""
    store.close()
    again = Store.create(store.path, description=DESCRIPTION, reference="other:topology")
    assert (again.epoch, again.reference) == (1, "other:topology")
    again.close()


def test_a_store_with_snapshots_is_not_taken_over(store: Store) -> None:
    """Creating over published snapshots is refused; they stay."""
    publish(store, 1)
    store.close()
    with pytest.raises(UsageError, match="already has snapshots"):
        Store.create(store.path, description=DESCRIPTION)
    Store.open(store.path).verify(ID)


def test_a_store_of_another_topology_is_not_taken_over(store: Store) -> None:
    """An empty store stays with the topology that it was made for."""
    store.close()
    other = Topology({"A": Account()}, []).description
    with pytest.raises(UsageError, match="another topology"):
        Store.create(store.path, description=other)


def test_a_foreign_name_among_the_snapshots_is_named(store: Store) -> None:
    """What is no snapshot is not passed over in silence."""
    (local(store.path) / "snapshots" / "notes").mkdir()
    for act in (store.entries, store.next_number):
        with pytest.raises(StoreError, match="notes is not a snapshot"):
            act()


def test_an_error_names_the_first_few_snapshots(store: Store) -> None:
    """Who asks for an unknown snapshot learns what there is, without a page of ids."""
    publish(store, *range(1, 9))
    with pytest.raises(UsageError, match=r"A-1, A-2, A-3, A-4, A-5 and 3 more"):
        store.entry(SnapshotId("A", 99))


def test_verify_all_tells_how_far_it_is(store: Store) -> None:
    """The callback gets each entry, in order, and the number of all."""
    publish(store, 2, 1)
    seen: list[tuple[SnapshotEntry, int]] = []
    assert store.verify_all(lambda entry, count: seen.append((entry, count))) == 2
    assert seen == [(entry, 2) for entry in store.entries()]


def test_a_snapshot_of_another_store_is_refused(store: Store, tmp_path: Path) -> None:
    """A directory copied from the store of another topology does not pass as a snapshot."""
    topology = Topology({"A": Account()}, [])
    other = Store.create(tmp_path / "other", description=topology.description)
    other.raise_epoch(None)
    other.publish(snapshot_of(1, global_state(topology=topology)))
    other.close()
    (local(other.path) / "snapshots" / "A-1").rename(local(store.path) / "snapshots" / "A-1")
    with pytest.raises(Damaged, match="another topology"):
        store.load(ID)


def test_a_snapshot_must_have_the_order_of_the_topology(store: Store) -> None:
    """Parts that are all there but not sorted are refused: readers rely on the order."""
    state = global_state()
    unsorted = type(state)(state.processes[::-1], state.channels)
    with pytest.raises(UsageError, match="not sorted"):
        store.publish(snapshot_of(1, unsorted))


def test_money_is_one_query_over_plain_parquet(store: Store) -> None:
    """Any reader of Parquet finds all the money, owned or on its way, in every snapshot."""
    for number in (1, 2, 3):
        sent = [Transfer(number)] * number
        owners: dict[str, Process] = {"A": Account(balance=100 - number * number)}
        publish_state = global_state({("A", "B"): sent}, owners)
        store.publish(snapshot_of(number, publish_state))

    def total(name: str, column: str) -> dict[str, float]:
        # The partial directories begin with a dot, which this reader passes over as others do.
        paths = sorted(map(str, local(store.path).glob(f"snapshots/[!.]*/{name}")))
        table = ds.dataset(paths, format="parquet").to_table(columns=["_snapshot", column])
        sums = table.group_by("_snapshot").aggregate([(column, "sum")]).to_pydict()
        return dict(zip(sums["_snapshot"], sums[f"{column}_sum"], strict=True))

    owned, travelling = total("processes.parquet", "balance"), total("messages.parquet", "amount")
    assert travelling == {"A-1": 1, "A-2": 4, "A-3": 9}
    assert {owned[name] + travelling[name] for name in owned} == {200.5}


def test_messages_have_typed_columns(store: Store) -> None:
    """A row per message: who to whom, which number, which class, and its fields."""
    publish(store, 1)
    table = pq.read_table(store.path / "snapshots" / "A-1" / "messages.parquet")
    rows = table.to_pylist()
    assert [(r["_source"], r["_target"], r["_number"], r["_kind"]) for r in rows] == [
        ("A", "B", 1, "Transfer"),
        ("A", "B", 2, "Fee"),
        ("A", "B", 3, "Transfer"),
        ("A", "B", 4, "Transfer"),
        ("B", "T", 21, "Transfer"),
    ]
    assert [row["amount"] for row in rows] == [5.0, 0.5, 7.0, 1.0, 2.0]
    assert [row["is_urgent"] for row in rows] == [None, True, None, None, None]
    assert {row["_snapshot"] for row in rows} == {"A-1"}
