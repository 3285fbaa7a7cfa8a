"""Fragments in an object store are those of a directory, whatever the object store does."""

import contextlib
import itertools
import secrets
from pathlib import Path

import pytest

from stillframe.errors import StoreError, UsageError
from stillframe.model import SnapshotId
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.store import fragments
from stillframe.store.fragments import (
    TOPOLOGIES,
    FragmentManifest,
    FragmentPlace,
    FragmentSource,
    FragmentTopology,
    FragmentWriter,
    check_fragments_unused,
    check_own_unused,
    find_fragments,
    read_topologies,
)
from stillframe.store.manifest import MANIFEST, PROCESSES
from stillframe.store.snapshot_directory import NewObjects
from tests.storage.faulty import DEATHS, ONCE, Died, Fault, Request, faulty, nth, since
from tests.store.fragment_samples import TOPOLOGY, fragment_of, put, put_all
from tests.store.samples import DESCRIPTION, snapshot_of
from tests.store.test_fragments import NO_REFERENCE, read_all


@pytest.fixture
def directory(bucket: ObjectPath) -> ObjectPath:
    """The place of fragments in an empty object store."""
    return bucket / "money.parts"


def writer(
    directory: Location, epoch: int = 1, *, topology: FragmentTopology = TOPOLOGY
) -> FragmentWriter:
    """Return the writer of process A."""
    return FragmentWriter(directory, FragmentSource("A", epoch, "run", None), topology)


def put_one(by: FragmentWriter, number: int, epoch: int = 1) -> None:
    """Write what A recorded of a snapshot."""
    put(by, fragment_of(snapshot_of(number, epoch=epoch), "A"))


def numbers(directory: Location) -> list[int]:
    """Return the snapshots of which there are fragments, with every byte read."""
    return [place.snapshot.number for place in read_all(directory)]


def names(directory: ObjectPath) -> list[str]:
    """Return the keys below a place."""
    return [
        one.location.relative_to(directory)
        for one in storage_of(directory).files_below(directory)
        if isinstance(one.location, ObjectPath)
    ]


def test_they_are_those_of_a_directory(directory: ObjectPath, tmp_path: Path) -> None:
    """Every file has the same bytes, and a copy of one place is the other."""
    for place in (directory, tmp_path):
        put_all(place, 1, 2)
    assert read_all(directory) == read_all(tmp_path)
    assert read_topologies(directory) == {DESCRIPTION.hash: TOPOLOGY}
    local = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert names(directory) == local
    for name in local:
        content, _ = storage_of(directory).read(directory / name, bytes_max=2**20)
        assert content == (tmp_path / name).read_bytes()


@pytest.mark.parametrize("topology", [TOPOLOGY, NO_REFERENCE], ids=["known", "unknown"])
@pytest.mark.parametrize("fault", DEATHS)
def test_a_death_at_any_request_leaves_whole_fragments(
    fault: Fault, topology: FragmentTopology, bucket: ObjectPath
) -> None:
    """Each fragment is whole or not there; in its next epoch the process clears up after itself."""
    seen = []
    for number in itertools.count(1):
        directory = bucket / secrets.token_hex(8)
        with faulty(directory, nth(number, fault)) as requests:
            by = writer(directory, topology=topology)
            try:
                put_one(by, 1)
                put_one(by, 2)
            except Died:
                pass
        seen.append(numbers(directory))
        put_one(writer(directory, 2, topology=topology), 3, epoch=2)
        assert numbers(directory) == [*seen[-1], 3]
        assert read_topologies(directory) == {DESCRIPTION.hash: topology}
        unfinished = {name.rpartition("/")[0] for name in names(directory) if PROCESSES in name}
        assert unfinished == {f"e{1 if n < 3 else 2}/A/A-{n}" for n in (*seen[-1], 3)}
        if not requests.is_dead:
            break
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == ([], [1, 2])
    assert len(seen) > 8


@pytest.mark.parametrize("fault", ONCE)
def test_a_request_that_fails_once_changes_nothing(fault: Fault, bucket: ObjectPath) -> None:
    """It is repeated, also if it took effect."""
    for number in itertools.count(1):
        directory = bucket / secrets.token_hex(8)
        with faulty(directory, nth(number, fault)) as requests:
            by = writer(directory)
            put_one(by, 1)
            put_one(by, 2)
        assert numbers(directory) == [1, 2]
        if len(requests.sent) < number:
            break


def test_an_object_store_that_fails_costs_a_fragment(directory: ObjectPath) -> None:
    """A sentence says so, and the next one is written."""
    by = writer(directory)
    put_one(by, 1)
    with (
        faulty(directory, since(1, Fault.REFUSED), repeat_s=0.01),
        pytest.raises(StoreError, match=r"answered with status 503.*: check that the object store"),
    ):
        put_one(by, 2)
    put_one(by, 3)
    assert numbers(directory) == [1, 3]


