"""A hostile page elsewhere can do nothing, and neither can who has no token."""

import asyncio
from http.cookies import SimpleCookie
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from stillframe.watch.guard import COOKIE, POLICY, Guard

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

        await Guard(app, token=token)(scope, receive, send)

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
    """And leaves the address bar, so that it is not sent on or photographed."""
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
