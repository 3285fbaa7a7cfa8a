"""Fragments that were changed, or that a forger made: named and refused, or harmless."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe.errors import Damaged, StoreError, UsageError
from stillframe.model import SnapshotId
from stillframe.process import Process
from stillframe.store.fragment_reading import (
    fragment_places,
    read_fragment,
    read_topologies,
)
from stillframe.store.fragments import (
    TOPOLOGIES,
    FragmentPlace,
    FragmentTopology,
)
from stillframe.store.manifest import MANIFEST, PROCESSES
from stillframe.store.seal import SEALED_BYTES_MAX, seal
from stillframe.store.tables import Tables
from stillframe.topology import Topology
from tests.nightly import by_night, seeds
from tests.soak.hostile_files import sealed
from tests.soak.mutation import mutated, mutated_value
from tests.store import keyed_samples as keyed
from tests.store.fragment_samples import fragment_of, put, put_all, put_keyed, writer
from tests.store.samples import DESCRIPTION, global_state, snapshot_of
from tests.store.test_fragments import read_all

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
    "in a newer format": {"format": 2},
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
        with pytest.raises(Damaged, match=f"{name} is of another topology than its name says"):
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
        assert place in fragment_places(directory)
        with pytest.raises(Damaged, match="of another process, snapshot or epoch than its place"):
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
    for place in fragment_places(directory):
        if place.process == "B" and place.snapshot.number > 1:
            with pytest.raises(StoreError, match=f"{place.snapshot}/{MANIFEST}"):
                read_fragment(directory, place, topologies)
        else:
            read_fragment(directory, place, topologies)


def test_names_that_are_no_text_are_foreign(directory: Path) -> None:
    """Bytes that no encoding has."""
    os.mkdir(os.fsencode(directory) + b"/e1/A/\xff\xfe-1")  # noqa: PTH102 - bytes
    with pytest.raises(UsageError, match="holds what is no fragment"):
        fragment_places(directory)


@pytest.mark.slow
def test_ten_thousand_directories_are_a_list(tmp_path: Path) -> None:
    """Foreign ones are named, some of them; others are listed by their numbers."""
    own = tmp_path / "e1" / "A"
    own.mkdir(parents=True)
    for number in range(10_000):
        (own / f"A-{number}").mkdir()
    places = fragment_places(tmp_path)
    assert [place.snapshot.number for place in places] == list(range(10_000))
    with pytest.raises(Damaged, match="is missing"):
        read_all(tmp_path)
    for path in own.iterdir():
        path.rename(path.with_name(f"x{path.name}x"))
    with pytest.raises(UsageError, match="and 9995 more") as caught:
        fragment_places(tmp_path)
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
