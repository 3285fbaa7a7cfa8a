"""The two ends of a channel inside a process, without the connection that carries it.

Back-pressure has one measure: bytes sent but not yet handled. Above `WINDOW_BYTES` on any outgoing
channel a process takes no spontaneous action. Above `HOLD_BYTES` it handles no message either, but
only if no chain of channels leads back from the target: processes on a cycle would block each other
forever. On a cycle a process continues up to `LIMIT_BYTES`, where it fails with a message.

A marker may wait for the next batch of its channel and ride on it. Its place is fixed from the
start: everything sent before it was written, and all that is sent later is written with it or
after it.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import Any

import msgspec

from stillframe.errors import (
    ApplicationError,
    ProtocolViolation,
    UsageError,
    describe,
    repr_of,
    text_of,
)
from stillframe.model import DECODING_ERRORS, Batch, Channel, Marker, ProcessId
from stillframe.ordered_sets import may_hold_set, with_ordered_sets
from stillframe.process import Message, is_immutable
from stillframe.protocol import wire
from stillframe.protocol.session import ReceiveSession, SendSession
from stillframe.runtime.network.connection import Transport

WINDOW_BYTES = 64 * 2**10
HOLD_BYTES = 4 * 2**20
LIMIT_BYTES = 256 * 2**20
ACKNOWLEDGE_BYTES = WINDOW_BYTES // 4
FRAME_EXTRA_BYTES = 128
"""An upper bound for a marker's frame, and for the bytes of a frame besides its messages. So a
target counts at least as much as its source, and acknowledges before the source's window is full. A
frame of messages that also carries a marker counts twice as much."""
BATCH_BYTES_MAX = 64 * 2**10
ENCODING_ERRORS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


class _Endpoint:
    """One end of a channel, and the `transport` that carries the channel, None if none does."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.transport: Transport | None = None

    def detach(self, transport: Transport | None) -> None:
        """Detach the closed `transport`; does nothing if another has replaced it already."""
        if self.transport is transport:
            self.transport = None

    @property
    def is_connected(self) -> bool:
        """Whether something carries the channel."""
        return self.transport is not None and not self.transport.is_closing()


