"""Accepts connections, and bounds what strangers cost.

A client that has not been authenticated costs a bounded number of descriptors, a bounded time and a
bounded number of messages, however often it connects.
"""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from stillframe.errors import Unavailable
from stillframe.runtime.network.addresses import Address, require_tls_off_loopback
from stillframe.runtime.network.certificates import explain_unreadable
from stillframe.runtime.network.connection import Connection, protocol_of

GREETING_COUNT_MAX = 256
"""How many handshakes may be in progress, besides the expected ones; one more replaces the
oldest."""
BACKLOG = 128
"""How many connections the kernel makes before they are accepted, besides the expected ones."""
REPORT_COUNT_MAX = 20
REPORT_PERIOD_S = 10.0
"""This many refusals are reported in such a period; further ones are counted."""


class Acceptor:
    """The listener of a process or of the coordinator: `answer` makes what speaks on a new
    connection, `report` takes a sentence about one that was refused. Up to `expected_count`
    may connect at the same time."""

    def __init__(
        self,
        answer: Callable[[], Connection],
        report: Callable[[str], None],
        *,
        expected_count: int = 0,
    ) -> None:
        self.refused_count = 0
        self._expected_count = expected_count
        self._answer = answer
        self._report = report
        self._greeting: dict[Connection, None] = {}
        self._listener: asyncio.Server | None = None
        self._is_closed = False
        self._period_end = 0.0
        self._reported_count = 0

    async def open(self, listen: Address, certificates: str | None) -> Address:
        """Listen at an address, with TLS if there is a directory of `certificates`; return the
        address with its port. A UsageError if other machines could connect without TLS, Unavailable
        if the address is not this machine's, or no port or descriptor is free."""
        require_tls_off_loopback(listen, certificates)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)
            self._listener = await loop.create_server(
                lambda: self._accept(certificates),
                str(found[0][4][0]),
                listen.port,
                backlog=BACKLOG + self._expected_count,
            )
        except OSError as error:
            advice = (
                "end programs that keep many ports or files open, or raise the limit (ulimit -n)"
                if listen.is_loopback and not listen.port
                else "is it an address of this machine, and is the port free?"
            )
            raise Unavailable(
                f"cannot listen on {listen.host if not listen.port else listen}: "
                f"{error.strerror or error}; {advice}"
            ) from error
        return Address(listen.host, self._listener.sockets[0].getsockname()[1])

    def refused(self, detail: str) -> None:
        """Report that a connection was refused, unless many were lately."""
        self.refused_count += 1
        now = asyncio.get_running_loop().time()
        if now >= self._period_end:
            silent_count = max(0, self._reported_count - REPORT_COUNT_MAX)
            self._period_end, self._reported_count = now + REPORT_PERIOD_S, 0
            if silent_count:
                self._report(f"{silent_count} more connections were refused for similar reasons")
        self._reported_count += 1
        if self._reported_count <= REPORT_COUNT_MAX:
            self._report(detail)

    def close(self) -> None:
        """Accept nothing more, and abort the handshakes in progress; other connections stay."""
        self._is_closed = True
        if self._listener is not None:
            close_gracefully(self._listener)
        for connection in tuple(self._greeting):
            connection.abort()

    def _accept(self, certificates: str | None) -> asyncio.BufferedProtocol:
        connection = self._answer()
        if self._is_closed:
            connection.abort()
            return connection
        try:
            protocol = protocol_of(connection, certificates, is_listening=True)
        except OSError as error:
            self.refused(explain_unreadable(Path(str(certificates)), error))
            connection.abort()
            return connection
        self._greeting[connection] = None
        connection.settled = lambda: self._greeting.pop(connection, None)
        if len(self._greeting) > (count_max := GREETING_COUNT_MAX + self._expected_count):
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.abort()
            self.refused(
                f"a connection from {oldest.peer} was closed: {count_max} newer ones "
                "have not identified themselves yet"
            )
        return protocol


async def require_route(address: Address) -> None:
    """Raise Unavailable if programs of this machine cannot reach `address`, where one listens."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, there = found[0]
        # No packet is sent: the kernel looks for a way.
        with socket.socket(family, kind, protocol) as trial:
            trial.connect(there)
    except OSError as error:
        raise Unavailable(
            f"no process can reach the coordinator at {address}: {error.strerror or error}",
            remedy="the loopback interface is down: let root call 'ip link set lo up' in this "
            "network namespace"
            if address.is_loopback
            else "give an address of this machine that it can reach itself",
        ) from error


def close_gracefully(server: asyncio.Server) -> None:
    """Close a server once the connections that it has accepted are made.

    CPython's own event loop needs some steps to make a connection and loses it, open, if its server
    is closed meanwhile (https://github.com/python/cpython/issues/109564).
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for listener in server.sockets:
            loop.remove_reader(listener)
        loop.call_soon(server.close)
    else:
        server.close()
