"""What the server of ``stillframe watch`` answers: the page, its news, documents and actions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from stillframe.errors import StillframeError, Unavailable, UsageError
from stillframe.pages import self_contained_page
from stillframe.watch.families import Families, exposed
from stillframe.watch.feed import Feed
from stillframe.watch.guard import Guard
from stillframe.watch.wishes import Wish, decode_wish

BODY_BYTES_MAX = 2**16
PAGE = {
    "index.html": "text/html",
    "style.css": "text/css",
    "live.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
NUMBER_DIGITS_MAX = 18
LISTENER_COUNT_MAX = 100
"""So many pages may be open at once."""


class Watched(Protocol):
    """What is watched: a system, or a pipeline."""

    feed: Feed

    async def run(self) -> None:
        """Follow it until this is cancelled."""

    def want(self) -> None:
        """Somebody looks."""

    async def first(self) -> list[bytes]:
        """Return what a page that comes now must be told besides what holds."""

    async def rows_before(self, number: int | None) -> list[dict[str, Any]]:
        """Return some rows of the list of snapshots, the newest first."""

    async def snapshot(self, name: str) -> Any:
        """Return the document of one snapshot."""

    async def comparison(self, first: str, second: str) -> Any:
        """Return the document that compares two snapshots."""

    async def act(self, wish: Wish) -> dict[str, Any]:
        """Do what somebody wishes, and return what came of it."""

    async def metrics(self) -> Families:
        """Return all metrics, as of now."""


def make_app(watched: Watched, *, token: str | None, host: str) -> ASGIApp:
    """Return the application that answers for `watched`.

    Args:
        watched: what the page shows; the caller runs it.
        token: what whoever asks must know; None on loopback.
        host: the address that the server listens on.
    """

    async def events(_: Request) -> Response:
        if watched.feed.listener_count >= LISTENER_COUNT_MAX:
            return PlainTextResponse("too many pages are open\n", status_code=503)
        return StreamingResponse(
            _guarded(watched.feed.listen(watched.first, watched.want)),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    async def snapshots(request: Request) -> Response:
        before = request.query_params.get("before", "")
        if not before.isdecimal() or not before.isascii() or len(before) > NUMBER_DIGITS_MAX:
            raise UsageError("'before' is no number of a snapshot")
        return _json({"rows": await watched.rows_before(int(before))})

    async def snapshot(request: Request) -> Response:
        return _json(await watched.snapshot(request.path_params["name"]))

    async def comparison(request: Request) -> Response:
        names = request.path_params
        return _json(await watched.comparison(names["first"], names["second"]))

    async def action(request: Request) -> Response:
        wish = await _wish_of(request)
        try:
            return _json(await watched.act(wish))
        except StillframeError as error:
            return _json({"is_done": False, "sentence": str(error)})

    async def metrics(request: Request) -> Response:
        families, accept = await watched.metrics(), request.headers.get("accept", "")
        text, kind = await asyncio.to_thread(exposed, families, accept)
        return Response(text, headers={"Content-Type": kind, "Cache-Control": "no-store"})

    routes = [
        Route("/", _file),
        Route("/page/{name}", _file),
        Route("/events", events),
        Route("/metrics", _told(metrics)),
        Route("/api/snapshots", _told(snapshots)),
        Route("/api/snapshot/{name}", _told(snapshot)),
        Route("/api/comparison/{first}/{second}", _told(comparison)),
        Route("/api/action", _told(action), methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), token=token, host=host)


def page_file(name: str) -> str:
    """Return a file of the page, one of `PAGE`.

    The script is one file: a browser beside a busy system waits for each that it asks for.
    """
    if name == "style.css":
        return self_contained_page.style_sheet()
    return (
        self_contained_page.bundle(name) if name.endswith(".js") else self_contained_page.read(name)
    )


async def _file(request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    if name not in PAGE:
        return PlainTextResponse("there is no such page\n", status_code=404)
    return Response(page_file(name), media_type=PAGE[name], headers={"Cache-Control": "no-cache"})


def _told(
    answer: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Return `answer` such that an error of ours is told, with its cause."""

    async def answer_or_tell(request: Request) -> Response:
        try:
            return await answer(request)
        except UsageError as error:
            return _json({"detail": str(error)}, status=400)
        except Unavailable as error:
            return _json({"detail": str(error)}, status=503)
        except StillframeError as error:
            return _json({"detail": str(error)}, status=500)

    return answer_or_tell


async def _wish_of(request: Request) -> Wish:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise UsageError(f"a wish has at most {BODY_BYTES_MAX:,} bytes")
    return decode_wish(body)


def _json(document: Any, *, status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(document),
        status_code=status,
        media_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


async def _guarded(news: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the news; when the browser goes, let go of the place where they came in."""
    with contextlib.suppress(asyncio.CancelledError):
        async for event in news:
            yield event
