"""An endpoint that takes OTLP over HTTP, and may be slow or refuse."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PATH = "/v1/traces"


def plain(attributes: Any) -> dict[str, Any]:
    """Return attributes as values of Python."""
    found = {}
    for pair in attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = (
            [item.string_value for item in value.values] if kind == "array_value" else value
        )
    return found


class Endpoint:
    """What was sent, and how that is answered.

    Attributes:
        port: where it listens.
        spans: what was taken, in order.
        resources: what the requests said of who sends.
        request_count: how many came.
        status: what the next requests are answered.
        may_answer: while it is not set requests wait.
    """

    def __init__(self) -> None:
        self.port = 0
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.request_count = 0
        self.status = 200
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._news = threading.Condition()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def take(self, path: str, body: bytes) -> int:
        """Take a request, and return the status of the answer."""
        request = ExportTraceServiceRequest.FromString(body)
        with self._news:
            self.request_count += 1
            status = self.status if path == PATH else 404
            if status == 200:
                for resource in request.resource_spans:
                    self.resources.append(plain(resource.resource.attributes))
                    for scope in resource.scope_spans:
                        self.spans += scope.spans
            self._news.notify_all()
        self.may_answer.wait()
        return status

    def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait for requests until `condition` holds."""
        with self._news:
            assert self._news.wait_for(condition, timeout_s)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Listen while the body runs; at the same port again, if it did before."""
        endpoint = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = endpoint.take(self.path, body)
                with contextlib.suppress(ConnectionError):
                    self.send_response(status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
                """Say nothing."""

        with ThreadingHTTPServer(("127.0.0.1", self.port), Answer) as server:
            self.port = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield
            finally:
                self.may_answer.set()
                server.shutdown()
                thread.join()
