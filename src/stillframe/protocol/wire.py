"""Frames to bytes and back, incrementally; every size is bounded before anything is read.

u32 length | u8 kind | body          all numbers big-endian; the length counts kind and body

GREETING         "STFR" | u16 version | MessagePack of a handshake.Greeting
MESSAGES         u64 sequence | u64 first number | u32 count | MessagePack array of the messages
MARKER           u64 sequence | MessagePack of a Marker
ACK              u64 sequence
CONTROL          MessagePack of what a process and the coordinator say to each other
MARKED_MESSAGES  u16 bytes of the marker | MessagePack of a Marker | body of MESSAGES
"""

import enum
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from stillframe.errors import ProtocolViolation, Refused
from stillframe.model import ARRAY32, DECODING_ERRORS, Batch, Marker
from stillframe.protocol.handshake import Greeting

VERSION = 3
"""Of the protocol: of these frames, and of the messages and commands that both ends must know."""
MAGIC = b"STFR"
GREETING_BYTES_MAX = 4096
FRAME_BYTES_MAX = 16 * 2**20
"""The largest frame of a channel, and so the largest message, less a few bytes."""
CONTROL_BYTES_MAX = 2**30
"""The largest frame between a process and the coordinator: a recorded state must fit."""

_HEAD = struct.Struct("!IB")
_VERSION = struct.Struct("!4sH")
# A batch's frame up to its messages, with the header of the MessagePack array.
_MESSAGES = struct.Struct("!IBQQIBI")
_ARRAY_OFFSET = 25
_SEQUENCE = struct.Struct("!Q")
_MARKED = struct.Struct("!IBH")
_READ_BYTES_MIN = 64 * 2**10
_TLS_HANDSHAKE = 0x1603


class Kind(enum.IntEnum):
    """The second field of every frame."""

    GREETING = 1
    MESSAGES = 2
    MARKER = 3
    ACK = 4
    CONTROL = 5
    MARKED_MESSAGES = 6


CHANNEL_KINDS = (Kind.MESSAGES, Kind.MARKER, Kind.MARKED_MESSAGES)
"""What the source of a channel sends to its target."""
_MESSAGES_KIND = int(Kind.MESSAGES)
_MARKED_KIND = int(Kind.MARKED_MESSAGES)


class Messages(msgspec.Struct, frozen=True, gc=False):
    """A batch of messages, as the frame number `sequence` of its channel; a `marker` that rides on
    it precedes them all."""

    sequence: int
    batch: Batch
    marker: Marker | None = None


class Marked(msgspec.Struct, frozen=True, gc=False):
    """A marker, as the frame number `sequence` of its channel."""

    sequence: int
    marker: Marker


class Ack(msgspec.Struct, frozen=True, gc=False):
    """All frames up to `sequence` were handled."""

    sequence: int


class Control(msgspec.Struct, frozen=True):
    """A message between a process and the coordinator, still encoded."""

    encoded: bytes


Frame = Messages | Marked | Ack | Control | Greeting

_encode = msgspec.msgpack.Encoder().encode
_encode_into = msgspec.msgpack.Encoder().encode_into
_decode_greeting: Callable[[bytes], Greeting] = msgspec.msgpack.Decoder(Greeting).decode
_decode_marker = msgspec.msgpack.Decoder(Marker).decode
_UNREADABLE = (struct.error, *DECODING_ERRORS)


def _frame(kind: Kind, body: bytes) -> bytes:
    return _HEAD.pack(len(body) + 1, kind) + body


def encode_greeting(greeting: Greeting, version: int = VERSION) -> bytes:
    """Return the frame of a handshake."""
    return _frame(Kind.GREETING, _VERSION.pack(MAGIC, version) + _encode(greeting))


def encode_messages(
    sequence: int, first: int, messages: list[Any], marker: Marker | None = None
) -> bytearray:
    """Return the frame `sequence` of a channel, with messages from number `first` on; some may be
    encoded already (``msgspec.Raw``). A `marker` that rides on them precedes them all. Raises
    TypeError, ValueError, OverflowError or MsgspecError if one cannot be encoded."""
    count = len(messages)
    frame = bytearray()
    # The array goes where the shortest header for its count ends with ours, which then covers it.
    _encode_into(messages, frame, _MESSAGES.size - (1 if count < 16 else 3 if count < 65536 else 5))
    _MESSAGES.pack_into(
        frame, 0, len(frame) - 4, _MESSAGES_KIND, sequence, first, count, ARRAY32, count
    )
    if marker is not None:
        encoded = _encode(marker)
        size = len(encoded) + len(frame) - _HEAD.size
        head = _MARKED.pack(size + _MARKED.size - 4, _MARKED_KIND, len(encoded))
        frame[: _HEAD.size] = head + encoded
    return frame


def encode_marker(sequence: int, marker: Marker) -> bytes:
    """Return the frame of a marker."""
    return _frame(Kind.MARKER, _SEQUENCE.pack(sequence) + _encode(marker))


def encode_ack(sequence: int) -> bytes:
    """Return the frame of an acknowledgement."""
    return _frame(Kind.ACK, _SEQUENCE.pack(sequence))


def encode_control(message: Any) -> bytes:
    """Return the frame of a message between a process and the coordinator."""
    return _frame(Kind.CONTROL, _encode(message))


