"""From the cut to the coordinator: slices, pieces, a forked process; what is abandoned or fails."""

import asyncio
import os
import signal
from typing import Any

import msgspec
import pytest

from stillframe.errors import UsageError
from stillframe.model import Fragment, SnapshotId
from stillframe.runtime.process import state_capture
from tests.runtime.links import children, until
from tests.runtime.recordings import (
    ROW_COUNT,
    S1,
    S2,
    Books,
    Note,
    Recording,
    TimedRecording,
    accounts,
    filled,
    note,
)


def test_a_small_state_is_recorded_at_once() -> None:
    """No slice is needed: the part is there when the step ends."""
    recording = Recording(filled(3, "hello"))
    recording.cut(S1)
    state = recording.state(S1)
    assert (accounts(state), note(state), state.base) == ({0: 0, 1: 0, 2: 0}, "hello", None)
    assert recording.parts[S1].pause_s == 0.25
    assert not recording.go_on()


def test_a_large_one_is_recorded_in_slices_between_which_it_changes() -> None:
    """The part has what was there at the cut, and comes when its last slice is encoded."""
    recording = Recording(filled())
    recording.cut(S1)
    slices = 1
    while recording.go_on():
        slices += 1
        assert S1 not in recording.parts
        for key in range(ROW_COUNT):
            recording.books.accounts[key] += 1
        recording.books.accounts.pop(ROW_COUNT + slices - 1, None)
        recording.books.accounts[ROW_COUNT + slices] = 7
    assert slices > 2
    assert accounts(recording.state(S1)) == dict.fromkeys(range(ROW_COUNT), 0)
    assert recording.parts[S1].capture_s > 0


@pytest.mark.parametrize("is_immediate", [False, True])
def test_waiting_for_markers_is_no_part_of_the_capture(*, is_immediate: bool) -> None:
    """Its time is known when all is encoded, whenever the recorder is done."""
    recording = Recording(filled(3))
    recording.captures.begin(S1, is_immediate=is_immediate)
    assert recording.captures._open[S1].capture_s is not None
    assert recording.parts == {}


