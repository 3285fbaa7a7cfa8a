"""Making snapshots whole and dropping them: the old store or the new one, whatever goes wrong."""

import dataclasses
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe import durable_files
from stillframe.errors import Damaged, StoreError, UsageError
from stillframe.keyed import Keyed
from stillframe.model import GlobalState, ProcessState, Snapshot, SnapshotId
from stillframe.process import Process
from stillframe.store import retention, snapshot_directory
from stillframe.store import store as store_module
from stillframe.store import writer as writer_module
from stillframe.store.manifest import MANIFEST, SnapshotEntry
from stillframe.store.snapshot_directory import SnapshotChain
from stillframe.store.store import Store
from stillframe.store.writer import local
from stillframe.topology import Topology
from tests.store.keyed_samples import change_of
from tests.store.test_crash import deaths


class Till(Process):
    """Holds one mapping."""

    accounts: Keyed[str, int] = dataclasses.field(default_factory=Keyed)


TOPOLOGY = Topology({"P": Till()}, [])


def at(number: int) -> dict[str, int]:
    """Return what the till holds in the snapshot of that number."""
    return {f"k{key}": number for key in range(1, 6) if number % key == 0}


def fill(store: Store, bases: dict[int, int | None], *, took_s: float = 0.5) -> None:
    """Publish the snapshots with these numbers, each based on the one given."""
    for number, base in bases.items():
        before, now = {} if base is None else at(base), at(number)
        known = None if base is None else SnapshotId("P", base)
        keyed = {"accounts": change_of(now, before.keys() - now.keys())}
        state = ProcessState("P", "Till", msgspec.msgpack.encode({}), known, keyed)
        taken = GlobalState((state,), ())
        began = number + 0.5 - took_s
        store.publish(Snapshot(SnapshotId("P", number), store.epoch, began, number + 0.5, taken))


def check(store: Store) -> list[int]:
    """Return the numbers of the snapshots, all of which are what they were."""
    entries = store.entries()
    for entry in entries:
        [state] = store.load(entry.id).state.processes
        assert TOPOLOGY.codecs["P"].decode(state.encoded)["accounts"] == at(entry.id.number)
    return [entry.id.number for entry in entries]


