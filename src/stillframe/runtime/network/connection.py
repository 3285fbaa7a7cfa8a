"""A TCP connection that carries frames: credentials, the handshake's deadline, why it ended."""

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import Any, Protocol, cast

import msgspec

from stillframe.errors import Refused, StillframeError
from stillframe.model import ProcessId
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
from stillframe.runtime.network.certificates import check_speaks_for

HANDSHAKE_TIMEOUT_S = 10.0
DEAD_AFTER_S = 10
"""A connection over which nothing returns for this long is closed: its other end has lost power, or
the network is cut. A channel then connects again, as often as needed."""


class Transport(Protocol):
    """What a link attaches to a channel: frames are written into it."""

    def write(self, data: bytes | bytearray, /) -> Any:
        """Take `data`, now or later, in order."""

    def is_closing(self) -> bool:
        """Return whether nothing more can be written."""

    def abort(self) -> None:
        """Close at once; nothing more is read."""


class Credentials(msgspec.Struct, frozen=True):
    """What a process shows, and requires, on every connection of one epoch.

    With TLS the directory of `certificates` is given and `secret` is empty. `epoch` 0 is the
    current one, which the coordinator announces.
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


class StreamTransport(Transport, Protocol):
    """What carries a connection: TCP as it is, or TLS over it (``tls.py``)."""

    def close(self) -> None:
        """Close once everything written is sent."""


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the kernel close a connection over which nothing returns for `DEAD_AFTER_S`."""
    tcp = transport.get_extra_info("socket")
    quarter_s = DEAD_AFTER_S // 4
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, quarter_s)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, quarter_s)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_S * 1000)


def remote_address(transport: asyncio.BaseTransport) -> str:
    """Return the address of the other end, in words."""
    peer = transport.get_extra_info("peername")
    return str(Address(*peer[:2])) if peer else "somebody who has gone"


class Connection(asyncio.BufferedProtocol):
    """What all connections share: they decode frames, and close with a reason.

    `peer` is the address of the other end. `shown_names` are those of its certificate, None without
    TLS. `settled` is called when the handshake has ended, or the connection is closed before.
    """

    def __init__(self) -> None:
        self.transport: StreamTransport | None = None
        self.reader = wire.FrameReader()
        self.peer = ""
        self.shown_names: frozenset[str] | None = None
        self.settled: Callable[[], object] = lambda: None
        self._timer: asyncio.TimerHandle | None = None
        self._is_aborted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A TCP connection carries this one as it is."""
        if self._is_aborted:
            cast(asyncio.Transport, transport).abort()
            return
        keep_alive(transport)
        self.peer = remote_address(transport)
        self.begin(cast(asyncio.Transport, transport))

    def begin(self, carrier: StreamTransport) -> None:
        """Begin the handshake; one that takes too long closes the connection."""
        self.transport = carrier
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HANDSHAKE_TIMEOUT_S, self.close)

    def check_certificate(self, process: ProcessId) -> None:
        """Raise Refused if there is TLS and the other end may not speak for `process`."""
        if self.shown_names is not None:
            check_speaks_for(self.shown_names, process)

    def open(self, *kinds: wire.Kind, frame_bytes_max: int) -> None:
        """End the handshake."""
        self.settled()
        if self._timer is not None:
            self._timer.cancel()
        self.reader.open(*kinds, frame_bytes_max=frame_bytes_max)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the loop writes what it reads."""
        return self.reader.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Take every complete frame."""
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
        """Close the connection; what was written is still sent, what arrives is ignored."""
        if self.transport is not None:
            self.transport.close()
            self.transport = None

    def abort(self) -> None:
        """Close the connection at once, or as soon as it is made."""
        self._is_aborted = True
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self.settled()
        if self._timer is not None:
            self._timer.cancel()
        self.transport = None


class InboundConnection(Connection):
    """The end that accepted: it must know who connects before anything else is read."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener

    def authenticate(self, frame: wire.Frame) -> ProcessId | None:
        """Take a frame of the handshake; return who connects once that is proved."""
        if isinstance(frame, Hello):
            self.check_certificate(frame.source)
        answer = self._listener.receive(cast(Greeting, frame))
        if isinstance(answer, str):
            return answer
        self.write_greeting(answer)
        return None

    def decline(self, error: StillframeError) -> None:
        """Tell the other end why it is refused, if it is."""
        if isinstance(error, Refused):
            self.write_greeting(Declined(str(error)[:1000]))


class OutboundConnection(Connection):
    """The end that connects: it greets first, and is welcomed.

    Args:
        me: the credentials of this process.
        target: the process at the other end; None is the coordinator.
    """

    def __init__(self, me: Credentials, target: ProcessId | None) -> None:
        super().__init__()
        self.is_open = False
        self._connector = Connector(me.hello(target), me.secret)

    def begin(self, carrier: StreamTransport) -> None:
        """Begin the handshake."""
        super().begin(carrier)
        self.write_greeting(self._connector.hello)

    def greet(self, frame: wire.Frame) -> Welcome | None:
        """Take a frame of the handshake; return the last one, None before."""
        match self._connector.receive(cast(Greeting, frame)):
            case Proof() as proof:
                self.write_greeting(proof)
            case Welcome() as welcome:
                return welcome
        return None
