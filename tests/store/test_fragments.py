"""What a process writes of snapshots by itself: read back as written, whole or not there."""

import errno
import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe import durable_files
from stillframe.errors import Damaged, NotConsistent, StoreError, UsageError
from stillframe.keyed import Keyed
from stillframe.model import GlobalState, ProcessId, Snapshot, SnapshotId
from stillframe.process import Process
from stillframe.storage.location import Location
from stillframe.storage.reading import read_hashed
from stillframe.store import fragments, snapshot_directory
from stillframe.store.fragments import (
    TOPOLOGIES,
    FragmentManifest,
    FragmentPlace,
    FragmentTopology,
    Received,
    check_fragments_unused,
    find_fragments,
    read_fragment,
    read_topologies,
)
from stillframe.store.layout import dropped_path
from stillframe.store.manifest import FILES, MANIFEST, PROCESSES
from stillframe.store.parquet import read_parquet
from stillframe.store.sealed_json import FORMAT, SEALED_BYTES_MAX, seal
from stillframe.store.store import Store
from stillframe.store.tables import Tables
from stillframe.store.writer import local
from stillframe.topology import Topology
from tests.nightly import by_night, seeds
from tests.soak.hostile_files import sealed
from tests.soak.mutation import mutated, mutated_value
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
from tests.store.test_crash import Killed, StepCounter, small_disk  # noqa: F401 - a fixture

ONE = SnapshotId("A", 1)


