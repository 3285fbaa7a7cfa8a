"""Turns each snapshot into a trace, and exports it as OTLP over HTTP. Needs the extra 'otel'.

One trace is one snapshot: a span from its start until it was published or abandoned, and in it a
span for each process, from its cut until its fragment was complete, with an event for each marker
that arrived. Its ids are derived from the snapshot, so that every watcher sends the same trace.

The SDK makes the spans and its exporter sends them, with everything that its environment variables
define: headers, compression, certificates. Its errors are reported once, in our words. All of that
is done in a separate thread: nothing waits for the endpoint.
"""

import hashlib
import importlib.metadata
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context

from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.runtime.coordinator.snapshot_monitor import TIMELINE_COUNT_MAX, SnapshotTimeline
from stillframe.runtime.supervisor.admin_socket import SystemStatus
from stillframe.storage.location import Location
from stillframe.store.history import SnapshotAbandoned
from stillframe.store.manifest import SnapshotEntry
from stillframe.watch.event_feed import SnapshotOutcome
from stillframe.watch.metrics import MetricSet

ROOT, FRAGMENT, MARKER = "snapshot", "fragment", "marker"
"""The names of spans and events as they are sent; that of a fragment also has its process."""

ATTRIBUTES: dict[str, dict[str, str]] = {
    ROOT: {
        "stillframe.snapshot.id": "As in every command: `P1-17`.",
        "stillframe.snapshot.initiator": "The process that initiated it.",
        "stillframe.snapshot.epoch": "The epoch of the system; left out if it is not known.",
        "stillframe.snapshot.outcome": "`published` or `abandoned`.",
        "stillframe.snapshot.reason": "Why it was abandoned: `deadline`, `process_died`, ...",
        "stillframe.snapshot.missing": "Whose fragments were missing when it was abandoned.",
        "stillframe.snapshot.bytes": "All its Parquet files together.",
        "stillframe.snapshot.messages": "How many messages were in transit.",
        "stillframe.snapshot.pause_s": "The longest pause of any process.",
        "stillframe.snapshot.capture_s": "The longest time until the fragment of a process was "
        "encoded.",
        "stillframe.snapshot.has_markers": "Whether its marker timeline is known: if not, there "
        "are no spans of processes.",
    },
    FRAGMENT: {
        "stillframe.process": "Whose fragment it is.",
        "stillframe.marked_by": "Whose marker made it record its state; left out for an initiator.",
        "stillframe.moved_s": "By how much its times were shifted, because its clock differs from "
        "the coordinator's; left out if they were not.",
    },
    MARKER: {"stillframe.source": "The process that sent it."},
}
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
PENDING_COUNT_MAX = 1000
"""How many timelines are kept of snapshots that are not in the history yet."""

Value = str | bool | int | float | tuple[str, ...]


class EndedSnapshot(NamedTuple):
    """A snapshot that has ended, with its entry in the store, if any: one trace."""

    timeline: SnapshotTimeline
    outcome: SnapshotOutcome
    entry: SnapshotEntry | None

    @property
    def span_count(self) -> int:
        """How many spans its trace has."""
        return 1 + len(self.timeline.fragment_at)

    def attributes(self) -> dict[str, Value]:
        """Return the attributes of its span."""
        timeline, outcome, entry = self
        found: dict[str, Value] = {
            "id": str(timeline.snapshot),
            "initiator": timeline.snapshot.initiator,
            "has_markers": bool(timeline.fragment_at),
            "outcome": "published" if timeline.is_published else "abandoned",
        }
        if epoch := timeline.epoch if entry is None else entry.epoch:
            found["epoch"] = epoch
        if entry is not None:
            found |= {"bytes": entry.bytes, "messages": entry.message_count}
            found |= {"pause_s": entry.pause_s, "capture_s": entry.capture_s}
        if isinstance(outcome.record, SnapshotAbandoned):
            found["reason"] = outcome.record.reason.lower()
            found["missing"] = outcome.record.missing
        return {f"stillframe.snapshot.{name}": value for name, value in found.items()}


class SpanFactory(IdGenerator, SpanProcessor):
    """Makes the SDK's spans of the traces of the system on a store: a tracer takes their ids from
    here, and delivers them here when they end."""

    def __init__(self, store: Location) -> None:
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

    def spans(self, ended: EndedSnapshot) -> list[ReadableSpan]:
        """Return the spans of a snapshot's trace, that of the whole last."""
        timeline, outcome, _ = ended
        seed = f"{timeline.snapshot} {timeline.initiated_at}"
        self._trace_id = _hashed_id(seed, TRACE_ID_BYTES)
        self._span_id = _hashed_id(f"{seed} {ROOT}", SPAN_ID_BYTES)
        root = self._tracer.start_span(
            ROOT, Context(), attributes=ended.attributes(), start_time=_ns(timeline.initiated_at)
        )
        for process, complete_at in timeline.fragment_at.items():
            self._span_id = _hashed_id(f"{seed} {FRAGMENT} {process}", SPAN_ID_BYTES)
            self._fragment_span(root, timeline, process, complete_at)
        if isinstance(outcome.record, SnapshotAbandoned):
            root.set_status(Status(StatusCode.ERROR, outcome.sentence))
        else:
            root.set_status(Status(StatusCode.OK))
        ended_at = outcome.ended_at if timeline.ended_at is None else timeline.ended_at
        root.end(_ns(max(timeline.initiated_at, ended_at)))
        spans, self._ended = self._ended, []
        return spans

    def _fragment_span(
        self, root: Span, timeline: SnapshotTimeline, process: str, complete_at: float
    ) -> None:
        """Make the span of a process, from the recording of its state until its fragment was
        complete, shifted into the time that the coordinator's clock allows."""
        times = timeline.times.get(process)
        cut_at = complete_at
        attributes: dict[str, Value] = {"stillframe.process": process}
        if times is not None:
            cut_at = min(max(times.cut_at, timeline.initiated_at), complete_at)
            if times.marked_by is not None:
                attributes["stillframe.marked_by"] = times.marked_by
            if cut_at != times.cut_at:
                attributes["stillframe.moved_s"] = cut_at - times.cut_at
        span = self._tracer.start_span(
            f"{FRAGMENT} {process}",
            set_span_in_context(root, Context()),
            attributes=attributes,
            start_time=_ns(cut_at),
        )
        came_s = {} if times is None else times.came_s
        for source in sorted(came_s, key=lambda source: came_s[source]):
            came_at = min(max(cut_at + came_s[source], cut_at), complete_at)
            span.add_event(MARKER, {"stillframe.source": source}, _ns(came_at))
        span.end(_ns(complete_at))


