"""Who may ask the server what: a page of ours, opened by whom the system belongs to, and nobody
else.

* On loopback a page elsewhere cannot read what we answer (browsers see to that), cannot make us act
  (we see where a request comes from), and cannot pass for us under a name that leads here, because
  only names of loopback are ours.
* On loopback a program of another user of this machine is refused, as it is by the socket for
  commands.
* On any other address whoever asks must have the token: in the link that the command prints, which
  puts it into a cookie, or as ``Authorization: Bearer``, as Prometheus sends it.
* Nothing of another origin is loaded by a page of ours, and no other page can hold ours in a frame.
"""

import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stillframe.watch.peers import may_ask

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
"""What every answer says to the browser."""


class Guard:
    """Lets requests through to `app` that may be answered.

    Args:
        app: what answers them.
        token: what whoever asks must know; None on loopback.
        host: the address that it listens on, which is a name of ours, too.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, host: str = "localhost") -> None:
        self._app = app
        self._token = token
        self._names = LOOPBACK_NAMES | {host}
        # Not the token itself: cookies are sent to every port of a host.
        self._session = "" if token is None else _session_of(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            # There is nothing else: no websocket is accepted, and nobody waits for a lifespan.
            return
        answer = self._refusal(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self._app if answer is None else answer)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return why a request is not let through, or where else to go; None if it is."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._token is None and _name(host) not in self._names:
            return _no(
                f"this page answers to names of loopback alone, and {host[:100]!r} is none: open "
                "it as localhost or 127.0.0.1"
            )
        if self._token is None and _is_of_another_user(scope):
            return _no(
                "a program of another user asks: on a machine with several users start "
                "'stillframe watch' with --token-file, and share what is in that file"
            )
        if (sentence := _foreign(scope, headers, host)) is not None:
            return _no(sentence)
        return None if self._token is None else self._without_token(scope, headers, self._token)

    def _without_token(self, scope: Scope, headers: Headers, token: str) -> Response | None:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and scope["method"] == "GET" and _is_same(given, token):
            answer = RedirectResponse("/", status_code=303)
            # Lax, or a link in a mail would not lead in; what is done needs an origin of ours.
            answer.set_cookie(
                _cookie_of(scope),
                self._session,
                httponly=True,
                samesite="lax",
                secure=scope["scheme"] == "https",
            )
            return answer
        kind, _, shown = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _is_same(shown, token):
            return None
        if _is_same(_cookies(headers).get(_cookie_of(scope), ""), self._session):
            return None
        return PlainTextResponse(
            "this page wants the token: open the whole link that 'stillframe watch' printed\n",
            status_code=401,
        )


def _foreign(scope: Scope, headers: Headers, host: str) -> str | None:
    """Return why a request is not one of our page; None if it is, or of no page at all."""
    own = f"{scope['scheme']}://{host}"
    origin = headers.get("origin")
    if origin is not None and origin != own:
        return f"a page of {origin[:100]!r} asks, and only pages of {own[:100]!r} may"
    site = headers.get("sec-fetch-site", "none")
    is_visit = scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
    if site not in ("same-origin", "none") and not (is_visit and scope["method"] == "GET"):
        return "another page asks, and only pages of our own may"
    if scope["method"] not in ("GET", "HEAD"):
        if origin is None:
            return "who asks to do something must say where it comes from (the header Origin)"
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return "what is to be done must be said in JSON (the header Content-Type)"
    return None


def _is_of_another_user(scope: Scope) -> bool:
    peer, mine = scope.get("client"), scope.get("server")
    return peer is not None and mine is not None and not may_ask(tuple(peer), tuple(mine))


def _session_of(token: str) -> str:
    return hmac.digest(token.encode(), b"the cookie of a page", "sha256").hex()


def _cookie_of(scope: Scope) -> str:
    """Return the name of our cookie: another for each port, since they share a host's cookies."""
    server = scope.get("server")
    return COOKIE if server is None else f"{COOKIE}-{server[1]}"


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _cookies(headers: Headers) -> Mapping[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(headers.get("cookie")).items()}
    except CookieError:
        return {}


def _no(sentence: str) -> Response:
    return PlainTextResponse(f"{sentence}\n", status_code=403)
