"""Every metric, what it means, and how it is collected and exposed for Prometheus.

Names follow Prometheus: base units last, and `_total` behind what only goes up.

The counts of a system decrease when it is restored from a snapshot. Prometheus would take that for
a restart from zero, and a rate would jump: so increases are added up here, from poll to poll.
"""

import importlib.metadata
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder

from stillframe.model import Channel, Reason, SnapshotId
from stillframe.runtime.supervisor.admin_socket import SystemStatus
from stillframe.store.history import EventCounts
from stillframe.store.manifest import SnapshotEntry
from stillframe.topology import Description
from stillframe.watch.predicate_status import PredicateStatus
from stillframe.watch.system_document import BUSY, RUNNING, SILENT, STATUSES, ChannelStatus

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
PREFIX = "stillframe_"
PROCESS_COUNT_MAX = 500
"""How many processes have series of their own."""
CHANNEL_COUNT_MAX = 1000
"""How many channels have."""
QUANTITY_COUNT_MAX = 32
"""How many conserved quantities have."""
OTHER = "OTHER"
"""The label for a reason of a newer version, which this one does not know."""

_DURATIONS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_PAUSES_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_BYTES = tuple(float(4**power) for power in range(6, 18))
_COUNTS = (0.0, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7)

Number = int | float


class MetricDefinition(NamedTuple):
    """A metric: gauge, counter or histogram, with the upper bounds of its buckets."""

    kind: str
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


