"""A hostile page elsewhere can do nothing, and neither can another user or who has no token."""

import asyncio
import os
import socket
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from stillframe.watch.access_control import COOKIE, POLICY, AccessControl, is_allowed, socket_owner
from tests.watch.servers import a_server, ask
from tests.watch.test_server import store

__all__ = ["store"]

NOBODY = 65534
TOKEN = "t" * 32
OWN = "http://localhost:8641"
JSON = {"content-type": "application/json"}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer everything."""
    await PlainTextResponse("secret")(scope, receive, send)


def asked(
    headers: dict[str, str],
    *,
    method: str = "GET",
    path: str = "/api/snapshots",
    query: str = "",
    token: str | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """Return the answer of a guarded server."""
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "scheme": "http",
        "server": ("10.0.0.1", 8641),
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    sent: list[Message] = []

    async def main() -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        async def send(message: Message) -> None:
            sent.append(message)

        await AccessControl(app, token=token)(scope, receive, send)

    asyncio.run(main())
    told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], told, body


HOST = {"host": "localhost:8641"}
PAGE = HOST | {"origin": OWN, "sec-fetch-site": "same-origin"}


@pytest.mark.parametrize(
    ("headers", "options"),
    [
        (HOST, {}),
        ({"host": "127.0.0.1:9999"}, {}),
        ({"host": "[::1]:8641"}, {}),
        (PAGE | JSON, {"method": "POST", "path": "/api/action"}),
        (PAGE | {"content-type": "application/json; charset=utf-8"}, {"method": "POST"}),
        (HOST | {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, {"path": "/"}),
        (HOST | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, {"path": "/"}),
    ],
)
def test_our_own_page_and_a_link_to_it_are_let_through(
    headers: dict[str, str], options: dict[str, Any]
) -> None:
    """So is a program of this machine that reads."""
    assert asked(headers, **options)[0] == 200


@pytest.mark.parametrize(
    ("headers", "options"),
    [
        ({"host": "evil.example"}, {}),  # a name that leads here: DNS rebinding
        ({"host": "localhost.evil.example:8641"}, {}),
        ({"host": "[::1"}, {}),
        ({}, {}),
        (HOST | {"sec-fetch-site": "cross-site"}, {}),
        (HOST | {"sec-fetch-site": "same-site"}, {}),
        (HOST | {"origin": "http://evil.example"}, {}),
        (HOST | {"origin": "http://localhost:1"}, {}),  # another program's page, of this machine
        (HOST | {"origin": "null"}, {}),
        (HOST | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, {"path": "/"}),
        (HOST | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, {"path": "/x"}),
        (
            HOST | JSON | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
            {"method": "POST", "path": "/"},
        ),
        (HOST | JSON, {"method": "POST"}),  # who says not where it comes from
        (PAGE, {"method": "POST"}),
        (PAGE | {"content-type": "text/plain"}, {"method": "POST"}),  # a form could send that
        (HOST | JSON | {"origin": "https://localhost:8641"}, {"method": "POST"}),
    ],
)
def test_whatever_else_asks_is_refused_and_learns_nothing(
    headers: dict[str, str], options: dict[str, Any]
) -> None:
    """With a sentence that says why."""
    status, _, body = asked(headers, **options)
    assert status == 403
    assert body.endswith(b"\n")
    assert b"secret" not in body


def test_every_answer_tells_the_browser_what_may_not_be() -> None:
    """No script of elsewhere, no frame around it, no guessing of kinds."""
    for headers in (HOST, {"host": "evil.example"}):
        told = asked(headers)[1]
        assert told["content-security-policy"] == POLICY
        assert "'unsafe" not in POLICY
        assert told["x-content-type-options"] == "nosniff"
        assert told["x-frame-options"] == "DENY"
        assert "access-control-allow-origin" not in told


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": f"{COOKIE}-8641={TOKEN}"},
        {"cookie": f"other={TOKEN}"},
        {"cookie": ";;="},
    ],
)
def test_without_the_token_nothing_is_told(headers: dict[str, str]) -> None:
    """On an address that others reach."""
    status, _, body = asked({"host": "example:8641"} | headers, token=TOKEN)
    assert status == 401
    assert b"secret" not in body


def test_the_link_puts_the_token_into_a_cookie_that_scripts_cannot_read() -> None:
    """And leaves the address bar, so that it is not sent on or seen in a picture of the screen."""
    host = {"host": "example:8641"}
    status, told, _ = asked(host, path="/", query=f"token={TOKEN}", token=TOKEN)
    assert (status, told["location"]) == (303, "/")
    (cookie,) = SimpleCookie(told["set-cookie"]).values()
    assert (cookie.key, TOKEN in cookie.value) == (f"{COOKIE}-8641", False)
    assert cookie["httponly"]
    assert cookie["samesite"] == "lax"  # a link in a mail leads in
    session = {"cookie": f"{cookie.key}={cookie.value}"}
    assert asked(host | session, token=TOKEN)[0] == 200
    assert asked(host | {"authorization": f"Bearer {TOKEN}"}, token=TOKEN)[0] == 200
    assert asked(host, path="/", query="token=wrong", token=TOKEN)[0] == 401
    assert asked(host, path="/api", query=f"token={TOKEN}", token=TOKEN)[0] == 401
    foreign = host | session | {"origin": "http://evil.example"} | JSON
    assert asked(foreign, method="POST", token=TOKEN)[0] == 403


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_our_own_connections_are_ours(family: socket.AddressFamily, host: str) -> None:
    """Of one that nobody has, nobody is said to be the owner."""
    with socket.create_server((host, 0), family=family) as server:
        mine = server.getsockname()[:2]
        with socket.create_connection(mine) as client:
            peer = client.getsockname()[:2]
            assert socket_owner(peer, mine) == os.geteuid()
            assert is_allowed(peer, mine)
        assert socket_owner((host, 1), mine) is None
        assert socket_owner(("not an address", 1), mine) is None
        assert not is_allowed((host, 1), mine)
        assert not is_allowed(peer, mine)  # it is closed: nobody knows whose it was


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_of_the_machine_is_refused(store: Path) -> None:
    """It is told what to do; the owner is answered."""
    with a_server(store) as link:
        assert ask(link, "/api/snapshot/A-1")[0] == 200
        os.seteuid(NOBODY)  # whoever makes a socket owns it
        try:
            status, _, body = ask(link, "/api/snapshot/A-1")
            port = urlsplit(link).port
            assert port is not None
            with socket.socket(socket.AF_INET6) as mapped:
                mapped.connect(("::ffff:127.0.0.1", port))
                mapped.sendall(b"GET /api/snapshot/A-1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                told = mapped.recv(2**16)
            with socket.create_connection(("127.0.0.1", port)) as half:
                half.sendall(b"GET /api/snapshot/A-1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                half.shutdown(socket.SHUT_WR)
                closed = half.recv(2**16)
        finally:
            os.seteuid(0)
        assert status == 403
        assert b"--token-file" in body
        assert told.startswith(b"HTTP/1.1 403")
        assert not closed.startswith(b"HTTP/1.1 200")
