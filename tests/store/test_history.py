"""The history of a store: what a crash, a full disk or a changed byte make of it."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from stillframe import durable_files
from stillframe.errors import Damaged, StoreError
from stillframe.model import SnapshotId
from stillframe.store import history
from stillframe.store.history import (
    NEWER,
    OLDER,
    EpochBegan,
    EventCounts,
    History,
    HistoryEvent,
    ProcessDied,
    Rollover,
    SnapshotAbandoned,
    SnapshotBegan,
    SnapshotPublished,
    TakenOver,
    read_history,
)

FIRST, SECOND, THIRD, FOURTH = (SnapshotId("A", number) for number in (1, 2, 3, 4))
EVENTS: list[HistoryEvent] = [
    EpochBegan(1, None),
    SnapshotBegan(FIRST),
    SnapshotPublished(FIRST),
    SnapshotBegan(SECOND),
    SnapshotBegan(THIRD),
    SnapshotAbandoned(SECOND, "DEADLINE", ("B",), "B does not answer"),
    ProcessDied("B", "it was killed by SIGKILL"),
    EpochBegan(2, FIRST),
    TakenOver(2),
]


def write(store: Path, *events: HistoryEvent) -> None:
    """Append `events` as one writer does."""
    past = History(store)
    for event in events:
        past.append(event)
    past.close()


def read(store: Path) -> list[HistoryEvent]:
    """Return what happened, without the beginnings of files."""
    lines = read_history(store)
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    return [line.what for line in lines if not isinstance(line.what, Rollover)]


def test_what_was_noted_is_read_by_the_next_writer(tmp_path: Path) -> None:
    """All events in order; and from them which numbers were given, and what has not ended."""
    write(tmp_path, *EVENTS)
    assert read(tmp_path) == EVENTS
    past = History(tmp_path)
    assert (past.last_number, past.pending) == (3, (THIRD,))
    past.close()


def test_a_limit_of_the_size_of_files_is_no_full_disk(tmp_path: Path) -> None:
    """It is named, also if a part of the line did fit."""
    past = History(tmp_path)
    size = (tmp_path / NEWER).stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"File too large.*'ulimit -f'"):
            past.append(EVENTS[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    past.close()


def test_a_system_that_never_ran_has_no_history(tmp_path: Path) -> None:
    """Nothing is no error, and looking makes no file."""
    assert read_history(tmp_path) == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cut_bytes", [1, 2, 40])
def test_a_last_line_that_a_crash_cut_short_is_taken_off(tmp_path: Path, cut_bytes: int) -> None:
    """What is before stays, and what comes after is whole."""
    write(tmp_path, *EVENTS)
    path = tmp_path / NEWER
    path.write_bytes(path.read_bytes()[:-cut_bytes])
    assert read(tmp_path) == EVENTS[:-1]
    write(tmp_path, EVENTS[0])
    assert read(tmp_path) == [*EVENTS[:-1], EVENTS[0]]


def test_a_changed_byte_is_found_and_its_line_named(tmp_path: Path) -> None:
    """Whichever byte it is, but for the last end of a line, which looks like a crash."""
    write(tmp_path, *EVENTS[:3])
    path = tmp_path / NEWER
    content = path.read_bytes()
    for index in range(len(content) - 1):
        path.write_bytes(content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :])
        number = content[:index].count(b"\n") + 1
        with pytest.raises(Damaged, match=f"line {number} of .*{NEWER} was changed"):
            read_history(tmp_path)
        past = History(tmp_path)
        assert [str(damage).split(" was changed")[0] for damage in past.damages] == [
            f"line {number} of {path}"
        ]
        assert past.last_number >= 2
        past.close()
        assert path.read_bytes()[:index] == content[:index], "the evidence stays"


def test_no_number_in_damaged_lines_is_given_twice(tmp_path: Path) -> None:
    """Also if their ends are gone, so that they are one line."""
    write(tmp_path, *(SnapshotBegan(SnapshotId("A", number)) for number in range(1, 50)))
    path = tmp_path / NEWER
    length = path.stat().st_size
    path.write_bytes(bytes(length - 1) + b"\n")
    past = History(tmp_path)
    assert len(past.damages) == 1
    assert past.last_number >= 49
    past.close()


def test_a_history_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long file is put aside in the place of the one before; the highest number, and what has not
    ended, are known all the same."""
    monkeypatch.setattr(history, "FILE_BYTES_MAX", 1000)
    past = History(tmp_path)
    past.append(SnapshotBegan(FIRST))
    for number in range(2, 200):
        past.append(SnapshotBegan(SnapshotId("A", number)))
        past.append(SnapshotPublished(SnapshotId("A", number)))
    past.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2500
    assert len(read(tmp_path)) < 30
    again = History(tmp_path)
    assert (again.last_number, again.pending) == (199, (FIRST,))
    again.close()


def test_what_was_counted_outlives_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How often each thing happened is known of files that are gone, too."""
    monkeypatch.setattr(history, "FILE_BYTES_MAX", 1000)
    write(tmp_path, *(EVENTS * 50))
    assert len(read(tmp_path)) < len(EVENTS) * 5
    past = History(tmp_path)
    assert past.counts == EventCounts(
        begun=150,
        published=50,
        abandoned={"DEADLINE": 50},
        starts=50,
        restores=50,
        takeovers=50,
        deaths={"B": 50},
    )
    past.close()


def test_a_crash_while_a_file_is_put_aside_loses_nothing(tmp_path: Path) -> None:
    """Between the two renames there is the older file alone: the next writer begins a newer."""
    write(tmp_path, *EVENTS)
    (tmp_path / NEWER).rename(tmp_path / OLDER)
    past = History(tmp_path)
    assert (past.last_number, past.pending) == (3, (THIRD,))
    past.append(SnapshotPublished(THIRD))
    past.close()
    assert read(tmp_path) == [*EVENTS, SnapshotPublished(THIRD)]


class Failing:
    """Lets the n-th of the calls fail that put a file aside; `names` are the calls made."""

    def __init__(self, failing: int) -> None:
        self.names: list[str] = []
        self._failing = failing

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which is counted, and fails if it is its turn."""

        def call(*arguments: Any) -> Any:
            self.names.append(name)
            if len(self.names) == self._failing:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return function(*arguments)

        return call