def _gauge(unit: str, text: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(GAUGE, unit, text, labels)


def _flag(text: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(GAUGE, "0 or 1", text, labels)


def _counter(unit: str, text: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(COUNTER, unit, text, labels)


def _histogram(unit: str, text: str, bounds: tuple[float, ...]) -> MetricDefinition:
    return MetricDefinition(HISTOGRAM, unit, text, (), bounds)


_CHANNEL, _READER, _TOPIC_READER = ("source", "target"), ("log", "target"), ("channel", "target")
_LAST = "Of the last published snapshot."
_NEWEST = "Of the newest observation that can be read."
_COMPLETE = "When that snapshot was complete, since 1970."

SYSTEM = {
    "up": _flag("Every process runs and every channel is connected."),
    "epoch": _gauge("number", "How often the system was started or restarted."),
    "restores_total": _counter("restores", "The system started an epoch from a snapshot."),
    "takeovers_total": _counter("takeovers", "A new supervisor replaced a dead one."),
    "processes": _gauge(
        "processes", "How many are running, busy, silent, starting, dead or stopped.", "status"
    ),
    "channels": _gauge("channels", "How many exist."),
    "left_out": _gauge(
        "processes, channels, services or quantities",
        "How many have no separate series, because there are too many; those of channels are "
        "added up in a series without source and target.",
        "kind",
    ),
}
PROCESSES = {
    "process_up": _flag("It answered the last poll.", "process"),
    "process_busy": _flag("It answered in the middle of an atomic action.", "process"),
    "process_silent": _flag("It, or the whole system, did not answer within 0.5 s.", "process"),
    "process_pending": _flag("Its fragment of a pending snapshot is missing.", "process"),
    "process_straggler": _flag("It delays a pending snapshot.", "process"),
    "process_deaths_total": _counter(
        "deaths",
        "Its crashes; without a process: of those that are left out or no longer exist.",
        "process",
    ),
}
CHANNELS = {
    "channel_sent_messages_total": _counter(
        "messages", "Sent by the source since the watcher's first poll.", *_CHANNEL
    ),
    "channel_received_messages_total": _counter(
        "messages", "Received by the target since the watcher's first poll.", *_CHANNEL
    ),
    "channel_in_transit_messages": _gauge(
        "messages", "Sent and not received; approximate, as both ends are polled.", *_CHANNEL
    ),
    "channel_unhandled_bytes": _gauge(
        "bytes", "Sent and not handled: the larger number that the two ends report.", *_CHANNEL
    ),
    "channel_connected": _flag("Both ends report a connection.", *_CHANNEL),
}
SNAPSHOTS = {
    "snapshots_started_total": _counter("snapshots", "Given a number; each retry has its own."),
    "snapshots_published_total": _counter("snapshots", "Published in the store."),
    "snapshots_abandoned_total": _counter("snapshots", "Abandoned: not published.", "reason"),
    "snapshots_pending": _gauge("snapshots", "Started, and neither published nor abandoned."),
    "oldest_pending_snapshot_seconds": _gauge("seconds", "Its age; 0 if no snapshot is pending."),
    "pending_processes": _gauge("processes", "With a missing fragment of any pending snapshot."),
    "snapshot_duration_seconds": _histogram(
        "seconds", "From the start until the last fragment was complete.", _DURATIONS_S
    ),
    "snapshot_pause_seconds": _histogram("seconds", "The longest pause of a process.", _PAUSES_S),
    "snapshot_capture_seconds": _histogram(
        "seconds", "The longest time until the fragment of a process was encoded.", _DURATIONS_S
    ),
    "snapshot_size_bytes": _histogram("bytes", "All its Parquet files together.", _BYTES),
    "snapshot_messages": _histogram("messages", "Messages in transit at the cut.", _COUNTS),
    "last_snapshot_number": _gauge("number", _LAST),
    "last_snapshot_timestamp_seconds": _gauge("seconds", _COMPLETE),
    "last_snapshot_duration_seconds": _gauge("seconds", _LAST),
    "last_snapshot_pause_seconds": _gauge("seconds", _LAST),
    "last_snapshot_capture_seconds": _gauge("seconds", _LAST),
    "last_snapshot_size_bytes": _gauge("bytes", _LAST),
    "last_snapshot_messages": _gauge("messages", _LAST),
    "store_snapshots": _gauge("snapshots", "How many are in the store."),
    "store_savepoints": _gauge("savepoints", "How many are kept under a name."),
}
OBJECT_STORE = {
    "storage_requests_total": _counter(
        "requests", "Sent by the supervisor to the object store of its store."
    ),
    "storage_repeated_requests_total": _counter(
        "requests", "Of these, sent again because one before had failed."
    ),
    "storage_sent_bytes_total": _counter("bytes", "Content that it sent."),
    "storage_received_bytes_total": _counter("bytes", "Content that it received."),
    "storage_request_seconds_total": _counter("seconds", "Time that its requests took, added up."),
}
PREDICATES = {
    "predicate_holds": _flag(
        "Its value in the last evaluated snapshot, or in the newest observation.", "predicate"
    ),
    "conserved_amount": _gauge(
        "as declared",
        "In the last evaluated snapshot, or in the newest observation; of that it is the true "
        "total only if the observation is exact.",
        "quantity",
    ),
    "conserved_in_channels_amount": _gauge("as declared", "Of that, in transit.", "quantity"),
    "evaluated_snapshot_number": _gauge("number", "Of the last evaluated snapshot."),
    "evaluated_snapshot_timestamp_seconds": _gauge("seconds", _COMPLETE),
}
OBSERVATIONS = {
    "store_observations": _gauge(
        "observations",
        "How many are in the store: `exact`, `partial`, `not exact` or `unreadable`. Abandoned "
        "ones are not stored, so no metric counts them.",
        "quality",
    ),
    "last_observation_number": _gauge("number", _NEWEST),
    "last_observation_timestamp_seconds": _gauge(
        "seconds", "When it was complete, since 1970: its age is the time since then."
    ),
    "last_observation_duration_seconds": _gauge("seconds", _NEWEST),
    "last_observation_size_bytes": _gauge("bytes", _NEWEST),
    "last_observation_exact": _flag("Whether its amounts are exact."),
    "observed_instances": _gauge("instances", _NEWEST, "service"),
    "open_calls": _gauge("calls", "Awaited in the newest observation, by where they are.", "place"),
    "oldest_open_call_seconds": _gauge(
        "seconds", "Its age in the newest observation, by its caller's clock; 0 if there is none."
    ),
    "unresolved_calls": _gauge(
        "calls", "Calls in the newest observation whose callers do not wait for them.", "kind"
    ),
    "timed_out_calls_total": _counter(
        "calls", "Calls whose callers have stopped waiting, since the store was made."
    ),
    "listed_timed_out_calls": _gauge(
        "calls",
        "Those of them that `stillframe calls` lists: `yes`, `no`, `unknown` or `settled` (their "
        "application has settled them, or an operator began a baseline). One that was not accepted "
        "may be later.",
        "accepted",
    ),
    "observed_amount": _gauge(
        "as declared",
        "In the newest observation. The total is the sum over the places without `unknown`, and "
        "`doubled` is subtracted.",
        *("quantity", "place"),
    ),
}
WATCHER = {
    "build_info": _gauge("1", "The version of Stillframe.", "version"),
    "watch_start_timestamp_seconds": _gauge("seconds", "When it started, since 1970."),
    "watch_polls_total": _counter(
        "polls", "How many times it asked the system or pipeline for its status, or read the store."
    ),
    "watch_last_poll_timestamp_seconds": _gauge("seconds", "When it polled last, since 1970."),
    "watch_poll_duration_seconds": _gauge("seconds", "How long the last answer took."),
    "watch_pages": _gauge("pages", "How many are open and subscribed."),
    "watch_error": _flag(
        "It cannot poll the system that should run, read the store, evaluate the last snapshot, "
        "or send traces.",
        "about",
    ),
}
TRACES = {
    "traced_snapshots_total": _counter(
        "snapshots", "Exported as a trace, with or without their marker timeline."
    ),
    "traced_snapshots_missed_total": _counter(
        "snapshots", "Exported without it: the system no longer had their marker timeline."
    ),
    "traced_observations_total": _counter("observations", "Exported as a trace."),
    "traced_observations_missed_total": _counter(
        "observations", "Not exported: damaged, or removed before the watcher read them."
    ),
    "spans_total": _counter("spans", "Sent to the endpoint, or dropped.", "outcome"),
}
PIPELINES = {
    "participant_up": _flag("A program runs it.", "participant"),
    "participant_pending": _flag("Its fragment of a pending snapshot is missing.", "participant"),
    "participant_straggler": _flag(
        "It is pending, and does not wait for a barrier.", "participant"
    ),
    "query_last_batch_number": _gauge("number", "Of its last committed micro-batch.", "query"),
    "query_last_batch_timestamp_seconds": _gauge(
        "seconds", "When it committed that, since 1970.", "query"
    ),
    "log_appended_records": _gauge(
        "records", "Appended since the pipeline was created; a restore rolls it back.", "log"
    ),
    "log_read_records": _gauge(
        "records", "Committed by a query, or reported as read by a service.", *_READER
    ),
    "log_lag_records": _gauge("records", "What the target has still to read.", *_READER),
    "log_lag_entries": _gauge("entries", "The same in entries, including barriers.", *_READER),
    "topic_end_offset": _gauge(
        "offsets", "Where a topic of Kafka ends: the sum over its partitions.", "channel"
    ),
    "topic_read_offset": _gauge(
        "offsets", "Committed by a query: the sum over the partitions.", *_TOPIC_READER
    ),
    "topic_lag_records": _gauge(
        "records",
        "What the target has still to read, including records of abandoned micro-batches.",
        *_TOPIC_READER,
    ),
    "last_snapshot_staleness_seconds": _gauge(
        "seconds",
        "Of the last published snapshot, in mode retained: the age of the first planned "
        "micro-batch, or else unread record, that is not part of it.",
    ),
    "last_snapshot_data_age_seconds": _gauge(
        "seconds",
        "Of the last published snapshot, with topics: how long the first record that its target "
        "had not read had been in its topic.",
    ),
}

SECTIONS = {
    "The system": SYSTEM,
    "Processes": PROCESSES,
    "Channels": CHANNELS,
    "Snapshots": SNAPSHOTS,
    "The object store, if the store is in one": OBJECT_STORE,
    "Predicates and conserved quantities": PREDICATES,
    "The watcher": WATCHER,
    "Pipelines": PIPELINES,
    "Observations of services": OBSERVATIONS,
    "Traces, with `--otlp`": TRACES,
}
METRICS = {name: metric for section in SECTIONS.values() for name, metric in section.items()}
"""By the name without `stillframe_`, the prefix of all."""


class Histogram:
    """Counts the values of a metric by bucket."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sum = 0.0
        self._bounds = METRICS[name].bounds
        self._counts = [0] * (len(self._bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the upper bounds of the buckets, as text, with the cumulative counts."""
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))


class MetricSet:
    """The metrics of one scrape: a collector of prometheus-client."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def put(self, name: str, value: Number | None, *labels: str) -> None:
        """Add a value of a gauge or a counter with its labels; an unknown one has no series."""
        if value is not None:
            named = dict(zip(METRICS[name].labels, labels, strict=True))
            self._family(name).add_sample(PREFIX + name, named, value)

    def put_all(self, name: str, values: Mapping[str, Number]) -> None:
        """Add the values of a metric with one label."""
        for label, value in values.items():
            self.put(name, value, label)

    def put_histogram(self, histogram: Histogram) -> None:
        """Add what a histogram has counted."""
        family, name = self._family(histogram.name), PREFIX + histogram.name
        buckets = histogram.buckets()
        for bound, count in buckets:
            family.add_sample(f"{name}_bucket", {"le": bound}, count)
        family.add_sample(f"{name}_count", {}, buckets[-1][1])
        family.add_sample(f"{name}_sum", {}, histogram.sum)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics in the order of `METRICS`."""
        yield from (self._families[name] for name in METRICS if name in self._families)

    def _family(self, name: str) -> Metric:
        if name not in self._families:
            kind, unit, text, _, _ = METRICS[name]
            base = PREFIX + name.removesuffix("_total")
            # OpenMetrics has a field for a unit with which the name ends.
            unit = unit if unit in ("seconds", "bytes") and base.endswith(f"_{unit}") else ""
            self._families[name] = Metric(base, text, kind, unit)
        return self._families[name]


def exposition(metrics: MetricSet, accept: str) -> tuple[bytes, str]:
    """Return the metrics in the text format that the header `accept` prefers, with its type."""
    registry = CollectorRegistry()
    registry.register(metrics)
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


class MonotonicCounter:
    """Adds up the increases of a count that may decrease."""

    def __init__(self) -> None:
        self.total = 0
        self._epoch = 0
        self._count: int | None = None

    def update(self, epoch: int, count: int) -> None:
        """Learn the count. Its increase between two epochs is not known, and left out."""
        if self._count is not None and epoch == self._epoch:
            self.total += max(0, count - self._count)
        self._epoch, self._count = epoch, count


_FIGURES: dict[str, Callable[[SnapshotEntry], Number]] = {
    "duration_seconds": lambda entry: entry.completed_at - entry.initiated_at,
    "pause_seconds": lambda entry: entry.pause_s,
    "capture_seconds": lambda entry: entry.capture_s,
    "size_bytes": lambda entry: entry.bytes,
    "messages": lambda entry: entry.message_count,
}
"""What has a histogram of the new snapshots, and a gauge of the last one."""


class SystemCounters:
    """The counts since a system is watched: its new snapshots, and messages in transit."""

    def __init__(self) -> None:
        self._last: SnapshotEntry | None = None
        self._histograms = {name: Histogram(f"snapshot_{name}") for name in _FIGURES}
        self._sent: dict[Channel, MonotonicCounter] = {}
        self._received: dict[Channel, MonotonicCounter] = {}

    def add_snapshot(self, entry: SnapshotEntry, *, is_new: bool) -> None:
        """Count a published snapshot; one that is not new existed when the watcher started."""
        if self._last is None or entry.sequence > self._last.sequence or entry.id == self._last.id:
            self._last = entry
        if is_new:
            for name, figure in _FIGURES.items():
                self._histograms[name].observe(figure(entry))

    def add_messages(self, status: SystemStatus) -> None:
        """Count the messages that the processes report."""
        for process, answer in status.statuses.items():
            for target, end in answer.outgoing.items():
                counter = self._sent.setdefault(Channel(process, target), MonotonicCounter())
                counter.update(status.epoch, end.count)
            for source, end in answer.incoming.items():
                counter = self._received.setdefault(Channel(source, process), MonotonicCounter())
                counter.update(status.epoch, end.count)

    def channels(
        self, description: Description, status: SystemStatus | None
    ) -> dict[Channel, ChannelStatus]:
        """Return the channels with any count: their status, with the totals of both counters."""
        answers = {} if status is None else status.statuses
        zero = MonotonicCounter()
        return {
            channel: ChannelStatus.of(channel, answers)._replace(
                sent=self._sent.get(channel, zero).total,
                received=self._received.get(channel, zero).total,
            )
            for channel in description.channels
            if channel in self._sent or channel in self._received
        }

    def collect(self, metrics: MetricSet) -> None:
        """Add the metrics of the published snapshots."""
        for histogram in self._histograms.values():
            metrics.put_histogram(histogram)
        if self._last is not None:
            metrics.put("last_snapshot_number", self._last.id.number)
            metrics.put("last_snapshot_timestamp_seconds", self._last.completed_at)
            for name, figure in _FIGURES.items():
                metrics.put(f"last_snapshot_{name}", figure(self._last))


class PollCounters:
    """Counts the polls of a watcher, and the last was finished at `finished_s` by the
    monotonic clock; `errors` says of each thing that may fail whether it does."""

    def __init__(self, *concerns: str) -> None:
        self.errors = dict.fromkeys(concerns, False)
        self.finished_s = -inf
        self._started_at = time.time()
        self._count = 0
        self._duration_s = 0.0
        self._finished_at = 0.0

    def add(self, started_s: float) -> None:
        """Count a poll that is finished now and was started then, by the monotonic clock."""
        self._count += 1
        self._finished_at, self.finished_s = time.time(), time.monotonic()
        self._duration_s = self.finished_s - started_s

    def collect(self, metrics: MetricSet, *, page_count: int) -> None:
        """Add the metrics of the watcher itself."""
        metrics.put("build_info", 1, importlib.metadata.version("stillframe"))
        metrics.put("watch_start_timestamp_seconds", self._started_at)
        metrics.put("watch_polls_total", self._count)
        if self._count:
            metrics.put("watch_last_poll_timestamp_seconds", self._finished_at)
            metrics.put("watch_poll_duration_seconds", self._duration_s)
        metrics.put("watch_pages", page_count)
        metrics.put_all("watch_error", self.errors)


class SystemSample(NamedTuple):
    """A sample of a system: of a stopped one the last epoch, and no status. `process_statuses` has
    the order of the topology; `counts` are those of the history."""

    description: Description
    epoch: int
    status: SystemStatus | None
    process_statuses: Sequence[str]
    counts: EventCounts
    predicates: PredicateStatus | None
    snapshot_count: int
    savepoint_count: int


def collect_system(metrics: MetricSet, sample: SystemSample, counters: SystemCounters) -> None:
    """Add the metrics of a system."""
    metrics.put("up", sample.status is not None and sample.status.is_running)
    metrics.put("epoch", sample.epoch)
    metrics.put("restores_total", sample.counts.restores)
    metrics.put("takeovers_total", sample.counts.takeovers)
    metrics.put("channels", len(sample.description.channels))
    requests = msgspec.UNSET if sample.status is None else sample.status.requests
    if requests is not msgspec.UNSET:
        metrics.put("storage_requests_total", requests.requests)
        metrics.put("storage_repeated_requests_total", requests.repeated)
        metrics.put("storage_sent_bytes_total", requests.sent_bytes)
        metrics.put("storage_received_bytes_total", requests.received_bytes)
        metrics.put("storage_request_seconds_total", requests.seconds)
    _collect_processes(metrics, sample)
    _collect_channels(metrics, sample, counters)
    _collect_snapshots(metrics, sample)
    counters.collect(metrics)
    if sample.predicates is not None:
        _collect_predicates(metrics, sample.predicates)


def _collect_processes(metrics: MetricSet, sample: SystemSample) -> None:
    processes = list(sample.description.processes)
    counts = {**_zeros(STATUSES), **Counter(sample.process_statuses)}
    metrics.put_all("processes", counts)
    pending_snapshots = () if sample.status is None else sample.status.pending
    pending = {process for snapshot in pending_snapshots for process in snapshot.missing}
    stragglers = {process for snapshot in pending_snapshots for process in snapshot.at_fault}
    metrics.put("pending_processes", len(pending))
    shown = dict(zip(processes[:PROCESS_COUNT_MAX], sample.process_statuses, strict=False))
    metrics.put("left_out", len(processes) - len(shown), "process")
    deaths = sample.counts.deaths
    for process, status in shown.items():
        metrics.put("process_up", status in (RUNNING, BUSY), process)
        metrics.put("process_busy", status == BUSY, process)
        metrics.put("process_silent", status == SILENT, process)
        metrics.put("process_pending", process in pending, process)
        metrics.put("process_straggler", process in stragglers, process)
        metrics.put("process_deaths_total", deaths.get(process, 0), process)
    others = sum(count for name, count in deaths.items() if name not in shown)
    metrics.put("process_deaths_total", others, "")


def _collect_channels(metrics: MetricSet, sample: SystemSample, counters: SystemCounters) -> None:
    def put(values: Iterable[Number | None], source: str, target: str) -> None:
        for name, value in zip(CHANNELS, values, strict=True):
            metrics.put(name, value, source, target)

    known = counters.channels(sample.description, sample.status)
    shown = sample.description.channels[:CHANNEL_COUNT_MAX]
    left_out = sample.description.channels[CHANNEL_COUNT_MAX:]
    metrics.put("left_out", len(left_out), "channel")
    for channel in shown:
        if channel in known:
            put(known[channel], channel.source, channel.target)
    if others := [known[channel] for channel in left_out if channel in known]:
        columns = [[v for v in column if v is not None] for column in zip(*others, strict=True)]
        *counts, connected = columns
        totals = [sum(column) if column else None for column in counts]
        put([*totals, all(connected) if connected else None], "", "")


def _collect_snapshots(metrics: MetricSet, sample: SystemSample) -> None:
    counts, pending = sample.counts, () if sample.status is None else sample.status.pending
    metrics.put("snapshots_started_total", counts.begun)
    metrics.put("snapshots_published_total", counts.published)
    reasons = Counter(_zeros((*Reason.__members__, OTHER)))
    for name, count in counts.abandoned.items():
        reasons[name if name in Reason.__members__ else OTHER] += count
    metrics.put_all("snapshots_abandoned_total", {n.lower(): c for n, c in reasons.items()})
    metrics.put("snapshots_pending", len(pending))
    now = 0.0 if sample.status is None else sample.status.now
    oldest = min((snapshot.initiated_at for snapshot in pending), default=now)
    metrics.put("oldest_pending_snapshot_seconds", max(0.0, now - oldest))
    metrics.put("store_snapshots", sample.snapshot_count)
    metrics.put("store_savepoints", sample.savepoint_count)


def _collect_predicates(metrics: MetricSet, status: PredicateStatus) -> None:
    metrics.put_all("predicate_holds", {n: v.holds for n, v in status.verdicts.items()})
    for name in list(status.totals)[:QUANTITY_COUNT_MAX]:
        metrics.put("conserved_amount", status.totals[name], name)
        metrics.put("conserved_in_channels_amount", status.in_channels[name], name)
    metrics.put("evaluated_snapshot_number", SnapshotId.parse(status.snapshot).number)
    metrics.put("evaluated_snapshot_timestamp_seconds", status.at)


def _zeros(names: Iterable[str]) -> dict[str, int]:
    """Return zero for each name: a series that exists from the start shows its first increase."""
    return dict.fromkeys(names, 0)