class FrameReader:
    """Cuts a stream of bytes into frames: write into what `writable` returns, then call `written`.
    Until `open` is called only greetings are let through, and only short ones: the buffer does not
    grow for a stranger."""

    def __init__(self) -> None:
        self._buffer = bytearray(_READ_BYTES_MIN)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._frame_bytes_max = GREETING_BYTES_MAX
        self._kinds: frozenset[int] = frozenset({int(Kind.GREETING)})

    def open(self, *kinds: Kind, frame_bytes_max: int) -> None:
        """End the handshake: from now on accept `kinds`, up to `frame_bytes_max` bytes."""
        self._kinds = frozenset(map(int, kinds))
        self._frame_bytes_max = frame_bytes_max

    def writable(self) -> memoryview:
        """Return where the next bytes go. At least one byte is free."""
        return self._view[self._end :]

    def written(self, count: int) -> None:
        """Note that `count` bytes were written into what `writable` returned."""
        self._end += count

    def next_frame(self) -> Frame | None:
        """Return the next complete frame, or None if more bytes are needed first. Raises
        ProtocolViolation if the bytes are no frame, or one that is too large or not allowed now:
        close the connection, the stream cannot be read on. Raises Refused if the other end speaks
        another version."""
        start = self._start
        available = self._end - start
        if not available:
            self._start = self._end = 0
            if len(self._buffer) > _READ_BYTES_MIN:
                self._replace_buffer(_READ_BYTES_MIN)
            return None
        if available < _HEAD.size:
            self._make_room(_HEAD.size)
            return None
        length, kind = _HEAD.unpack_from(self._buffer, start)
        if kind not in self._kinds or not 1 <= length <= self._frame_bytes_max:
            raise self._bad_head(length, kind)
        size = length + 4
        if available < size:
            self._make_room(size)
            return None
        self._start = stop = start + size
        if kind == _MESSAGES_KIND:
            return Messages(*self._decode_batch(start, stop))
        if kind == _MARKED_KIND:
            return self._decode_marked(start, stop)
        return _decode_other(kind, bytes(self._view[start + _HEAD.size : stop]))

    def _bad_head(self, length: int, kind: int) -> ProtocolViolation:
        if length >> 16 == _TLS_HANDSHAKE:
            return ProtocolViolation(
                "the other end uses TLS and this one does not: both need certificates (--tls)"
            )
        if kind not in self._kinds:
            allowed = ", ".join(Kind(k).name for k in sorted(self._kinds))
            return ProtocolViolation(
                f"a frame of kind {kind} arrived where only {allowed} is allowed: this is not "
                "Stillframe's wire format, or bytes were lost"
            )
        return ProtocolViolation(
            f"a frame of {length} bytes arrived; at most {self._frame_bytes_max} are allowed here"
        )

    def _make_room(self, size: int) -> None:
        """Ensure that a frame of `size` bytes can arrive, and that no larger buffer is kept. A
        full buffer is doubled for a large frame: memory follows what has come, not what was
        announced."""
        if size <= _READ_BYTES_MIN:
            is_short = self._start + size > len(self._buffer)
        else:
            is_short = self._end == len(self._buffer)
        if is_short or len(self._buffer) > max(_READ_BYTES_MIN, size):
            doubled = 2 * (self._end - self._start)
            self._replace_buffer(max(_READ_BYTES_MIN, min(size, doubled)))

    def _replace_buffer(self, size: int) -> None:
        # A new buffer, since the loop may still hold a view of the old one.
        rest = self._buffer[self._start : self._end]
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._buffer[: len(rest)] = rest
        self._start, self._end = 0, len(rest)

    def _decode_marked(self, start: int, stop: int) -> Messages:
        try:
            _, _, size = _MARKED.unpack_from(self._view[start:stop])
            batch_start = start + _MARKED.size + size
            marker = _decode_marker(self._view[start + _MARKED.size : min(batch_start, stop)])
        except _UNREADABLE as error:
            raise _unreadable(_MARKED_KIND, error) from error
        # The rest is what a MESSAGES frame has behind its kind.
        return Messages(*self._decode_batch(batch_start - _HEAD.size, stop), marker)

    def _decode_batch(self, start: int, stop: int) -> tuple[int, Batch]:
        if stop - start < _MESSAGES.size:
            raise ProtocolViolation("a MESSAGES frame ends before its messages begin")
        _, _, sequence, first, count, array, array_count = _MESSAGES.unpack_from(
            self._buffer, start
        )
        if array != ARRAY32 or array_count != count or count < 1 or first < 1:
            raise ProtocolViolation(
                f"a batch says that it holds {count} messages from number {first} on, but its "
                f"content begins with {array:#x} and announces {array_count}"
            )
        return sequence, Batch(first, count, bytes(self._view[start + _ARRAY_OFFSET : stop]))


def _decode_other(kind: int, body: bytes) -> Frame:
    try:
        match kind:
            case Kind.ACK:
                return Ack(*_SEQUENCE.unpack(body))
            case Kind.MARKER:
                (sequence,) = _SEQUENCE.unpack_from(body)
                return Marked(sequence, _decode_marker(body[_SEQUENCE.size :]))
            case Kind.GREETING:
                magic, version = _VERSION.unpack_from(body)
                if magic != MAGIC:
                    raise ProtocolViolation("the other end does not speak Stillframe's protocol")
                check_version(version, "the other end")
                return _decode_greeting(body[_VERSION.size :])
            case _:
                return Control(body)
    except _UNREADABLE as error:
        raise _unreadable(kind, error) from error


def check_version(version: int, who: str) -> None:
    """Check that a peer speaks our version of the protocol; Refused if not."""
    if version != VERSION:
        raise Refused(
            f"{who} speaks version {version} of the protocol, we speak {VERSION}",
            remedy="run the same release of stillframe on both sides; to change the release of a "
            "system, stop it with the one that started it, install the other, and continue with "
            "'stillframe restore STORE'",
        )


def _unreadable(kind: int, error: Exception) -> ProtocolViolation:
    return ProtocolViolation(f"a {Kind(kind).name} frame cannot be read: {error}")
