"""What a process writes of snapshots by itself: read back as written, whole or not there."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from stillframe.errors import Damaged, NotConsistent, StoreError, UsageError
from stillframe.keyed import Keyed
from stillframe.model import GlobalState, ProcessId, Snapshot, SnapshotId
from stillframe.process import Process
from stillframe.store.checksum import read_hashed
from stillframe.store.fragment_reading import (
    check_fragments_free,
    fragment_places,
    read_fragment,
    read_topologies,
)
from stillframe.store.fragments import (
    TOPOLOGIES,
    FragmentManifest,
    FragmentPlace,
    FragmentTopology,
    Received,
)
from stillframe.store.manifest import FILES
from stillframe.store.parquet import read_parquet
from stillframe.store.store import Store
from stillframe.topology import Topology
from tests.store import keyed_samples as keyed
from tests.store.fragment_samples import (
    COMPLETED_AT,
    RECORDED_AT,
    TOPOLOGY,
    fragment_of,
    put,
    put_all,
    put_keyed,
    writer,
)
from tests.store.samples import DESCRIPTION, global_state, snapshot_of

ONE = SnapshotId("A", 1)


def read_all(directory: Path) -> dict[FragmentPlace, FragmentManifest]:
    """Return every fragment in a directory, with every byte read."""
    topologies = read_topologies(directory)
    found = {}
    for place in fragment_places(directory):
        manifest = found[place] = read_fragment(directory, place, topologies)
        for record in manifest.files:
            read_hashed(place.path(directory) / record.name, record.bytes, record.hash)
    return found


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """Who, which snapshot, when, how long, and the books of every channel."""
    put_all(tmp_path, 1, 2)
    found = read_all(tmp_path)
    assert list(found) == [FragmentPlace(1, SnapshotId("A", n), p) for n in (1, 2) for p in "ABT"]
    manifest = found[FragmentPlace(1, ONE, "B")]
    assert msgspec.structs.replace(manifest, files=()) == FragmentManifest(
        snapshot=ONE,
        process="B",
        epoch=1,
        run="run",
        began_from=None,
        topology=DESCRIPTION.hash,
        moment_s=1.0,
        recorded_at=RECORDED_AT,
        completed_at=COMPLETED_AT,
        pause_s=0.002,
        capture_s=0.03,
        base=None,
        sent={"A": 10, "T": 21},
        received={"A": Received(0, 4)},
        files=(),
    )
    assert [record.name for record in manifest.files] == list(FILES)
    assert read_topologies(tmp_path) == {DESCRIPTION.hash: TOPOLOGY}


@pytest.mark.parametrize("process", ["A", "B", "T"])
def test_the_rows_are_those_that_a_store_has_of_the_process(
    tmp_path: Path, process: ProcessId
) -> None:
    """The fragments of all processes are the tables of the snapshot, cut into pieces."""
    put_all(tmp_path / "fragments", 1)
    store = Store.create(tmp_path / "store", description=DESCRIPTION)
    store.raise_epoch(None)
    entry = store.publish(snapshot_of(1))
    own = FragmentPlace(1, ONE, process).path(tmp_path / "fragments")
    for name, column in zip(FILES, ("process", "target", "target"), strict=True):
        rows = read_parquet((entry.directory / name).read_bytes()).to_pylist()
        wanted = [row for row in rows if row[column] == process]
        for row in wanted:
            if name == "channels.parquet":  # what follows from what was recorded
                row["sent_count"] = row["received_count"] + row["message_count"]
        assert read_parquet((own / name).read_bytes()).to_pylist() == wanted
    store.close()


class Alone(Process):
    """A system by itself."""

    balance: int = 7


@pytest.mark.parametrize("kind", ["plain", "keyed"])
def test_the_files_are_those_of_a_system_of_that_process_alone(tmp_path: Path, kind: str) -> None:
    """Byte for byte, also those of its keyed fields."""
    process = Alone() if kind == "plain" else keyed.Bank(name="x", accounts=Keyed({"a": 1}))
    topology = Topology({"P": process}, [])
    state = global_state(topology=topology)
    snapshot = Snapshot(SnapshotId("P", 1), 1, 1.0, 2.0, state)
    store = Store.create(tmp_path / "store", description=topology.description)
    store.raise_epoch(None)
    published = store.publish(snapshot).directory
    described = FragmentTopology(reference=None, description=topology.description)
    with writer(tmp_path / "fragments", "P", topology=described) as by:
        put(by, fragment_of(snapshot, "P"))
    own = FragmentPlace(1, snapshot.id, "P").path(tmp_path / "fragments")
    names = {path.name for path in published.iterdir()}
    assert {path.name for path in own.iterdir()} == names
    assert len(names) == (4 if kind == "plain" else 7)
    for name in names - {"manifest.json"}:
        assert (own / name).read_bytes() == (published / name).read_bytes()
    store.close()


def test_changes_say_what_they_are_based_on(tmp_path: Path) -> None:
    """As in a store: the files have other names, and hold what was set and what was removed."""
    put_keyed(tmp_path)
    whole, changes = read_all(tmp_path).values()
    assert (whole.base, changes.base) == (None, SnapshotId("P", 1))
    assert whole.files[3].name == "Bank_accounts.whole.parquet"
    assert changes.files[3].name == "Bank_accounts.changes.parquet"
    path = FragmentPlace(1, SnapshotId("P", 2), "P").path(tmp_path) / changes.files[3].name
    rows = read_parquet(path.read_bytes()).to_pylist()
    assert [(row["key"], row["is_removed"], row["value"]) for row in rows] == [
        ("b", False, 7),
        ("c", True, None),
    ]


def test_what_a_process_could_not_have_recorded_is_not_written(tmp_path: Path) -> None:
    """Messages that are none, or are not the next ones; nothing of the fragment is there."""
    state = global_state({("A", "B"): ["Hello"]})
    wrong = fragment_of(snapshot_of(1, state), "B")
    records = tuple(msgspec.structs.replace(record, received_count=5) for record in wrong.incoming)
    with writer(tmp_path, "B") as by:
        with pytest.raises(NotConsistent, match="these are not messages of the classes"):
            put(by, wrong)
        with pytest.raises(NotConsistent, match="should go on with number 6"):
            put(by, msgspec.structs.replace(wrong, incoming=records))
        assert fragment_places(tmp_path) == []
        put(by, fragment_of(snapshot_of(2), "B"))
    assert len(read_all(tmp_path)) == 1


def test_a_state_of_another_class_is_not_written(tmp_path: Path) -> None:
    """The error says which field is not its own."""
    snapshot = keyed.snapshot_of(1, [])
    bank = keyed.part("T", keyed.nothing(), keyed.nothing(), None)
    state = GlobalState((msgspec.structs.replace(bank, kind="Clerk"),), snapshot.state.channels)
    wrong = fragment_of(msgspec.structs.replace(snapshot, state=state), "T")
    described = FragmentTopology(reference=None, description=keyed.DESCRIPTION)
    with (
        writer(tmp_path, "T", topology=described) as by,
        pytest.raises(UsageError, match="the keyed fields of Clerk are none"),
    ):
        put(by, wrong)


def test_two_that_begin_at_once_write_the_same_topology(tmp_path: Path) -> None:
    """Whoever comes last: the file is whole at every moment, and nothing is left beside it."""
    fragments = {process: fragment_of(snapshot_of(1), process) for process in "ABT"}

    def begin(process: ProcessId) -> None:
        with writer(tmp_path, process) as by:
            put(by, fragments[process])

    for _ in range(20):
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(begin, "ABT"))
        assert len(read_all(tmp_path)) == 3
        assert [path.name for path in (tmp_path / TOPOLOGIES).iterdir()] == [
            f"{DESCRIPTION.hash}.json"
        ]
        for place in fragment_places(tmp_path):
            place.path(tmp_path).rename(tmp_path / f".{place.process}")
        for process in "ABT":
            for path in (tmp_path / f".{process}").iterdir():
                path.unlink()
            (tmp_path / f".{process}").rmdir()


@pytest.mark.parametrize("references", [("shop:system", None), (None, "shop:system")])
def test_who_does_not_know_where_the_topology_is_takes_it_from_nobody(
    tmp_path: Path, references: tuple[str | None, str | None]
) -> None:
    """A program that joined knows none; in whatever order they come, the reference is there."""
    for process, reference in zip("AB", references, strict=True):
        described = FragmentTopology(reference=reference, description=DESCRIPTION)
        with writer(tmp_path, process, topology=described) as by:
            put(by, fragment_of(snapshot_of(1), process))
    assert read_topologies(tmp_path) == {DESCRIPTION.hash: TOPOLOGY}
    assert len(list((tmp_path / TOPOLOGIES).iterdir())) == 1


FOREIGN = (
    "notes.txt",
    "e0/A/A-1/x",
    "e01/A/A-1/x",
    "e1",
    "e1/notes.txt",
    "e1/A",
    "e1/A/A-1",
    "e1/A/A-01/x",
    "e1/A/notes/x",
    "e1/A-/A-1/x",
    "e1/1A/A-1/x",
    "snapshots/A-1/x",
)


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_fragment_is_named(tmp_path: Path, name: str) -> None:
    """A file or a directory that no process wrote, wherever it is."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with pytest.raises(UsageError, match="holds what is no fragment: ") as caught:
        fragment_places(tmp_path)
    named = str(caught.value).partition("no fragment: ")[2].partition(": move")[0]
    assert path == Path(named) or Path(named) in path.parents


