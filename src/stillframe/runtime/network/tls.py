"""TLS between a TCP connection and what speaks over it; the same for both ends.

The loops' own TLS tells a listener nothing of a handshake that fails, and closes before the other
end can read why. Here the handshake is ours: it is counted, it ends with words at both ends, and
what is above it sees only connections that have shown a good certificate. OpenSSL does the work.
"""

import asyncio
import ssl
from pathlib import Path
from typing import cast

from stillframe.errors import Refused
from stillframe.model import ProcessId
from stillframe.runtime.network import certificates
from stillframe.runtime.network.connection import (
    HANDSHAKE_TIMEOUT_S,
    Connection,
    keep_alive,
    remote_address,
)

_READ_BYTES = 256 * 2**10


class TlsTransport(asyncio.BufferedProtocol):
    """Carries `inner` over TLS: an asyncio protocol below, a transport above.

    Args:
        inner: what speaks; it begins when both ends have shown good certificates.
        directory: where our certificates are.
        is_listening: whether the other end connected to us; it then says in the handshake of
            `inner` who it is, and `inner` asks its certificate.
        target: whom we connect to; None is the coordinator.
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
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._tcp: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False
        self._is_aborted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake; one that does not come to its end in time ends the connection."""
        self._tcp = cast(asyncio.Transport, transport)
        if self._is_aborted:
            self._tcp.abort()
            return
        keep_alive(transport)
        self._inner.peer = remote_address(transport)
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self.abort)
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
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
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
                self._say_goodbye()
            self._tcp.close()

    def abort(self) -> None:
        """Close at once, or when the connection is made; nothing more is read."""
        self._is_aborted = True
        if self._tcp is not None:
            self._tcp.abort()

    def _greet(self) -> None:
        """Go on with the handshake as far as the bytes that came allow."""
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
        if self._timer is not None:
            self._timer.cancel()
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
        """End the connection with words for us, and TLS's alert for the other end."""
        self._inner.broken(error)
        self._flush()
        if self._tcp is not None:
            self._tcp.close()

    def _say_goodbye(self) -> None:
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the other end's goodbye need not be waited for
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and self._tcp is not None:
            self._tcp.write(self._outgoing.read())
