"""Serves a target over HTTP: the page, its event stream, documents, actions and metrics."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import h11
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from stillframe.errors import StillframeError, Unavailable, UsageError
from stillframe.pages.self_contained_page import bundle, read, style_sheet
from stillframe.runtime.loop_signals import handled
from stillframe.runtime.network.addresses import Address
from stillframe.watch.access_control import AccessControl
from stillframe.watch.metrics import exposition
from stillframe.watch.target import Action, EventStream, Target, decode_action

BODY_BYTES_MAX = 2**16
PAGE = {
    "index.html": "text/html",
    "style.css": "text/css",
    "live.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
NUMBER_DIGITS_MAX = 18
SUBSCRIBER_COUNT_MAX = 100
"""How many pages may be open at once."""
CONNECTION_COUNT_MAX = 256
HEAD_S_MAX = 10.0
"""Time in which a client must send the head of a request, in seconds."""
CLOSE_S_MAX = 2
"""Time that pending answers have when the server is stopped, in seconds."""


def make_app(target: Target, *, token: str | None, host: str) -> ASGIApp:
    """Return the application that answers for `target`, which the caller runs."""

    async def events(_: Request) -> Response:
        if target.stream.subscriber_count >= SUBSCRIBER_COUNT_MAX:
            return PlainTextResponse("too many pages are open\n", status_code=503)
        return StreamingResponse(
            _until_cancelled(target.stream.subscribe(target.initial_events, target.wake)),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    async def snapshots(request: Request) -> Response:
        before = request.query_params.get("before", "")
        if not before.isdecimal() or not before.isascii() or len(before) > NUMBER_DIGITS_MAX:
            raise UsageError("'before' is not the number of a snapshot")
        return _json({"rows": await target.snapshots_before(int(before))})

    async def snapshot(request: Request) -> Response:
        return _json(await target.snapshot(request.path_params["name"]))

    async def comparison(request: Request) -> Response:
        names = request.path_params
        return _json(await target.comparison(names["first"], names["second"]))

    async def action(request: Request) -> Response:
        wanted = await _read_action(request)
        try:
            return _json(await target.perform(wanted))
        except StillframeError as error:
            return _json({"is_done": False, "sentence": str(error)})

    async def metrics(request: Request) -> Response:
        found, accept = await target.metrics(), request.headers.get("accept", "")
        text, media_type = await asyncio.to_thread(exposition, found, accept)
        return Response(text, headers={"Content-Type": media_type, "Cache-Control": "no-store"})

    routes = [
        Route("/", _file),
        Route("/page/{name}", _file),
        Route("/events", events),
        Route("/metrics", metrics),
        Route("/api/snapshots", snapshots),
        Route("/api/snapshot/{name}", snapshot),
        Route("/api/comparison/{first}/{second}", comparison),
        Route("/api/action", action, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={StillframeError: _error})
    return AccessControl(app, token=token, host=host)


def page_file(name: str) -> str:
    """Return a file of the page, one of `PAGE`. The script is bundled into one file: next to a busy
    system a browser waits for each request."""
    if name == "style.css":
        return style_sheet()
    return bundle(name) if name.endswith(".js") else read(name)


async def _file(request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    if name not in PAGE:
        return PlainTextResponse("there is no such page\n", status_code=404)
    return Response(page_file(name), media_type=PAGE[name], headers={"Cache-Control": "no-cache"})


async def _error(_: Request, error: Exception) -> Response:
    codes = {UsageError: 400, Unavailable: 503}
    found = (code for kind, code in codes.items() if isinstance(error, kind))
    return _json({"detail": str(error)}, status=next(found, 500))


async def _read_action(request: Request) -> Action:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise UsageError(f"an action may have at most {BODY_BYTES_MAX:,} bytes")
    return decode_action(body)


def _json(document: Any, *, status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(document),
        status_code=status,
        media_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


async def _until_cancelled(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the events; a browser that disconnects ends its subscription."""
    with contextlib.suppress(asyncio.CancelledError):
        async for event in events:
            yield event


class _ImpatientProtocol(H11Protocol):
    """Closes connections whose client does not send the head of a request in time."""

    _timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_timeout()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timeout is not None:
            self._timeout.cancel()

    def _update_timeout(self) -> None:
        is_incomplete = self.conn.their_state is h11.IDLE
        if is_incomplete and self._timeout is None:
            self._timeout = self.loop.call_later(HEAD_S_MAX, self.transport.close)
        elif not is_incomplete and self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


class _Server(uvicorn.Server):
    """Closes the event stream when it stops: uvicorn waits for answers, and this one has no end."""

    def __init__(self, stream: EventStream, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stream = stream

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to ``serve``: they may come before the server is ready for them."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stream.close()
        await super().shutdown(sockets)


async def serve(
    target: Target, address: Address, *, token: str | None, ready: Callable[[Address], None]
) -> None:
    """Serve the page of `target` until Ctrl-C or SIGTERM. `token` is required of every request,
    None on loopback; `ready` is called with the address of the server when it listens. Unavailable
    if `address` cannot be used; port 0 is any free one."""
    listener = _listen(address)
    server = _Server(
        target.stream,
        uvicorn.Config(
            make_app(target, token=token, host=address.host),
            http=_ImpatientProtocol,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            limit_concurrency=CONNECTION_COUNT_MAX,
            timeout_graceful_shutdown=CLOSE_S_MAX,
        ),
    )

    def end() -> None:
        server.should_exit = True

    with handled({signal.SIGINT: end, signal.SIGTERM: end}):
        following = asyncio.ensure_future(target.run())
        ready(Address(address.host, listener.getsockname()[1]))
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            await asyncio.wait((serving, following), return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            await serving
        finally:
            following.cancel()
            (outcome,) = await asyncio.gather(following, return_exceptions=True)
    if isinstance(outcome, Exception):
        raise outcome


def _listen(address: Address) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(CONNECTION_COUNT_MAX)
            undo.pop_all()
            return listener
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {address}: {error.strerror or error}: give another address or "
            "port with --listen; port 0 is any free one"
        ) from error
