"""Turns each snapshot into a trace, without any tracing library.

One trace is one snapshot: a span from its start until it was published or abandoned, and in it a
span for each process, from its cut until its fragment was complete, with an event for each marker
that arrived. Its ids are derived from the snapshot, so that every watcher sends the same trace.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from stillframe.model import MarkerTimes, ProcessId, SnapshotId
from stillframe.runtime.coordinator.snapshot_monitor import TIMELINE_COUNT_MAX, SnapshotTimeline
from stillframe.runtime.supervisor.admin_socket import SystemStatus
from stillframe.store.history import SnapshotAbandoned
from stillframe.store.manifest import Entry
from stillframe.watch.event_feed import SnapshotOutcome

ROOT, FRAGMENT, MARKER = "snapshot", "part", "marker"
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
        "stillframe.snapshot.messages": "How many messages were recorded on channels.",
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
    MARKER: {
        "stillframe.source": "The process at the other end of the channel on which it came.",
    },
}
PENDING_COUNT_MAX = 1000
"""How many timelines are kept of snapshots that are not in the history yet."""
TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8

Value = str | bool | int | float | tuple[str, ...]


class FragmentSpan(NamedTuple):
    """The span of a process, from the recording of its state until its fragment was complete, and
    when the marker of each source arrived: in seconds since 1970, by the coordinator's clock."""

    span_id: int
    process: ProcessId
    started_at: float
    ended_at: float
    attributes: dict[str, Value]
    markers: dict[ProcessId, float]


class SnapshotTrace(NamedTuple):
    """The trace of a snapshot, with its root span; `error` says why it was abandoned."""

    trace_id: int
    span_id: int
    started_at: float
    ended_at: float
    error: str
    attributes: dict[str, Value]
    fragments: tuple[FragmentSpan, ...]


def to_trace(
    timeline: SnapshotTimeline, outcome: SnapshotOutcome, entry: Entry | None
) -> SnapshotTrace:
    """Return the trace of a snapshot that has ended, given its entry in the store, if any."""
    snapshot, started_at = timeline.snapshot, timeline.initiated_at
    seed = f"{snapshot} {started_at}"
    attributes: dict[str, Value] = {
        "stillframe.snapshot.id": str(snapshot),
        "stillframe.snapshot.initiator": snapshot.initiator,
        "stillframe.snapshot.has_markers": bool(timeline.fragment_at),
        "stillframe.snapshot.outcome": "published" if timeline.is_published else "abandoned",
    }
    if epoch := timeline.epoch if entry is None else entry.epoch:
        attributes["stillframe.snapshot.epoch"] = epoch
    if entry is not None:
        attributes["stillframe.snapshot.bytes"] = entry.bytes
        attributes["stillframe.snapshot.messages"] = entry.message_count
        attributes["stillframe.snapshot.pause_s"] = entry.pause_s
        attributes["stillframe.snapshot.capture_s"] = entry.capture_s
    error = ""
    if isinstance(outcome.record, SnapshotAbandoned):
        error = outcome.sentence
        attributes["stillframe.snapshot.reason"] = outcome.record.reason.lower()
        attributes["stillframe.snapshot.missing"] = outcome.record.missing
    ended_at = outcome.ended_at if timeline.ended_at is None else timeline.ended_at
    return SnapshotTrace(
        _hashed_id(seed, TRACE_ID_BYTES),
        _hashed_id(f"{seed} {ROOT}", SPAN_ID_BYTES),
        started_at,
        max(started_at, ended_at),
        error,
        attributes,
        tuple(
            _fragment_span(process, complete_at, timeline.times.get(process), started_at, seed)
            for process, complete_at in timeline.fragment_at.items()
        ),
    )


def _fragment_span(
    process: ProcessId, complete_at: float, times: MarkerTimes | None, started_at: float, seed: str
) -> FragmentSpan:
    """Return the span of a process, shifted into the time that the coordinator's clock allows."""
    span_id = _hashed_id(f"{seed} {FRAGMENT} {process}", SPAN_ID_BYTES)
    attributes: dict[str, Value] = {"stillframe.process": process}
    if times is None:
        return FragmentSpan(span_id, process, complete_at, complete_at, attributes, {})
    cut_at = min(max(times.cut_at, started_at), complete_at)
    if times.marked_by is not None:
        attributes["stillframe.marked_by"] = times.marked_by
    if cut_at != times.cut_at:
        attributes["stillframe.moved_s"] = cut_at - times.cut_at
    markers = {
        source: min(max(cut_at + came_s, cut_at), complete_at)
        for source, came_s in sorted(times.came_s.items(), key=lambda pair: pair[1])
    }
    return FragmentSpan(span_id, process, cut_at, complete_at, attributes, markers)


def _hashed_id(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size])


class TraceExporter(Protocol):
    """Sends traces to an endpoint; see ``SpanExporter``, which needs an extra."""

    sent_count: int
    dropped_count: int
    is_failing: bool

    def put(self, trace: SnapshotTrace) -> None:
        """Send a trace later, without waiting for that."""


class TraceBuilder:
    """Makes a trace of each snapshot that has ended since it was created, and of those that the
    system still had then.

    Args:
        entry_of: returns the entry of a snapshot in the store, if there is one.
        exporter: gets the traces.
        warn: prints a warning.

    Attributes:
        traced_count: how many snapshots became a trace.
        missed_count: of how many of them the system no longer had the marker timeline.
    """

    def __init__(
        self,
        entry_of: Callable[[SnapshotId], Entry | None],
        exporter: TraceExporter,
        warn: Callable[[str], None],
    ) -> None:
        self.traced_count = 0
        self.missed_count = 0
        self.exporter = exporter
        self._entry_of = entry_of
        self._warn = warn
        self._timelines: dict[SnapshotId, SnapshotTimeline] = {}
        self._traced: dict[SnapshotId, None] = {}
        self._is_first = True

    def update(
        self, outcomes: Mapping[SnapshotId, SnapshotOutcome], status: SystemStatus | None
    ) -> int:
        """Trace what has ended.

        Args:
            outcomes: how snapshots ended, as read from the history before the system was polled.
            status: the answer of the system; None if it is not running.

        Returns:
            how many snapshots were traced.
        """
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
        self.exporter.put(to_trace(timeline, outcome, self._entry_of(timeline.snapshot)))

    def _trace_missed(self, snapshot: SnapshotId, outcome: SnapshotOutcome) -> None:
        self.missed_count += 1
        if self.missed_count == 1:
            self._warn(
                f"the marker timeline of snapshot {snapshot} is not known: the system was stopped, "
                f"or started {TIMELINE_COUNT_MAX} more snapshots before it was polled; the trace "
                "is without processes. The metric stillframe_traced_snapshots_missed_total counts "
                "such snapshots"
            )
        entry = self._entry_of(snapshot)
        started_at = outcome.started_at if entry is None else entry.initiated_at
        is_published = not isinstance(outcome.record, SnapshotAbandoned)
        self._trace(SnapshotTimeline(snapshot, started_at, None, is_published), outcome)
