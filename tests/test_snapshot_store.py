"""``open_store``: the snapshots of a store as Python programs see them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stillframe
from stillframe import Channel, SnapshotId, Topology
from stillframe.errors import Damaged, NotConsistent, Unavailable, UsageError
from stillframe.model import ProcessState, Reason, Snapshot
from stillframe.process import Process
from stillframe.store import history
from stillframe.store.store import Store
from stillframe.store.writer import local
from tests.store import keyed_samples
from tests.store.samples import (
    DESCRIPTION,
    T0,
    TOPOLOGY,
    Account,
    Fee,
    Transfer,
    global_state,
    publish,
    snapshot_of,
)

HERE = "tests.store.samples:TOPOLOGY"
AB = Channel("A", "B")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with two snapshots, open for writing."""
    made = Store.create(tmp_path / "store", description=DESCRIPTION, reference=HERE)
    made.raise_epoch(None)
    publish(made, 1, 2)
    yield made
    made.close()


def test_a_store_lists_its_snapshots(store: Store) -> None:
    """Ids, times, durations and savepoints, while the writer has the store open."""
    store.save(SnapshotId("A", 1), "before")
    opened = stillframe.open_store(str(store.path))
    assert [(str(one.id), one.savepoints) for one in opened.snapshots()] == [
        ("A-1", ("before",)),
        ("A-2", ()),
    ]
    assert opened.savepoints == {"before": SnapshotId("A", 1)}
    assert (opened.epoch, opened.damaged(), opened.abandoned()) == (1, {}, [])
    first = opened.entry("before")
    assert first == store.entry(SnapshotId("A", 1))
    assert first.duration_s == first.published_at - first.initiated_at > 0


def test_a_snapshot_is_loaded_by_id_by_savepoint_and_as_the_newest(store: Store) -> None:
    """All of these name one; the newest is the one at that moment."""
    store.save(SnapshotId("A", 1), "before")
    opened = stillframe.open_store(store.path)
    loaded = [opened.load(name) for name in ("A-1", SnapshotId("A", 1), "before", "newest")]
    assert [str(one.id) for one in loaded] == ["A-1", "A-1", "A-1", "A-2"]
    publish(store, 3)
    assert opened.load().id == SnapshotId("A", 3)


def test_states_and_messages_are_plain_values(store: Store) -> None:
    """Without a topology nothing of the user's is imported."""
    snapshot = stillframe.open_store(store.path).load("A-1")
    assert snapshot.processes["A"] == {"balance": 100, "name": "", "history": []}
    assert [(one.number, one.kind, one.fields["amount"]) for one in snapshot.channels[AB]] == [
        (1, "Transfer", 5),
        (2, "Fee", 0.5),
        (3, "Transfer", 7),
        (4, "Transfer", 1),
    ]
    assert len(list(snapshot.in_transit())) == snapshot.entry.message_count == 5
    assert snapshot.process("A", dict) is snapshot.processes["A"]
    with pytest.raises(UsageError, match="A is of type dict, not Account: open the store with"):
        snapshot.process("A", Account)


@pytest.mark.parametrize("topology", [TOPOLOGY, HERE, "recorded"], ids=["itself", "named", "own"])
def test_with_a_topology_values_are_objects(store: Store, topology: Topology | str) -> None:
    """Of the classes of the user, however the topology is given."""
    snapshot = stillframe.open_store(store.path, topology=topology).load("A-1")
    account = snapshot.processes["A"]
    assert isinstance(account, Account)
    assert (account.id, account.balance) == ("A", 100)
    expected = (Transfer(5), Fee(0.5, "x", b"\x00", True, T0), Transfer(7, T0), Transfer(1))
    assert snapshot.channels[AB] == expected
    assert next(snapshot.in_transit()) == (AB, Transfer(5))
    assert snapshot.view.snapshot == SnapshotId("A", 1)
    assert snapshot.process("A", Account) is account
    with pytest.raises(UsageError, match="the state of A is of type Account, not Transfer"):
        snapshot.process("A", Transfer)
    with pytest.raises(UsageError, match="there is no process 'Z'; there are A, B"):
        snapshot.process("Z", Account)