def test_a_lost_answer_of_the_manifest_leaves_a_whole_fragment(directory: ObjectPath) -> None:
    """It may be published although that was not told: its tables stay."""
    by = writer(directory)

    def plan(request: Request) -> Fault | None:
        if not request.key.endswith(f"A-1/{MANIFEST}"):
            return None
        return Fault.LOST if request.method == "put" else Fault.REFUSED

    with faulty(directory, plan, repeat_s=0.01), pytest.raises(StoreError):
        put_one(by, 1)
    assert numbers(directory) == [1]
    put_one(by, 2)
    put_one(writer(directory, 2), 3, epoch=2)
    assert numbers(directory) == [1, 2, 3]


def test_a_process_of_an_earlier_epoch_publishes_nothing_without_tables(
    directory: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes after a later epoch has cleared up, and puts its manifest."""
    by = writer(directory)
    put_one(by, 1)
    publish = NewObjects.publish

    def late(new: NewObjects, manifest: FragmentManifest) -> None:
        monkeypatch.setattr(NewObjects, "publish", publish)
        put_one(writer(directory, 2), 3, epoch=2)
        new.publish(manifest)

    monkeypatch.setattr(NewObjects, "publish", late)
    with pytest.raises(StoreError, match="another program has written"):
        put_one(by, 2)
    assert numbers(directory) == [1, 3]
    assert [name for name in names(directory) if "A-2" in name] == [f"e1/A/A-2/{MANIFEST}"]
    put_one(writer(directory, 4), 5, epoch=4)
    assert numbers(directory) == [1, 3, 5]


def test_only_the_newest_stay(directory: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest loses its manifest first, and a process that dies then clears up later."""
    monkeypatch.setattr(fragments, "KEPT_COUNT", 3)
    by = writer(directory)
    for number in range(1, 7):
        put_one(by, number)
    assert numbers(directory) == [4, 5, 6]
    assert not [name for name in names(directory) if "A-3" in name]
    with faulty(directory, nth(2, Fault.DEATH_BEFORE)), pytest.raises(Died):
        put_one(by, 7)
    assert numbers(directory) == [5, 6]
    assert [name for name in names(directory) if "A-4" in name]
    put_one(writer(directory, 2), 8, epoch=2)
    assert numbers(directory) == [5, 6, 8]
    assert not [name for name in names(directory) if "A-4" in name and PROCESSES in name]


def test_fragments_of_another_run_stay(
    directory: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both runs began before either had written, so each was told that the place is free. Whichever
    is later writes nothing there, and makes no room there."""
    monkeypatch.setattr(fragments, "KEPT_COUNT", 1)
    first = writer(directory)
    second = FragmentWriter(directory, FragmentSource("A", 1, "other", None), TOPOLOGY)
    put_one(first, 1)
    for number in (1, 2, 3):
        with contextlib.suppress(StoreError):
            put_one(second, number)
    assert numbers(directory) == [1, 3]


def test_no_listing_while_fragments_are_written(directory: ObjectPath) -> None:
    """Three tables and a manifest: four requests."""
    by = writer(directory)
    put_one(by, 1)
    with faulty(directory) as requests:
        put_one(by, 2)
    assert [request.method for request in requests.sent] == ["put"] * 4


def test_a_place_is_free_for_epochs_that_are_to_come(directory: ObjectPath) -> None:
    """Not for those that are there, even if none of their fragments was finished."""
    check_fragments_unused(directory, 1)
    put_one(writer(directory, 2), 1, epoch=2)
    storage_of(directory).put(directory / "e5" / "A" / "A-9" / PROCESSES, b"x")
    with pytest.raises(UsageError, match="already holds fragments of epoch 5"):
        check_fragments_unused(directory, 5)
    check_fragments_unused(directory, 6)
    with pytest.raises(UsageError, match="e5/A/A-9 belongs to another run of epoch 5"):
        check_own_unused(directory, FragmentSource("A", 5, "run", None))
    check_own_unused(directory, FragmentSource("B", 5, "run", None))


@pytest.mark.parametrize(
    "name", ["x", "e1/x", "e0/A/A-1/x", "e1/A/x", "e1/A/A-01/x", "e1/A/A-1/x/y"]
)
def test_what_is_no_fragment_is_named(directory: ObjectPath, name: str) -> None:
    """Where fragments are looked for."""
    put_one(writer(directory), 1)
    storage_of(directory).put(directory / name, b"x")
    with pytest.raises(UsageError, match=f"money.parts/{name}: move them away"):
        find_fragments(directory)


def test_what_is_hidden_or_unfinished_is_passed_over(directory: ObjectPath) -> None:
    """Hidden names are those of other programs."""
    put_one(writer(directory), 1)
    for name in (".x", "e1/.x", "e1/A/A-2/processes.parquet", f"{TOPOLOGIES}/.x"):
        storage_of(directory).put(directory / name, b"x")
    assert find_fragments(directory) == [FragmentPlace(1, SnapshotId("A", 1), "A")]
    assert numbers(directory) == [1]


def test_an_object_store_that_fails_is_no_empty_one(directory: ObjectPath) -> None:
    """What cannot be read is told."""
    put_one(writer(directory), 1)
    with faulty(directory, since(1, Fault.DENIED)):
        for read in (find_fragments, read_topologies, lambda d: check_fragments_unused(d, 1)):
            with pytest.raises(StoreError, match="could not be read: the credentials"):
                read(directory)
