"""A proxy before an S3 server that makes chosen requests fail, each in a chosen way.

A test gives a plan: a function that looks at each request and returns a fault, or None. So every
request of an operation can fail once in turn::

    with faulty_proxy(server.port, nth(3, CUT_AFTER)) as proxy:
        use(server, monkeypatch, port=proxy.port)
"""

import contextlib
import enum
import http.client
import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

LOOPBACK = "127.0.0.1"
TIMEOUT_S = 60.0
CODES = {
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalError",
    503: "SlowDown",
}


class Answer(enum.Enum):
    """What the client gets."""

    WHOLE = enum.auto()
    CUT = enum.auto()
    """The connection is closed without an answer."""
    SILENCE = enum.auto()
    """The connection stays open, and no answer comes: the client's time limit has to end it."""
    TRUNCATED = enum.auto()
    """The connection is closed after half of the body."""


@dataclass(frozen=True)
class Fault:
    """What happens to a request.

    Args:
        answer: what the client gets; a number is the status of an error made up here.
        is_forwarded: whether the server carries the request out.
        delay_s: how long the answer is held back.
    """

    answer: Answer | int = Answer.CUT
    is_forwarded: bool = True
    delay_s: float = 0.0


CUT_BEFORE = Fault(is_forwarded=False)
CUT_AFTER = Fault()
SILENT_AFTER = Fault(Answer.SILENCE)
TRUNCATED = Fault(Answer.TRUNCATED)


@dataclass(frozen=True)
class Request:
    """A request: its number, counted from 1, its method, and its path with parameters."""

    number: int
    method: str
    path: str


Plan = Callable[[Request], Fault | None]


def nth(number: int, fault: Fault) -> Plan:
    """Return the plan in which only one request fails, the `number`-th."""
    return lambda request: fault if request.number == number else None


class FaultyProxy(http.server.ThreadingHTTPServer):
    """A running proxy. `plan` may be replaced at any time; `requests` are those so far."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, target_port: int, plan: Plan, handler: "type[Handler]") -> None:
        super().__init__((LOOPBACK, 0), handler)
        self.target_port = target_port
        self.plan = plan
        self.requests: list[Request] = []
        self.is_over = threading.Event()
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.server_port

    def received(self, method: str, path: str) -> Fault | None:
        """Count a request, and return what happens to it."""
        with self._lock:
            request = Request(len(self.requests) + 1, method, path)
            self.requests.append(request)
        return self.plan(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a client that has gone: tests let programs die in the middle of a request."""


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FaultyProxy

    def handle_request(self) -> None:
        """Read a whole request, then do what the plan says."""
        assert "Transfer-Encoding" not in self.headers, "no client of S3 sends one without length"
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        fault = self.server.received(self.command, self.path) or Fault(Answer.WHOLE)
        forwarded = self.forward(body) if fault.is_forwarded else None
        self.server.is_over.wait(fault.delay_s)
        if isinstance(fault.answer, int):
            self._respond(fault.answer, [], _error(fault.answer))
        elif fault.answer is Answer.SILENCE:
            self.server.is_over.wait()
        elif fault.answer is not Answer.CUT:
            assert forwarded is not None, "only what is forwarded has an answer"
            response, content = forwarded
            is_cut = fault.answer is Answer.TRUNCATED
            self._respond(response.status, response.getheaders(), content, is_cut=is_cut)
        if fault.answer in (Answer.CUT, Answer.SILENCE, Answer.TRUNCATED):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request  # noqa: N815 - their names

    def forward(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        """Send the request as it came, because its headers are signed; return the answer."""
        with contextlib.closing(
            http.client.HTTPConnection(LOOPBACK, self.server.target_port, timeout=TIMEOUT_S)
        ) as target:
            target.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect"):
                    target.putheader(name, value)
            target.endheaders(body)
            response = target.getresponse()
            return response, response.read()

    def _respond(
        self, status: int, headers: list[tuple[str, str]], body: bytes, *, is_cut: bool = False
    ) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # of a HEAD, that of the object
            elif name.lower() not in ("connection", "transfer-encoding", "keep-alive"):
                self.send_header(name, value)
        if status != http.HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if is_cut else body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
        """Print nothing."""


def _error(status: int) -> bytes:
    code = CODES.get(status, "Error")
    return f"<Error><Code>{code}</Code><Message>of a test</Message></Error>".encode()


@contextlib.contextmanager
def faulty_proxy(
    target_port: int,
    plan: Plan = lambda request: None,
    *,
    handler: type[Handler] = Handler,
) -> Iterator[FaultyProxy]:
    """Run a proxy before the server that listens on a port of this machine."""
    with FaultyProxy(target_port, plan, handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.is_over.set()
            proxy.shutdown()
            thread.join()
