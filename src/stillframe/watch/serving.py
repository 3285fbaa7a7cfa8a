"""Serves the page until somebody has seen enough."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from stillframe.errors import Unavailable
from stillframe.runtime.addresses import Address
from stillframe.watch.feed import Feed
from stillframe.watch.server import Watched, make_app

CONNECTION_COUNT_MAX = 256
HEAD_S_MAX = 10.0
"""Whoever has connected says in this time what it wants, in seconds."""
CLOSE_S_MAX = 2
"""So long what is being answered may take when the server ends, in seconds."""


class _Impatient(H11Protocol):
    """Hangs up on whoever does not say in time what it wants."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has connected."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what came: a request, or a part of one."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        super().connection_lost(exc)
        if self._patience is not None:
            self._patience.cancel()

    def _watch(self) -> None:
        is_incomplete = self.conn.their_state is h11.IDLE
        if is_incomplete and self._patience is None:
            self._patience = self.loop.call_later(HEAD_S_MAX, self.transport.close)
        elif not is_incomplete and self._patience is not None:
            self._patience.cancel()
            self._patience = None


class _Server(uvicorn.Server):
    """Waits at its end for those whom it answers; who listens to the news would listen for ever."""

    def __init__(self, feed: Feed, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._feed = feed

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to ``serve``: they may come before the server is ready for them."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the listeners go, and end."""
        self._feed.close()
        await super().shutdown(sockets)


async def serve(
    watched: Watched, address: Address, *, token: str | None, ready: Callable[[Address], None]
) -> None:
    """Serve the page of `watched` until Ctrl-C or SIGTERM.

    Args:
        watched: what the page shows.
        address: where to listen; port 0 is any free one.
        token: what whoever asks must know; None on loopback.
        ready: called with where the server listens, when it does.

    Raises:
        Unavailable: nothing can listen there.
    """
    listener = _listen(address)
    server = _Server(
        watched.feed,
        uvicorn.Config(
            make_app(watched, token=token, host=address.host),
            http=_Impatient,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            limit_concurrency=CONNECTION_COUNT_MAX,
            timeout_graceful_shutdown=CLOSE_S_MAX,
        ),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: setattr(server, "should_exit", True))
    following = asyncio.ensure_future(watched.run())
    ready(Address(address.host, listener.getsockname()[1]))
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await asyncio.wait((serving, following), return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
    finally:
        following.cancel()
        (ended,) = await asyncio.gather(following, return_exceptions=True)
    if isinstance(ended, Exception):
        raise ended


def _listen(address: Address) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(CONNECTION_COUNT_MAX)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise Unavailable(
            f"nothing can listen on {address}: {error.strerror or error}: give another address or "
            "port with --listen; port 0 is any free one"
        ) from error
    return listener