class OutgoingEndpoint(_Endpoint):
    """The source's end of one channel; frames are kept while nothing carries it."""

    def __init__(
        self,
        channel: Channel,
        accepts: frozenset[type[Message]],
        sent_count: int,
        *,
        is_on_cycle: bool,
    ) -> None:
        super().__init__(channel)
        self.is_on_cycle = is_on_cycle
        self.accepts = accepts
        self.pending: list[Message | msgspec.Raw] = []
        self.session = SendSession()
        self.sent_count = sent_count
        self._waiting: Marker | None = None

    def attach(self, transport: Transport, received: int) -> None:
        """Continue over `transport`, after the frame `received`: send again what may be lost."""
        for frame in self.session.resume(received):
            transport.write(frame)
        self.transport = transport

    @property
    def is_full(self) -> bool:
        """Whether its source waits with further messages, unless that is on a cycle."""
        return self.session.unacknowledged_bytes >= HOLD_BYTES

    def send_marker(self, marker: Marker, *, may_wait: bool) -> None:
        """Put `marker` after all that was sent; nothing may be pending.

        If it `may_wait`, it leaves with the next batch, or alone when `release` is called.
        """
        assert not self.pending, self.channel
        if self._waiting is not None:
            self.release(self._waiting)
        self._waiting = marker
        if not may_wait:
            self.release(marker)

    def release(self, marker: Marker) -> None:
        """Send `marker` alone if it still waits."""
        if self._waiting is marker:
            self._waiting = None
            self._write(wire.encode_marker(self.session.sequence + 1, marker))

    def _write(self, frame: bytes | bytearray) -> None:
        """Send a frame that was encoded with the session's next number."""
        self.session.add(frame)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(frame)

    def flush(self) -> None:
        """Send the pending messages, in one batch if they are not too large for that."""
        self._write_batch(self.pending)
        self.pending.clear()

    def _write_batch(self, messages: list[Message | msgspec.Raw]) -> None:
        session, first = self.session, self.sent_count + 1
        try:
            frame = wire.encode_messages(session.sequence + 1, first, messages, self._waiting)
        except ENCODING_ERRORS as error:
            raise self._unsendable(messages) from error
        size, count = len(frame), len(messages)
        if size > BATCH_BYTES_MAX:
            if count > 1:
                self._write_batch(messages[: count // 2])
                self._write_batch(messages[count // 2 :])
                return
            if self._waiting is not None:
                # The largest message fills a frame without it.
                self.release(self._waiting)
                self._write_batch(messages)
                return
            if size > wire.FRAME_BYTES_MAX:
                raise UsageError(
                    f"channel {self.channel}: message {first} has {size:,} bytes, more than the "
                    f"limit of {wire.FRAME_BYTES_MAX:,}: send it in parts"
                )
        self._waiting = None
        self.sent_count += count
        self._write(frame)

    def _unsendable(self, messages: list[Message | msgspec.Raw]) -> UsageError:
        for message in messages:
            try:
                msgspec.msgpack.encode(message)
            except ENCODING_ERRORS as error:
                return UsageError(
                    f"channel {self.channel}: {repr_of(message)} cannot be encoded: "
                    f"{text_of(error)}; give its fields values of their declared types"
                )
        raise AssertionError("each message can be encoded, but not all of them together")


class IncomingEndpoint(_Endpoint):
    """The target's end of one channel."""

    def __init__(self, channel: Channel, accepts: tuple[type[Message], ...]) -> None:
        super().__init__(channel)
        self.source = channel.source
        self.session = ReceiveSession(ACKNOWLEDGE_BYTES)
        self.violation_count = 0
        self._acknowledged = 0
        self._decoder: msgspec.msgpack.Decoder[list[Message]] | None = None
        if accepts:
            union: Any = reduce(or_, accepts)
            self._decoder = msgspec.msgpack.Decoder(list[union])

    def attach(self, transport: Transport) -> None:
        """Acknowledge over `transport` from now on. The last acknowledgement is sent again: if it
        was lost with an earlier connection, the source may be waiting for it."""
        self.transport = transport
        if self._acknowledged:
            self.acknowledge(self._acknowledged)

    def decode(self, batch: Batch) -> list[Message]:
        """Return the messages of `batch`; others than the target accepts are a
        ProtocolViolation."""
        if self._decoder is None:
            raise ProtocolViolation(
                f"channel {self.channel}: {self.channel.target} accepts no message"
            )
        try:
            return self._decoder.decode(batch.encoded)
        except DECODING_ERRORS as error:
            raise ProtocolViolation(
                f"channel {self.channel}: {self.channel.target} does not accept messages "
                f"{batch.first} to {batch.last}: {text_of(error)}"
            ) from error
        except BaseException as error:  # of a class of the application, in its __post_init__
            raise ApplicationError(
                f"channel {self.channel}: messages {batch.first} to {batch.last} cannot be made: "
                f"{describe(error)}"
            ) from error

    def acknowledge(self, sequence: int) -> None:
        """Tell the source that all frames up to `sequence` were handled."""
        self._acknowledged = sequence
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(wire.encode_ack(sequence))


Send = Callable[[ProcessId, Message], None]


def make_send(
    process: ProcessId,
    outgoing: Mapping[ProcessId, OutgoingEndpoint],
    record: Callable[[int], object] | None,
    codes: Mapping[ProcessId, int],
) -> Send:
    """Return the function that applications call to send: two lookups and an append.

    If there is a `record`, it also records the code of the target, for the event log.

    A message that cannot change is encoded with its batch, which is much faster than one by one;
    one that holds a list or the like is encoded at once, because it could change.
    """
    entries = {
        target: {kind: _enqueuer(kind, channel.pending) for kind in channel.accepts}
        for target, channel in outgoing.items()
    }

    def send(target: ProcessId, message: Message) -> None:
        try:
            entries[target][message.__class__](message)
        except (KeyError, TypeError, *ENCODING_ERRORS) as error:
            raise _invalid_send(process, outgoing, target, message, error) from error

    if record is None:
        return send
    entries_with_code = {
        target: {kind: (keep, codes[target]) for kind, keep in keepers.items()}
        for target, keepers in entries.items()
    }

    def send_and_log(target: ProcessId, message: Message) -> None:
        try:
            keep, code = entries_with_code[target][message.__class__]
            keep(message)
        except (KeyError, TypeError, *ENCODING_ERRORS) as error:
            raise _invalid_send(process, outgoing, target, message, error) from error
        record(code)

    return send_and_log


def _enqueuer(
    kind: type[Message], pending: list[Message | msgspec.Raw]
) -> Callable[[Message], None]:
    """Return a function that appends a message of class `kind` to the pending ones, safe from
    changes."""
    if is_immutable(kind):
        return pending.append
    encode = msgspec.msgpack.Encoder().encode
    if may_hold_set(kind):
        return lambda message: pending.append(msgspec.Raw(encode(with_ordered_sets(message))))
    return lambda message: pending.append(msgspec.Raw(encode(message)))


def _invalid_send(
    process: ProcessId,
    outgoing: Mapping[ProcessId, OutgoingEndpoint],
    target: object,
    message: object,
    error: Exception,
) -> UsageError:
    channel = outgoing.get(target) if isinstance(target, str) else None
    if channel is None:
        return UsageError(
            f"process {process} has no channel to {repr_of(target)}; "
            f"outgoing: {', '.join(outgoing) or 'none'}"
        )
    if not isinstance(message, tuple(channel.accepts)):
        accepted = ", ".join(sorted(kind.__name__ for kind in channel.accepts))
        return UsageError(
            f"channel {channel.channel}: {target} accepts {accepted or 'no message'}, "
            f"not {type(message).__name__}; add it to the annotation of its receive()"
        )
    shown, why = repr_of(message), text_of(error)
    return UsageError(f"channel {channel.channel}: {shown} cannot be encoded: {why}")
