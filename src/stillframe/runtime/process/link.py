"""A channel over TCP: handshake, frames, acknowledgements, and a new connection when one breaks.

Nothing above this file knows what carries a channel: a link hands frames to its host
(``Host.on_frame``, ``Host.on_ack``) and attaches itself as the transport to an
``OutgoingEndpoint`` or an ``IncomingEndpoint``. The source of a channel connects and the target
listens. Acknowledgements return on the same connection.
"""

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from stillframe.errors import ProtocolViolation, Refused, StillframeError
from stillframe.model import Channel, ProcessId
from stillframe.protocol import wire
from stillframe.protocol.handshake import (
    NONCE_BYTES,
    Connector,
    Declined,
    Greeting,
    Hello,
    Listener,
    Proof,
    Welcome,
)
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.network.connection import Connection, Credentials, StreamTransport
from stillframe.runtime.network.tls import TlsTransport
from stillframe.runtime.process.endpoints import IncomingEndpoint, OutgoingEndpoint
from stillframe.runtime.process.host import Host

RETRY_S_MIN = 0.01
RETRY_S_MAX = 1.0
DIAL_TIMEOUT_S = 5.0
"""So long may a connection take to be made: the kernel alone would wait for minutes."""
SILENT_AFTER_S = 5.0
"""A target that cannot be reached for so long is reported."""
SomeConnection = TypeVar("SomeConnection", bound=Connection)


async def connect(
    connection: SomeConnection, address: Address, certificates: str | None, target: ProcessId | None
) -> SomeConnection:
    """Connect `connection`, over TLS if there is a directory of `certificates`; return it.

    Args:
        connection: what speaks; it begins its handshake.
        address: where to.
        certificates: the directory of ours, None for none.
        target: whose certificate must be shown there; None is the coordinator's.

    Raises:
        OSError: nobody answers there in time, or our certificates cannot be read.
    """
    protocol: Connection | TlsTransport = connection
    if certificates is not None:
        protocol = TlsTransport(connection, Path(certificates), is_listening=False, target=target)
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            await asyncio.get_running_loop().create_connection(
                lambda: protocol, address.host, address.port
            )
    except ValueError as error:  # of a host that can be no name
        raise OSError(f"it cannot be looked up: {error}") from error
    return connection


async def keep_connected(
    host: Host,
    outgoing: OutgoingEndpoint,
    me: Credentials,
    *,
    address: Address,
    trouble: Callable[[str], None],
    connected: Callable[[Channel], None],
) -> None:
    """Keep a channel connected to its target until cancelled.

    Args:
        host: whose channel it is.
        outgoing: the channel.
        me: what to show in the handshake.
        address: where the target listens.
        trouble: takes a sentence for the coordinator when a connection broke the rules, or the
            target cannot be reached.
        connected: called each time that the channel is connected.

    A refusal by a target that never let us in ends the process: trying again would not help.
    """
    loop, channel = asyncio.get_running_loop(), outgoing.channel
    retry_s, was_connected = RETRY_S_MIN, False
    report_due = loop.time() + SILENT_AFTER_S
    while True:
        link = ConnectingLink(host, outgoing, me, connected)
        try:
            await connect(link, address, me.certificates, channel.target)
        except OSError as silence:
            if loop.time() > report_due:
                reason = str(silence) or "no answer"
                trouble(f"channel {channel}: {address} cannot be reached: {reason}; still trying")
                report_due = float("inf")
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, RETRY_S_MAX)
            continue
        try:
            error = await link.lost
        finally:
            link.close()
        if link.is_open:
            retry_s, was_connected = RETRY_S_MIN, True
            report_due = loop.time() + SILENT_AFTER_S
        if error is not None:
            detail = f"channel {channel}: the connection to {link.peer} was closed: {error}"
            # A target that let us in before and is gone now may have left its port to a stranger.
            if isinstance(error, Refused) and not was_connected:
                host.fail(Refused(detail))
                return
            trouble(detail)
        await asyncio.sleep(retry_s)
        retry_s = min(retry_s * 2, RETRY_S_MAX)


VIOLATION_COUNT_MAX = 5
"""After so many bad frames in a row on one channel, with none good between, its target gives up."""


