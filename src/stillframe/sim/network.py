"""The assumptions about channels, as a value; and channels in memory that have these properties.

``Fifo`` is the model of Chandy & Lamport 1985 (section 2: "channels are assumed ... to deliver
messages in the order sent"), implemented as in the runtime: connections that can be lost, numbered
frames, and retransmission. ``Reordering`` loses nothing but keeps no order, ``Lossy`` keeps order
but loses; both deliver frames unchecked.
"""

import enum

import msgspec

from stillframe.model import Batch, Marker, SnapshotId
from stillframe.protocol.lai_yang import CountingMarker
from stillframe.protocol.session import ReceiveSession, SendSession


class Network(enum.Enum):
    """The assumption about every channel."""

    FIFO = "fifo"
    REORDERING = "reordering"
    LOSSY = "lossy"


Fifo, Reordering, Lossy = Network


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """A batch of messages with their colour (Lai & Yang 1987); or a marker, with the `sent_count`
    of a ``CountingMarker``. `sequence` is its number on the channel in this epoch, from 1."""

    sequence: int
    batch: Batch | None = None
    colour: tuple[SnapshotId, ...] = ()
    marker: SnapshotId | None = None
    sent_count: int | None = None

    @classmethod
    def of_marker(cls, sequence: int, marker: Marker) -> "Frame":
        """Return the frame of a marker of either kind."""
        count = marker.sent_count if isinstance(marker, CountingMarker) else None
        return cls(sequence, marker=marker.snapshot, sent_count=count)

    def as_marker(self) -> Marker:
        """Return the marker that this frame is."""
        assert self.marker is not None, self
        if self.sent_count is None:
            return Marker(self.marker)
        return CountingMarker(self.marker, self.sent_count)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


class MemoryChannel:
    """One channel: the frames that were sent and have not arrived, oldest first."""

    def __init__(self, network: Network) -> None:
        self.is_connected = True
        self.lost_count = 0
        """How many frames were lost with the last lost connection, and have to be sent again."""
        self._network = network
        self._frames: list[bytes] = []
        self._sent_count = 0
        self._source = SendSession()
        # Every frame is acknowledged: the next send finds it, unless the connection was lost.
        self._target = ReceiveSession(acknowledge_bytes=0)
        self._acknowledged = 0

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def next_sequence(self) -> int:
        """The number of the next frame that is sent."""
        return self._sent_count + 1

    @property
    def contents(self) -> tuple[Frame, ...]:
        """The frames in transit, oldest first."""
        return tuple(map(_decode, self._frames))

    def peek(self, position: int) -> Frame:
        """Return the frame at `position`, and leave it there."""
        return _decode(self._frames[position])

    def send(self, frame: Frame) -> None:
        """Append `frame`; while the connection is lost it waits at the source."""
        assert frame.sequence == self.next_sequence, frame
        self._sent_count += 1
        encoded = _encode(frame)
        if self._network is Fifo:
            self._source.acknowledge(self._acknowledged)
            self._source.add(encoded)
        if self.is_connected:
            self._frames.append(encoded)

    def take(self, position: int = 0) -> Frame | None:
        """Remove and return the frame at `position`; None if it had arrived before. Raises
        ProtocolViolation if a channel that keeps order did not."""
        frame = _decode(self._frames.pop(position))
        if self._network is not Fifo:
            return frame
        if not self._target.accept(frame.sequence):
            return None
        self._acknowledged = self._target.handle(1)
        return frame

    def lose(self, position: int) -> None:
        """Lose the frame at `position`."""
        del self._frames[position]

    def duplicate(self) -> None:
        """Put a copy of the next frame right after it."""
        self._frames.insert(0, self._frames[0])

    def disconnect(self) -> None:
        """Lose the connection with everything on it."""
        self.is_connected = False
        self.lost_count = self._sent_count - self._target.received
        self._frames.clear()

    def connect(self) -> int:
        """Connect again, and send again the frames that have not arrived; return their number."""
        self.is_connected = True
        received = self._target.received
        self._frames = [bytes(frame) for frame in self._source.resume(received)]
        self._acknowledged = received
        return len(self._frames)
