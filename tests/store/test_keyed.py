"""The rows of keyed fields: what is in the files, what is read back, and what is refused."""

import datetime
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillframe.errors import Damaged, NotConsistent, StoreError, UsageError
from stillframe.keyed import Keyed
from stillframe.model import KeyedChange, ProcessState, Snapshot, SnapshotId
from stillframe.process import Process
from stillframe.store.manifest import MANIFEST, Manifest
from stillframe.store.parquet import read_parquet, to_parquet
from stillframe.store.sealed_json import read_sealed, seal
from stillframe.store.snapshot_directory import record_of
from stillframe.store.store import Store
from stillframe.store.writer import local
from stillframe.topology import Topology
from tests.store.keyed_samples import (
    DESCRIPTION,
    Fields,
    Guest,
    Place,
    change_of,
    held,
    nothing,
    part,
    snapshot_of,
    whole,
)

STATE = Path(__file__).parents[2] / "docs" / "state.md"
ONE, TWO = SnapshotId("P", 1), SnapshotId("P", 2)
DAY = datetime.date(2024, 2, 29)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store in its first epoch."""
    made = Store.create(tmp_path / "store", description=DESCRIPTION)
    made.raise_epoch(None)
    yield made
    made.close()


def some() -> Fields:
    """Return fields with a key each."""
    return {
        "accounts": {"a": 1, "b": 2},
        "seats": {Place(1, "x"): Guest("Ada", 36)},
        "days": {DAY: None},
    }


def later() -> Fields:
    """Return what became of it."""
    return {
        "accounts": {"a": 1, "c": 3},
        "seats": {Place(1, "x"): Guest("Ada"), Place(2, "y"): Guest("Bob", 7)},
        "days": {DAY: 0.5},
    }


def fill(store: Store) -> None:
    """Publish some for both banks, and then what P has later and Q not."""
    store.publish(snapshot_of(1, [whole("P", some()), whole("Q", some())]))
    store.publish(snapshot_of(2, [part("P", some(), later(), ONE), part("Q", some(), some(), ONE)]))


def test_only_what_changed_is_written_and_all_is_read(store: Store) -> None:
    """The second snapshot has rows for the changes alone, and gives back everything."""
    fill(store)
    assert held(store.load(ONE)) == {"P": some(), "Q": some()}
    assert held(store.load(TWO)) == {"P": later(), "Q": some()}
    table = pq.read_table(store.path / "snapshots" / "P-2" / "Bank_accounts.changes.parquet")
    assert table.to_pylist() == [
        {"_snapshot": "P-2", "_process": "P", "_is_removed": False, "_key": "c", "value": 3},
        {"_snapshot": "P-2", "_process": "P", "_is_removed": True, "_key": "b", "value": None},
    ]
    [one, two] = store.entries()
    assert (one.bases, one.chain_length, two.bases, two.chain_length) == ((), 0, (ONE,), 1)
    assert store.verify_all(lambda *_: None) == 2
    store.verify(TWO)


def test_the_tables_for_questions_are_whole(store: Store) -> None:
    """One row for each key that a process has, a Struct in columns of its own."""
    fill(store)
    tables = store.tables(TWO)
    assert tables["Bank_seats"].schema.names == ["_snapshot", "_process", "_key", "name", "age"]
    assert tables["Bank_seats"].to_pylist()[:2] == [
        {"_snapshot": "P-2", "_process": "P", "_key": '[1,"x"]', "name": "Ada", "age": None},
        {"_snapshot": "P-2", "_process": "P", "_key": '[2,"y"]', "name": "Bob", "age": 7},
    ]
    assert tables["Bank_days"].column("value").to_pylist() == [0.5, None]
    assert "accounts" not in tables["processes"].schema.names


def test_what_is_loaded_can_be_published(store: Store) -> None:
    """A snapshot that was read whole goes into another store, and is the same there."""
    fill(store)
    loaded = store.load(TWO)
    store.publish(msgspec.structs.replace(loaded, id=SnapshotId("P", 3)))
    assert store.load(SnapshotId("P", 3)).state == loaded.state


@pytest.mark.parametrize("base", [SnapshotId("P", 9), SnapshotId("Q", 1)])
def test_a_base_that_is_not_there_is_refused(store: Store, base: SnapshotId) -> None:
    """The error names process and base, and nothing is written."""
    fill(store)
    with pytest.raises(UsageError, match=f"process P holds changes since snapshot {base}, and"):
        store.publish(snapshot_of(3, [part("P", some(), later(), base), whole("Q", some())]))
    assert len(store.entries()) == 2
    assert not list(local(store.path).glob("snapshots/.*"))


def _recorded(**changes: Any) -> ProcessState:
    state = part("P", nothing(), some(), None)
    return msgspec.structs.replace(state, keyed={**state.keyed, **changes})


def _forged(rows: dict[Any, Any], count: int) -> KeyedChange:
    change = change_of(rows, size=9)
    return KeyedChange((msgspec.structs.replace(change.rows[0], count=count),), 0, b"\x90")


@pytest.mark.parametrize(
    ("state", "error", "says"),
    [
        (_recorded(accounts=_forged({"a": 1}, 2)), NotConsistent, "2 entries were announced"),
        (_recorded(accounts=change_of({"a": 2**63})), StoreError, "key 'a'.*9223372036854775808"),
        (
            _recorded(accounts=change_of({"a": "x"})),
            StoreError,
            "does not fit a column of kind int",
        ),
        (_recorded(more=change_of({})), UsageError, "the keyed fields of Bank are accounts, seats"),
        (
            ProcessState("P", "Bank", msgspec.msgpack.encode({"name": ""})),
            UsageError,
            "not a map with",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    store: Store, state: ProcessState, error: type[Exception], says: str
) -> None:
    """Counts that lie, values that fit no column, other fields: named, and nothing is written."""
    with pytest.raises(error, match=says):
        store.publish(snapshot_of(1, [state, whole("Q", some())]))
    assert store.entries() == []


def test_a_key_that_is_named_twice_is_found(store: Store) -> None:
    """The last row counts, and verify says that there are two."""
    twice = change_of({"a": 1})
    twice = msgspec.structs.replace(twice, rows=(*twice.rows, *change_of({"a": 2}).rows))
    store.publish(snapshot_of(1, [_recorded(accounts=twice), whole("Q", some())]))
    assert held(store.load(ONE))["P"]["accounts"] == {"a": 2}
    with pytest.raises(NotConsistent, match="process P has the key 'a' twice"):
        store.verify(ONE)


@pytest.mark.parametrize("process", [7, b"P"])
def test_processes_that_are_no_texts_are_damage(store: Store, process: int | bytes) -> None:
    """A file whose hash is right and whose rows are of a number, or of bytes, is refused."""
    fill(store)
    path = local(store.path) / "snapshots" / "P-1" / "Bank_accounts.whole.parquet"
    table = read_parquet(path.read_bytes())
    index = table.schema.get_field_index("_process")
    content = to_parquet(table.set_column(index, "_process", pa.array([process] * table.num_rows)))
    path.write_bytes(content)
    manifest = read_sealed(path.with_name(MANIFEST), Manifest)
    files = tuple(record_of(f.name, (path.parent / f.name).read_bytes()) for f in manifest.files)
    path.with_name(MANIFEST).write_bytes(seal(msgspec.structs.replace(manifest, files=files)))
    for read in (store.load, store.tables, store.verify):
        with pytest.raises(Damaged, match="column _process is of type"):
            read(ONE)


def test_a_topology_without_keyed_fields_writes_what_it_always_did(tmp_path: Path) -> None:
    """Three files, a manifest whose parent is null, and a description without a word more."""

    class Plain(Process):
        balance: int = 1

    topology = Topology({"P": Plain()}, [])
    store = Store.create(tmp_path / "plain", description=topology.description)
    store.raise_epoch(None)
    state = ProcessState("P", "Plain", topology.codecs["P"].capture(Plain()))
    taken = snapshot_of(1, [])
    store.publish(
        msgspec.structs.replace(
            taken, state=msgspec.structs.replace(taken.state, processes=(state,), channels=())
        )
    )
    store.close()
    manifest = local(store.path) / "snapshots" / "P-1" / MANIFEST
    assert b'"bases":null' in manifest.read_bytes()
    assert len(read_sealed(manifest, Manifest).files) == 3
    assert b"keyed" not in (local(store.path) / "store.json").read_bytes()


class Spot(msgspec.Struct, frozen=True, array_like=True):
    """A key with a float in it."""

    height: float


class OfSpots(Process):
    """Has keys that can be equal and not be written alike."""

    rows: Keyed[Spot, int] = field(default_factory=Keyed)


class OfGuests(Process):
    """Has keys that are written as maps."""

    rows: Keyed[Guest, int] = field(default_factory=Keyed)


class OfTimes(Process):
    """Has keys that are the same in two time zones."""

    rows: Keyed[datetime.time, int] = field(default_factory=Keyed)


class OfFlags(Process):
    """Has the keys 1 and True, which are equal."""

    rows: Keyed[int | bool, int] = field(default_factory=Keyed)


@pytest.mark.parametrize(
    ("process", "says"),
    [
        (OfSpots(), "float"),
        (OfGuests(), "array_like"),
        (OfTimes(), "time zones"),
        (OfFlags(), "1 and True"),
    ],
)
def test_a_key_that_could_be_written_in_two_ways_is_refused(process: Process, says: str) -> None:
    """Equal keys must be equal on the disk, too."""
    with pytest.raises(UsageError, match=f"rows: a key cannot be or contain a .*{says}"):
        Topology({"P": process}, [])


class OfNones(Process):
    """Has a key for what has none."""

    rows: Keyed[str | None, int] = field(default_factory=Keyed)


def test_none_is_no_key() -> None:
    """An empty place in the column of keys is not read back."""
    with pytest.raises(UsageError, match=r"OfNones\.rows: a key cannot be None"):
        Topology({"P": OfNones()}, [])


def _with_state_page() -> Any:
    [program] = re.findall(r"^```python\n(.*?)^```$", STATE.read_text(), re.DOTALL | re.MULTILINE)
    module = types.ModuleType("branches")
    sys.modules["branches"] = module
    try:
        exec(program, vars(module))
        return module, Topology({"P1": module.Branch()}, [])
    finally:
        del sys.modules["branches"]


def test_the_statement_of_the_documentation_reads_a_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB alone, on the plain files: removed keys are not there, of each key the last value."""
    duckdb = pytest.importorskip("duckdb")
    module, topology = _with_state_page()
    store = Store.create(tmp_path / "branches", description=topology.description)
    store.raise_epoch(None)
    rows = [{"a": 1, "b": 2, "c": 3}, {"a": 10}, {"d": 400}, {"a": 5000}]
    base = None
    for number, (changed, gone) in enumerate(zip(rows, ((), ("b",), (), ("c",)), strict=True), 14):
        accounts = change_of({k: module.Account(v, 1) for k, v in changed.items()}, gone)
        state = ProcessState(
            "P1", "Branch", msgspec.msgpack.encode({}), base, {"accounts": accounts}
        )
        taken = snapshot_of(number, [])
        taken_state = msgspec.structs.replace(taken.state, processes=(state,), channels=())
        base = SnapshotId("P1", number)
        store.publish(Snapshot(base, 1, taken.initiated_at, taken.completed_at, taken_state))
    store.close()
    monkeypatch.chdir(tmp_path)
    [sql] = re.findall(r"^```sql\n(.*?)^```$", STATE.read_text(), re.DOTALL | re.MULTILINE)
    with duckdb.connect() as database:
        assert database.execute(sql).fetchall() == [("P1", 2, 5400)]
        older = database.execute(sql.replace("P1-17", "P1-15")).fetchall()
    assert older == [("P1", 2, 13)]
