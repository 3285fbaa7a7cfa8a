"""Turns each observation of services into a trace. Needs the extra 'otel'.

One trace is one observation: a span from its start until it was complete, and in it a span for each
call that was open, from when it began until the observation was complete. It has no fields of
bodies, no amounts and no states.
"""

from typing import NamedTuple

from opentelemetry.trace import Span, Status, StatusCode

from stillframe.detect.call_waits import find_call_deadlock
from stillframe.protocol.calls import Located
from stillframe.store.observation_tables import served_by
from stillframe.store.observations import ObservationManifest, StoredObservation
from stillframe.watch.metrics import MetricSet
from stillframe.watch.observation_document import (
    REASON_COUNT_MAX,
    awaited_calls,
    deadlock_sentence,
    text,
)
from stillframe.watch.span_exporter import SpanExporter, SpanFactory, Value, nanoseconds

ROOT, CALL = "observation", "call"
"""The names of spans as they are sent; that of a call also has the name of what is called."""
CALL_COUNT_MAX = 1000
"""How many calls of an observation have spans: the oldest ones."""

ATTRIBUTES: dict[str, dict[str, str]] = {
    ROOT: {
        "stillframe.observation.number": "As in every command.",
        "stillframe.observation.quality": "`exact`, `partial` or `not exact`.",
        "stillframe.observation.reasons": "Why it is not exact: the first 20 reasons.",
        "stillframe.observation.instances": "How many instances it shows.",
        "stillframe.observation.open_calls": "How many calls are awaited.",
        "stillframe.observation.unresolved_calls": "How many calls are unresolved.",
        "stillframe.observation.calls_left_out": "How many open calls have no span, because there "
        "are more than 1000.",
        "stillframe.observation.bytes": "All its Parquet files together.",
    },
    CALL: {
        "stillframe.call.id": "Its caller and its number.",
        "stillframe.call.caller": "The instance that waits.",
        "stillframe.call.target": "The address that it called.",
        "stillframe.call.place": "`request in transit`, `being served`, `answer in transit`, "
        "`unknown` or `outside`.",
        "stillframe.call.served_by": "The instances that have accepted it; left out if none has.",
        "stillframe.call.serving": "The call that the caller serves meanwhile; left out if none.",
        "stillframe.call.moved_s": "By how much its beginning was shifted, because its caller's "
        "clock is ahead of the collector's; left out if it was not.",
    },
}


class ObservationTrace(NamedTuple):
    """An observation as a trace: its manifest, its oldest open calls, and its deadlock."""

    manifest: ObservationManifest
    calls: list[Located]
    left_out_count: int
    deadlock: str

    @property
    def span_count(self) -> int:
        """How many spans its trace has."""
        return 1 + len(self.calls)

    def attributes(self) -> dict[str, Value]:
        """Return the attributes of its span."""
        manifest = self.manifest
        found: dict[str, Value] = {
            "number": manifest.number,
            "quality": manifest.quality,
            "reasons": tuple(map(text, manifest.reasons[:REASON_COUNT_MAX])),
            "instances": manifest.instance_count,
            "open_calls": manifest.open_count,
            "unresolved_calls": manifest.unresolved_count,
            "calls_left_out": self.left_out_count,
            "bytes": manifest.byte_count,
        }
        return {f"stillframe.observation.{name}": value for name, value in found.items()}

    def make_spans(self, factory: SpanFactory) -> None:
        """Make its spans, that of the whole last."""
        manifest = self.manifest
        factory.start_trace(f"observation {manifest.number} {manifest.initiated_at}")
        root = factory.start_span(ROOT, manifest.initiated_at, self.attributes())
        for located in self.calls:
            self._make_call_span(factory, root, located)
        if self.deadlock:
            root.set_status(Status(StatusCode.ERROR, self.deadlock))
        else:
            root.set_status(Status(StatusCode.OK))
        root.end(nanoseconds(manifest.initiated_at + manifest.duration_s))

    def _make_call_span(self, factory: SpanFactory, root: Span, located: Located) -> None:
        record, details = located.record, located.record.details
        complete_at = self.manifest.completed_at
        began_at = min(details.began_at or complete_at, complete_at)
        found: dict[str, Value] = {
            "id": text(str(located.call)),
            "caller": text(located.call.caller),
            "target": text(record.target),
            "place": located.place.value,
        }
        server = served_by(located)
        if server is not None:
            found["served_by"] = text(server)
        if record.serving is not None:
            found["serving"] = text(str(record.serving))
        if details.began_at > began_at:
            found["moved_s"] = began_at - details.began_at
        span = factory.start_span(
            f"{CALL} {located.call}",
            began_at,
            {f"stillframe.call.{name}": value for name, value in found.items()},
            name=f"{CALL} {text(details.name)}".rstrip(),
            parent=root,
        )
        span.end(nanoseconds(complete_at))


class ObservationTraces:
    """Makes a trace of each observation that it is given. `traced_count` became a trace, and
    `missed_count` were damaged, or removed before they were read."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.exporter = exporter
        self.traced_count = self.missed_count = 0

    def add(self, found: StoredObservation | None) -> None:
        """Trace an observation; None is one that could not be read."""
        if found is None:
            self.missed_count += 1
            return
        self.traced_count += 1
        calls = awaited_calls(found.observation)
        deadlock = find_call_deadlock(found.observation)
        self.exporter.put(
            ObservationTrace(
                found.manifest,
                calls[:CALL_COUNT_MAX],
                len(calls[CALL_COUNT_MAX:]),
                "" if deadlock is None else deadlock_sentence(deadlock),
            )
        )

    def collect(self, metrics: MetricSet) -> None:
        """Add the metrics of exported traces."""
        metrics.put("traced_observations_total", self.traced_count)
        metrics.put("traced_observations_missed_total", self.missed_count)
        metrics.put("spans_total", self.exporter.sent_count, "sent")
        metrics.put("spans_total", self.exporter.dropped_count, "dropped")
