"""A channel over TCP: handshake, frames, acknowledgements, and a new connection when one breaks.

Nothing above this file knows what carries a channel: a link hands frames to its host
(``Host.on_frame``, ``Host.on_ack``) and attaches itself as the transport to an
``OutgoingEndpoint`` or an ``IncomingEndpoint``. The source of a channel connects and the target
listens. Acknowledgements return on the same connection.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import TypeVar, cast

from stillframe.errors import (
    ApplicationError,
    ProtocolViolation,
    Refused,
    StillframeError,
    text_of,
)
from stillframe.model import Channel, ProcessId
from stillframe.protocol import wire
from stillframe.protocol.handshake import NONCE_BYTES, Listener, Welcome
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.network.connection import (
    Connection,
    Credentials,
    InboundConnection,
    OutboundConnection,
    Transport,
    protocol_of,
)
from stillframe.runtime.process.endpoints import IncomingEndpoint, OutgoingEndpoint
from stillframe.runtime.process.host import Host

RETRY_S_MIN = 0.01
RETRY_S_MAX = 1.0
CONNECT_TIMEOUT_S = 5.0
"""Timeout of one attempt to connect: the kernel alone would wait for minutes."""
REPORT_AFTER_S = 5.0
"""A target that has not been reached for this long is reported."""
SomeConnection = TypeVar("SomeConnection", bound=Connection)
VIOLATION_COUNT_MAX = 5
"""After this many bad frames in a row on one channel its target fails."""


async def connect(
    connection: SomeConnection, address: Address, certificates: str | None, target: ProcessId | None
) -> SomeConnection:
    """Connect `connection` to an address, and return it; the arguments are those of
    ``protocol_of``. OSError if there is no answer in time, or our certificates cannot be read."""
    protocol = protocol_of(connection, certificates, is_listening=False, target=target)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.get_running_loop().create_connection(
                lambda: protocol, address.host, address.port
            )
    except ValueError as error:  # of a host that can be no name
        raise OSError(f"its name cannot be resolved: {text_of(error)}") from error
    return connection


async def keep_connected(
    host: Host,
    outgoing: OutgoingEndpoint,
    me: Credentials,
    *,
    address: Address,
    warn: Callable[[str], None],
    connected: Callable[[Channel], None],
) -> None:
    """Keep a channel connected to its target, which listens at `address`, until cancelled.

    `warn` takes a sentence for the coordinator when a connection broke the rules, or the target
    cannot be reached; `connected` is called each time that the channel is connected. A refusal by a
    target that was never connected fails the process: a retry would not help.
    """
    loop, channel = asyncio.get_running_loop(), outgoing.channel
    retry_s, was_connected = RETRY_S_MIN, False
    report_due = loop.time() + REPORT_AFTER_S
    while True:
        link = ConnectingLink(host, outgoing, me, connected)
        try:
            await connect(link, address, me.certificates, channel.target)
        except OSError as silence:
            if loop.time() > report_due:
                reason = silence.strerror or text_of(silence) or "no answer"
                warn(f"channel {channel}: cannot connect to {address}: {reason}; still trying")
                report_due = float("inf")
        else:
            try:
                error = await link.lost
            finally:
                link.close()
            if link.is_open:
                retry_s, was_connected = RETRY_S_MIN, True
                report_due = loop.time() + REPORT_AFTER_S
            if error is not None:
                detail = f"channel {channel}: the connection to {link.peer} was closed: {error}"
                # A target that accepted us before and has died may have left its port to a
                # stranger.
                if isinstance(error, Refused) and not was_connected:
                    host.fail(Refused(detail))
                    return
                warn(detail)
        await asyncio.sleep(retry_s)
        retry_s = min(retry_s * 2, RETRY_S_MAX)


class ListeningLink(InboundConnection):
    """The target's end of a connection: which channel it carries is known after the handshake.

    `warn` takes a sentence for the coordinator when a channel's connection broke the rules,
    `refused` one when a connection was refused.
    """

    def __init__(
        self,
        host: Host,
        me: Credentials,
        *,
        warn: Callable[[str], None],
        refused: Callable[[str], None],
    ) -> None:
        listener = Listener(
            secret=me.secret,
            epoch=me.epoch,
            topology_hash=me.topology_hash,
            target=me.process,
            sources=tuple(host.incoming),
            nonce=secrets.token_bytes(NONCE_BYTES),
        )
        super().__init__(listener)
        self._host = host
        self._warn = warn
        self._refused = refused
        self._incoming: IncomingEndpoint | None = None
        self._carrier: Transport | None = None

    def take(self, frame: wire.Frame) -> None:
        """Handle a frame of the channel or of the handshake."""
        if self._incoming is not None:
            self._host.on_frame(self._incoming, cast(wire.Messages | wire.Marked, frame))
            self._incoming.violation_count = 0
            return
        source = self.authenticate(frame)
        if source is not None:
            self._welcome(self._host.incoming[source])

    def _welcome(self, incoming: IncomingEndpoint) -> None:
        # The source reconnects only after it has abandoned the old connection. What the old one
        # still holds must not arrive after the count that is reported here.
        if incoming.transport is not None:
            incoming.transport.abort()
        self.open(*wire.CHANNEL_KINDS, frame_bytes_max=wire.FRAME_BYTES_MAX)
        self.write_greeting(Welcome(incoming.session.received))
        assert self.transport is not None
        self._incoming, self._carrier = incoming, self.transport
        incoming.attach(self.transport)

    def broken(self, error: StillframeError) -> None:
        """Report what was wrong, to the other end if it is new, and to the coordinator."""
        if self._incoming is None:
            self.decline(error)
            self._refused(
                f"a connection from {self.peer} to {self._host.process} was closed: {error}"
            )
            return
        if isinstance(error, ApplicationError):  # not of the other end
            self._host.fail(error)
            return
        incoming = self._incoming
        incoming.violation_count += 1
        detail = f"channel {incoming.channel}: the connection was closed: {error}"
        if incoming.violation_count < VIOLATION_COUNT_MAX:
            self._warn(f"{detail}; its source reconnects, and nothing is lost")
        else:
            self._host.fail(ProtocolViolation(f"{detail}; {VIOLATION_COUNT_MAX} times in a row"))

    def crashed(self, error: Exception) -> None:
        """Fail this process."""
        self._host.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Detach from the channel, unless a newer connection carries it already."""
        if self._incoming is not None:
            self._incoming.detach(self._carrier)
        super().connection_lost(exc)


