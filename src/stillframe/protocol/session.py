"""Exactly once, in order, over connections that break: one channel's two halves.

Every frame of a channel (a batch of messages or a marker) has a sequence number, from 1. The source
keeps each frame until the target has *handled* it. After a lost connection, the next handshake
names the last frame that the target received, and the source sends the later ones again, unchanged.

Acknowledgements are cumulative and mean "handled", not "received": unacknowledged frames are the
window for back-pressure, which bounds the memory of both ends.
"""

from collections import deque

from stillframe.errors import ProtocolViolation


class SendSession:
    """The source's half: numbers frames, and keeps them until they are acknowledged."""

    def __init__(self) -> None:
        self.sequence = 0
        self.unacknowledged_bytes = 0
        self._acknowledged = 0
        self._frames: deque[bytes | bytearray] = deque()

    def add(self, frame: bytes | bytearray) -> None:
        """Keep `frame`, which was encoded with the sequence number ``sequence + 1``."""
        self.sequence += 1
        self._frames.append(frame)
        self.unacknowledged_bytes += len(frame)

    def acknowledge(self, sequence: int) -> None:
        """Forget the frames up to `sequence`, which were handled; ProtocolViolation if such a frame
        was never sent."""
        if sequence > self.sequence:
            raise ProtocolViolation(
                f"frame {sequence} was acknowledged, but only {self.sequence} were sent"
            )
        while self._acknowledged < sequence:
            self._acknowledged += 1
            self.unacknowledged_bytes -= len(self._frames.popleft())

    def resume(self, received: int) -> list[bytes | bytearray]:
        """Return the frames to send again on a new connection, given the last one received. Raises
        ProtocolViolation if the target claims frames that were never sent, or asks for some that it
        had acknowledged."""
        if not self._acknowledged <= received <= self.sequence:
            raise ProtocolViolation(
                f"the other end wants to continue after frame {received}; {self._acknowledged} "
                f"to {self.sequence} are possible"
            )
        return list(self._frames)[received - self._acknowledged :]


class ReceiveSession:
    """The target's half: lets each frame through once, in order. An acknowledgement is due when
    `acknowledge_bytes` were handled."""

    def __init__(self, acknowledge_bytes: int) -> None:
        self.received = 0
        self._handled = 0
        self._pending_bytes = 0
        self._acknowledge_bytes = acknowledge_bytes

    def accept(self, sequence: int) -> bool:
        """Return whether this frame is new; if so it counts as received. Raises ProtocolViolation
        if frames before it are missing."""
        if sequence <= self.received:
            return False
        if sequence != self.received + 1:
            raise ProtocolViolation(
                f"frame {sequence} arrived instead of {self.received + 1}: frames are missing"
            )
        self.received = sequence
        return True

    def handle(self, size_bytes: int) -> int:
        """Count the next frame as handled; return the number to acknowledge now, or 0."""
        self._handled += 1
        self._pending_bytes += size_bytes
        if self._pending_bytes < self._acknowledge_bytes:
            return 0
        self._pending_bytes = 0
        return self._handled
