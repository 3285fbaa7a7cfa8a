"""A channel over TCP: handshake, frames, acknowledgements, and a new connection when one breaks.

Nothing above this file knows what carries a channel: a link hands frames to its host
(``Host.arrived``, ``Host.acknowledged``) and attaches itself to an ``Outgoing`` or an ``Incoming``
as the transport. The source of a channel connects; the target listens. Acknowledgements come back
on the same connection.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import Protocol, cast

import msgspec

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
from stillframe.runtime.addresses import Address
from stillframe.runtime.certificates import check_speaks_for
from stillframe.runtime.ends import Incoming, Outgoing, Transport
from stillframe.runtime.host import Host

HANDSHAKE_TIMEOUT_S = 10.0
DEAD_AFTER_S = 10
"""A connection over which nothing comes back for so long is given up: its other end has lost power,
or the way to it is cut. A channel then connects anew, as often as it takes."""
VIOLATION_COUNT_MAX = 5
"""After so many bad frames in a row on one channel, with none good between, its target gives up."""


class Credentials(msgspec.Struct, frozen=True):
    """What a process needs to show, and asks to be shown, on every connection of one epoch.

    With TLS the directory of `certificates` is given and `secret` is empty; `epoch` 0 is the
    present one, to be learnt from the coordinator.
    """

    process: ProcessId
    epoch: int
    topology_hash: str
    secret: bytes
    certificates: str | None = None

    def hello(self, target: ProcessId | None) -> Hello:
        """Return our first greeting to `target`; None is the coordinator."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return Hello(self.process, target, self.epoch, self.topology_hash, nonce)


class Carrier(Transport, Protocol):
    """What carries a connection: TCP as it is, or TLS over it (``secured.py``)."""

    def close(self) -> None:
        """Close once everything written is sent."""


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the kernel end a connection over which nothing comes back for `DEAD_AFTER_S`."""
    tcp = transport.get_extra_info("socket")
    quarter_s = DEAD_AFTER_S // 4
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, quarter_s)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, quarter_s)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_S * 1000)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of the other end, as people write it."""
    peer = transport.get_extra_info("peername")
    return str(Address(*peer[:2])) if peer else "somebody who has gone"


class Connection(asyncio.BufferedProtocol):
    """The reading side that all connections share: bytes to frames, and an end with a reason.

    `peer` is the address of the other end. `shown_names` are those of the certificate that it
    showed, None without TLS. `settled` is called when the handshake is over or the connection gone.
    """

    def __init__(self) -> None:
        self.transport: Carrier | None = None
        self.reader = wire.FrameReader()
        self.peer = ""
        self.shown_names: frozenset[str] | None = None
        self.settled: Callable[[], object] = lambda: None
        self._timer: asyncio.TimerHandle | None = None
        self._is_aborted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A TCP connection is there, and carries this one as it is."""
        if self._is_aborted:
            cast(asyncio.Transport, transport).abort()
            return
        keep_alive(transport)
        self.peer = peer_of(transport)
        self.begin(cast(asyncio.Transport, transport))

    def begin(self, carrier: Carrier) -> None:
        """Begin the handshake; one that does not come to its end in time ends the connection."""
        self.transport = carrier
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HANDSHAKE_TIMEOUT_S, self.close)

    def check_certificate(self, process: ProcessId) -> None:
        """Check that the other end may speak for `process`, if there is TLS.

        Raises:
            Refused: its certificate is another's.
        """
        if self.shown_names is not None:
            check_speaks_for(self.shown_names, process)

    def open(self, *kinds: wire.Kind, frame_bytes_max: int) -> None:
        """The handshake is over."""
        self.settled()
        if self._timer is not None:
            self._timer.cancel()
        self.reader.open(*kinds, frame_bytes_max=frame_bytes_max)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the loop writes what it reads."""
        return self.reader.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Take every frame that is complete now."""
        reader = self.reader
        reader.written(nbytes)
        try:
            while (frame := reader.next_frame()) is not None:
                self.take(frame)
                if self.transport is None:
                    return
        except StillframeError as error:
            self.broken(error)
            self.close()
        except Exception as error:
            # Ours, not the other end's: another connection would only meet it again.
            self.crashed(error)
            self.close()

    def take(self, frame: wire.Frame) -> None:
        """Handle one frame."""
        raise NotImplementedError

    def broken(self, error: StillframeError) -> None:
        """The other end broke the rules; the connection is closed after this."""
        raise NotImplementedError

    def crashed(self, error: Exception) -> None:
        """We are at fault; the connection is closed after this."""
        raise NotImplementedError

    def write_greeting(self, greeting: Greeting) -> None:
        """Send a frame of the handshake."""
        if self.transport is not None:
            self.transport.write(wire.encode_greeting(greeting))

    def close(self) -> None:
        """Close the connection; what was written is still sent, what comes is ignored."""
        if self.transport is not None:
            self.transport.close()
            self.transport = None

    def abort(self) -> None:
        """Close the connection at once, whatever is still to be sent; or when it is made."""
        self._is_aborted = True
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.settled()
        if self._timer is not None:
            self._timer.cancel()
        self.transport = None


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
        self._incoming: Incoming | None = None
        self._carrier: Carrier | None = None
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
            self._host.arrived(self._incoming, cast(wire.Messages | wire.Marked, frame))
            self._incoming.violation_count = 0
            return
        if isinstance(frame, Hello):
            self.check_certificate(frame.source)
        answer = self._listener.receive(cast(Greeting, frame))
        if isinstance(answer, str):
            self._welcome(self._host.incoming[answer])
        else:
            self.write_greeting(answer)

    def _welcome(self, incoming: Incoming) -> None:
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
        outgoing: Outgoing,
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
        self._carrier: Carrier | None = None
        self._connector = Connector(me.hello(outgoing.channel.target), me.secret)

    def begin(self, carrier: Carrier) -> None:
        """Begin the handshake."""
        super().begin(carrier)
        self.write_greeting(self._connector.hello)

    def take(self, frame: wire.Frame) -> None:
        """Handle an acknowledgement, or a frame of the handshake."""
        if isinstance(frame, wire.Ack):
            self._host.acknowledged(self._outgoing, frame.sequence)
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
