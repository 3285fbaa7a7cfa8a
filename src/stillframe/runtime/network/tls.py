"""TLS between a TCP connection and a ``Connection``; the same for both ends.

The event loops' own TLS does not report a failed handshake to a listener, and closes before the
other end can read why. Here a handshake is counted, both ends report why it failed, and a
``Connection`` begins only after a valid certificate. OpenSSL does the work.
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
        inner: begins when both ends have shown valid certificates.
        directory: the directory of our certificates.
        is_listening: whether the other end connected to us; `inner` then checks its certificate
            when it knows who it is.
        target: the process that we connect to; None is the coordinator.
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
        """Begin the handshake; one that takes too long closes the connection."""
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
        """The connection is closed."""
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
                self._send_close_notify()
            self._tcp.close()

    def abort(self) -> None:
        """Close at once, or when the connection is made; nothing more is read."""
        self._is_aborted = True
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
        """Close the connection: report why, and send the TLS alert."""
        self._inner.broken(error)
        self._flush()
        if self._tcp is not None:
            self._tcp.close()

    def _send_close_notify(self) -> None:
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the other end's goodbye need not be waited for
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and self._tcp is not None:
            self._tcp.write(self._outgoing.read())
