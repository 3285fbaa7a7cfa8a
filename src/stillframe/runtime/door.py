"""Where connections come in: how many may be at their handshake, and how much is said of strangers.

Whoever has not proved who it is costs a bounded number of descriptors, a bounded time and a bounded
number of words, however often it comes.
"""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from stillframe.errors import Unavailable
from stillframe.runtime.addresses import Address, check_guarded
from stillframe.runtime.certificates import describe_unreadable
from stillframe.runtime.link import Connection
from stillframe.runtime.listening import stop_listening
from stillframe.runtime.secured import Secured

GREETING_COUNT_MAX = 256
"""So many connections may be at their handshake at once; one more takes the place of the oldest."""
REPORT_COUNT_MAX = 20
REPORT_PERIOD_S = 10.0
"""Of so many refused connections in such a time it is said why; the others are counted."""


class Door:
    """The listener of a process or of the coordinator.

    Args:
        answer: makes what speaks on a new connection.
        report: takes a sentence about a connection that was refused.
    """

    def __init__(self, answer: Callable[[], Connection], report: Callable[[str], None]) -> None:
        self.refused_count = 0
        self._answer = answer
        self._report = report
        self._greeting: dict[Connection, Connection | Secured] = {}
        self._listener: asyncio.Server | None = None
        self._is_closed = False
        self._period_end = 0.0
        self._reported_count = 0

    async def open(self, listen: Address, certificates: str | None) -> Address:
        """Begin to listen; return where, with the port that it came to be.

        Args:
            listen: where.
            certificates: the directory of ours, None for no TLS.

        Raises:
            UsageError: other machines could connect without TLS.
            Unavailable: the address is not this machine's, the port is taken, or the machine has no
                port or no descriptor left.
        """
        check_guarded(listen, certificates)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)
            self._listener = await loop.create_server(
                lambda: self._let_in(certificates), str(found[0][4][0]), listen.port
            )
        except OSError as error:
            advice = (
                "end programs that keep many ports or files open, or raise the limit (ulimit -n)"
                if listen.is_loopback and not listen.port
                else "is it an address of this machine, and the port free?"
            )
            raise Unavailable(
                f"no connection can be taken on {listen.host if not listen.port else listen}: "
                f"{error}; {advice}"
            ) from error
        return Address(listen.host, self._listener.sockets[0].getsockname()[1])

    def refused(self, detail: str) -> None:
        """Say that a connection was refused, and why, unless enough was said lately."""
        self.refused_count += 1
        now = asyncio.get_running_loop().time()
        if now >= self._period_end:
            silent_count = max(0, self._reported_count - REPORT_COUNT_MAX)
            self._period_end, self._reported_count = now + REPORT_PERIOD_S, 0
            if silent_count:
                self._report(f"{silent_count} more connections were refused, for such reasons")
        self._reported_count += 1
        if self._reported_count <= REPORT_COUNT_MAX:
            self._report(detail)

    def close(self) -> None:
        """Let nobody in any more, also nobody who is at the handshake, or was accepted and is yet
        to come there; who is in stays."""
        self._is_closed = True
        if self._listener is not None:
            stop_listening(self._listener)
        for connection in tuple(self._greeting.values()):
            connection.abort()

    def _let_in(self, certificates: str | None) -> asyncio.BufferedProtocol:
        if self._is_closed:
            return _Closed()
        inner = self._answer()
        outer: Connection | Secured = inner
        if certificates is not None:
            try:
                outer = Secured(inner, Path(certificates), is_listening=True)
            except OSError as error:
                self.refused(describe_unreadable(Path(certificates), error))
                return _Closed()
        self._greeting[inner] = outer
        inner.settled = lambda: self._greeting.pop(inner, None)
        if len(self._greeting) > GREETING_COUNT_MAX:
            oldest = next(iter(self._greeting))
            self._greeting.pop(oldest).abort()
            self.refused(
                f"a connection from {oldest.peer} was closed: {GREETING_COUNT_MAX} newer ones have "
                "not said either who they are"
            )
        return outer


class _Closed(asyncio.BufferedProtocol):
    """A connection that nobody can answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(bytearray(1))