def test_slices_grow_so_that_a_capture_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is always busy gives a capture few turns: an old one gets more of each."""
    counts = []
    for delay_s in (state_capture.SPEEDUP_AFTER_S * 1e9, 1e-9):
        monkeypatch.setattr(state_capture, "SPEEDUP_AFTER_S", delay_s)
        recording = TimedRecording(filled(50_000), monkeypatch)
        recording.cut(S1)
        while recording.go_on():
            pass
        rows = recording.state(S1).keyed["accounts"].rows
        assert sum(some.count for some in rows) == 50_000
        counts.append(max(some.count for some in rows))
    assert counts[0] <= state_capture.SLICE_S * 1e6
    assert counts[1] > 10 * counts[0]


def test_snapshots_that_overlap_each_have_their_own_cut() -> None:
    """And after the store has the first, the next ones have what changed since."""
    recording = Recording(filled())
    recording.cut(S1)
    recording.books.accounts[5] = 50
    recording.cut(S2)
    recording.books.accounts[5] = 500
    while recording.go_on():
        pass
    assert accounts(recording.state(S1))[5] == 0
    assert accounts(recording.state(S2))[5] == 50
    recording.captures.on_durable(S1)
    recording.cut(SnapshotId("P", 3))
    assert accounts(recording.state(SnapshotId("P", 3))) == {5: 500}
    assert recording.state(SnapshotId("P", 3)).base == S1
    recording.captures.on_durable(None)
    recording.cut(SnapshotId("P", 4))
    while recording.go_on():
        pass
    assert len(accounts(recording.state(SnapshotId("P", 4)))) == ROW_COUNT


def test_keys_that_nobody_needs_any_more_go_in_slices() -> None:
    """Not all at once when the store has the snapshot; at once if an open cut goes through them."""
    recording = Recording(filled())
    for number in (1, 2, 3):
        recording.cut(SnapshotId("P", number))
        if number < 3:
            while recording.go_on():
                pass
            recording.captures.on_durable(SnapshotId("P", number))
            for key in range(ROW_COUNT):
                recording.books.accounts[key] += 1
    recording.captures.on_durable(SnapshotId("P", 3))
    while recording.go_on():
        pass
    state = recording.state(SnapshotId("P", 3))
    assert accounts(state) == dict.fromkeys(range(ROW_COUNT), 2)
    for key in range(state_capture.RELEASED_COUNT * 2):
        recording.books.accounts[key] = 3
    recording.cut(SnapshotId("P", 4))
    while recording.go_on():
        pass
    recording.captures.on_durable(SnapshotId("P", 4))
    slices = 1
    while recording.go_on():
        slices += 1
    assert slices == 2
    assert recording.captures._released == []


def test_for_a_log_all_is_recorded_at_once() -> None:
    """As one map, in the step itself."""
    recording = Recording(filled(ROW_COUNT, "x"))
    recording.cut(S1, is_immediate=True)
    state = recording.state(S1)
    assert state.keyed == {}
    assert len(msgspec.msgpack.decode(state.encoded, strict=False)["accounts"]) == ROW_COUNT


def test_an_abandoned_one_goes_no_further() -> None:
    """No part comes, and the field keeps no old values for it; what it had comes with the next."""
    recording = Recording(filled())
    recording.cut(S1)
    recording.captures.abandon(S1)
    recording.captures.abandon(S1)
    while recording.go_on():
        pass
    assert recording.parts == {}
    assert recording.books.accounts._open == []


def test_when_markers_came_is_part_of_the_fragment() -> None:
    """By source, from the first one on; not of a snapshot that was abandoned meanwhile."""
    recording = Recording(filled(3))
    for snapshot, marked_by in ((S1, None), (S2, "A")):
        state = recording.captures.begin(snapshot, is_immediate=False)
        recording.captures.record_cut(snapshot, marked_by, 0.0)
        recording.captures.record_marker(snapshot, "B")
        recording.captures.recorded(Fragment(snapshot, state, {}, ()))
        recording.captures.record_marker(snapshot, "late")
    abandoned, never_begun = SnapshotId("A", 8), SnapshotId("A", 9)
    recording.captures.begin(abandoned, is_immediate=False)
    recording.captures.abandon(abandoned)
    for snapshot in (abandoned, never_begun):
        recording.captures.record_cut(snapshot, None, 0.0)
        recording.captures.record_marker(snapshot, "B")
    assert recording.captures._open == {}
    initiated, marked = (recording.parts[snapshot].marker_times for snapshot in (S1, S2))
    assert initiated is not None
    assert marked is not None
    assert (initiated.marked_by, [*initiated.came_s]) == (None, ["B"])
    assert (marked.marked_by, [*marked.came_s]) == ("A", ["A", "B"])
    assert marked.came_s["A"] == 0.0 < marked.came_s["B"]
    assert initiated.cut_at <= marked.cut_at


def test_what_is_settled_is_captured_no_more_and_what_is_newer_goes_on() -> None:
    """A newer snapshot can have begun before it is heard which ones are over."""
    recording = Recording(filled())
    recording.cut(S1)
    recording.cut(S2)
    recording.captures.forget_through(S1.number)
    while recording.go_on():
        pass
    assert recording.parts.keys() == {S2}


def test_a_value_that_cannot_be_encoded_refuses_that_snapshot() -> None:
    """In the step if it is small, in its slice if not; the next one can be recorded."""
    recording = Recording(filled(3))
    recording.books.accounts[1] = 2**70
    with pytest.raises(UsageError, match=r"Books\.accounts cannot be recorded"):
        recording.cut(S1)
    assert recording.books.accounts._open == []
    recording = Recording(filled())
    recording.books.accounts[1] = 2**70
    recording.cut(S1)
    while recording.go_on():
        pass
    assert "Books.accounts cannot be recorded" in recording.refused[S1]
    assert recording.parts == {}
    recording.books.accounts[1] = 7
    recording.cut(S2)
    while recording.go_on():
        pass
    assert accounts(recording.state(S2))[1] == 7


def test_what_is_not_keyed_goes_in_pieces() -> None:
    """So that sending a large one does not hold messages up."""
    text = "x" * (state_capture.CHUNK_BYTES * 3)
    recording = Recording(filled(3, text))
    recording.cut(S1)
    assert S1 not in recording.parts
    slices = 1
    while recording.go_on():
        slices += 1
    assert slices >= 4
    assert note(recording.state(S1)) == text


@pytest.mark.parametrize("books", [filled(3, "x" * 1001), filled()], ids=["other", "keyed"])
def test_a_part_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch, books: Books) -> None:
    """Before the coordinator would take so much for an attack; the process goes on."""
    monkeypatch.setattr(state_capture, "FRAGMENT_BYTES_MAX", 1000)
    recording = Recording(books)
    recording.cut(S1)
    while recording.go_on():
        pass
    assert "a fragment of a snapshot may have 1,000" in recording.refused[S1]
    assert recording.captures._open == {}
    assert books.accounts._open == []


def slow(recording: Recording) -> Recording:
    """Let the last capture have taken long to encode."""
    recording.captures._in_place_s = 1e9
    return recording


@pytest.mark.slow
def test_one_that_takes_long_to_encode_is_encoded_in_a_forked_process() -> None:
    """It holds what was there at the cut; rows go on in slices meanwhile."""

    async def main() -> None:
        recording = slow(Recording(filled(), asyncio.get_running_loop()))
        recording.books.note = "before"
        recording.cut(S1)
        recording.books.note = "after"
        assert recording.captures._fork_s > 0
        await until(lambda: S1 in recording.parts)
        assert note(recording.state(S1)) == "before"
        assert len(accounts(recording.state(S1))) == ROW_COUNT
        assert recording.captures._in_place_s != 1e9

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.slow
def test_a_forked_process_that_is_killed_refuses_the_snapshot() -> None:
    """With the cause; the process goes on, and its next snapshot can be recorded."""

    async def main() -> None:
        recording = slow(Recording(filled(3, "x" * 10**7), asyncio.get_running_loop()))
        recording.cut(S1)
        child = recording.captures._open[S1].forked
        assert child is not None
        os.kill(child._pid, signal.SIGKILL)
        await until(lambda: S1 in recording.refused)
        assert "was killed by signal 9 (is there enough memory?)" in recording.refused[S1]
        recording.cut(S2)
        await until(lambda: S2 in recording.parts)
        assert recording.captures._open == {}

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.slow
def test_ending_ends_the_forked_process_too() -> None:
    """Nobody is left, also where the loop goes round no more."""

    async def main() -> None:
        recording = slow(Recording(filled(3, "x" * 10**7), asyncio.get_running_loop()))
        recording.cut(S1)
        recording.captures.close()

    others = children()
    asyncio.run(asyncio.wait_for(main(), 30))
    assert not children() - others


@pytest.mark.parametrize("error", [BlockingIOError("no process"), NotImplementedError()])
def test_where_none_can_be_forked_it_is_encoded_here(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Slower is better than not at all."""

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(state_capture, "ForkedEncoder", refuse)
    recording = slow(Recording(filled(3, "here")))
    recording.cut(S1)
    assert note(recording.state(S1)) == "here"


