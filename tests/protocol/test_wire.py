"""Frames to bytes and back: in any pieces, within bounds, and never anything but two errors."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.errors import ProtocolViolation, Refused
from stillframe.model import Batch, Marker, SnapshotId, encode_array
from stillframe.protocol import wire
from stillframe.protocol.handshake import Challenge, Declined, Greeting, Hello, Proof, Welcome

MARKER = Marker(SnapshotId("P1", 17))
HELLO = Hello("P1", "P2", 3, "ab" * 32, b"n" * 16)
GREETINGS: list[Greeting] = [
    HELLO,
    Challenge(b"n" * 16, b"p" * 32),
    Proof(b"p" * 32),
    Welcome(12),
    Declined("no"),
]
OPEN = (*wire.CHANNEL_KINDS, wire.Kind.ACK, wire.Kind.CONTROL)
_MARKED = bytes(wire.encode_messages(1, 1, [1], MARKER))
_MARKER_BYTES = len(msgspec.msgpack.encode(MARKER))
LONG_MARKER = _MARKED[:5] + b"\xff\xff" + _MARKED[7:]
"""A marker that would reach beyond its frame."""
MARKER_ALONE = (3 + _MARKER_BYTES).to_bytes(4, "big") + _MARKED[4 : 7 + _MARKER_BYTES]
"""A marker that rides on nothing."""


def reader(*, is_open: bool = True) -> wire.FrameReader:
    """Return a reader, past the handshake or before it."""
    made = wire.FrameReader()
    if is_open:
        made.open(*OPEN, frame_bytes_max=wire.FRAME_BYTES_MAX)
    return made


def feed(to: wire.FrameReader, stream: bytes, piece: int) -> list[wire.Frame]:
    """Hand over a stream in pieces; return the frames."""
    frames = []
    while stream:
        room = to.writable()
        taken = min(piece, len(room), len(stream))
        room[:taken] = stream[:taken]
        stream = stream[taken:]
        to.written(taken)
        while (frame := to.next_frame()) is not None:
            frames.append(frame)
    return frames


@pytest.mark.slow
@pytest.mark.parametrize("piece", [1, 2, 7, 64, 10_000, 200_000])
def test_frames_survive_any_pieces(piece: int) -> None:
    """One byte at a time, or many frames at once, also frames larger than the buffer."""
    large = [b"x" * 100_000, b"y"]
    stream = (
        bytes(wire.encode_messages(1, 5, [1, "two", 3.0]))
        + wire.encode_marker(2, MARKER)
        + bytes(wire.encode_messages(3, 8, large))
        + bytes(wire.encode_messages(4, 10, [4, large[0]], MARKER))
        + wire.encode_ack(9)
        + wire.encode_control({"a": 1})
    )
    assert feed(reader(), stream * 2, piece) == 2 * [
        wire.Messages(1, Batch.of(5, [msgspec.msgpack.encode(m) for m in (1, "two", 3.0)])),
        wire.Marked(2, MARKER),
        wire.Messages(3, Batch.of(8, [msgspec.msgpack.encode(m) for m in large])),
        wire.Messages(4, Batch.of(10, [msgspec.msgpack.encode(m) for m in (4, large[0])]), MARKER),
        wire.Ack(9),
        wire.Control(msgspec.msgpack.encode({"a": 1})),
    ]


@pytest.mark.parametrize("count", [1, 15, 16, 65_535, 65_536])
def test_every_length_of_array_gets_the_same_header(count: int) -> None:
    """MessagePack has three headers for arrays; on the wire there is one."""
    for marker in (None, MARKER):
        encoded = bytes(wire.encode_messages(1, 1, [7] * count, marker))
        (frame,) = feed(reader(), encoded, 1 << 20)
        assert frame == wire.Messages(1, Batch(1, count, encode_array([b"\x07"] * count)), marker)


@pytest.mark.parametrize("greeting", GREETINGS, ids=lambda greeting: type(greeting).__name__)
def test_greetings_survive(greeting: Greeting) -> None:
    """Each word of the handshake."""
    assert feed(reader(is_open=False), wire.encode_greeting(greeting), 3) == [greeting]


def test_another_version_is_refused_with_both_numbers() -> None:
    """The version stands before anything that could have changed."""
    with pytest.raises(Refused, match="version 1 of the protocol, we speak 3"):
        feed(reader(is_open=False), wire.encode_greeting(HELLO, version=1), 100)


@pytest.mark.parametrize(
    ("stream", "found", "is_open"),
    [
        (wire.encode_ack(1), "only GREETING is allowed", False),
        (b"GET / HTTP/1.1\r\n\r\n", "arrived where only GREETING is allowed", False),
        (b"\x00\x00\x20\x00\x01", "8192 bytes arrived; at most 4096", False),
        (b"\xff\xff\xff\xff\x02", "4294967295 bytes arrived", True),
        (b"\x00\x00\x00\x00\x02", "0 bytes arrived", True),
        (b"\x00\x00\x00\x05\x02abcd", "ends before its messages begin", True),
        (b"\x00\x00\x00\x05\x04abcd", "ACK frame cannot be read", True),
        (b"\x00\x00\x00\x0a\x03" + bytes(9), "MARKER frame cannot be read", True),
        (b"\x00\x00\x00\x02\x06a", "MARKED_MESSAGES frame cannot be read", True),
        (b"\x00\x00\x00\x04\x06\x00\x01\xc1", "MARKED_MESSAGES frame cannot be read", True),
        (LONG_MARKER, "MARKED_MESSAGES frame cannot be read", True),
        (MARKER_ALONE, "ends before its messages begin", True),
        (b"\x00\x00\x00\x07\x01STFX\x00\x01", "does not speak Stillframe's", False),
        (b"\x00\x00\x00\x09\x01STFR\x00\x03\xc1\xc1", "GREETING frame cannot be read", False),
    ],
)
def test_what_is_no_frame_is_a_violation_that_says_so(
    stream: bytes, found: str, is_open: bool
) -> None:
    """The length is checked before anything is waited for or kept."""
    with pytest.raises(ProtocolViolation, match=found):
        feed(reader(is_open=is_open), stream, 1000)


def test_a_batch_that_lies_about_its_count_is_a_violation() -> None:
    """The count stands twice; both must agree, and be some."""
    for marker in (None, MARKER):
        honest = bytes(wire.encode_messages(1, 1, [1, 2], marker))
        before = len(honest) - len(wire.encode_messages(1, 1, [1, 2]))
        for position, value in ((24, 3), (29, 3), (20, 0)):
            lie = bytearray(honest)
            lie[before + position] = value
            if position == 20:
                lie[before + 13 : before + 21] = bytes(8)
            with pytest.raises(ProtocolViolation, match="a batch says that it holds"):
                feed(reader(), bytes(lie), 1000)


def test_a_stranger_cannot_make_us_hold_much() -> None:
    """Before the handshake is over the buffer does not grow, whatever is announced."""
    to = reader(is_open=False)
    with pytest.raises(ProtocolViolation):
        feed(to, b"\x00\x10\x00\x00\x01" + bytes(2**20), 4096)
    assert len(to.writable()) <= 2**16


def test_a_buffer_that_grew_shrinks_again() -> None:
    """One large frame does not cost its memory for ever."""
    to = reader()
    feed(to, bytes(wire.encode_messages(1, 1, [b"x" * 2**20])), 2**16)
    feed(to, wire.encode_ack(1)[:3], 3)
    assert len(to.writable()) <= 2**16


@pytest.mark.parametrize("seed", range(20))
def test_mutations_are_refused_or_still_frames(seed: int) -> None:
    """Flip, cut, insert and repeat bytes of valid frames: two kinds of error, nothing else."""
    chance = random.Random(seed)
    valid = [bytes(wire.encode_messages(1, 1, [1, "two"])), wire.encode_marker(2, MARKER)]
    valid += [bytes(wire.encode_messages(3, 3, [7], MARKER))]
    valid += [wire.encode_ack(3), wire.encode_control([1]), *map(wire.encode_greeting, GREETINGS)]
    refused = 0
    for _ in range(500):
        stream = bytearray(chance.choice(valid))
        for _ in range(chance.randrange(1, 4)):
            position = chance.randrange(len(stream))
            match chance.randrange(3):
                case 0:
                    stream[position] = chance.randrange(256)
                case 1:
                    del stream[position:]
                    stream += b"\x00"
                case _:
                    stream[position:position] = chance.randbytes(chance.randrange(1, 9))
        try:
            feed(reader(is_open=chance.random() < 0.5), bytes(stream), chance.randrange(1, 60))
        except (ProtocolViolation, Refused):
            refused += 1
    assert refused > 100


@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_refused_or_waited_for(stream: bytes, is_open: bool) -> None:
    """Whatever comes, nothing but the two errors."""
    try:
        feed(reader(is_open=is_open), stream, 50)
    except (ProtocolViolation, Refused):
        pass


def test_deep_nesting_is_a_violation() -> None:
    """A greeting of brackets without end does not break us."""
    body = b"STFR\x00\x03" + b"\x91" * 4000
    with pytest.raises(ProtocolViolation):
        feed(reader(is_open=False), (len(body) + 1).to_bytes(4, "big") + b"\x01" + body, 9999)


def test_memory_follows_what_has_come_and_not_what_was_announced() -> None:
    """Whoever announces the largest frame there is gets room for a few bytes at a time."""
    announced = wire.FrameReader()
    announced.open(wire.Kind.CONTROL, frame_bytes_max=wire.CONTROL_BYTES_MAX)
    head = wire.CONTROL_BYTES_MAX.to_bytes(4, "big") + bytes([wire.Kind.CONTROL])
    came = 0
    for piece in (head, *[bytes(100_000)] * 30):
        assert feed(announced, piece, 2**20) == []
        came += len(piece)
        assert len(announced.writable()) <= max(2**16, came)
