"""Parts that are put aside: what is lost costs no more than it must, and nothing waits for it."""

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stillframe.errors import StoreError, UsageError
from stillframe.keyed import Keyed
from stillframe.model import Fragment, ProcessState, SnapshotId
from stillframe.runtime.process import fragment_recorder, state_capture
from stillframe.runtime.process.fragment_recorder import WAITING_COUNT_MAX, FragmentRecorder
from stillframe.store import fragments as fragment_files
from stillframe.store.fragments import FragmentSource, FragmentWriter
from stillframe.store.manifest import CHAIN_LENGTH_MAX
from stillframe.topology import ExternalProcess, Topology
from tests.runtime.recordings import S1, S2, Books, Recording, filled
from tests.store.test_fragments import read_all

DESCRIPTION = Topology({"P": ExternalProcess(state=Books)}, []).description


class Log:
    """The fragments of the one process of a system, and what was told of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.told: list[str] = []
        self.log = FragmentRecorder(
            directory,
            FragmentSource("P", 1, "run", None),
            DESCRIPTION,
            None,
            report_failure=self.told.append,
        )

    def chains(self) -> dict[int, int]:
        """End it; return how many others each fragment needs, by the number of the snapshot.

        Raises:
            KeyError: one of them is not there.
        """
        self.log.close()
        bases = {place.snapshot: read.base for place, read in read_all(self.directory).items()}
        lengths: dict[SnapshotId, int] = {}
        for snapshot, base in bases.items():
            lengths[snapshot] = 0 if base is None else lengths[base] + 1
        return {snapshot.number: length for snapshot, length in lengths.items()}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Where nothing was put aside yet."""
    made = Log(tmp_path / "fragments")
    yield made
    made.log.close()


def snapshots(count: int, first: int = 1) -> list[SnapshotId]:
    """Return so many ids."""
    return [SnapshotId("P", number) for number in range(first, first + count)]


def until(condition: Callable[[], bool]) -> None:
    """Let the thread work until `condition` holds."""
    while not condition():
        os.sched_yield()


def take(recording: Recording, snapshot: SnapshotId, *, is_published: bool = True) -> None:
    """Take a snapshot after a change, and publish it or not."""
    recording.books.accounts[snapshot.number] = snapshot.number
    recording.cut(snapshot)
    while recording.go_on():
        pass
    if is_published:
        recording.captures.on_durable(snapshot)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let any number wait."""
    monkeypatch.setattr(fragment_recorder, "WAITING_COUNT_MAX", 10**9)


@pytest.mark.usefixtures("patient")
def test_chains_of_changes_have_an_end(log: Log) -> None:
    """After so many a fragment is whole, whatever is published."""
    recording = Recording(filled(300), sink=log.log)
    for snapshot in snapshots(2 * CHAIN_LENGTH_MAX + 5):
        take(recording, snapshot)
    lengths = log.chains()
    assert max(lengths.values()) == CHAIN_LENGTH_MAX
    assert [number for number, length in lengths.items() if length == 0] == [
        1,
        CHAIN_LENGTH_MAX + 2,
        2 * CHAIN_LENGTH_MAX + 3,
    ]


def test_the_first_one_is_whole_after_a_restore(log: Log) -> None:
    """What the process was restored from need not be among the fragments."""
    recording = Recording(filled(3), sink=log.log, base=SnapshotId("P", 7))
    for snapshot in snapshots(3, first=8):
        take(recording, snapshot)
    assert log.chains() == {8: 0, 9: 1, 10: 2}


def test_one_that_nobody_is_based_on_is_no_loss(log: Log, failing: "Gate") -> None:
    """A snapshot that was not published is not needed."""
    recording = Recording(filled(3), sink=log.log)
    one, two, three = snapshots(3)
    failing.refused = {two}
    take(recording, one)
    take(recording, two, is_published=False)
    failing.until_written(2)
    take(recording, three)
    assert log.chains() == {1: 0, 3: 1}
    assert len(log.told) == 1


class Gate:
    """Stands before what writes fragments.

    Attributes:
        refused: these cannot be written.
        error: why.
        done: what was written or refused.
        opened: set while something may be written.
    """

    def __init__(self) -> None:
        self.refused: set[SnapshotId] = set()
        self.done: set[SnapshotId] = set()
        self.error: Exception = StoreError("there is no room")
        self.opened = threading.Event()
        self.opened.set()
        self._entered = threading.Semaphore(0)
        self._left = threading.Semaphore(0)

    def before(self, write: Callable[..., None]) -> Callable[..., None]:
        """Return `write` behind this gate."""

        def written(writer: Any, fragment: Fragment, **times: float) -> None:
            self._entered.release()
            try:
                self.opened.wait()
                if fragment.snapshot in self.refused:
                    raise self.error
                write(writer, fragment, **times)
            finally:
                self.done.add(fragment.snapshot)
                self._left.release()

        return written

    def until_entered(self) -> None:
        """Wait until one more has come to the gate."""
        assert self._entered.acquire(timeout=60)

    def until_written(self, count: int) -> None:
        """Wait until so many more are written or refused, and that is noted."""
        for _ in range(count):
            assert self._left.acquire(timeout=60)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate before the disk."""
    gate = Gate()
    monkeypatch.setattr(FragmentWriter, "write", gate.before(FragmentWriter.write))
    return gate