class ListeningLink(Connection):
    """The target's end of a connection: which channel it carries is known after the handshake.

    Args:
        host: whose channels there are.
        me: what to ask in the handshake.
        trouble: takes a sentence for the coordinator when a channel's connection broke the rules.
        refused: takes one when somebody was not let in.
    """

    def __init__(
        self,
        host: Host,
        me: Credentials,
        *,
        trouble: Callable[[str], None],
        refused: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._host = host
        self._trouble = trouble
        self._refused = refused
        self._incoming: IncomingEndpoint | None = None
        self._carrier: StreamTransport | None = None
        self._listener = Listener(
            secret=me.secret,
            epoch=me.epoch,
            topology_hash=me.topology_hash,
            target=me.process,
            sources=tuple(host.incoming),
            nonce=secrets.token_bytes(NONCE_BYTES),
        )

    def take(self, frame: wire.Frame) -> None:
        """Handle a frame of the channel or of the handshake."""
        if self._incoming is not None:
            self._host.on_frame(self._incoming, cast(wire.Messages | wire.Marked, frame))
            self._incoming.violation_count = 0
            return
        if isinstance(frame, Hello):
            self.check_certificate(frame.source)
        answer = self._listener.receive(cast(Greeting, frame))
        if isinstance(answer, str):
            self._welcome(self._host.incoming[answer])
        else:
            self.write_greeting(answer)

    def _welcome(self, incoming: IncomingEndpoint) -> None:
        # The source connects anew only when it has given the old connection up. What the old one
        # still holds must not come in behind the count that we name here.
        if incoming.transport is not None:
            incoming.transport.abort()
        self.open(*wire.CHANNEL_KINDS, frame_bytes_max=wire.FRAME_BYTES_MAX)
        self.write_greeting(Welcome(incoming.session.received))
        assert self.transport is not None
        self._incoming, self._carrier = incoming, self.transport
        incoming.attach(self.transport)

    def broken(self, error: StillframeError) -> None:
        """Say what was wrong, to the other end if it is new, and to the coordinator."""
        if self._incoming is None:
            if isinstance(error, Refused):
                self.write_greeting(Declined(str(error)[:1000]))
            self._refused(
                f"a connection from {self.peer} to {self._host.process} was closed: {error}"
            )
            return
        incoming = self._incoming
        incoming.violation_count += 1
        detail = f"channel {incoming.channel}: the connection was closed: {error}"
        if incoming.violation_count < VIOLATION_COUNT_MAX:
            self._trouble(f"{detail}; its source connects anew, nothing is lost")
        else:
            self._host.fail(ProtocolViolation(f"{detail}; {VIOLATION_COUNT_MAX} times in a row"))

    def crashed(self, error: Exception) -> None:
        """This process cannot go on."""
        self._host.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Detach from the channel, unless a newer connection carries it already."""
        if self._incoming is not None:
            self._incoming.detach(self._carrier)
        super().connection_lost(exc)


class ConnectingLink(Connection):
    """The source's end of one connection of a channel."""

    def __init__(
        self,
        host: Host,
        outgoing: OutgoingEndpoint,
        me: Credentials,
        connected: Callable[[Channel], None],
    ) -> None:
        super().__init__()
        self.is_open = False
        self.lost: asyncio.Future[StillframeError | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._connected = connected
        self._host = host
        self._outgoing = outgoing
        self._carrier: StreamTransport | None = None
        self._connector = Connector(me.hello(outgoing.channel.target), me.secret)

    def begin(self, carrier: StreamTransport) -> None:
        """Begin the handshake."""
        super().begin(carrier)
        self.write_greeting(self._connector.hello)

    def take(self, frame: wire.Frame) -> None:
        """Handle an acknowledgement, or a frame of the handshake."""
        if isinstance(frame, wire.Ack):
            self._host.on_ack(self._outgoing, frame.sequence)
            return
        match self._connector.receive(cast(Greeting, frame)):
            case Proof() as proof:
                self.write_greeting(proof)
            case Welcome(received):
                assert self.transport is not None
                self.open(wire.Kind.ACK, frame_bytes_max=64)
                self._carrier = self.transport
                self._outgoing.attach(self.transport, received)
                self.is_open = True
                self._connected(self._outgoing.channel)

    def broken(self, error: StillframeError) -> None:
        """Pass the reason on to who connects us."""
        if not self.lost.done():
            self.lost.set_result(error)

    def crashed(self, error: Exception) -> None:
        """This process cannot go on."""
        self._host.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Detach from the channel: frames are kept until the next connection."""
        self._outgoing.detach(self._carrier)
        if not self.lost.done():
            self.lost.set_result(None)
        super().connection_lost(exc)
