"""Bytes from somebody who means harm: two kinds of error, bounded memory, and nothing else."""

from random import Random

import pytest

from stillframe.errors import ProtocolViolation, Refused
from stillframe.model import Marker, SnapshotId
from stillframe.protocol import wire
from stillframe.protocol.handshake import Challenge, Declined, Hello, Proof, Welcome

HELLO = Hello("P1", "P2", 3, "ab" * 32, b"n" * 16)
VALID: dict[str, bytes] = {
    "hello": wire.encode_greeting(HELLO),
    "hello to the coordinator": wire.encode_greeting(Hello("P1", None, 3, "ab" * 32, b"n" * 16)),
    "challenge": wire.encode_greeting(Challenge(b"n" * 16, b"p" * 32)),
    "proof": wire.encode_greeting(Proof(b"p" * 32)),
    "welcome": wire.encode_greeting(Welcome(70_000)),
    "declined": wire.encode_greeting(Declined("no: ä")),
    "messages": bytes(wire.encode_messages(7, 5, [1, "two", [3.0]])),
    "marker": wire.encode_marker(2, Marker(SnapshotId("P1", 17))),
    "messages with a marker": bytes(
        wire.encode_messages(7, 5, [1, "two", [3.0]], Marker(SnapshotId("P1", 17)))
    ),
    "ack": wire.encode_ack(9),
    "control": wire.encode_control({"a": [1, 2]}),
}
GREETING_START = VALID["hello"][5:11]
MARKED_START = VALID["messages with a marker"][5:7]
STARTS = {
    wire.Kind.GREETING: GREETING_START,
    wire.Kind.MARKER: bytes(8),
    wire.Kind.MARKED_MESSAGES: MARKED_START,
}
"""What stands before the MessagePack in a frame of these kinds."""
BATCHES = (wire.Kind.MESSAGES, wire.Kind.MARKED_MESSAGES)
BUFFER_BYTES = 64 * 2**10
FRAME_BYTES_MAX = 2**20
every_kind = pytest.mark.parametrize("valid", VALID.values(), ids=VALID)


def reader(
    *, is_open: bool = True, frame_bytes_max: int = wire.FRAME_BYTES_MAX
) -> wire.FrameReader:
    """Return a reader for frames of every kind, or one before the handshake."""
    made = wire.FrameReader()
    if is_open:
        made.open(*wire.Kind, frame_bytes_max=frame_bytes_max)
    return made


def frame(kind: wire.Kind, body: bytes) -> bytes:
    """Return a frame with a head that is right."""
    return (len(body) + 1).to_bytes(4, "big") + bytes([kind]) + body


def attack(
    stream: bytes, *, is_open: bool = True, piece_bytes: int = BUFFER_BYTES
) -> list[wire.Frame] | ProtocolViolation:
    """Hand over `stream`; return the frames or the violation. Anything else raised is a bug."""
    made, frames = reader(is_open=is_open), []
    try:
        while stream:
            free = made.writable()
            assert free, "a reader must always have room for the next byte"
            size = min(len(free), len(stream), piece_bytes)
            free[:size] = stream[:size]
            stream = stream[size:]
            made.written(size)
            while (found := made.next_frame()) is not None:
                frames.append(found)
            if not is_open:
                assert len(made._buffer) <= BUFFER_BYTES + wire.GREETING_BYTES_MAX
    except ProtocolViolation as violation:
        return violation
    return frames


@pytest.mark.slow
@every_kind
def test_every_single_byte_changed_to_every_other_value(valid: bytes) -> None:
    """The frame is refused, still a frame, or not yet complete."""
    for position in range(len(valid)):
        changed = bytearray(valid)
        for value in range(256):
            changed[position] = value
            outcome = attack(bytes(changed))
            assert isinstance(outcome, ProtocolViolation) or len(outcome) <= 2


@every_kind
def test_a_frame_that_is_not_complete_is_waited_for(valid: bytes) -> None:
    """Whatever the length of its beginning, there is no frame and no error."""
    for size in range(len(valid)):
        assert attack(valid[:size]) == []


@every_kind
def test_a_body_cut_short_under_a_head_that_fits(valid: bytes) -> None:
    """It is refused, or it is a frame again; a greeting, a marker or an ack never is."""
    for size in range(len(valid) - 5):
        outcome = attack(frame(wire.Kind(valid[4]), valid[5 : 5 + size]))
        may_be_one = valid[4] in (*BATCHES, wire.Kind.CONTROL)
        assert isinstance(outcome, ProtocolViolation) or (may_be_one and len(outcome) == 1)


@every_kind
def test_bytes_behind_the_end_of_a_body(valid: bytes) -> None:
    """A greeting, a marker or an ack with more in it than it needs is refused."""
    if valid[4] not in (*BATCHES, wire.Kind.CONTROL):
        outcome = attack(frame(wire.Kind(valid[4]), valid[5:] + b"\x00"))
        assert isinstance(outcome, ProtocolViolation)


@pytest.mark.parametrize("kind", wire.Kind)
def test_random_bodies_under_a_head_that_fits(kind: wire.Kind) -> None:
    """Most are refused; none raises anything else."""
    chance, prefix = Random(kind), GREETING_START if kind is wire.Kind.GREETING else b""
    outcomes = [
        attack(frame(kind, prefix + chance.randbytes(chance.randint(0, 60)))) for _ in range(500)
    ]
    violations = sum(isinstance(outcome, ProtocolViolation) for outcome in outcomes)
    assert violations == 0 if kind is wire.Kind.CONTROL else violations > 450