def test_what_is_based_on_a_loss_is_followed_by_a_whole_one(log: Log, failing: Gate) -> None:
    """Also if it came to light when another one was based on it already."""
    recording = Recording(filled(3), sink=log.log)
    one, two, three, four, five = snapshots(5)
    failing.refused = {two}
    take(recording, one)
    failing.until_entered()
    failing.until_written(1)
    failing.opened.clear()
    take(recording, two)
    take(recording, three)
    failing.opened.set()
    failing.until_written(2)
    take(recording, four)
    take(recording, five)
    log.log.close()
    found = {place.snapshot: read.base for place, read in read_all(log.directory).items()}
    assert found == {one: None, three: two, four: None, five: four}


def test_nobody_waits_for_a_slow_disk(log: Log, failing: Gate) -> None:
    """More than may wait are lost, which is told once for each time; the next one is whole."""
    recording = Recording(filled(3), sink=log.log)
    failing.opened.clear()
    one, *others = snapshots(WAITING_COUNT_MAX + 5)
    take(recording, one)
    failing.until_entered()
    for snapshot in others:
        take(recording, snapshot)
    assert len(log.told) == 1
    assert f"{WAITING_COUNT_MAX} snapshots are waiting to be written already" in log.told[0]
    assert "the process continues, and snapshots in that directory are incomplete" in log.told[0]
    failing.opened.set()
    failing.until_written(1 + WAITING_COUNT_MAX)
    take(recording, SnapshotId("P", 100))
    lengths = log.chains()
    assert list(lengths) == [*range(1, 2 + WAITING_COUNT_MAX), 100]
    assert lengths[100] == 0
    assert len(log.told) == 1


def test_the_next_time_is_told_again(log: Log, failing: Gate) -> None:
    """When there was room in between."""
    recording = Recording(filled(3), sink=log.log)
    one, two, three, four, five = snapshots(5)
    failing.refused = {one, two, four, five}
    for snapshot in (one, two, three):
        take(recording, snapshot)
    until(lambda: three in failing.done and not log.log._is_reported)
    for snapshot in (four, five):
        take(recording, snapshot)
    log.log.close()
    assert len(log.told) == 2
    assert f"cannot write its fragments into {log.directory}: there is no room" in log.told[0]


def test_a_bug_of_ours_is_told_too(log: Log, failing: Gate) -> None:
    """The thread goes on."""
    recording = Recording(filled(3), sink=log.log)
    failing.refused, failing.error = {S1}, ZeroDivisionError()
    take(recording, S1, is_published=False)
    take(recording, S2)
    assert log.chains() == {2: 0}
    (told,) = log.told
    assert "ZeroDivisionError" in told


def test_what_is_abandoned_leaves_nothing(log: Log) -> None:
    """Neither what was said ahead nor a file."""
    recording = Recording(filled(), sink=log.log)
    recording.cut(S1)
    recording.go_on()
    assert log.log._chunks._unfinished
    recording.captures.abandon(S1)
    assert log.log._chunks._unfinished == {}
    while recording.go_on():
        pass
    take(recording, S2)
    assert log.log._chunks._unfinished == {}
    assert list(log.chains()) == [2]


def test_what_is_refused_leaves_nothing(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its step, in a slice, or because it is too large: the next one is put aside again."""
    small = Recording(filled(3), sink=log.log)
    small.books.accounts[1] = 2**70
    with pytest.raises(UsageError):
        small.cut(S1)
    large = Recording(filled(), sink=log.log)
    large.books.accounts[1_999] = 2**70
    large.cut(S1)
    while large.go_on():
        pass
    assert large.refused.keys() == {S1}
    with monkeypatch.context() as patched:
        patched.setattr(state_capture, "FRAGMENT_BYTES_MAX", 1000)
        large.cut(S1)
        while large.go_on():
            pass
    assert log.log._chunks._unfinished == {}
    large.books.accounts[1_999] = 7
    take(large, S2)
    assert log.log._chunks._unfinished == {}
    assert list(log.chains()) == [2]


@dataclass
class TwoShelves:
    """Two keyed fields, one after the other."""

    first: Keyed[int, int] = field(default_factory=lambda: Keyed({1: 1}))
    second: Keyed[int, int] = field(default_factory=lambda: Keyed({1: 2**70}))


def test_a_refusal_after_a_first_slice_leaves_nothing(log: Log) -> None:
    """What was said ahead of the part in the same step is dropped."""
    recording = Recording(TwoShelves(), sink=log.log)
    with pytest.raises(UsageError, match=r"TwoShelves\.second cannot be recorded"):
        recording.cut(S1)
    assert log.log._chunks._unfinished == {}


def test_what_comes_after_the_end_goes_nowhere(log: Log) -> None:
    """It may come while the process ends."""
    log.log.close()
    state = ProcessState("P", "Books", b"\x80", None, {})
    log.log.complete(Fragment(S1, state, {}, ()), 1.0)
    log.log.close()
    assert not log.directory.exists()
    assert log.told == []


@pytest.mark.usefixtures("patient")
def test_memory_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what was put aside long ago, or lost, nothing is known any more."""
    monkeypatch.setattr("stillframe.runtime.process.fragment_recorder.KEPT_COUNT", 4)
    monkeypatch.setattr(fragment_files, "KEPT_COUNT", 4)
    log = Log(tmp_path / "fragments")
    recording = Recording(Books(Keyed({1: 1})), sink=log.log)
    for snapshot in snapshots(20):
        take(recording, snapshot)
    assert len(log.log._bases) == 4
    assert not log.log.takes_changes(S1)
    log.log.close()
    assert len(read_all(log.directory)) == 4