@pytest.mark.parametrize(("large_bytes", "is_forked"), [(1, True), (2**50, False)])
def test_the_first_time_a_large_process_forks(
    monkeypatch: pytest.MonkeyPatch, large_bytes: int, is_forked: bool
) -> None:
    """How long encoding takes is not known yet: its memory is the best guess, unless it has keyed
    fields to explain it."""
    asked: list[object] = []

    def refuse(*_: Any, **__: Any) -> None:
        asked.append(1)
        raise NotImplementedError

    monkeypatch.setattr(state_capture, "ForkedEncoder", refuse)
    monkeypatch.setattr(state_capture, "LARGE_BYTES", large_bytes)
    for books, count in ((Note("hello"), is_forked), (filled(3), 0)):
        asked.clear()
        recording = Recording(books)
        recording.cut(S1)
        recording.cut(S2)
        assert len(asked) == count


def test_a_fork_that_takes_longer_than_it_saves_is_not_taken_for_a_while() -> None:
    """Then the state is encoded in place, and a fork is tried again some time."""
    recording = Recording(filled(3))
    recording.captures._in_place_s, recording.captures._fork_s = 0.010, 0.008
    recording.cut(S1)
    assert S1 in recording.parts
    assert recording.captures._fork_s == 0.004
    assert state_capture.READ_BYTES == state_capture.CHUNK_BYTES
