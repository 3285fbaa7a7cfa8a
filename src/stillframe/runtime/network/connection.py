"""A connection that carries frames, over TCP as it is or over TLS: credentials, the handshake's
deadline, why it ended.

The event loops' own TLS does not report a failed handshake to a listener, and closes before the
other end can read why. Here a handshake is counted, both ends report why it failed, and frames are
read only after a valid certificate. OpenSSL does the work.
"""

import asyncio
import contextlib
import secrets
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
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
from stillframe.runtime.network import certificates
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.network.certificates import check_speaks_for

HANDSHAKE_TIMEOUT_S = 10.0
HANDSHAKE_TURNS = 10
"""In how many turns the time limit passes. While this program is busy, the other end could not
answer, and at most one of them passes."""
_TLS_READ_BYTES = 256 * 2**10
DEAD_AFTER_S = 10
"""A connection over which nothing returns for this long is closed: its other end has lost power, or
the network is cut. A channel then connects again, as often as needed."""


class Transport(Protocol):
    """The transport of a connection, plain TCP or TLS. A link attaches it to a channel, and frames
    are written into it."""

    def write(self, data: bytes | bytearray, /) -> Any:
        """Take `data`, now or later, in order."""

    def is_closing(self) -> bool:
        """Return whether nothing more can be written."""

    def close(self) -> None:
        """Close once everything written is sent."""

    def abort(self) -> None:
        """Close at once; nothing more is read."""


class Credentials(msgspec.Struct, frozen=True):
    """The credentials that a process presents, and requires, on every connection of one epoch.

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


class Connection(asyncio.BufferedProtocol):
    """A connection: it decodes frames, and closes with a reason.

    `peer` is the address of the other end. The handshake has a time limit if it `is_limited`.
    `shown_names` are those of its certificate, None without
    TLS. `settled` is called when the handshake has ended, or the connection is closed before.
    """

    def __init__(self) -> None:
        self.transport: Transport | None = None
        self.is_limited = True
        self.reader = wire.FrameReader()
        self.peer = ""
        self.shown_names: frozenset[str] | None = None
        self.settled: Callable[[], object] = lambda: None
        self._tcp: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_aborted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start on a TCP connection, which carries this one as it is."""
        if self.prepare(transport):
            self.begin(cast(asyncio.Transport, transport))

    def prepare(self, transport: asyncio.BaseTransport) -> bool:
        """Take a TCP connection: the kernel closes it if nothing returns for `DEAD_AFTER_S`, and
        we do if the handshakes over it take too long. False if this one was aborted before."""
        self._tcp = cast(asyncio.Transport, transport)
        if self._is_aborted:
            self._tcp.abort()
            return False
        tcp, quarter_s = transport.get_extra_info("socket"), DEAD_AFTER_S // 4
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, quarter_s)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, quarter_s)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_S * 1000)
        peer = transport.get_extra_info("peername")
        self.peer = str(Address(*peer[:2])) if peer else "a disconnected client"
        if self.is_limited:
            self._wait(HANDSHAKE_TURNS)
        return True

    def _wait(self, turn_count: int) -> None:
        if turn_count:
            turn_s = HANDSHAKE_TIMEOUT_S / HANDSHAKE_TURNS
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(turn_s, self._wait, turn_count - 1)
        elif self.transport is None:
            self.abort()
        else:
            self.close()

    def begin(self, carrier: Transport) -> None:
        """Begin the handshake."""
        self.transport = carrier

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
        """Handle a violation by the other end; the connection is closed after this."""
        raise NotImplementedError

    def crashed(self, error: Exception) -> None:
        """Handle an error of this program; the connection is closed after this."""
        raise NotImplementedError

    @property
    def unsent_bytes(self) -> int:
        """How much was written that the other end has not let us send."""
        return 0 if self._tcp is None else self._tcp.get_write_buffer_size()

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
        if self._tcp is not None:
            self._tcp.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self.settled()
        if self._timer is not None:
            self._timer.cancel()
        self.transport = self._tcp = None