def test_a_topology_that_is_not_the_one_of_the_snapshot_is_refused(store: Store) -> None:
    """Its classes could not hold what was recorded."""
    other = Topology({"A": Process()}, [])
    opened = stillframe.open_store(store.path, topology=other)
    with pytest.raises(UsageError, match=r"A-2 in .* was taken with a different topology"):
        opened.load()
    assert len(opened.snapshots()) == 2


def test_a_store_that_does_not_name_its_topology_says_so(tmp_path: Path) -> None:
    """Such as one that fragments were assembled into."""
    Store.create(tmp_path / "store", description=DESCRIPTION).close()
    with pytest.raises(UsageError, match="pass the topology itself"):
        stillframe.open_store(tmp_path / "store", topology="recorded")


def test_the_tables_are_those_of_the_files(store: Store) -> None:
    """Column by column, with their types; pandas has the same rows."""
    snapshot = stillframe.open_store(store.path).load("A-1")
    read = store.tables(SnapshotId("A", 1))
    assert snapshot.tables.keys() == read.keys() == {"processes", "channels", "messages"}
    for name, table in read.items():
        assert snapshot.tables[name].equals(table)
    frame = snapshot.to_pandas("messages")
    assert list(frame["amount"]) == [5, 0.5, 7, 1, 2]
    with pytest.raises(UsageError, match="it has processes, channels, messages"):
        snapshot.to_pandas("nothing")


def test_without_pandas_the_error_says_what_to_install(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is needed for this alone."""
    snapshot = stillframe.open_store(store.path).load()
    monkeypatch.setattr(
        type(snapshot), "tables", {"messages": type("T", (), {"to_pandas": _no_pandas})()}
    )
    with pytest.raises(Unavailable, match="pip install pandas"):
        snapshot.to_pandas("messages")


def _no_pandas(table: object) -> object:
    raise ImportError("No module named 'pandas'")


def test_keyed_fields_are_dicts_and_tables_with_a_row_for_each_key(tmp_path: Path) -> None:
    """Also those of a snapshot whose files hold changes alone."""
    before = keyed_samples.nothing() | {"accounts": {"Ada": 7, "Bob": 8}}
    after = keyed_samples.nothing() | {"accounts": {"Ada": 7, "Cid": 9}}
    full = [keyed_samples.whole(name, before) for name in keyed_samples.BANKS]
    change = keyed_samples.part("P", before, after, SnapshotId("P", 1))
    store = Store.create(tmp_path / "store", description=keyed_samples.DESCRIPTION)
    store.raise_epoch(None)
    store.publish(keyed_samples.snapshot_of(1, full))
    store.publish(keyed_samples.snapshot_of(2, [change, full[1]]))
    store.close()
    snapshot = stillframe.open_store(store.path).load()
    assert snapshot.entry.bases
    assert snapshot.processes["P"]["accounts"] == {"Ada": 7, "Cid": 9}
    for name, table in store.tables(snapshot.id).items():
        assert snapshot.tables[name].equals(table), name
    objects = stillframe.open_store(store.path, topology=keyed_samples.TOPOLOGY).load()
    assert dict(objects.processes["P"].accounts) == {"Ada": 7, "Cid": 9}


def test_the_newest_may_be_removed_while_it_is_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``run --keep 1`` does: then the one that is newest now is read."""
    opened = stillframe.open_store(store.path)
    found = type(opened._reader).description_of

    def late(reader: object, snapshot: SnapshotId) -> object:
        if snapshot.number == 2:
            publish(store, 3)
            store.drop("A-2")
        return found(opened._reader, snapshot)

    monkeypatch.setattr(type(opened._reader), "description_of", late)
    assert opened.load("newest").id == SnapshotId("A", 3)
    with pytest.raises(UsageError, match="there is no snapshot A-2"):
        opened.load("A-2")


def test_a_loaded_snapshot_outlives_its_files(store: Store) -> None:
    """What was loaded is in memory: retention does not take it away."""
    snapshot = stillframe.open_store(store.path).load("A-1")
    store.drop("A-1")
    assert snapshot.processes["B"]["balance"] == 100
    assert snapshot.tables["messages"].num_rows == 5


def test_abandoned_snapshots_say_when_and_why(store: Store) -> None:
    """Those whose reason is new, or whose start is no longer recorded, are there as well."""
    late, new = SnapshotId("A", 3), SnapshotId("B", 4)
    store.history.append(history.SnapshotBegan(late))
    store.history.append(history.SnapshotAbandoned(late, "DEADLINE", ("B",), "B hangs"))
    store.history.append(history.SnapshotAbandoned(new, "ECLIPSE", (), "no light"))
    first, second = stillframe.open_store(store.path).abandoned()
    assert (first.id, first.reason, first.missing) == (late, Reason.DEADLINE, ("B",))
    assert first.started_at is not None
    assert first.started_at <= first.abandoned_at
    assert "B hangs" in first.sentence
    assert (second.id, second.reason, second.started_at) == (new, None, None)


def test_a_store_without_a_snapshot_says_so(tmp_path: Path) -> None:
    """There is nothing to load, and nothing to verify."""
    Store.create(tmp_path / "store", description=DESCRIPTION).close()
    opened = stillframe.open_store(tmp_path / "store")
    assert (opened.snapshots(), opened.verify()) == ([], 0)
    with pytest.raises(UsageError, match="holds no snapshot yet"):
        opened.load("newest")
    with pytest.raises(UsageError, match="does not exist"):
        stillframe.open_store(tmp_path / "nothing")


def test_damage_is_named_and_hides_nothing_else(store: Store) -> None:
    """One damaged manifest is listed with its error; it is loaded by nobody, and what may be the
    newest is not passed over."""
    manifest = local(store.path) / "snapshots" / "A-1" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"A", b"B", 1))
    opened = stillframe.open_store(store.path)
    assert [str(one.id) for one in opened.snapshots()] == ["A-2"]
    assert list(opened.damaged()) == [SnapshotId("A", 1)]
    assert opened.load().id == SnapshotId("A", 2)
    with pytest.raises(Damaged, match="A-1"):
        opened.load("A-1")
    manifest.write_bytes(b"")
    (local(store.path) / "snapshots" / "A-2" / "manifest.json").write_bytes(b"")
    with pytest.raises(Damaged, match="A-"):
        opened.load()


