"""Watches one pipeline, while its programs run and afterwards.

It reads the pipeline's files and tries its locks, as the commands do; no program of the pipeline is
involved, and Spark is not needed.
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from typing import Any, assert_never

from stillframe.durable_files import shell_command
from stillframe.errors import StillframeError, Unavailable, UsageError, text_of
from stillframe.model import Abandoned, SnapshotId
from stillframe.pages.snapshot_documents import pipeline_diff_document, pipeline_snapshot_document
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.pipeline import Pipeline
from stillframe.pipeline.progress import Progress
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.storage.location import Location
from stillframe.watch import pipeline_document as document
from stillframe.watch.metrics import MetricSet
from stillframe.watch.pipeline_probe import PipelineProbe, PipelineSample
from stillframe.watch.snapshot_list import pipeline_snapshots
from stillframe.watch.target import (
    NEW_COUNT_MAX,
    POLL_PENDING_S,
    POLL_S,
    Action,
    CreateSavepoint,
    Restore,
    Target,
    TriggerSnapshot,
    action_result,
)

POLL_IDLE_S = 5.0
"""Time between two polls while no page is open, in seconds: later pages show these events. It is
well below the time of a lease, or nothing would show that a participant has ended."""
RATE_S = 5.0
"""Rates are averages over this time, in seconds: a micro-batch appends all its records at once."""
PUBLISH_S = 1.0
"""A snapshot that is being published is neither pending nor published for up to this time."""

PIPELINE = "pipeline"


class PipelineTarget(Target):
    """The pipeline in a directory or object store; `sample` is that of the last successful poll."""

    def __init__(self, path: Location) -> None:
        self.pipeline = Pipeline(path)
        super().__init__(pipeline_snapshots(self.pipeline.path), PIPELINE)
        self.sample: PipelineSample | None = None
        self._dataflow = self.pipeline.dataflow
        self._probe = PipelineProbe(self.pipeline.path)
        self._earlier: deque[PipelineSample] = deque()
        self._is_closed = threading.Event()
        self._ended: tuple[Progress, float] | None = None
        self._abandoned: set[SnapshotId] = set()
        self._restoring = asyncio.Lock()

    async def run(self) -> None:
        """Follow the pipeline until this is cancelled."""
        try:
            while True:
                await self.poll()
                is_pending = self.sample is not None and self.sample.progress is not None
                pause_s = POLL_PENDING_S if is_pending else POLL_S
                with contextlib.suppress(TimeoutError):
                    self._is_wanted.clear()
                    async with asyncio.timeout(
                        pause_s if self.stream.subscriber_count else POLL_IDLE_S
                    ):
                        await self._is_wanted.wait()
        finally:
            self._is_closed.set()
            self.stream.close()

    async def poll(self) -> None:
        """Poll the pipeline, and publish how it is; what the first poll finds is there at first."""
        await super().poll()
        self.stream.open()

    def _describe(self) -> dict[str, Any]:
        return document.describe(str(self.pipeline.path), self._dataflow)

    async def perform(self, action: Action) -> dict[str, Any]:
        """Do it as the commands of pipelines do; see ``Target.perform``."""
        # A restore holds the locks of all participants: a probe would take them for running.
        exclusive = self._restoring if isinstance(action, Restore) else contextlib.nullcontext()
        try:
            async with exclusive:
                result = await asyncio.to_thread(self._perform, action)
        finally:
            self.wake()
        if isinstance(result, Abandoned):
            self._abandoned.add(result.snapshot)
            event = {"at": time.time(), "kind": "abandoned", "sentence": str(result)}
            self._publish_events([event])
            return action_result(str(result), is_done=False)
        return result

    def _perform(self, action: Action) -> dict[str, Any] | Abandoned:
        match action:
            case TriggerSnapshot(None, name):
                return self._take_snapshot(name)
            case TriggerSnapshot():
                raise UsageError("a snapshot of a pipeline starts at the sources of its dataflow")
            case CreateSavepoint():
                raise UsageError("name a snapshot of a pipeline when you take it: take a savepoint")
            case Restore(snapshot):
                return self._restore(snapshot)
            case _:
                assert_never(action)

    def _take_snapshot(self, name: str | None) -> dict[str, Any] | Abandoned:
        def check_open(_: Progress) -> None:
            if self._is_closed.is_set():
                raise Unavailable("'stillframe watch' was stopped, and the snapshot was abandoned")

        mode = document.snapshot_mode(self.pipeline.dataflow)
        if name is None:
            outcome = self.pipeline.snapshot(mode, progress=check_open)
        else:
            outcome = self.pipeline.savepoint(name, mode, progress=check_open)
        if isinstance(outcome, Abandoned):
            return outcome
        return action_result(_published_sentence(outcome), snapshot=str(outcome.snapshot))

    def _restore(self, snapshot: str) -> dict[str, Any]:
        pipeline, manifest = self.pipeline, self.pipeline.restore(snapshot)
        commands = [
            f"'{shell_command('restore', cut.store, '--pipeline', pipeline.path)}'"
            for cut in manifest.systems
        ]
        systems = f"; roll back its systems with {', '.join(commands)}" if commands else ""
        return action_result(
            f"epoch {read_metadata(pipeline.path).epoch}: the pipeline was rolled back to snapshot "
            f"{manifest.snapshot}; next, start its programs again: "
            f"{', '.join(manifest.dataflow.participants)}{systems}"
        )

    def _snapshot_document(self, name: str) -> dict[str, Any]:
        manifest = self.pipeline.find(name)
        is_current = False
        with contextlib.suppress(UsageError):  # the present timeline may have no snapshot
            is_current = manifest.snapshot == self.pipeline.latest().snapshot
        return pipeline_snapshot_document(manifest, is_current=is_current, root=self.pipeline.path)

    def _comparison_document(self, first: str, second: str) -> dict[str, Any]:
        before, after = self.pipeline.find(first), self.pipeline.find(second)
        return pipeline_diff_document(self.pipeline.path, before, after)

    async def _poll(self) -> None:
        before, error, started = self.sample, "", time.monotonic()
        try:
            async with self._restoring:
                self.sample = await asyncio.to_thread(self._probe.sample)
        except (StillframeError, OSError) as failure:
            error = text_of(failure)
        self.polls.add(started)
        sample = self.sample
        self.polls.errors[PIPELINE] = bool(error or (sample is not None and sample.errors))
        await self._publish_snapshots()
        self._publish_errors([error] if error else () if sample is None else sample.errors)
        if sample is None:
            return
        if not error:
            self._dataflow = sample.metadata.dataflow
            self._publish_events(document.events_between(before, sample))
            self._publish_abandoned(sample, before)
        found = document.system_document(sample, self._earlier_sample(sample))
        self.stream.retain("about", self._describe())
        self.stream.retain("system", found | {"explanation": error or found["explanation"]})

    def _earlier_sample(self, sample: PipelineSample) -> PipelineSample | None:
        """Return the sample that rates are relative to, and keep this one."""
        earlier = self._earlier
        while earlier and (
            earlier[0].metadata.epoch != sample.metadata.epoch
            or (len(earlier) > 1 and earlier[1].at <= sample.at - RATE_S)
        ):
            earlier.popleft()
        if not earlier or earlier[-1] is not sample:  # it is, after a poll that failed
            earlier.append(sample)
        return earlier[0] if len(earlier) > 1 else None

    async def _publish_snapshots(self) -> None:
        try:
            new, gone = await asyncio.to_thread(self.snapshots.poll)
            if new or gone:
                await self._publish_rows(new[-NEW_COUNT_MAX:], gone)
        except (StillframeError, OSError) as error:
            self._publish_errors([text_of(error)])

    def _publish_abandoned(self, sample: PipelineSample, before: PipelineSample | None) -> None:
        """Publish that a snapshot is neither pending any more nor published."""
        progress = None if before is None else before.progress
        pending = None if sample.progress is None else sample.progress.snapshot
        if progress is not None and progress.snapshot != pending:
            self._ended = progress, sample.at
        if self._ended is None or sample.at < self._ended[1] + PUBLISH_S:
            return
        ended, at = self._ended
        self._ended = None
        if ended.snapshot not in self.snapshots.ids and ended.snapshot not in self._abandoned:
            self._abandoned.add(ended.snapshot)
            self._publish_events([document.abandoned_event(ended, at)])

    async def _collect(self, metrics: MetricSet) -> None:
        if self.sample is not None:
            await asyncio.to_thread(self._collect_sample, metrics, self.sample)

    def _collect_sample(self, metrics: MetricSet, sample: PipelineSample) -> None:
        progress = sample.progress
        metrics.put("up", all(sample.is_running(name) for name in sample.participants))
        metrics.put("epoch", sample.metadata.epoch)
        pending = set() if progress is None else {p.participant for p in progress.awaiting}
        stragglers = set() if progress is None else {p.participant for p in progress.stragglers}
        for name, participant in sample.participants.items():
            metrics.put("participant_up", sample.is_running(name), name)
            metrics.put("participant_pending", name in pending, name)
            metrics.put("participant_straggler", name in stragglers, name)
            if name in sample.metadata.dataflow.queries:
                metrics.put("query_last_batch_number", participant.batch, name)
                metrics.put("query_last_batch_timestamp_seconds", participant.since, name)
        for name, log in sample.logs.items():
            metrics.put("log_appended_records", log.records, name)
            for target, reader in log.readers.items():
                metrics.put("log_read_records", reader.records, name, target)
                if reader.records is not None:
                    metrics.put("log_lag_records", log.records - reader.records, name, target)
                if reader.position is not None:
                    metrics.put("log_lag_entries", log.entries - reader.position, name, target)
        for name, topic in sample.topics.items():
            metrics.put("topic_end_offset", topic.end, name)
            for target, behind in topic.readers.items():
                metrics.put("topic_read_offset", behind.position, name, target)
                metrics.put("topic_lag_records", behind.behind, name, target)
        metrics.put("snapshots_pending", 0 if progress is None else 1)
        since = sample.at if progress is None else progress.initiated_at
        metrics.put("oldest_pending_snapshot_seconds", max(0.0, sample.at - since))
        metrics.put("store_snapshots", self.snapshots.count)
        for row in self.snapshots.rows(self.snapshots.ids[-1:]):
            metrics.put("last_snapshot_number", row["number"])
            if "error" not in row:
                metrics.put("last_snapshot_timestamp_seconds", row["completed_at"])
                metrics.put("last_snapshot_duration_seconds", row["duration_s"])
                metrics.put("last_snapshot_size_bytes", row["bytes"])
                metrics.put("last_snapshot_messages", row["message_count"])
                metrics.put("last_snapshot_staleness_seconds", row["staleness_s"])
                metrics.put("last_snapshot_data_age_seconds", row["data_age_s"])


def _published_sentence(manifest: Manifest) -> str:
    kind = "snapshot" if manifest.name is None else f"savepoint {manifest.name}, snapshot"
    count, staleness = manifest.record_count, manifest.staleness_s
    stale = "" if staleness is None else f", with a staleness of {staleness:.2f} s"
    held = (
        "" if manifest.topics else f", with {count:,} record{'' if count == 1 else 's'} in transit"
    )
    return (
        f"{kind} {manifest.snapshot} was recorded in "
        f"{manifest.completed_at - manifest.initiated_at:.2f} s and published after "
        f"{manifest.published_at - manifest.initiated_at:.2f} s{held}{stale}"
    )