class InboundConnection(Connection):
    """The end that accepted: it must know who connects before anything else is read."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener

    def authenticate(self, frame: wire.Frame) -> ProcessId | None:
        """Take a frame of the handshake; return who connects once that is proved, and with TLS only
        if its certificate says so too."""
        if isinstance(frame, Hello) and self.shown_names is not None:
            check_speaks_for(self.shown_names, frame.source)
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
    """The end that connects: it greets first, and is welcomed. `target` is the process at the other
    end; None is the coordinator."""

    def __init__(self, me: Credentials, target: ProcessId | None) -> None:
        super().__init__()
        self.is_open = False
        self._connector = Connector(me.hello(target), me.secret)

    def begin(self, carrier: Transport) -> None:
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


def protocol_of(
    connection: Connection,
    directory: str | None,
    *,
    is_listening: bool,
    target: ProcessId | None = None,
) -> asyncio.BufferedProtocol:
    """Return what the event loop drives: `connection` itself, or TLS below it (``TlsTransport``) if
    there is a directory of certificates; raises an OSError if those cannot be read."""
    if directory is None:
        return connection
    return TlsTransport(connection, Path(directory), is_listening=is_listening, target=target)


class TlsTransport(asyncio.BufferedProtocol):
    """Carries `inner` over TLS: an asyncio protocol below, a transport above.

    `inner` begins when both ends have shown valid certificates; ours are in `directory`. We connect
    to `target`, None is the coordinator; or the other end connected to us if this end
    `is_listening`, and `inner` checks its certificate when it knows who it is.
    """

    def __init__(
        self,
        inner: Connection,
        directory: Path,
        *,
        is_listening: bool,
        target: ProcessId | None = None,
    ) -> None:
        self._inner = inner
        self._directory = directory
        self._is_listening = is_listening
        self._target = target
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = certificates.context(directory, is_listening=is_listening)
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_listening)
        self._buffer = memoryview(bytearray(_TLS_READ_BYTES))
        self._tcp: asyncio.Transport | None = None
        self._is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._tcp = cast(asyncio.Transport, transport)
        if self._inner.prepare(transport):
            self._greet()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the loop writes what it reads."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes of TLS."""
        self._incoming.write(self._buffer[:nbytes])
        if not self._is_open:
            self._greet()
        if self._is_open:
            self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._tcp = None
        self._inner.connection_lost(exc)

    def write(self, data: bytes | bytearray, /) -> None:
        """Send `data`, in order."""
        if self.is_closing():
            return
        left = memoryview(data)
        while left:
            left = left[self._tls.write(left) :]
        self._flush()

    def is_closing(self) -> bool:
        """Return whether nothing more can be written."""
        return self._tcp is None or self._tcp.is_closing()

    def close(self) -> None:
        """Close once everything written is sent."""
        if self._tcp is not None and not self._tcp.is_closing():
            if self._is_open:
                self._send_close_notify()
            self._tcp.close()

    def abort(self) -> None:
        """Close at once; nothing more is read."""
        if self._tcp is not None:
            self._tcp.abort()

    def _greet(self) -> None:
        """Continue the handshake as far as the received bytes allow."""
        try:
            self._tls.do_handshake()
            self._inner.shown_names = names = certificates.subject_names(self._tls)
            if not self._is_listening:
                certificates.check_speaks_for(names, self._target)
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._refuse(certificates.refusal(error, self._directory))
            return
        except Refused as error:
            self._refuse(error)
            return
        self._flush()
        self._is_open = True
        self._inner.begin(self)

    def _read(self) -> None:
        inner, tls = self._inner, self._tls
        try:
            while self._tcp is not None and not self._tcp.is_closing():
                buffer = inner.get_buffer(-1)
                count = cast(int, tls.read(len(buffer), buffer))
                if not count:
                    self.close()
                    return
                inner.buffer_updated(count)
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLZeroReturnError:
            self.close()
        except ssl.SSLError as error:
            # In TLS 1.3 the end that connects is done before the other has looked at what it shows.
            self._refuse(certificates.refusal(error, self._directory))

    def _refuse(self, error: Refused) -> None:
        """Close the connection: report why, and send the TLS alert."""
        self._inner.broken(error)
        self._flush()
        if self._tcp is not None:
            self._tcp.close()

    def _send_close_notify(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # the other end's goodbye need not be waited for
            self._tls.unwrap()
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and self._tcp is not None:
            self._tcp.write(self._outgoing.read())
