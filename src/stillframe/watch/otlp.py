"""Sends traces as OTLP over HTTP, in a thread of its own: nobody waits for the endpoint.

The SDK makes the spans and the exporter sends them, with all that its environment variables say of
headers, compression and certificates. What it says of trouble is said once, in our words.
"""

import importlib.metadata
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from stillframe.errors import UsageError
from stillframe.watch.traced import MARKER, PART, ROOT, Trace

TRACES_PATH = "/v1/traces"
TIMEOUT_S = 5.0
"""So long one try to send may take, in seconds."""
RETRY_S = 5.0
"""So long after one try comes the next, in seconds."""
TRY_COUNT = 12
"""What was not taken so often is given up: an endpoint may be gone for a minute."""
SPAN_COUNT_MAX = 20_000
"""When more wait, the oldest are given up."""
BATCH_COUNT_MAX = 64
"""So many traces go at once."""
SAY_S = 600.0
"""Of trouble is spoken no more often, in seconds."""
CLOSE_S_MAX = 2.0
"""So long what waits may take to be sent at the end, in seconds."""


def endpoint_of(url: str) -> str:
    """Return where traces go.

    Raises:
        UsageError: that is no address of an endpoint.
    """
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_one = False
    if not is_one:
        raise UsageError(
            f"{url!r} is no OTLP endpoint: give one as http://localhost:4318, to which "
            f"{TRACES_PATH} is added, or with a path of its own"
        )
    return parts._replace(path=TRACES_PATH).geturl() if parts.path in ("", "/") else url


class _Ids(IdGenerator):
    """Gives the ids that it was told to give next."""

    def __init__(self) -> None:
        self.trace_id = 0
        self.span_id = 0

    def generate_span_id(self) -> int:
        return self.span_id

    def generate_trace_id(self) -> int:
        return self.trace_id


class _Made(SpanProcessor):
    """Takes what was made."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class _Words(logging.Handler):
    """Keeps the first words of the exporter on a try, which have the cause, and writes none."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        if not self.first:
            self.first = record.getMessage().partition(" encountered while ")[0].rstrip(".")


class Spans:
    """Makes spans of traces.

    Args:
        store: whose system it is, as the resource says.
    """

    def __init__(self, store: Path) -> None:
        own = Resource(
            {
                "service.name": "stillframe",
                "service.version": importlib.metadata.version("stillframe"),
                "stillframe.store": str(store.resolve()),
            }
        )
        self._ids, self._made = _Ids(), _Made()
        any_number = SpanLimits.UNSET
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say comes before what we do.
            resource=own.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
            id_generator=self._ids,
            span_limits=SpanLimits(max_events=any_number, max_span_attributes=any_number),
        )
        provider.add_span_processor(self._made)
        self._tracer = provider.get_tracer("stillframe", importlib.metadata.version("stillframe"))

    def of(self, trace: Trace) -> list[ReadableSpan]:
        """Return the spans of a trace."""
        self._ids.trace_id, self._ids.span_id = trace.trace_id, trace.span_id
        root = self._tracer.start_span(
            ROOT, Context(), attributes=trace.attributes, start_time=_ns(trace.began_at)
        )
        for part in trace.parts:
            self._ids.span_id = part.span_id
            span = self._tracer.start_span(
                f"{PART} {part.process}",
                set_span_in_context(root, Context()),
                attributes=part.attributes,
                start_time=_ns(part.began_at),
            )
            for source, came_at in part.markers.items():
                span.add_event(MARKER, {"stillframe.source": source}, _ns(came_at))
            span.end(_ns(part.ended_at))
        if trace.why_not:
            root.set_status(Status(StatusCode.ERROR, trace.why_not))
        else:
            root.set_status(Status(StatusCode.OK))
        root.end(_ns(trace.ended_at))
        spans, self._made.spans = self._made.spans, []
        return spans


class Sender:
    """Sends traces to an endpoint, or drops them when it does not take them for long.

    Args:
        url: of the endpoint.
        store: whose system it is.
        say: takes words for people; called by another thread.

    Raises:
        UsageError: that is no address of an endpoint.

    Attributes:
        sent_count: how many spans the endpoint has taken.
        dropped_count: how many were given up.
        is_troubled: whether the endpoint did not take the last ones.
    """

    def __init__(self, url: str, store: Path, say: Callable[[str], None]) -> None:
        self.sent_count = 0
        self.dropped_count = 0
        self.is_troubled = False
        self._url = endpoint_of(url)
        self._say = say
        self._said_at = -SAY_S
        self._has_said = False
        self._spans = Spans(store)
        self._words = _Words()
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self._words)
        logger.propagate = False
        self._exporter = OTLPSpanExporter(endpoint=self._url, timeout=TIMEOUT_S)
        self._waiting: deque[Trace] = deque()
        self._waiting_count = 0
        self._news = threading.Condition()
        self._closing = threading.Event()
        # It must not keep the program from ending, whatever the endpoint does.
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def put(self, trace: Trace) -> None:
        """Send a trace, some time."""
        with self._news:
            self._waiting.append(trace)
            self._waiting_count += _span_count(trace)
            while self._waiting_count > SPAN_COUNT_MAX and len(self._waiting) > 1:
                given_up = _span_count(self._waiting.popleft())
                self._waiting_count -= given_up
                self.dropped_count += given_up
            self._news.notify()

    def close(self) -> None:
        """Send what waits, if that goes quickly, and no more."""
        self._closing.set()
        with self._news:
            self._news.notify()
        self._thread.join(CLOSE_S_MAX)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _run(self) -> None:
        while batch := self._next():
            spans = [span for trace in batch for span in self._spans.of(trace)]
            if self._send(spans):
                self.sent_count += len(spans)
            else:
                with self._news:
                    self.dropped_count += len(spans)

    def _next(self) -> list[Trace]:
        """Wait for traces, and return some; none at the end."""
        with self._news:
            self._news.wait_for(lambda: self._waiting or self._closing.is_set())
            batch = [
                self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_COUNT_MAX))
            ]
            self._waiting_count -= sum(map(_span_count, batch))
            return batch

    def _send(self, spans: list[ReadableSpan]) -> bool:
        for _ in range(TRY_COUNT):
            self._words.first = ""
            if self._exporter.export(spans) is SpanExportResult.SUCCESS:
                self._taken()
                return True
            self._not_taken()
            if self._closing.wait(RETRY_S):
                return False
        return False

    def _taken(self) -> None:
        if self.is_troubled and self._has_said:
            self._say(f"{self._url} takes traces again")
        self.is_troubled = self._has_said = False

    def _not_taken(self) -> None:
        if not self.is_troubled and time.monotonic() - self._said_at >= SAY_S:
            self._said_at, self._has_said = time.monotonic(), True
            self._say(
                f"{self._url} does not take traces: {self._words.first or 'it does not say why'}. "
                "They are kept for a while, and sent again; how many were given up is in the "
                "metric stillframe_spans_total"
            )
        self.is_troubled = True


def _span_count(trace: Trace) -> int:
    return 1 + len(trace.parts)


def _ns(at: float) -> int:
    return int(at * 1e9)
