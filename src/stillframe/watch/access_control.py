"""Decides which requests the server answers: those of our own page, opened by the owner.

* On loopback, a page of another origin cannot read the answers (browsers prevent that), cannot
  trigger actions (the origin of a request is checked), and cannot reach the server under another
  name (DNS rebinding), because only loopback names are accepted.
* On loopback, a program of another user of the machine is refused, as it is by the admin socket.
* On any other address every request needs the token: from the link that the command prints, which
  stores it in a cookie, or as ``Authorization: Bearer``, as Prometheus sends it.
* Our page loads nothing from another origin, and no other page can hold it in a frame.
"""

import hmac
import ipaddress
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
COOKIE = "stillframe"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""The headers of every answer."""

Endpoint = tuple[str, int]
"""An address and a port."""

_IPV4_SOCKETS, _IPV6_SOCKETS = Path("/proc/net/tcp"), Path("/proc/net/tcp6")
_ESTABLISHED = "01"
_ROOT = 0


class AccessControl:
    """Passes the requests to `app` that it may answer. `token` is required of every request, None
    on loopback; `host`, the address that the server listens on, is also an accepted name."""

    def __init__(self, app: ASGIApp, *, token: str | None, host: str = "localhost") -> None:
        self._app = app
        self._token = token
        self._names = LOOPBACK_NAMES | {host}
        # Not the token itself: a browser sends cookies to every port of a host.
        self._session = "" if token is None else _session(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            # No websocket is accepted, and the server does not use lifespan events.
            return
        refusal = self._refusal(Request(scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is refused or redirected; None if it is allowed."""
        host = request.headers.get("host", "")
        if self._token is None and _host_name(host) not in self._names:
            return _forbidden(
                f"this page can be opened only under names of loopback, and {host[:100]!r} is "
                "not one: open it as localhost or 127.0.0.1"
            )
        if self._token is None and _is_of_another_user(request.scope):
            return _forbidden(
                "a program of another user sent this request: on a machine with several users "
                "start 'stillframe watch' with --token-file, and share the token in that file"
            )
        if (sentence := _foreign_origin(request, host)) is not None:
            return _forbidden(sentence)
        return None if self._token is None else self._check_token(request, self._token)

    def _check_token(self, request: Request, token: str) -> Response | None:
        scope, given = request.scope, request.query_params.get("token", "")
        if scope["path"] == "/" and request.method == "GET" and _is_same(given, token):
            answer = RedirectResponse("/", status_code=303)
            # Lax, or a link in a mail would not work; actions need our own origin anyway.
            answer.set_cookie(
                _cookie_name(scope),
                self._session,
                httponly=True,
                samesite="lax",
                secure=scope["scheme"] == "https",
            )
            return answer
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _is_same(credentials, token):
            return None
        if _is_same(request.cookies.get(_cookie_name(scope), ""), self._session):
            return None
        return PlainTextResponse(
            "this page needs the token: open the complete link that 'stillframe watch' printed\n",
            status_code=401,
        )


def _foreign_origin(request: Request, host: str) -> str | None:
    """Return why a request is not from our page; None if it is, or comes from no page at all."""
    headers, own = request.headers, f"{request.scope['scheme']}://{host}"
    origin = headers.get("origin")
    if origin is not None and origin != own:
        return (
            f"a page of {origin[:100]!r} sent this request, and only pages of {own[:100]!r} "
            "are allowed to"
        )
    site = headers.get("sec-fetch-site", "none")
    is_visit = request.scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
    if site not in ("same-origin", "none") and not (is_visit and request.method == "GET"):
        return "another page sent this request, and only pages of this server are allowed to"
    if request.method not in ("GET", "HEAD"):
        if origin is None:
            return "an action must name its origin (the header Origin)"
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return "an action must be sent as JSON (the header Content-Type)"
    return None


def _session(token: str) -> str:
    return hmac.digest(token.encode(), b"the cookie of a page", "sha256").hex()


def _cookie_name(scope: Scope) -> str:
    """Return the name of our cookie, with the port: all ports of a host share its cookies."""
    server = scope.get("server")
    return COOKIE if server is None else f"{COOKIE}-{server[1]}"


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _forbidden(sentence: str) -> Response:
    return PlainTextResponse(f"{sentence}\n", status_code=403)


def _is_of_another_user(scope: Scope) -> bool:
    client, server = scope.get("client"), scope.get("server")
    if client is None or server is None:
        return False
    return not is_allowed(tuple(client), tuple(server))


def is_allowed(client: Endpoint, server: Endpoint) -> bool:
    """Return whether a connection is from our own user or root, as far as this machine can tell.
    Every user of a machine can connect to its loopback, and the page can do what the commands do,
    whose socket only its owner can reach. Linux knows the user of a connection; a connection of an
    unknown user, such as one that was closed already, is refused."""
    if not _IPV4_SOCKETS.exists():
        return True  # not Linux: the user cannot be found out
    return socket_owner(client, server) in (_ROOT, os.geteuid())


def socket_owner(client: Endpoint, server: Endpoint) -> int | None:
    """Return the user id of the program that connected `client` to `server`; None if unknown."""
    for table in (_IPV4_SOCKETS, _IPV6_SOCKETS):
        try:
            wanted = [_hex(end, is_wide=table == _IPV6_SOCKETS) for end in (client, server)]
            with table.open(encoding="ascii") as rows:
                for row in rows:
                    columns = row.split()
                    if columns[1:4] == [*wanted, _ESTABLISHED]:
                        return int(columns[7])
        except (OSError, ValueError, IndexError):
            continue
    return None


def _hex(endpoint: Endpoint, *, is_wide: bool) -> str:
    """Return an endpoint as the kernel writes it: 32-bit words in its own byte order. A connection
    over IPv4 may use an IPv6 socket: then its addresses are `is_wide`."""
    address = ipaddress.ip_address(endpoint[0])
    if is_wide and address.version == 4:
        address = ipaddress.ip_address(f"::ffff:{endpoint[0]}")
    words = (address.packed[i : i + 4] for i in range(0, len(address.packed), 4))
    written = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{written}:{endpoint[1]:04X}"