def test_verify_finds_a_changed_byte(store: Store) -> None:
    """Of one snapshot, and of all."""
    opened = stillframe.open_store(store.path)
    assert (opened.verify(), opened.verify("newest")) == (2, 1)
    file = local(store.path) / "snapshots" / "A-1" / "messages.parquet"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    assert opened.verify("A-2") == 1
    with pytest.raises(Damaged, match=r"A-1/messages\.parquet"):
        opened.verify()


def test_a_forged_state_is_not_consistent(tmp_path: Path) -> None:
    """What is not of its class is an error of ours, and none of the decoder."""
    store = Store.create(tmp_path / "store", description=DESCRIPTION)
    store.raise_epoch(None)
    store.publish(snapshot_of(1))
    store.close()
    loaded = stillframe.open_store(store.path).load()
    good = loaded._snapshot.state
    forged = (ProcessState("A", "Account", b"\xc1"), *good.processes[1:])
    loaded._snapshot = _with(loaded._snapshot, forged)
    with pytest.raises(NotConsistent, match=r"A-1 in .* does not fit its topology"):
        _ = loaded.processes


def _with(snapshot: Snapshot, processes: tuple[ProcessState, ...]) -> Snapshot:
    state = global_state()
    return Snapshot(snapshot.id, 1, 0.0, 1.0, type(state)(processes, state.channels))


def test_no_savepoint_is_called_newest(store: Store) -> None:
    """It would hide the newest snapshot, or be hidden by it."""
    with pytest.raises(UsageError, match="'newest'"):
        store.save(SnapshotId("A", 1), "newest")


def test_opening_a_store_imports_nothing_of_the_user(store: Store) -> None:
    """A store from elsewhere names a module; only an explicit argument runs it."""
    program = (
        "import sys, stillframe; stillframe.open_store(sys.argv[1]).load().processes; "
        "print('tests.store.samples' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(store.path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"
