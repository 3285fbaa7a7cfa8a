"""Servers of ASGI applications in the event loop of a test.

It is uvicorn, with HTTP/1.1, unless the environment has TESTED_SERVER and TESTED_HTTP.
``test_other_servers`` runs tests so, with servers that it installs aside.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Any

import httpx
import uvicorn

SERVER = os.environ.get("TESTED_SERVER", "uvicorn")
HAS_HTTP2 = os.environ.get("TESTED_HTTP", "1") == "2"


def client_transport() -> httpx.AsyncHTTPTransport:
    """Return a transport with the version of HTTP that is tested."""
    return httpx.AsyncHTTPTransport(http1=not HAS_HTTP2, http2=HAS_HTTP2)


def served(app: Any, listener: socket.socket) -> AbstractAsyncContextManager[object]:
    """Serve an application while the body runs."""
    return _SERVERS[SERVER](app, listener)


@contextlib.asynccontextmanager
async def served_by_uvicorn(
    app: Any, listener: socket.socket, **settings: Any
) -> AsyncIterator[uvicorn.Server]:
    """Serve an application by uvicorn while the body runs; yield the server."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", **settings))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0)
    try:
        yield server
    finally:
        server.should_exit = True
        await running


@contextlib.asynccontextmanager
async def _served_by_hypercorn(app: Any, listener: socket.socket) -> AsyncIterator[None]:
    serve = import_module("hypercorn.asyncio").serve
    config = import_module("hypercorn.config").Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.loglevel = "CRITICAL"
    over = asyncio.Event()
    running = asyncio.create_task(serve(app, config, shutdown_trigger=over.wait))
    try:
        yield
    finally:
        over.set()
        await running


@contextlib.asynccontextmanager
async def _served_by_granian(app: Any, listener: socket.socket) -> AsyncIterator[None]:
    interface = import_module("granian.constants").Interfaces.ASGI
    new_server = import_module("granian.server.embed").Server
    host, port = listener.getsockname()
    listener.close()
    server = new_server(app, address=host, port=port, interface=interface, log_enabled=False)
    running = asyncio.create_task(server.serve())
    while not await _is_open(host, port):  # noqa: ASYNC110 - granian has no event for it
        await asyncio.sleep(0)
    try:
        yield
    finally:
        server.stop()
        await running


async def _is_open(host: str, port: int) -> bool:
    """Return whether a port can be connected to."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


_SERVERS: dict[str, Callable[[Any, socket.socket], AbstractAsyncContextManager[object]]] = {
    "uvicorn": served_by_uvicorn,
    "hypercorn": _served_by_hypercorn,
    "granian": _served_by_granian,
}