def read_all(directory: Location) -> dict[FragmentPlace, FragmentManifest]:
    """Return every fragment in a directory, with every byte read."""
    topologies = read_topologies(directory)
    found = {}
    for place in find_fragments(directory):
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
    for name, column in zip(FILES, ("_process", "target", "_target"), strict=True):
        rows = read_parquet((local(entry.directory) / name).read_bytes()).to_pylist()
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
    published = local(store.publish(snapshot).directory)
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
    assert [(row["_key"], row["_is_removed"], row["value"]) for row in rows] == [
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
        with pytest.raises(NotConsistent, match="should continue with number 6"):
            put(by, msgspec.structs.replace(wrong, incoming=records))
        assert find_fragments(tmp_path) == []
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
        for place in find_fragments(tmp_path):
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
    with pytest.raises(UsageError, match="holds files that are not fragments: ") as caught:
        find_fragments(tmp_path)
    named = str(caught.value).partition("files that are not fragments: ")[2].partition(": move")[0]
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
    check_fragments_unused(tmp_path / "none", 1)
    check_fragments_unused(tmp_path, 1)
    put_all(tmp_path, 1)
    check_fragments_unused(tmp_path, 2)
    with pytest.raises(
        UsageError, match=r"already holds fragments of epoch 1.*starts epoch 1.*another directory"
    ):
        check_fragments_unused(tmp_path, 1)
    with pytest.raises(UsageError, match="is a file: fragments are stored in a directory"):
        check_fragments_unused(tmp_path / TOPOLOGIES / f"{DESCRIPTION.hash}.json", 1)


def test_a_fragment_of_a_topology_that_is_not_there_is_damaged(tmp_path: Path) -> None:
    """The error says which file to put back."""
    put_all(tmp_path, 1)
    (place, *_) = find_fragments(tmp_path)
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


NO_REFERENCE = FragmentTopology(reference=None, description=DESCRIPTION)


def numbers_in(directory: Path) -> list[int]:
    """Return the numbers of the snapshots of which there are fragments, with every byte read."""
    return [place.snapshot.number for place in read_all(directory)]


def hidden_in(directory: Path) -> list[str]:
    """Return the names that readers pass over."""
    return sorted(path.name for path in directory.rglob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize("topology", [TOPOLOGY, NO_REFERENCE], ids=["known", "unknown"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_death_at_any_step_leaves_whole_fragments(
    tmp_path: Path, topology: FragmentTopology, *, is_first: bool
) -> None:
    """At each step: what there is is whole, and its next life goes on, clearing up after it."""
    seen = []
    for dies_at in itertools.count(1):
        path = tmp_path / str(dies_at)
        with writer(path, "A", topology=topology) as by:
            if not is_first:
                put(by, fragment_of(snapshot_of(1), "A"))
            with pytest.MonkeyPatch.context() as monkeypatch:
                counter = StepCounter(monkeypatch, dies_at)
                try:
                    put(by, fragment_of(snapshot_of(2), "A"))
                except Killed:
                    pass
        seen.append(numbers_in(path))
        if seen[-1]:
            assert read_topologies(path) == {DESCRIPTION.hash: topology}
        with writer(path, "A", epoch=2, topology=topology) as by:
            put(by, fragment_of(snapshot_of(3, epoch=2), "A"))
        assert numbers_in(path) == [*seen[-1], 3]
        assert hidden_in(path) == []
        if not counter.died:
            break
    assert len(seen) > 8
    assert seen == sorted(seen)
    assert seen[0] == ([] if is_first else [1])
    assert seen[-1] == ([2] if is_first else [1, 2])


def test_a_full_disk_leaves_nothing_of_a_fragment(
    small_disk: Path,  # noqa: F811 - the fixture
) -> None:
    """The error says so, what was there is whole, and the next one is written when there is room
    again."""
    directory = small_disk / "fragments"
    with writer(directory, "A") as by, (small_disk / "ballast").open("wb", buffering=0) as ballast:
        put(by, fragment_of(snapshot_of(1), "A"))
        assert 0 < ballast.write(bytes(300_000)) < 300_000
        with pytest.raises(StoreError, match=r"e1/A/A-2 could not be written: No space left"):
            put(by, fragment_of(snapshot_of(2), "A"))
        assert numbers_in(directory) == [1]
        assert hidden_in(directory) == []
        ballast.truncate(0)
        put(by, fragment_of(snapshot_of(3), "A"))
    assert numbers_in(directory) == [1, 3]


def test_a_full_disk_leaves_nothing_of_a_topology(
    small_disk: Path,  # noqa: F811 - the fixture
) -> None:
    """The same when there is not even room for what fragments are parts of."""
    directory = small_disk / "fragments"
    with writer(directory, "A") as by, (small_disk / "ballast").open("wb", buffering=0) as ballast:
        assert 0 < ballast.write(bytes(300_000)) < 300_000
        with pytest.raises(StoreError, match=r"could not be written: No space left"):
            put(by, fragment_of(snapshot_of(1), "A"))
        assert read_topologies(directory) == {}
        assert hidden_in(directory) == []
        ballast.truncate(0)
        put(by, fragment_of(snapshot_of(1), "A"))
    assert numbers_in(directory) == [1]


@pytest.mark.parametrize(
    ("module", "failing"), [(snapshot_directory, "write_new"), (snapshot_directory, "sync")]
)
def test_a_failing_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, failing: str
) -> None:
    """An I/O error at any call: StoreError, and the same fragment can be written later."""
    act = getattr(module, failing)
    with writer(tmp_path, "A") as by:
        put(by, fragment_of(snapshot_of(1), "A"))
        for fails_at in range(1, 5):
            calls = itertools.count(1)

            def fail(*args: Any, calls: Iterator[int] = calls, fails_at: int = fails_at) -> None:
                if next(calls) == fails_at:
                    raise OSError(errno.EIO, "Input/output error")
                act(*args)

            with monkeypatch.context() as patched:
                patched.setattr(module, failing, fail)
                with pytest.raises(StoreError, match=r"A-2 could not be .*Input/output error"):
                    put(by, fragment_of(snapshot_of(2), "A"))
            assert os.listdir(tmp_path / "e1" / "A") == ["A-1"]  # noqa: PTH208 -- hidden ones too
        put(by, fragment_of(snapshot_of(2), "A"))
    assert numbers_in(tmp_path) == [1, 2]


def test_only_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and not by name; of each process by itself, in each epoch by itself."""
    monkeypatch.setattr(fragments, "KEPT_COUNT", 3)
    put_all(tmp_path, *range(1, 3))
    with writer(tmp_path, "A", epoch=2) as by:
        for number in range(8, 14):
            put(by, fragment_of(snapshot_of(number, initiator="AB"[number % 2]), "A"))
    kept = [(p.epoch, p.process, str(p.snapshot)) for p in find_fragments(tmp_path)]
    assert kept == [
        *((1, process, f"A-{number}") for number in (1, 2) for process in "ABT"),
        *((2, "A", snapshot) for snapshot in ("A-12", "B-11", "B-13")),
    ]
    assert hidden_in(tmp_path) == []


def test_what_is_somebody_elses_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file among the fragments keeps nobody from writing, and is not removed."""
    monkeypatch.setattr(fragments, "KEPT_COUNT", 2)
    with writer(tmp_path, "A") as by:
        put(by, fragment_of(snapshot_of(1), "A"))
        notes = tmp_path / "e1" / "A" / "notes.txt"
        notes.touch()
        for number in (2, 3, 4):
            put(by, fragment_of(snapshot_of(number), "A"))
    notes.unlink()
    assert numbers_in(tmp_path) == [3, 4]


def test_where_none_can_be_removed_none_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the disk fills no more, and the error says what cannot be done."""
    monkeypatch.setattr(fragments, "KEPT_COUNT", 1)
    with writer(tmp_path, "A") as by:
        put(by, fragment_of(snapshot_of(1), "A"))
        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", refuse)
            with pytest.raises(StoreError, match="Operation not permitted"):
                put(by, fragment_of(snapshot_of(2), "A"))
        assert numbers_in(tmp_path) == [1]
        put(by, fragment_of(snapshot_of(3), "A"))
    assert numbers_in(tmp_path) == [3]


def refuse(*_: object) -> None:
    """Do nothing of the kind."""
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_what_was_being_removed_or_written_at_a_death_goes(tmp_path: Path) -> None:
    """At the next beginning of the same process; what others left is theirs."""
    put_all(tmp_path, 1)
    own, others = tmp_path / "e1" / "A" / "A-1", tmp_path / "e1" / "B" / "A-1"
    for path in (own, others):
        for name in (dropped_path(path), durable_files.partial_path(path)):
            name.mkdir()
            (name / "manifest.json").touch()
    with writer(tmp_path, "A", epoch=2) as by:
        put(by, fragment_of(snapshot_of(2, epoch=2), "A"))
    assert hidden_in(own.parent) == []
    assert hidden_in(others.parent) == [".A-1.dropped", ".A-1.partial"]


@pytest.mark.parametrize("first", [TOPOLOGY, NO_REFERENCE], ids=["known", "unknown"])
def test_a_file_system_without_second_names_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: FragmentTopology
) -> None:
    """Who knows no reference then looks whether somebody was there, and replaces nothing."""
    monkeypatch.setattr(os, "link", refuse)
    for process, topology in (("A", first), ("B", NO_REFERENCE)):
        with writer(tmp_path, process, topology=topology) as by:
            put(by, fragment_of(snapshot_of(1), process))
    assert read_topologies(tmp_path) == {DESCRIPTION.hash: first}
    assert hidden_in(tmp_path / TOPOLOGIES) == []


def test_a_fragment_is_written_once(tmp_path: Path) -> None:
    """A second one of the same snapshot is refused, and the first one stays."""
    fragment = fragment_of(snapshot_of(1), "A")
    with writer(tmp_path, "A") as by:
        put(by, fragment)
        with pytest.raises(StoreError, match="A-1 could not be written"):
            put(by, msgspec.structs.replace(fragment, sent_counts={"B": 99}))
    (manifest,) = read_all(tmp_path).values()
    assert manifest.snapshot == SnapshotId("A", 1)
    assert manifest.sent == fragment.sent_counts
    assert hidden_in(tmp_path) == []


PLACE = FragmentPlace(1, SnapshotId("A", 1), "B")
SEEDS = seeds("fragments", 0, night=2)
CHANGE_COUNT = by_night(5000, check=150)


class Idle(Process):
    """A process that makes the smallest fragment there is."""

    balance: int = 1


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where all processes have written what they recorded of A-1."""
    put_all(tmp_path, 1)
    return tmp_path


@pytest.fixture
def manifest(directory: Path) -> Path:
    """The manifest of B's fragment."""
    return PLACE.path(directory) / MANIFEST


def topology_file(directory: Path) -> Path:
    """Return what is said of the topology."""
    (path,) = (directory / TOPOLOGIES).iterdir()
    return path


def json(value: Any) -> bytes:
    """Return JSON, of NaN too."""
    return msgspec.json.encode(value, enc_hook=repr)


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the content of a sealed file, and seal it again."""
    content = msgspec.json.decode(path.read_bytes())["content"]
    change(content)
    path.write_bytes(sealed(json(content)))


def flipped(path: Path) -> Iterator[int]:
    """Yield each offset in a file while one bit of that byte is another one."""
    with path.open("r+b", buffering=0) as file:
        content = file.read()
        for offset, byte in enumerate(content):
            os.pwrite(file.fileno(), bytes([byte ^ 1 << offset % 8]), offset)
            yield offset
            os.pwrite(file.fileno(), bytes([byte]), offset)


@pytest.mark.slow
def test_every_changed_byte_is_found_and_named(tmp_path: Path) -> None:
    """One flipped bit in any byte of any file: whoever reads it all is told which file it is."""
    topology = Topology({"A": Idle()}, [])
    described = FragmentTopology(reference="shop:system", description=topology.description)
    with writer(tmp_path, "A", topology=described) as by:
        put(by, fragment_of(snapshot_of(1, global_state(topology=topology)), "A"))
    paths = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(paths) == 5
    for path in paths:
        for offset in flipped(path):
            with pytest.raises(Damaged) as caught:
                read_all(tmp_path)
            assert str(path) in str(caught.value), offset
    assert len(read_all(tmp_path)) == 1


def readers(directory: Path) -> None:
    """Read what there is as those do who make snapshots of it.

    Raises:
        StoreError: something is wrong with it.
        Exception: anything else is a bug.
    """
    topologies = read_topologies(directory)
    for topology in topologies.values():
        for process in topology.description.processes:
            assert not {"/", "\0"} & set(process)
    for place, read in read_all(directory).items():
        assert read.sent.keys() <= topologies[read.topology].description.processes.keys()
        assert read.completed_at + read.recorded_at + read.pause_s < 2**40
        assert round(read.completed_at * 1e6) < 2**63
        assert read.base is None or SnapshotId.parse(str(read.base)) == read.base
        assert place.path(directory).is_relative_to(directory)


@pytest.mark.nightly(part="hostile")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("what", ["manifest", "topology"])
@pytest.mark.parametrize("how", ["bytes", "values"])
def test_no_forged_content_crashes_a_reader(tmp_path: Path, seed: int, what: str, how: str) -> None:
    """Bytes or values that are others, under a seal that is right: refused in words, with the name
    of the file, or read as what they are."""
    put_keyed(tmp_path)
    chance = random.Random(f"{seed} {what} {how}")
    path = topology_file(tmp_path)
    if what == "manifest":
        path = FragmentPlace(1, SnapshotId("P", 2), "P").path(tmp_path) / MANIFEST
    right = path.read_bytes()
    content = right[len(b'{"content":') : -len(b',"hash":""}') - 64]
    refusals = []
    for _ in range(CHANGE_COUNT):
        if how == "bytes":
            changed = mutated(chance, [content])
        else:
            changed = json(mutated_value(chance, msgspec.json.decode(content)))
        path.write_bytes(sealed(changed))
        try:
            readers(tmp_path)
        except StoreError as error:
            refusals.append(str(error))
    path.write_bytes(right)
    assert len(read_all(tmp_path)) == 2
    assert len(refusals) > CHANGE_COUNT / 2
    names = (path.name, f"{path.parent}/")  # hashes of files may be what was changed
    assert [words for words in refusals if not any(name in words for name in names)] == []


def entry(count: object, recorded_count: object = 0) -> dict[str, object]:
    """Return what a manifest says of an incoming channel."""
    return {"count": count, "recorded_count": recorded_count}


FILE = {"name": PROCESSES, "bytes": 1, "hash": "0" * 64}
IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "of nobody": {"process": "Z"},
    "of somebody else": {"process": "A"},
    "of a path": {"process": "../B"},
    "of another epoch": {"epoch": 2},
    "of a huge epoch": {"epoch": 10**18},
    "of another snapshot": {"snapshot": {"initiator": "A", "number": 2}},
    "of another topology": {"topology": "0" * 64},
    "of no topology": {"topology": "../../x"},
    "in a newer format": {"format": FORMAT + 1},
    "in a huge format": {"format": 2.0**100},
    "sent to nobody": {"sent": {"A": 1, "T": 1, "Z": 1}},
    "sent nothing": {"sent": {}},
    "sent less than nothing": {"sent": {"A": -1, "T": 1}},
    "sent too much": {"sent": {"A": 2**63 - 1, "T": 1}},
    "sent more than a number": {"sent": {"A": 2.0**100, "T": 1}},
    "received from nobody": {"received": {"Z": entry(0)}},
    "received nothing": {"received": {}},
    "received less than nothing": {"received": {"A": entry(-1)}},
    "recorded less than nothing": {"received": {"A": entry(0, -1)}},
    "received too much": {"received": {"A": entry(2**63 - 1)}},
    "received a fraction": {"received": {"A": entry(0.5)}},
    "recorded before time": {"recorded_at": -1.0},
    "recorded at no time": {"recorded_at": None},
    "completed long after": {"completed_at": 1e300},
    "paused forever": {"pause_s": 1e300},
    "captured in less than nothing": {"capture_s": -1e-9},
    "based on itself": {"base": {"initiator": "A", "number": 1}},
    "based on another, and without keyed fields": {"base": {"initiator": "A", "number": 0}},
    "based on a path": {"base": {"initiator": "../x", "number": 0}},
    "without files": {"files": []},
    "with another file": {"files": [FILE | {"name": "../x"}] * 3},
    "with a file twice": {"files": [FILE] * 3},
    "with a file of no length": {"files": [FILE | {"bytes": -1}] * 3},
    "with a hash that is none": {"files": [FILE | {"hash": "../x"}] * 3},
    "with more": {"extra": 1},
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_manifest_that_says_what_cannot_be_is_refused(
    directory: Path, manifest: Path, name: str
) -> None:
    """Though its seal is right: the file is named."""
    forge(manifest, lambda content: content.update(IMPOSSIBLE[name]))
    with pytest.raises(StoreError) as caught:
        read_fragment(directory, PLACE, read_topologies(directory))
    assert str(manifest) in str(caught.value)
    assert isinstance(caught.value, Damaged) != (name == "in a newer format")


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5_000])
@pytest.mark.parametrize("field", ["recorded_at", "completed_at", "pause_s", "capture_s", "epoch"])
def test_numbers_that_are_none_are_refused(
    directory: Path, manifest: Path, field: str, literal: str
) -> None:
    """As JSON has them in some languages."""
    content = msgspec.json.decode(manifest.read_bytes(), type=dict[str, msgspec.Raw])
    values = msgspec.json.decode(content["content"], type=dict[str, msgspec.Raw])
    manifest.write_bytes(sealed(json(values | {field: msgspec.Raw(literal.encode())})))
    with pytest.raises(Damaged, match=MANIFEST):
        read_fragment(directory, PLACE, read_topologies(directory))


@pytest.mark.parametrize("depth", [100, 100_000])
def test_what_is_nested_without_end_is_refused(manifest: Path, depth: int) -> None:
    """It is no reason to end."""
    manifest.write_bytes(sealed(b'{"format":1,"sent":%b}' % (b"[" * depth + b"]" * depth)))
    with pytest.raises(Damaged, match=MANIFEST):
        readers(manifest.parents[3])


BASES: tuple[Any, ...] = (
    {"initiator": "P", "number": 2},
    {"initiator": "../P", "number": 1},
    {"initiator": "P", "number": -1},
    {"initiator": "", "number": 1},
    {"initiator": "P", "number": 2**63},
)


@pytest.mark.parametrize("base", BASES, ids=str)
def test_changes_are_of_another_snapshot(tmp_path: Path, base: dict[str, Any]) -> None:
    """A fragment that is based on itself, or on none that can be, is refused."""
    put_keyed(tmp_path)
    place = FragmentPlace(1, SnapshotId("P", 2), "P")
    forge(place.path(tmp_path) / MANIFEST, lambda content: content.update(base=base))
    with pytest.raises(Damaged, match=rf"P-2/{MANIFEST}"):
        read_fragment(tmp_path, place, read_topologies(tmp_path))


@pytest.mark.parametrize("name", ["../x", "x/y", "", "a" * 300, "1", "A\0"])
def test_a_topology_of_processes_that_cannot_be_is_refused(directory: Path, name: str) -> None:
    """It has the hash that its name says, and would make files somewhere else."""
    described = msgspec.structs.replace(
        DESCRIPTION, processes={**DESCRIPTION.processes, name: "Account"}
    )
    check_refused(directory, FragmentTopology(reference=None, description=described))


@pytest.mark.parametrize("name", ["../x", "x/y", "", "a b"])
def test_a_topology_of_tables_that_cannot_be_is_refused(directory: Path, name: str) -> None:
    """The same of the names of keyed fields, and of their classes."""
    (columns, *_) = keyed.DESCRIPTION.keyed["Bank"].values()
    for change in ({"keyed": {"Account": {name: columns}}}, {"processes": {"A": name}}):
        described = msgspec.structs.replace(DESCRIPTION, **change)
        if "processes" in change:
            described = msgspec.structs.replace(described, keyed={name: {"x": columns}})
        check_refused(directory, FragmentTopology(reference=None, description=described))


def check_refused(directory: Path, topology: FragmentTopology) -> None:
    """Check that a sealed topology is refused by the name of its file."""
    path = directory / TOPOLOGIES / f"{topology.description.hash}.json"
    path.write_bytes(seal(topology))
    with pytest.raises(Damaged, match=path.name):
        read_topologies(directory)
    path.unlink()


def test_a_topology_under_another_name_is_refused(directory: Path) -> None:
    """A copy is no second topology, and a name is no hash."""
    path = topology_file(directory)
    for name in ("0" * 64 + ".json", "copy.json", f"{DESCRIPTION.hash}"):
        shutil.copyfile(path, path.with_name(name))
        with pytest.raises(
            Damaged, match=f"{name} was renamed: its name is not the hash of its topology"
        ):
            read_topologies(directory)
        path.with_name(name).unlink()


@pytest.mark.parametrize("number", [2, 10**8])
def test_a_fragment_in_another_place_is_refused(directory: Path, number: int) -> None:
    """A directory of another epoch, of another process, of another snapshot: put it back."""
    for place in (
        msgspec.structs.replace(PLACE, epoch=number),
        msgspec.structs.replace(PLACE, process="T"),
        msgspec.structs.replace(PLACE, snapshot=SnapshotId("A", number)),
    ):
        shutil.rmtree(place.path(directory), ignore_errors=True)
        shutil.copytree(PLACE.path(directory), place.path(directory))
        assert place in find_fragments(directory)
        with pytest.raises(Damaged, match="its process, snapshot or epoch differs from its path"):
            read_fragment(directory, place, read_topologies(directory))


@pytest.mark.parametrize("name", [MANIFEST, PROCESSES])
def test_other_things_where_files_should_be(directory: Path, name: str) -> None:
    """A directory, nothing, a link that leads nowhere or round and round, a pipe into which nobody
    writes."""
    path = PLACE.path(directory) / name
    things: tuple[Callable[[], object], ...] = (
        path.mkdir,
        lambda: None,
        lambda: path.symlink_to(path.with_name("none")),
        lambda: path.symlink_to(path),
        lambda: os.mkfifo(path),
    )
    for make in things:
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        make()
        with pytest.raises(StoreError, match=name):
            read_all(directory)


def test_links_in_place_of_directories(directory: Path, tmp_path_factory: Any) -> None:
    """What they lead to is a fragment of this place, or it is refused; none leads round and
    round."""
    away = tmp_path_factory.mktemp("away") / "A-1"
    path = PLACE.path(directory)
    path.rename(away)
    path.symlink_to(away)
    assert len(read_all(directory)) == 3
    (path.parent / "A-2").symlink_to(away)
    (path.parent / "A-3").symlink_to(path.parent / "A-3")
    (path.parents[1] / "C").symlink_to(path.parents[1] / "C")
    (directory / "e2").symlink_to(directory / "e2")
    topologies = read_topologies(directory)
    for place in find_fragments(directory):
        if place.process == "B" and place.snapshot.number > 1:
            with pytest.raises(StoreError, match=f"{place.snapshot}/{MANIFEST}"):
                read_fragment(directory, place, topologies)
        else:
            read_fragment(directory, place, topologies)


def test_names_that_are_no_text_are_foreign(directory: Path) -> None:
    """Bytes that no encoding has."""
    os.mkdir(os.fsencode(directory) + b"/e1/A/\xff\xfe-1")  # noqa: PTH102 - bytes
    with pytest.raises(UsageError, match="holds files that are not fragments"):
        find_fragments(directory)


@pytest.mark.slow
def test_ten_thousand_directories_are_a_list(tmp_path: Path) -> None:
    """Foreign ones are named, some of them; others are listed by their numbers."""
    own = tmp_path / "e1" / "A"
    own.mkdir(parents=True)
    for number in range(10_000):
        (own / f"A-{number}").mkdir()
    places = find_fragments(tmp_path)
    assert [place.snapshot.number for place in places] == list(range(10_000))
    with pytest.raises(Damaged, match="is missing"):
        read_all(tmp_path)
    for path in own.iterdir():
        path.rename(path.with_name(f"x{path.name}x"))
    with pytest.raises(UsageError, match="and 9995 more") as caught:
        find_fragments(tmp_path)
    assert len(str(caught.value)) < 5_000


def test_a_huge_manifest_is_not_read(directory: Path, manifest: Path) -> None:
    """One over the bound is refused by its length."""
    os.truncate(manifest, SEALED_BYTES_MAX + 1)
    with pytest.raises(Damaged, match=r"manifest\.json has more than"):
        read_all(directory)


def test_what_can_be_read_has_tables(directory: Path) -> None:
    """A topology that is not refused is one that tables can be made of."""
    for topology in read_topologies(directory).values():
        assert Tables(topology.description).description == DESCRIPTION
