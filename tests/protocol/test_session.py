"""Sessions over connections that break anywhere: once, in order, nothing lost."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillframe.errors import ProtocolViolation
from stillframe.model import Marker, SnapshotId
from stillframe.protocol import wire
from stillframe.protocol.session import ReceiveSession, SendSession

FRAME_COUNT = 60


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
    with pytest.raises(ProtocolViolation, match="frame 3 came where 2 should"):
        session.accept(3)


def test_an_acknowledgement_is_due_after_so_many_handled_bytes() -> None:
    """Not for every frame, and never for what was only received."""
    session = ReceiveSession(acknowledge_bytes=10)
    for sequence in (1, 2, 3):
        session.accept(sequence)
    assert [session.handle(6), session.handle(6), session.handle(6)] == [0, 2, 0]


def frame(sequence: int, chance: random.Random) -> bytes | bytearray:
    """Return a batch or, now and then, a marker; its content names its number."""
    if chance.random() < 0.2:
        return wire.encode_marker(sequence, Marker(SnapshotId("P", sequence)))
    return wire.encode_messages(sequence, sequence, ["x" * chance.randrange(50)])


@settings(max_examples=200, deadline=None)
@given(st.integers(min_value=0))
def test_nothing_is_lost_or_doubled_over_connections_that_break_at_any_byte(seed: int) -> None:
    """Each connection carries a random number of bytes, in pieces, and is gone."""
    chance = random.Random(seed)
    source, target = SendSession(), ReceiveSession(acknowledge_bytes=chance.randrange(1, 200))
    seen: list[int] = []
    while len(seen) < FRAME_COUNT:
        stream = b"".join(source.resume(target.received))
        reader = wire.FrameReader()
        reader.open(wire.Kind.MESSAGES, wire.Kind.MARKER, frame_bytes_max=wire.FRAME_BYTES_MAX)
        budget = chance.randrange(1500)
        while budget > 0 and len(seen) < FRAME_COUNT:
            if source.sequence < FRAME_COUNT and chance.random() < 0.7:
                sent = frame(source.sequence + 1, chance)
                source.add(sent)
                stream += sent
            piece = stream[: min(budget, chance.randrange(1, 90))]
            stream = stream[len(piece) :]
            budget -= max(1, len(piece))
            reader.writable()[: len(piece)] = piece
            reader.written(len(piece))
            while (arrived := reader.next_frame()) is not None:
                assert isinstance(arrived, wire.Messages | wire.Marked)
                if target.accept(arrived.sequence):
                    seen.append(arrived.sequence)
                    acknowledged = target.handle(len(piece))
                    if acknowledged and chance.random() < 0.8:  # it may be lost with the rest
                        source.acknowledge(acknowledged)
    assert seen == list(range(1, FRAME_COUNT + 1))
