"""The event log of a host's process: the records, and when they are flushed."""

import time
from collections.abc import Callable, Mapping

from stillframe.errors import StoreError, UsageError
from stillframe.eventlog.reader import epochs
from stillframe.eventlog.row_encoder import BY_ITSELF, StepRow
from stillframe.eventlog.segments import MARKER_ACCEPTED, MARKER_SENT, RECORDED
from stillframe.eventlog.writer import HAND_OVER_S, Writer
from stillframe.model import Batch, ProcessId, SnapshotId
from stillframe.protocol.recorder import Effect, Recorded, Recorder, SendMarker
from stillframe.runtime.process.endpoints import OutgoingEndpoint
from stillframe.storage.location import Location, io_advice


def check_epoch_unused(log: Location, epoch: int) -> None:
    """Raise a UsageError if the event log `log` holds `epoch` or a later one already, or is not a
    directory. A StoreError if it cannot be read."""
    try:
        newest = max(epochs(log), default=0)
    except OSError as error:
        raise StoreError(
            f"the event log {log} cannot be read: {error.strerror or error}",
            remedy=io_advice(log, error),
        ) from error
    if newest >= epoch:
        raise UsageError(
            f"{log} already holds the event log of epoch {newest}, which is not overwritten, "
            f"and this system starts epoch {epoch}; give --event-log another directory"
        )


class EventLogger:
    """Records what `process` does, each event in the step in which it happens.

    `recorder` counts what was received, `outgoing` what was sent. `report_failure` is called by any
    thread with a sentence when the log cannot be written. `record` takes the code of an event:
    `accepting` has those of actions that begin with a message, by source, `sending` those of
    messages that are sent, by target. `is_time` says whether to flush at the next boundary between
    actions; that is to be so every `flush_interval_s` seconds.
    """

    flush_interval_s = HAND_OVER_S

    def __init__(
        self,
        log: Location,
        process: ProcessId,
        epoch: int,
        recorder: Recorder,
        outgoing: Mapping[ProcessId, OutgoingEndpoint],
        *,
        report_failure: Callable[[str], None],
    ) -> None:
        self.is_time = False
        self._recorder = recorder
        self._outgoing = outgoing
        counts = recorder.received_counts, _sent_counts(outgoing)
        self._writer = Writer(log, process, epoch, *counts, on_error=report_failure)
        self.record = self._writer.record
        self.accepting, self.sending = self._writer.accepting, self._writer.sending

    def action_started(self) -> None:
        """Record that an atomic action begins without a message."""
        self.record(BY_ITSELF)

    def step(
        self,
        snapshot: SnapshotId,
        source: ProcessId | None,
        effects: list[Effect],
        *,
        is_cut: bool,
        took_s: float,
    ) -> None:
        """Record a step of a snapshot, before its markers are sent.

        The marker of `source`, None if the process initiates, came when the step began, `took_s`
        seconds ago, and the state is that of then if it `is_cut`. The markers are sent when that is
        recorded.
        """
        sent_at, name = time.time(), str(snapshot)
        at = sent_at - took_s
        complete = [effect.fragment for effect in effects if isinstance(effect, Recorded)]
        progress = self._recorder.progress(snapshot)
        if source is not None:
            closed: Mapping[ProcessId, tuple[Batch, ...]] = {}
            if complete:
                closed = {record.source: record.batches for record in complete[0].incoming}
            elif progress is not None:
                closed = progress.closed
            recorded = _range(closed[source]) if source in closed else None
            code = self.accepting[source]
            self._writer.record_step(StepRow(MARKER_ACCEPTED, code, name, at, recorded))
        if is_cut and (complete or progress is not None):
            self._writer.record_step(StepRow(RECORDED, BY_ITSELF, name, at))
        for effect in effects:
            if isinstance(effect, SendMarker):
                code = self.sending[effect.target]
                self._writer.record_step(StepRow(MARKER_SENT, code, name, sent_at))
        if is_cut or complete:
            # So that the log has it by the time that the snapshot is published, whatever comes.
            self.is_time = True

    def on_boundary(self) -> None:
        """Flush if it is time or much was recorded. No action is in progress, and all that was sent
        is counted."""
        if self._writer.is_much() or self.is_time:
            self.is_time = False
            self._writer.hand_over(self._recorder.received_counts, _sent_counts(self._outgoing))

    def close(self) -> None:
        """Write what was recorded, and close."""
        self._writer.close()


def _sent_counts(outgoing: Mapping[ProcessId, OutgoingEndpoint]) -> dict[ProcessId, int]:
    return {target: channel.sent_count for target, channel in outgoing.items()}


def _range(batches: tuple[Batch, ...]) -> list[tuple[int, int]]:
    """Return the numbers of the messages, which follow each other: one range, or none."""
    if not batches:
        return []
    first = batches[0].first
    return [(first, batches[-1].last - first + 1)]