@pytest.mark.parametrize("is_open", [False, True])
def test_random_streams(is_open: bool) -> None:
    """Bytes without any sense, in pieces."""
    chance = Random(8)
    for _ in range(500):
        stream = chance.randbytes(chance.randint(5, 200))
        attack(stream, is_open=is_open, piece_bytes=chance.randint(1, 200))


@pytest.mark.parametrize("length", [0, wire.GREETING_BYTES_MAX + 1, 2**24, 2**31, 2**32 - 1])
def test_a_length_out_of_bounds_is_refused_at_the_head(length: int) -> None:
    """Not a byte of the body is waited for."""
    outcome = attack(length.to_bytes(4, "big") + b"\x01", is_open=False)
    assert isinstance(outcome, ProtocolViolation)
    assert f"{length} bytes arrived; at most {wire.GREETING_BYTES_MAX}" in str(outcome)


def test_the_largest_frame_passes_and_one_byte_more_does_not() -> None:
    """The bound is what it says; the buffer grows to the one frame, and shrinks after it."""
    made, size = reader(frame_bytes_max=100_000), 100_000
    whole = frame(wire.Kind.CONTROL, bytes(size - 1))
    left, found = whole, None
    while left:
        room = made.writable()
        piece, left = left[: min(30_000, len(room))], left[min(30_000, len(room)) :]
        room[: len(piece)] = piece
        made.written(len(piece))
        found = made.next_frame()
    assert found == wire.Control(bytes(size - 1))
    assert len(made._buffer) == size + 4
    assert made.next_frame() is None
    assert len(made._buffer) == BUFFER_BYTES, "a channel that goes idle keeps no large buffer"
    made.writable()[:5] = (size + 1).to_bytes(4, "big") + bytes([wire.Kind.CONTROL])
    made.written(5)
    with pytest.raises(ProtocolViolation, match="100001 bytes arrived; at most 100000"):
        made.next_frame()


@pytest.mark.parametrize("piece_bytes", [1, 1000, 4096, BUFFER_BYTES])
def test_a_stranger_who_keeps_on_greeting_fills_nothing(piece_bytes: int) -> None:
    """Valid greetings without end, the largest there may be, and the buffer stays as it was."""
    rest_bytes = len(wire.encode_greeting(Declined("x" * 1000))) - 1000
    largest = wire.encode_greeting(Declined("x" * (wire.GREETING_BYTES_MAX + 4 - rest_bytes)))
    assert len(largest) == wire.GREETING_BYTES_MAX + 4
    outcome = attack(largest * 20, is_open=False, piece_bytes=piece_bytes)
    assert isinstance(outcome, list)
    assert len(outcome) == 20


@pytest.mark.parametrize("version", [0, 1, 2, 999, 65_535])
def test_another_version_is_refused_whatever_its_greeting_is(version: int) -> None:
    """Both versions are named, and nothing behind the version is looked at."""
    outcome = attack(frame(wire.Kind.GREETING, b"STFR" + version.to_bytes(2, "big") + b"\xc1"))
    assert isinstance(outcome, Refused)
    assert f"version {version} of the protocol, we speak {wire.VERSION}" in str(outcome)


def test_another_magic_is_no_other_version() -> None:
    """Who does not speak our protocol is not told to install another release."""
    outcome = attack(frame(wire.Kind.GREETING, b"HTTP" + VALID["hello"][9:]))
    assert isinstance(outcome, ProtocolViolation)
    assert not isinstance(outcome, Refused)


@pytest.mark.parametrize("header", [b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"])
@pytest.mark.parametrize("kind", STARTS)
def test_a_count_that_is_a_lie_costs_nothing(kind: wire.Kind, header: bytes) -> None:
    """Arrays, maps, bytes, texts and extensions that announce four billion are refused."""
    start = STARTS[kind]
    unknown_field = b"\x81\xa1z"
    for before in (b"", unknown_field):
        outcome = attack(frame(kind, start + before + header + b"\xff" * 4 + bytes(20)))
        assert isinstance(outcome, ProtocolViolation)


def test_a_batch_that_announces_four_billion_takes_no_more_than_its_bytes() -> None:
    """A batch is opened only by who accepts its messages; until then it is as large as it came."""
    stream = bytearray(VALID["messages"])
    stream[21:25] = stream[26:30] = b"\xff" * 4
    outcome = attack(bytes(stream))
    assert isinstance(outcome, list)
    (found,) = outcome
    assert isinstance(found, wire.Messages)
    assert found.batch.count == 2**32 - 1
    assert len(found.batch.encoded) < len(stream)


@pytest.mark.parametrize("bracket", [b"\x91", b"\x81\xa1z"])
@pytest.mark.parametrize("depth", [1000, 100_000])
@pytest.mark.parametrize("kind", STARTS)
def test_nesting_without_end_is_refused(kind: wire.Kind, depth: int, bracket: bytes) -> None:
    """In the value itself, or in a field that nobody knows."""
    start = STARTS[kind]
    for before in (b"", b"\x81\xa1z"):
        outcome = attack(frame(kind, start + before + bracket * depth + b"\xc0"))
        assert isinstance(outcome, ProtocolViolation)


def test_frames_of_all_sizes_in_pieces_of_all_sizes() -> None:
    """The buffer wraps, grows and shrinks; every frame comes out as it went in."""
    chance = Random(3)
    for _ in range(15):
        sizes = [chance.choice([0, 5, 300, 20_000, 65_000, 150_000]) for _ in range(25)]
        bodies = [chance.randbytes(size) for size in sizes]
        stream = b"".join(frame(wire.Kind.CONTROL, body) for body in bodies)
        outcome = attack(stream, piece_bytes=chance.choice([999, 4096, BUFFER_BYTES]))
        assert outcome == [wire.Control(body) for body in bodies]
