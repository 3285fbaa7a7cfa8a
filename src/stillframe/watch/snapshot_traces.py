"""Turns each snapshot into a trace. Needs the extra 'otel'.

One trace is one snapshot: a span from its start until it was published or abandoned, and in it a
span for each process, from its cut until its fragment was complete, with an event for each marker
that arrived.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from opentelemetry.trace import Span, Status, StatusCode

from stillframe.model import SnapshotId
from stillframe.runtime.coordinator.snapshot_monitor import TIMELINE_COUNT_MAX, SnapshotTimeline
from stillframe.runtime.supervisor.admin_socket import SystemStatus
from stillframe.store.history import SnapshotAbandoned
from stillframe.store.manifest import SnapshotEntry
from stillframe.watch.event_feed import SnapshotOutcome
from stillframe.watch.metrics import MetricSet
from stillframe.watch.span_exporter import SpanExporter, SpanFactory, Value, nanoseconds

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
PENDING_COUNT_MAX = 1000
"""How many timelines are kept of snapshots that are not in the history yet."""


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

    def make_spans(self, factory: SpanFactory) -> None:
        """Make its spans, that of the whole last."""
        timeline, outcome, _ = self
        factory.start_trace(f"{timeline.snapshot} {timeline.initiated_at}")
        root = factory.start_span(ROOT, timeline.initiated_at, self.attributes())
        for process, complete_at in timeline.fragment_at.items():
            self._make_fragment_span(factory, root, process, complete_at)
        if isinstance(outcome.record, SnapshotAbandoned):
            root.set_status(Status(StatusCode.ERROR, outcome.sentence))
        else:
            root.set_status(Status(StatusCode.OK))
        ended_at = outcome.ended_at if timeline.ended_at is None else timeline.ended_at
        root.end(nanoseconds(max(timeline.initiated_at, ended_at)))

    def _make_fragment_span(
        self, factory: SpanFactory, root: Span, process: str, complete_at: float
    ) -> None:
        """Make the span of a process, from the recording of its state until its fragment was
        complete, shifted into the time that the coordinator's clock allows."""
        times = self.timeline.times.get(process)
        cut_at = complete_at
        attributes: dict[str, Value] = {"stillframe.process": process}
        if times is not None:
            cut_at = min(max(times.cut_at, self.timeline.initiated_at), complete_at)
            if times.marked_by is not None:
                attributes["stillframe.marked_by"] = times.marked_by
            if cut_at != times.cut_at:
                attributes["stillframe.moved_s"] = cut_at - times.cut_at
        span = factory.start_span(f"{FRAGMENT} {process}", cut_at, attributes, parent=root)
        came_s = {} if times is None else times.came_s
        for source in sorted(came_s, key=lambda source: came_s[source]):
            came_at = min(max(cut_at + came_s[source], cut_at), complete_at)
            span.add_event(MARKER, {"stillframe.source": source}, nanoseconds(came_at))
        span.end(nanoseconds(complete_at))


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
