"""A store is the old one or the new one, whenever its writer dies or its disk is full."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stillframe import durable_files
from stillframe.errors import StoreError
from stillframe.store import fragments, layout, snapshot_directory
from stillframe.store import writer as writer_module
from stillframe.store.store import Store
from stillframe.store.writer import local
from tests.store.samples import DESCRIPTION, Transfer, global_state, publish, snapshot_of

ROOT = Path(__file__).parents[2]


class Killed(BaseException):
    """The writer dies here: nothing of ours runs after it, no clearing up either."""


class StepCounter:
    """Makes the writer die at its n-th step on the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dies_at: int) -> None:
        self.dies_at = dies_at
        self.steps = itertools.count(1)
        self.died = False
        for owner, name in (
            *(
                (module, "sync")
                for module in (snapshot_directory, durable_files, writer_module, layout)
            ),
            *((Path, "mkdir"), (fragments, "sync"), (os, "link")),
            *((Path, "rename"), (Path, "replace"), (Path, "unlink"), (shutil, "rmtree")),
        ):
            monkeypatch.setattr(owner, name, self.step(getattr(owner, name)))
        write_new = durable_files.write_new
        for module in (snapshot_directory, durable_files, fragments):
            monkeypatch.setattr(module, "write_new", self.torn(write_new))

    def step(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """Count a step; die before it when its turn has come."""

        def counted(*args: Any, **kw: Any) -> Any:
            if self.died or next(self.steps) >= self.dies_at:
                self.died = True
                raise Killed
            return act(*args, **kw)

        return counted

    def torn(self, write_new: Callable[..., None]) -> Callable[..., None]:
        """The same for a write: half of it is there."""
        whole = self.step(write_new)

        def written(path: Path, content: bytes, **how: int) -> None:
            try:
                whole(path, content, **how)
            except Killed:
                write_new(path, content[: len(content) // 2], **how)
                raise

        return written


def deaths(path: Path, act: Callable[[Store], object]) -> Iterator[Path]:
    """Yield copies of the store at `path`, left by a writer that died at step 1, 2, 3... of `act`,
    and last one whose writer lived."""
    for dies_at in itertools.count(1):
        copy = path.with_name(f"died-at-{dies_at}")
        shutil.copytree(path, copy)
        store = Store.open_writer(copy)
        with pytest.MonkeyPatch.context() as monkeypatch:
            counter = StepCounter(monkeypatch, dies_at)
            try:
                act(store)
            except Killed:
                pass
        store.close()
        yield copy
        if not counter.died:
            return


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store that holds A-1."""
    store = Store.create(tmp_path / "store", description=DESCRIPTION)
    store.raise_epoch(None)
    publish(store, 1)
    store.close()
    return local(store.path)


@pytest.mark.slow
def test_a_death_at_any_step_of_publishing_leaves_the_old_or_the_new(path: Path) -> None:
    """At each step: readers see one or two whole snapshots, and the next writer publishes."""
    seen = []
    for copy in deaths(path, lambda store: publish(store, 2)):
        reader = Store.open(copy)
        seen.append(reader.verify_all(lambda *_: None))
        writer = Store.open_writer(copy)
        publish(writer, 3)
        assert writer.verify_all(lambda *_: None) == seen[-1] + 1
        assert not list(copy.glob("snapshots/.*"))
        writer.close()
    assert len(seen) > 10
    assert seen == sorted(seen)
    assert set(seen) == {1, 2}


def test_a_death_at_any_step_of_a_new_epoch_leaves_the_old_or_the_new(path: Path) -> None:
    """At each step the epoch is the old or the new one, and the next start goes on from it."""
    epochs = []
    for copy in deaths(path, lambda store: store.raise_epoch(None)):
        epochs.append(Store.open(copy).epoch)
        writer = Store.open_writer(copy)
        assert writer.raise_epoch(None) == epochs[-1] + 1
        assert not list(copy.glob(".store*"))
        writer.close()
    assert epochs == sorted(epochs)
    assert set(epochs) == {1, 2}


def test_a_death_at_any_step_of_creation_leaves_room_for_a_store(tmp_path: Path) -> None:
    """Whatever a creation that died left behind, the next one succeeds."""
    for dies_at in range(1, 9):
        path = tmp_path / str(dies_at)
        with pytest.MonkeyPatch.context() as monkeypatch:
            StepCounter(monkeypatch, dies_at)
            try:
                Store.create(path, description=DESCRIPTION).close()
            except Killed:
                pass
        store = Store.create(path, description=DESCRIPTION)
        assert store.epoch == 0
        store.close()


WRITER = """
import sys
from pathlib import Path
from stillframe.store.store import Store
from tests.store.samples import publish
store = Store.open_writer(Path(sys.argv[1]))
for number in range(store.next_number(), 10**9):
    publish(store, number)
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_that_it_had_published(path: Path) -> None:
    """SIGKILL while publishing: every snapshot that was reported is there, at most one more."""
    last = 1
    for line_count in (1, 2, 5, 9):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        )
        assert writer.stdout is not None
        for _ in range(line_count):
            writer.stdout.readline()
        writer.kill()
        reported = [int(line) for line in writer.stdout]
        writer.wait()
        writer.stdout.close()
        last = max([last + line_count, *reported])
        count = Store.open(path).verify_all(lambda *_: None)
        assert count in (last, last + 1)
        last = count


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 kB."""
    point = tmp_path / "small"
    point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(point)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


ADVICE = r"A-2 could not be written: Input/output error; .*: check .* that its disk is healthy"


def test_a_full_disk_publishes_nothing_and_harms_nothing(small_disk: Path) -> None:
    """No room: the error says so, the store stays as it was, and goes on once there is room."""
    store = Store.create(small_disk / "store", description=DESCRIPTION)
    store.raise_epoch(None)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(90_000))
    with pytest.raises(
        StoreError, match=r"No space left.*nothing was published: make room on that disk"
    ):
        publish(store, *range(1, 100))
    published = store.verify_all(lambda *_: None)
    assert 0 < published < 30
    assert not list(local(store.path).glob("snapshots/.*"))
    ballast.unlink()
    publish(store, 100)
    assert store.verify_all(lambda *_: None) == published + 1
    store.close()


def test_a_full_disk_keeps_the_epoch(small_disk: Path) -> None:
    """An epoch that cannot be written is not begun."""
    store = Store.create(small_disk / "store", description=DESCRIPTION)
    with (small_disk / "ballast").open("wb", buffering=0) as ballast:
        # What does not fit is cut; the file system is full to its last byte then.
        assert 0 < ballast.write(bytes(300_000)) < 300_000
    with pytest.raises(StoreError, match=r"store\.json could not be written: No space left"):
        store.raise_epoch(None)
    assert (store.epoch, Store.open(store.path).epoch) == (0, 0)
    (small_disk / "ballast").unlink()
    assert store.raise_epoch(None) == 1
    store.close()


@pytest.mark.parametrize("failing", ["write_new", "sync"])
def test_a_failing_disk_publishes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """An I/O error at any call: StoreError, and a later attempt under the same id succeeds."""
    store = Store.open_writer(path)
    act = getattr(snapshot_directory, failing)
    for fails_at in range(1, 5):
        calls = itertools.count(1)

        def fail(*args: Any, calls: Iterator[int] = calls, fails_at: int = fails_at) -> None:
            if next(calls) == fails_at:
                raise OSError(5, "Input/output error")
            act(*args)

        with monkeypatch.context() as patched:
            patched.setattr(snapshot_directory, failing, fail)
            with pytest.raises(StoreError, match=ADVICE):
                publish(store, 2)
        assert os.listdir(path / "snapshots") == ["A-1"]  # noqa: PTH208 -- with hidden ones
    publish(store, 2)
    store.close()


def test_a_deleted_directory_of_snapshots_is_named_with_what_to_do(path: Path) -> None:
    """No room on the disk is not the cause, and it is not said; an empty directory is enough."""
    store = Store.open_writer(path)
    (path / "snapshots").rename(path / "gone")
    with pytest.raises(StoreError) as caught:
        publish(store, 2)
    assert "room" not in str(caught.value)
    assert f"the directory {path}/snapshots was deleted or moved" in str(caught.value)
    assert f"make an empty one with 'mkdir {path}/snapshots'" in str(caught.value)
    with pytest.raises(StoreError, match=r"snapshots was deleted or moved.*put it back"):
        Store.open(path).entries()
    (path / "snapshots").mkdir()
    publish(store, 3)
    assert [str(entry.id) for entry in Store.open(path).entries()] == ["A-3"]
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(StoreError, match=rf"the directory {path} was deleted .* another --store"):
        publish(store, 4)
    store.close()


def test_what_a_dead_writer_had_published_is_forced_to_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died between the rename and forcing that to the disk; the next one does it before anybody
    relies on the snapshot."""
    synced: list[Path] = []
    monkeypatch.setattr(layout, "sync", synced.append)
    Store.open_writer(path).close()
    assert synced == [path / "snapshots"]


def test_a_rename_that_cannot_be_forced_to_the_disk_is_taken_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the very last step fails, the snapshot disappears again as a whole."""
    store = Store.open_writer(path)
    sync = durable_files.sync

    def fail(synced: Path) -> None:
        if synced.name == "snapshots":
            raise OSError(5, "Input/output error")
        sync(synced)

    with monkeypatch.context() as patched:
        patched.setattr(snapshot_directory, "sync", fail)
        with pytest.raises(StoreError, match="nothing was published"):
            store.publish(snapshot_of(2, global_state({("A", "B"): [Transfer(1)]})))
    assert [str(entry.id) for entry in store.entries()] == ["A-1"]
    publish(store, 2)
    store.close()
