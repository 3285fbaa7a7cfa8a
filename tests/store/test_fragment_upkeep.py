"""The fragments of a process are whole or not there, whenever it dies or its disk is full."""

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe.errors import StoreError
from stillframe.model import SnapshotId
from stillframe.store import contents, disk, fragment_upkeep
from stillframe.store.fragment_reading import (
    fragment_places,
    read_topologies,
)
from stillframe.store.fragments import (
    TOPOLOGIES,
    FragmentTopology,
)
from stillframe.store.opening import dropped_path
from tests.store.fragment_samples import TOPOLOGY, fragment_of, put, put_all, writer
from tests.store.samples import DESCRIPTION, snapshot_of
from tests.store.test_crash import Killed, StepCounter, small_disk  # noqa: F401 - a fixture
from tests.store.test_fragments import read_all

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


@pytest.mark.parametrize(("module", "failing"), [(contents, "write_new"), (contents, "sync")])
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
    monkeypatch.setattr(fragment_upkeep, "KEPT_COUNT", 3)
    put_all(tmp_path, *range(1, 3))
    with writer(tmp_path, "A", epoch=2) as by:
        for number in range(8, 14):
            put(by, fragment_of(snapshot_of(number, initiator="AB"[number % 2]), "A"))
    kept = [(p.epoch, p.process, str(p.snapshot)) for p in fragment_places(tmp_path)]
    assert kept == [
        *((1, process, f"A-{number}") for number in (1, 2) for process in "ABT"),
        *((2, "A", snapshot) for snapshot in ("A-12", "B-11", "B-13")),
    ]
    assert hidden_in(tmp_path) == []


def test_what_is_somebody_elses_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file among the fragments keeps nobody from writing, and is not removed."""
    monkeypatch.setattr(fragment_upkeep, "KEPT_COUNT", 2)
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
    monkeypatch.setattr(fragment_upkeep, "KEPT_COUNT", 1)
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
        for name in (dropped_path(path), disk.partial_path(path)):
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
