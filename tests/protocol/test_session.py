"""The two halves of a session, rule by rule; test_breaks.py has both over broken connections."""

import pytest

from stillframe.errors import ProtocolViolation
from stillframe.protocol.session import ReceiveSession, SendSession


def test_frames_are_kept_until_they_are_acknowledged() -> None:
    """Acknowledgements are cumulative; the window counts the bytes of what is left."""
    session = SendSession()
    for size in (3, 4, 5):
        session.add(b"x" * size)
    assert session.unacknowledged_bytes == 12
    session.acknowledge(2)
    session.acknowledge(1)
    assert session.unacknowledged_bytes == 5
    assert session.resume(2) == [b"xxxxx"]
    assert session.resume(3) == []


def test_what_was_never_sent_cannot_be_acknowledged_or_resumed() -> None:
    """A target that claims more than there was is wrong, and so is one that forgot."""
    session = SendSession()
    session.add(b"x")
    session.add(b"y")
    with pytest.raises(ProtocolViolation, match="frame 3 was acknowledged, but only 2 were sent"):
        session.acknowledge(3)
    session.acknowledge(1)
    for received in (0, 3):
        with pytest.raises(ProtocolViolation, match=f"after frame {received}; 1 to 2 are possible"):
            session.resume(received)


def test_a_frame_is_let_through_once_and_a_gap_is_a_violation() -> None:
    """Doubles are dropped silently: the source cannot know what arrived."""
    session = ReceiveSession(acknowledge_bytes=10)
    assert session.accept(1)
    assert not session.accept(1)
    with pytest.raises(ProtocolViolation, match="frame 3 arrived instead of 2"):
        session.accept(3)


def test_an_acknowledgement_is_due_after_so_many_handled_bytes() -> None:
    """Not for every frame, never for what was only received; and at exactly so many bytes: a window
    of that size would otherwise wait for ever."""
    session = ReceiveSession(acknowledge_bytes=10)
    for sequence in (1, 2, 3):
        session.accept(sequence)
    assert [session.handle(6), session.handle(6), session.handle(6)] == [0, 2, 0]
    exact = ReceiveSession(acknowledge_bytes=10)
    assert [exact.handle(size) for size in (9, 1, 10)] == [0, 2, 3]