def test_what_is_hidden_is_passed_over(tmp_path: Path) -> None:
    """Spark and file managers leave such things, and a crash does."""
    put_all(tmp_path, 1)
    for name in (".DS_Store", "e1/.x", "e1/A/.A-7.partial/manifest.json", "topologies/.x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert len(read_all(tmp_path)) == 3


def test_a_directory_is_free_for_epochs_that_are_to_come(tmp_path: Path) -> None:
    """One that is not there, or has older ones; not one that has what would be written."""
    check_fragments_free(tmp_path / "none", 1)
    check_fragments_free(tmp_path, 1)
    put_all(tmp_path, 1)
    check_fragments_free(tmp_path, 2)
    with pytest.raises(UsageError, match=r"epoch 1 already.*begins epoch 1.*another directory"):
        check_fragments_free(tmp_path, 1)
    with pytest.raises(UsageError, match="is a file: fragments are in a directory"):
        check_fragments_free(tmp_path / TOPOLOGIES / f"{DESCRIPTION.hash}.json", 1)


def test_a_fragment_of_a_topology_that_is_not_there_is_damaged(tmp_path: Path) -> None:
    """The error says which file to put back."""
    put_all(tmp_path, 1)
    (place, *_) = fragment_places(tmp_path)
    with pytest.raises(Damaged, match=r"not in .*topologies: put that file back"):
        read_fragment(tmp_path, place, {})


def test_what_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    """A file is where the directory should be: which it is, and what to do."""
    (tmp_path / "file").touch()
    with (
        writer(tmp_path / "file", "A") as by,
        pytest.raises(StoreError, match=r"file/e1/A could not be written: Not a directory"),
    ):
        put(by, fragment_of(snapshot_of(1), "A"))
