"""What comes ahead of parts, at the coordinator: put together, bounded, dropped."""

import pytest

from stillframe.errors import ProtocolViolation
from stillframe.model import Fragment, KeyedRows, ProcessState, SnapshotId
from stillframe.runtime import control
from stillframe.runtime.control import ChunkBuffer

S1, S2 = SnapshotId("P", 1), SnapshotId("P", 2)


def test_more_than_a_part_may_have_is_refused_by_the_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a process that does not keep to the bound."""
    monkeypatch.setattr(control, "FRAGMENT_BYTES_MAX", 100 + 2 * control.MESSAGE_EXTRA_BYTES)
    coordinator = ChunkBuffer()
    coordinator.add("P", control.FragmentChunk(S1, b"x" * 60))
    with pytest.raises(ProtocolViolation, match=r"has more than 612 bytes"):
        coordinator.add(
            "P", control.FragmentRows(S1, "accounts", KeyedRows(1, b"x" * 30, b"x" * 30))
        )


def test_what_came_ahead_of_an_abandoned_part_is_dropped() -> None:
    """A part with the same name that came all the same has nothing of it."""
    coordinator = ChunkBuffer()
    coordinator.add("P", control.FragmentChunk(S1, b"x"))
    coordinator.add("P", control.FragmentChunk(S2, b"y"))
    coordinator.forget(S1)
    state = ProcessState("P", "Books", b"own")
    assert coordinator.complete(Fragment(S1, state, {}, ())).state.encoded == b"own"
    assert coordinator.complete(Fragment(S2, state, {}, ())).state.encoded == b"y"