class ConnectingLink(OutboundConnection):
    """The source's end of one connection of a channel."""

    def __init__(
        self,
        host: Host,
        outgoing: OutgoingEndpoint,
        me: Credentials,
        connected: Callable[[Channel], None],
    ) -> None:
        super().__init__(me, outgoing.channel.target)
        self.lost: asyncio.Future[StillframeError | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._connected = connected
        self._host = host
        self._outgoing = outgoing
        self._carrier: Transport | None = None

    def take(self, frame: wire.Frame) -> None:
        """Handle an acknowledgement, or a frame of the handshake."""
        if isinstance(frame, wire.Ack):
            self._host.on_ack(self._outgoing, frame.sequence)
            return
        welcome = self.greet(frame)
        if welcome is not None:
            assert self.transport is not None
            self.open(wire.Kind.ACK, frame_bytes_max=64)
            self._carrier = self.transport
            self._outgoing.attach(self.transport, welcome.received)
            self.is_open = True
            self._connected(self._outgoing.channel)

    def broken(self, error: StillframeError) -> None:
        """Pass the reason on to ``keep_connected``."""
        if not self.lost.done():
            self.lost.set_result(error)

    def crashed(self, error: Exception) -> None:
        """Fail this process."""
        self._host.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Detach from the channel: frames are kept until the next connection."""
        self._outgoing.detach(self._carrier)
        if not self.lost.done():
            self.lost.set_result(None)
        super().connection_lost(exc)