def _hashed_id(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size])


def _ns(at: float) -> int:
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
    """Sends the traces of the system on a store to an endpoint, and drops them if it does not
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
        self._queue: deque[EndedSnapshot] = deque()
        self._queued_count = 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        # It must not keep the program from ending, whatever the endpoint does.
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def put(self, ended: EndedSnapshot) -> None:
        """Queue a trace to be sent."""
        with self._changed:
            self._queue.append(ended)
            self._queued_count += ended.span_count
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
            spans = [span for ended in batch for span in self._factory.spans(ended)]
            if self._send(spans):
                self.sent_count += len(spans)
            else:
                with self._changed:
                    self.dropped_count += len(spans)

    def _next_batch(self) -> list[EndedSnapshot]:
        """Wait for traces, and return some; none once the exporter is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing.is_set())
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_COUNT_MAX))]
            self._queued_count -= sum(ended.span_count for ended in batch)
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


class TraceBuilder:
    """Makes a trace of each snapshot that has ended since it was created, or that the system still
    had then. `entry_of` returns the entry of a snapshot in the store, if any. `traced_count`
    snapshots became a trace, `missed_count` of them without a marker timeline."""

    def __init__(
        self,
        entry_of: Callable[[SnapshotId], SnapshotEntry | None],
        exporter: SpanExporter,
        warn: Callable[[str], None],
    ) -> None:
        self.exporter = exporter
        self.traced_count = self.missed_count = 0
        self._entry_of = entry_of
        self._warn = warn
        self._timelines: dict[SnapshotId, SnapshotTimeline] = {}
        self._traced: dict[SnapshotId, None] = {}
        self._is_first = True

    def collect(self, metrics: MetricSet) -> None:
        """Add the metrics of exported traces."""
        metrics.put("traced_snapshots_total", self.traced_count)
        metrics.put("traced_snapshots_missed_total", self.missed_count)
        metrics.put("spans_total", self.exporter.sent_count, "sent")
        metrics.put("spans_total", self.exporter.dropped_count, "dropped")

    def update(
        self, outcomes: Mapping[SnapshotId, SnapshotOutcome], status: SystemStatus | None
    ) -> int:
        """Trace what has ended, and return how many snapshots that are. `outcomes` were read before
        the system was polled; `status` is its answer, None if it is not running."""
        if status is not None:
            if not status.is_running:
                return 0  # it is restarting, and reports its timelines afterwards
            for timeline in status.timelines:
                if timeline.ended_at is not None and timeline.snapshot not in self._traced:
                    self._timelines[timeline.snapshot] = timeline
        before = self.traced_count
        for snapshot, outcome in outcomes.items():
            if snapshot in self._traced:
                continue
            if snapshot in self._timelines:
                self._trace(self._timelines.pop(snapshot), outcome)
            elif not self._is_first:
                self._trace_missed(snapshot, outcome)
            self._traced[snapshot] = None
        self._is_first = False
        self._traced = {snapshot: None for snapshot in self._traced if snapshot in outcomes}
        while len(self._timelines) > PENDING_COUNT_MAX:
            del self._timelines[next(iter(self._timelines))]
        return self.traced_count - before

    def _trace(self, timeline: SnapshotTimeline, outcome: SnapshotOutcome) -> None:
        self.traced_count += 1
        self.exporter.put(EndedSnapshot(timeline, outcome, self._entry_of(timeline.snapshot)))

    def _trace_missed(self, snapshot: SnapshotId, outcome: SnapshotOutcome) -> None:
        self.missed_count += 1
        if self.missed_count == 1:
            self._warn(
                f"the marker timeline of snapshot {snapshot} is unknown: the system was "
                f"stopped, or started {TIMELINE_COUNT_MAX} more snapshots before it was polled; "
                "its trace has no processes. The metric "
                "stillframe_traced_snapshots_missed_total counts such snapshots"
            )
        entry = self._entry_of(snapshot)
        started_at = outcome.started_at if entry is None else entry.initiated_at
        is_published = not isinstance(outcome.record, SnapshotAbandoned)
        self._trace(SnapshotTimeline(snapshot, started_at, None, is_published), outcome)