ASIDE = ["write", "open", "sync", "open", "open", "rename", "rename", "sync", "open"]
"""The calls that put a file aside, in their order."""


@pytest.mark.parametrize("failing", range(1, len(ASIDE) + 2))
def test_a_failure_while_a_file_is_put_aside_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """The event of that moment is written later, and no file but the history is written to."""
    store = tmp_path / "store"
    store.mkdir()
    write(store, *EVENTS)
    past = History(store)
    calls = Failing(failing)
    with monkeypatch.context() as patch:
        patch.setattr(history, "FILE_BYTES_MAX", 1)
        patch.setattr(history, "write_new", calls.wrap("write", durable_files.write_new))
        patch.setattr(history, "sync", calls.wrap("sync", durable_files.sync))
        patch.setattr(os, "open", calls.wrap("open", os.open))
        patch.setattr(Path, "replace", calls.wrap("rename", Path.replace))
        with pytest.raises(StoreError) if failing <= len(ASIDE) else nullcontext():
            past.append(SnapshotPublished(THIRD))
    assert calls.names == ASIDE[:failing]
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    past.append(SnapshotBegan(FOURTH))
    with monkeypatch.context() as patch:
        patch.setattr(history, "FILE_BYTES_MAX", 1)
        past.append(EpochBegan(3, FIRST))
    assert os.fstat(other).st_size == 0
    os.close(other)
    past.close()
    assert read(store)[-3:] == [
        SnapshotPublished(THIRD),
        SnapshotBegan(FOURTH),
        EpochBegan(3, FIRST),
    ]
    again = History(store)
    assert (again.last_number, again.pending, again.counts) == (4, (FOURTH,), past.counts)
    again.close()


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let ten bytes of each line fit on the disk while the body runs."""
    write_at, ends = os.pwrite, set[int]()

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if offset in ends:
            return 0
        ends.add(offset + 10)
        return write_at(descriptor, data[:10], offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        yield


def test_a_snapshot_whose_beginning_does_not_fit_on_the_disk_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file; the snapshot has not begun, and the next line follows the last."""
    past = History(tmp_path)
    past.append(EVENTS[0])
    given_up = SnapshotAbandoned(FIRST, "NOT_PUBLISHED", (), "the disk is full")
    with full_disk(monkeypatch):
        for what in (SnapshotBegan(FIRST), given_up):
            with pytest.raises(StoreError, match=NEWER):
                past.append(what)
    assert past.pending == ()
    past.append(SnapshotBegan(SECOND))
    past.close()
    assert read(tmp_path) == [EVENTS[0], SnapshotBegan(SECOND)]


def test_a_number_that_is_only_known_of_an_end_is_not_given_again(tmp_path: Path) -> None:
    """The disk was full when the snapshot was to begin, and had room when it was given up."""
    write(tmp_path, SnapshotAbandoned(SECOND, "NOT_PUBLISHED", (), "the disk is full"))
    past = History(tmp_path)
    assert (past.last_number, past.pending) == (2, ())
    past.close()


def test_what_happened_on_a_full_disk_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a snapshot and a death come before the next line, in order, each once."""
    past = History(tmp_path)
    past.append(EVENTS[1])
    later: list[HistoryEvent] = [
        SnapshotAbandoned(FIRST, "DEADLINE", ("B",), ""),
        ProcessDied("B", "it was ended"),
    ]
    with full_disk(monkeypatch):
        for what in later:
            with pytest.raises(StoreError, match=NEWER):
                past.append(what)
        with pytest.raises(StoreError, match=NEWER):
            past.append(SnapshotBegan(SECOND))
    assert past.pending == ()
    past.append(SnapshotBegan(THIRD))
    past.close()
    assert read(tmp_path) == [EVENTS[1], *later, SnapshotBegan(THIRD)]


def test_what_happened_on_a_full_disk_is_written_at_the_end_at_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing happens after it; if there is still no room then, the next writer settles it."""
    past = History(tmp_path)
    past.append(EVENTS[1])
    with full_disk(monkeypatch), pytest.raises(StoreError, match=NEWER):
        past.append(SnapshotPublished(FIRST))
    past.close()
    assert read(tmp_path) == [EVENTS[1], SnapshotPublished(FIRST)]
    past = History(tmp_path)
    past.append(SnapshotBegan(SECOND))
    with full_disk(monkeypatch):
        with pytest.raises(StoreError, match=NEWER):
            past.append(SnapshotPublished(SECOND))
        past.close()
    assert History(tmp_path).pending == (SECOND,)


def test_what_cannot_be_written_is_kept_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that stays full does not fill the memory."""
    past = History(tmp_path)
    died = [ProcessDied(f"P{number}", "x" * 2000) for number in range(200)]
    with full_disk(monkeypatch):
        for what in died:
            with pytest.raises(StoreError, match=NEWER):
                past.append(what)
    past.close()
    kept = read(tmp_path)
    assert kept == died[: len(kept)]
    assert 100 < len(kept) < 130
