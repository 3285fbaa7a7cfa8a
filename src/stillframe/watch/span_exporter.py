"""Exports traces as OTLP over HTTP. Needs the extra 'otel'.

The SDK makes the spans and its exporter sends them, with everything that its environment variables
define: headers, compression, certificates. Its errors are reported once, in our words. All of that
is done in a separate thread: nothing waits for the endpoint.

The ids of a trace are derived from what it shows, so that every watcher sends the same trace.
"""

import hashlib
import importlib.metadata
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, set_span_in_context

from stillframe.errors import UsageError
from stillframe.storage.location import Location

TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8

TRACES_PATH = "/v1/traces"
TIMEOUT_S = 5.0
"""Timeout of one export attempt, in seconds."""
RETRY_S = 5.0
"""Time between two attempts, in seconds."""
TRY_COUNT = 12
"""Attempts before spans are dropped: an endpoint may be unreachable for a minute."""
SPAN_COUNT_MAX = 20_000
"""When more spans are queued, the oldest are dropped."""
BATCH_COUNT_MAX = 64
"""How many traces are sent at once."""
WARN_S = 600.0
"""Minimum time between two warnings, in seconds."""
CLOSE_S_MAX = 2.0
"""Time that queued spans have to be sent when the exporter is closed, in seconds."""

Value = str | bool | int | float | tuple[str, ...]


class Trace(Protocol):
    """A trace before its spans are made."""

    @property
    def span_count(self) -> int:
        """How many spans it has."""

    def make_spans(self, factory: "SpanFactory") -> None:
        """Make its spans, and end each of them."""


class SpanFactory(IdGenerator, SpanProcessor):
    """Makes the SDK's spans of the traces of a store: a tracer takes their ids from
    here, and delivers them here when they end."""

    def __init__(self, store: Location) -> None:
        self._seed = ""
        self._trace_id = self._span_id = 0
        self._ended: list[ReadableSpan] = []
        version = importlib.metadata.version("stillframe")
        own = Resource(
            {
                "service.name": "stillframe",
                "service.version": version,
                "stillframe.store": str(store.resolve() if isinstance(store, Path) else store),
            }
        )
        unlimited = SpanLimits.UNSET
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override our own attributes.
            resource=own.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
            id_generator=self,
            span_limits=SpanLimits(max_events=unlimited, max_span_attributes=unlimited),
        )
        provider.add_span_processor(self)
        self._tracer = provider.get_tracer("stillframe", version)

    def generate_span_id(self) -> int:
        """Return the id of the span that is made."""
        return self._span_id

    def generate_trace_id(self) -> int:
        """Return the id of the trace that is made."""
        return self._trace_id

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span that is complete."""
        self._ended.append(span)

    def start_trace(self, seed: str) -> None:
        """Start a trace: the ids of its spans are derived from `seed`."""
        self._seed = seed
        self._trace_id = _hashed_id(seed, TRACE_ID_BYTES)

    def start_span(
        self,
        key: str,
        start_at: float,
        attributes: Mapping[str, Value],
        *,
        name: str | None = None,
        parent: Span | None = None,
    ) -> Span:
        """Start a span of the trace, at a time in seconds since 1970. Its `key` is unique in the
        trace, and its name unless it has another one."""
        self._span_id = _hashed_id(f"{self._seed} {key}", SPAN_ID_BYTES)
        return self._tracer.start_span(
            key if name is None else name,
            Context() if parent is None else set_span_in_context(parent, Context()),
            attributes=attributes,
            start_time=nanoseconds(start_at),
        )

    def spans(self, trace: Trace) -> list[ReadableSpan]:
        """Return the spans of a trace in the order in which they end."""
        trace.make_spans(self)
        spans, self._ended = self._ended, []
        return spans


def _hashed_id(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size])


def nanoseconds(at: float) -> int:
    """Return a time, in seconds since 1970, as spans have it."""
    return int(at * 1e9)


def traces_url(endpoint: str) -> str:
    """Return the URL to which the traces for an endpoint are sent; UsageError if it is none."""
    try:
        parts = urlsplit(endpoint)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UsageError(
            f"{endpoint!r} is not an OTLP endpoint: give one such as http://localhost:4318, to "
            f"which {TRACES_PATH} is added, or one with a path"
        )
    return parts._replace(path=TRACES_PATH).geturl() if parts.path in ("", "/") else endpoint


class _FirstMessage(logging.Handler):
    """Keeps the exporter's first message on an attempt, which has the cause, and prints none."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if not self.text:
            self.text = record.getMessage().partition(" encountered while ")[0].rstrip(".")


class SpanExporter:
    """Sends the traces of a store to an endpoint, and drops them if it does not
    accept them for long; its thread prints warnings with `warn`. Spans are counted that were sent
    or dropped; it `is_failing` if the endpoint did not accept the last ones."""

    def __init__(self, endpoint: str, store: Location, warn: Callable[[str], None]) -> None:
        self.sent_count = 0
        self.dropped_count = 0
        self.is_failing = False
        self._url = traces_url(endpoint)
        self._warn = warn
        self._warned_at = -WARN_S
        self._has_warned = False
        self._factory = SpanFactory(store)
        self._message = _FirstMessage()
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self._message)
        logger.propagate = False
        self._exporter = OTLPSpanExporter(endpoint=self._url, timeout=TIMEOUT_S)
        self._queue: deque[Trace] = deque()
        self._queued_count = 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        # It must not keep the program from ending, whatever the endpoint does.
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def put(self, trace: Trace) -> None:
        """Queue a trace to be sent."""
        with self._changed:
            self._queue.append(trace)
            self._queued_count += trace.span_count
            while self._queued_count > SPAN_COUNT_MAX and len(self._queue) > 1:
                dropped_count = self._queue.popleft().span_count
                self._queued_count -= dropped_count
                self.dropped_count += dropped_count
            self._changed.notify()

    def close(self) -> None:
        """Send what is queued, as far as that is quick, and stop."""
        self._closing.set()
        with self._changed:
            self._changed.notify()
        self._thread.join(CLOSE_S_MAX)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _run(self) -> None:
        while batch := self._next_batch():
            spans = [span for trace in batch for span in self._factory.spans(trace)]
            if self._send(spans):
                self.sent_count += len(spans)
            else:
                with self._changed:
                    self.dropped_count += len(spans)

    def _next_batch(self) -> list[Trace]:
        """Wait for traces, and return some; none once the exporter is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing.is_set())
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_COUNT_MAX))]
            self._queued_count -= sum(trace.span_count for trace in batch)
            return batch

    def _send(self, spans: list[ReadableSpan]) -> bool:
        for _ in range(TRY_COUNT):
            self._message.text = ""
            if self._exporter.export(spans) is SpanExportResult.SUCCESS:
                self._succeeded()
                return True
            self._failed()
            if self._closing.wait(RETRY_S):
                return False
        return False

    def _succeeded(self) -> None:
        if self.is_failing and self._has_warned:
            self._warn(f"{self._url} accepts traces again")
        self.is_failing = self._has_warned = False

    def _failed(self) -> None:
        if not self.is_failing and time.monotonic() - self._warned_at >= WARN_S:
            self._warned_at, self._has_warned = time.monotonic(), True
            self._warn(
                f"{self._url} does not accept traces: "
                f"{self._message.text or 'the cause is unknown'}. They are kept for a while and "
                "sent again; the metric stillframe_spans_total counts those that were dropped"
            )
        self.is_failing = True