def files(path: Path) -> set[str]:
    """Return the files of the snapshots that no manifest lists, and what begins with a dot."""
    store = Store.open(path)
    listed = {
        entry.directory / record.name
        for entry in store.entries()
        for record in store._manifest(entry.id).files
    }
    found = {p for p in path.glob("snapshots/**/*") if p.is_file() and p.name != MANIFEST}
    return {str(p) for p in found - listed} | {p.name for p in path.glob("snapshots/**/.*")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store with 1 and 3 whole, 2 based on 1, 4 on 3."""
    store = Store.create(tmp_path / "store", description=TOPOLOGY.description)
    store.raise_epoch(None)
    fill(store, {1: None, 2: 1, 3: None, 4: 3})
    store.close()
    return local(store.path)


@pytest.fixture
def eager(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same; from now on the newest is made whole at once, and the disk is quick."""
    for module in (retention, store_module):
        monkeypatch.setattr(module, "CHAIN_LENGTH_MAX", 0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return path


def make_whole(store: Store) -> None:
    """Have the newest snapshot made whole, and wait for it."""
    store.keep(100)
    store.settle()


def make_few(store: Store) -> None:
    """Have all removed that can be, and wait for it."""
    store.keep(1)
    store.settle()


Act = Callable[[Store], object]
ACTS: dict[str, tuple[Act, list[int]]] = {
    "whole": (make_whole, [1, 2, 3, 4]),
    "drop a base": (lambda store: store.drop("P-1"), [2, 3, 4]),
    "keep": (make_few, [3, 4]),
    "save": (lambda store: store.save(SnapshotId("P", 2), "kept"), [1, 2, 3, 4]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTS)
def test_a_death_at_any_step_leaves_the_old_or_the_new(eager: Path, name: str) -> None:
    """At each step all that is there can be read, and the next writer clears up and goes on."""
    act, expected = ACTS[name]
    seen = []
    for copy in deaths(eager, act):
        seen.append(check(Store.open(copy)))
        writer = Store.open_writer(copy)
        assert check(writer) == seen[-1]
        assert files(copy) == set()
        assert writer.verify_all(lambda *_: None) == len(seen[-1])
        if name != "drop a base" or 1 in seen[-1]:
            act(writer) if "kept" not in writer.savepoints else None
        assert check(writer) == expected
        writer.close()
    assert len(seen) > 3
    assert seen[-1] == expected


class FailingDisk:
    """Fails once, at the n-th call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
        self.steps = itertools.count(1)
        self.fails_at = fails_at
        for owner, name in (
            *((module, "sync") for module in (snapshot_directory, durable_files, writer_module)),
            (durable_files, "write_new"),
            *((Path, "rename"), (Path, "replace"), (Path, "unlink"), (shutil, "rmtree")),
        ):
            monkeypatch.setattr(owner, name, self.step(getattr(owner, name)))

    def step(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """Count a call; fail if its turn has come."""

        def counted(*args: Any, **kw: Any) -> Any:
            if next(self.steps) == self.fails_at:
                raise OSError(5, "Input/output error")
            return act(*args, **kw)

        return counted


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTS)
def test_an_error_at_any_step_harms_nothing(eager: Path, name: str) -> None:
    """The writer goes on: all that is there can be read, more is published, and it ends well."""
    act, expected = ACTS[name]
    for fails_at in itertools.count(1):
        copy = eager.with_name(f"failed-at-{fails_at}")
        shutil.copytree(eager, copy)
        store = Store.open_writer(copy)
        with pytest.MonkeyPatch.context() as monkeypatch:
            failing = FailingDisk(monkeypatch, fails_at)
            try:
                act(store)
            except (StoreError, OSError):
                pass
            is_over = next(failing.steps) <= fails_at
        check(store)
        fill(store, {5: 4})
        if is_over:
            break
        store.close()
    store.close()
    assert fails_at > 2
    assert check(Store.open(copy)) == ([4, 5] if name == "keep" else [*expected, 5])


def test_a_writer_removes_only_what_is_its_own(eager: Path) -> None:
    """Files of the store that no manifest lists go; somebody's notes in the same place stay."""
    directory = eager / "snapshots" / "P-4"
    left = [directory / "Till_accounts.whole.parquet", directory / f".{MANIFEST}.partial"]
    notes = directory / "notes.txt"
    for file in (*left, notes):
        file.write_text("x")
    (eager / "snapshots" / ".P-9.dropped").mkdir()
    Store.open_writer(eager).close()
    assert [file.exists() for file in (*left, notes)] == [False, False, True]
    assert not list(eager.glob("snapshots/.*"))


def test_a_reader_goes_on_when_files_go(eager: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It read the old manifest, and its files are gone: it reads the manifest again."""
    store, reader = Store.open_writer(eager), Store.open(eager)
    read = snapshot_directory.read_snapshot
    acts: Iterator[Callable[[Store], object]] = iter([make_whole, make_few])

    def late(chain: SnapshotChain) -> Any:
        act = next(acts, None)
        if act is not None:
            act(store)
        return read(chain)

    monkeypatch.setattr(snapshot_directory, "read_snapshot", late)
    assert reader.load(SnapshotId("P", 4)).state == store.load(SnapshotId("P", 4)).state
    with pytest.raises(UsageError, match="no snapshot P-2 in the store"):
        reader.load(SnapshotId("P", 2))
    assert check(reader) == [3, 4]
    store.close()


def test_what_a_snapshot_under_way_is_based_on_stays(eager: Path) -> None:
    """Three are under way at any time, each based on what was published when it began, and the
    newest is made whole at once: the others can be published still."""
    store = Store.open_writer(eager)
    store.keep(1)
    for number in range(5, 20):
        fill(store, {number: None if number < 8 else number - 3}, took_s=2.5)
        store.settle()
    assert check(store) == [16, 17, 18, 19]
    store.close()


def test_what_is_dropped_while_all_are_verified_is_no_damage(eager: Path) -> None:
    """Those that are left are verified, and counted."""
    store, seen = Store.open_writer(eager), []

    def progress(entry: SnapshotEntry, total: int) -> None:
        seen.append((entry.id.number, total))
        make_few(store)

    assert Store.open(eager).verify_all(progress) == 3
    assert seen == [(1, 4), (3, 4), (4, 4)]
    store.close()


def test_a_broken_link_is_named(path: Path) -> None:
    """Whichever file of a chain is lost or changed, it is named, with what to do."""
    store = Store.open(path)
    newest, base = path / "snapshots" / "P-2", path / "snapshots" / "P-1"
    for act in (store.load, store.verify, store.tables):
        for file in (
            base / "Till_accounts.whole.parquet",
            newest / "Till_accounts.changes.parquet",
        ):
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            kept = file.read_bytes()
            file.write_bytes(content)
            with pytest.raises(Damaged, match=f"{file} was changed.*put the file back"):
                act(SnapshotId("P", 2))
            file.unlink()
            with pytest.raises(Damaged, match=f"{file} is missing"):
                act(SnapshotId("P", 2))
            file.write_bytes(kept)
    shutil.rmtree(base)
    with pytest.raises(Damaged, match=r"P-2/manifest.json: process P is based on snapshot P-1"):
        store.verify_all(lambda *_: None)
    assert [entry.chain_length for entry in store.entries()] == [0, 0, 1]
