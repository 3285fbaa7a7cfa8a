"""Chandy-Lamport for one process.

The rules (Chandy & Lamport, *Distributed Snapshots*, TOCS 1985, section 3.2):

* *Marker-sending rule.* "For each channel c, incident on, and directed away from p: p sends one
  marker along c after p records its state and before p sends further messages along c."
* *Marker-receiving rule.* "On receiving a marker along a channel c: if q has not recorded its state
  then q records its state; q records the state of c as the empty sequence; else q records the state
  of c as the sequence of messages received along c after q's state was recorded and before q
  received the marker along c."

What we add: any number of snapshots at once, each with its own recording; counts of messages, which
make a snapshot checkable alone; and abandonment.

The host's duties, in order:

1. Report how much was sent on each channel (`sent`) before a call of `initiate` or `marker`.
2. Carry out the effects in the order given before anything else happens in the process: a
   `SendMarker` is sent on its channel after everything sent before it.
3. Pass batches and markers of one channel in the order of their arrival. Pass a batch when its
   messages have been delivered to the application, with no other call in between.
"""

import enum
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar, final

import msgspec

from stillframe.errors import ProtocolViolation, UsageError, text_of
from stillframe.model import (
    Batch,
    Channel,
    Fragment,
    IncomingRecord,
    Marker,
    ProcessId,
    ProcessState,
    SnapshotId,
)


class Phase(enum.Enum):
    """The phase of one snapshot at one process."""

    IDLE = "idle"
    RECORDING = "recording"
    RECORDED = "recorded"
    ABANDONED = "abandoned"


class Stimulus(enum.Enum):
    """An event that affects a recording."""

    INITIATE = "initiate"
    MARKER = "marker"
    LAST_MARKER = "last marker"
    ABANDON = "abandon"


TRANSITIONS: dict[Phase, dict[Stimulus, Phase]] = {
    Phase.IDLE: {
        Stimulus.INITIATE: Phase.RECORDING,
        Stimulus.MARKER: Phase.RECORDING,
        Stimulus.ABANDON: Phase.ABANDONED,
    },
    Phase.RECORDING: {
        Stimulus.INITIATE: Phase.RECORDING,
        Stimulus.MARKER: Phase.RECORDING,
        Stimulus.LAST_MARKER: Phase.RECORDED,
        Stimulus.ABANDON: Phase.ABANDONED,
    },
    Phase.RECORDED: {Stimulus.INITIATE: Phase.RECORDED, Stimulus.ABANDON: Phase.RECORDED},
    Phase.ABANDONED: {
        Stimulus.INITIATE: Phase.ABANDONED,
        Stimulus.MARKER: Phase.ABANDONED,
        Stimulus.ABANDON: Phase.ABANDONED,
    },
}
"""The life of a recording. What is not in the table breaks the rules: a marker too many."""

ENDED_COUNT_MAX = 1024
"""How many ended snapshots are remembered, to tell their late markers from those of new ones.
Numbers rise, so one that is as old as a forgotten one has ended too."""


class SendMarker(msgspec.Struct, frozen=True):
    """Send `marker` on the channel to `target`, behind everything sent so far."""

    target: ProcessId
    marker: Marker


class Recorded(msgspec.Struct, frozen=True):
    """This process's fragment is complete: pass it to the assembler."""

    fragment: Fragment


class NotRecorded(msgspec.Struct, frozen=True):
    """This process declines the snapshot: its state could not be captured, or the frames of a
    channel contradict each other; `detail` says which."""

    snapshot: SnapshotId
    detail: str


Effect = SendMarker | Recorded | NotRecorded
"""What a process has to do, in this order: send a marker, pass its complete fragment on, or decline
the snapshot. An override may leave out or reorder those of ``super()``."""


class Progress(msgspec.Struct, frozen=True):
    """The progress of a snapshot at a process. It has the state and counts of messages at the cut,
    and the recordings so far: of channels whose markers are `awaited`, and of those `closed`."""

    state: ProcessState
    sent_counts: dict[ProcessId, int]
    received_counts: dict[ProcessId, int]
    awaited: dict[ProcessId, tuple[Batch, ...]]
    closed: dict[ProcessId, tuple[Batch, ...]]


@dataclass(eq=False)
class Recording:
    """One snapshot that is being recorded: the cut, and the channels that are still awaited."""

    state: ProcessState
    sent_counts: dict[ProcessId, int]
    received_counts: dict[ProcessId, int]

    def __post_init__(self) -> None:
        self.awaited: dict[ProcessId, list[Batch]] = {source: [] for source in self.received_counts}
        self.closed: dict[ProcessId, tuple[Batch, ...]] = {}

    def is_marked(self, source: ProcessId) -> bool:
        """Return whether the marker from `source` has come."""
        return source not in self.awaited

    def close(self, source: ProcessId) -> None:
        """Take the channel from `source` as it was recorded up to now: it is complete."""
        self.closed[source] = tuple(self.awaited.pop(source))

    def progress(self) -> Progress:
        """Return how far it is."""
        awaited = {source: tuple(batches) for source, batches in self.awaited.items()}
        cut = self.state, self.sent_counts, self.received_counts
        return Progress(*cut, awaited, dict(self.closed))

    def fragment(self, snapshot: SnapshotId) -> Fragment:
        """Return this process's fragment; every channel must be closed."""
        incoming = tuple(
            IncomingRecord(source, count, self.closed[source])
            for source, count in self.received_counts.items()
        )
        return Fragment(snapshot, self.state, self.sent_counts, incoming)


AnyRecording = TypeVar("AnyRecording", bound=Recording)


class Recordings(Generic[AnyRecording]):
    """The recordings of one process, each in its phase. Each call is one atomic step.

    This is the common part of all rules. `Recorder` and ``lai_yang.LaiYangRecorder`` add how a
    process learns of a cut, and what a channel held at it. `outgoing` has for each target how many
    messages were sent to it, `incoming` for each source how many were received. `capture` returns
    the state of the process as it is now, in bytes that share nothing with it; it is called inside
    the step that sends the markers.
    """

    def __init__(
        self,
        process: ProcessId,
        *,
        incoming: dict[ProcessId, int],
        outgoing: dict[ProcessId, int],
        capture: Callable[[], ProcessState],
    ) -> None:
        self._process = process
        self._received_counts = dict(incoming)
        self._sent_counts = dict(outgoing)
        self._capture = capture
        self._recordings: dict[SnapshotId, AnyRecording] = {}
        self._forgotten_number = -1
        self._ended: OrderedDict[SnapshotId, Phase] = OrderedDict()

    @final
    def phase(self, snapshot: SnapshotId) -> Phase:
        """Return the phase of `snapshot` at this process."""
        if snapshot in self._recordings:
            return Phase.RECORDING
        if snapshot.number <= self._forgotten_number:
            return self._ended.get(snapshot, Phase.ABANDONED)
        return self._ended.get(snapshot, Phase.IDLE)

    @final
    def progress(self, snapshot: SnapshotId) -> Progress | None:
        """Return the progress of `snapshot`; None if it is not being recorded."""
        recording = self._recordings.get(snapshot)
        return None if recording is None else recording.progress()

    @final
    def awaited(self, snapshot: SnapshotId) -> tuple[ProcessId, ...]:
        """Return the sources whose markers of `snapshot` have not come; none if not recording."""
        recording = self._recordings.get(snapshot)
        return () if recording is None else tuple(recording.awaited)

    @final
    def sent(self, target: ProcessId, count: int) -> None:
        """Set the number of messages sent to `target` so far, since the first epoch."""
        assert count >= self._sent_counts[target], (target, count)
        self._sent_counts[target] = count

    def initiate(self, snapshot: SnapshotId) -> list[Effect]:
        """Start `snapshot` here: record the state, then send a marker on every outgoing channel. It
        does nothing if a marker of `snapshot` came first, or if it has ended."""
        if self._step(snapshot, Stimulus.INITIATE) is not Phase.IDLE:
            return []
        return self._cut(snapshot)

    def abandon(self, snapshot: SnapshotId) -> None:
        """Stop recording `snapshot`: it will not be completed. Its markers may still come."""
        if self._step(snapshot, Stimulus.ABANDON) in (Phase.IDLE, Phase.RECORDING):
            self._recordings.pop(snapshot, None)
            self._end(snapshot, Phase.ABANDONED)

    @final
    def settle(self, last_number: int) -> None:
        """Abandon every snapshot with a number up to `last_number` that was not recorded, even
        those not seen here yet: their markers may still come."""
        for snapshot in tuple(self._recordings):
            # A newer one can have started here: its marker may overtake the notice of the number.
            if snapshot.number <= last_number:
                self.abandon(snapshot)
        self._forgotten_number = max(self._forgotten_number, last_number)

    def _begin_recording(self, state: ProcessState) -> AnyRecording:
        raise NotImplementedError

    def _marker_to(self, target: ProcessId, snapshot: SnapshotId) -> Marker:
        raise NotImplementedError

    def _marked(
        self, source: ProcessId, snapshot: SnapshotId
    ) -> tuple[list[Effect], AnyRecording | None]:
        """Take a marker, and record the state if it is the first sign of its snapshot; return the
        effects, and the recording, if there is one."""
        before = self._step(snapshot, Stimulus.MARKER, source)
        effects = self._cut(snapshot) if before is Phase.IDLE else []
        recording = self._recordings.get(snapshot)
        if recording is not None and recording.is_marked(source):
            raise self._second_marker(source, snapshot)
        return effects, recording

    def _step(
        self, snapshot: SnapshotId, stimulus: Stimulus, source: ProcessId | None = None
    ) -> Phase:
        """Return the phase before `stimulus`, or raise if the table has no such step."""
        phase = self.phase(snapshot)
        if stimulus not in TRANSITIONS[phase]:
            assert source is not None, (phase, stimulus)
            raise self._second_marker(source, snapshot)
        return phase

    def _second_marker(self, source: ProcessId, snapshot: SnapshotId) -> ProtocolViolation:
        return ProtocolViolation(
            f"channel {Channel(source, self._process)}: a second marker of snapshot {snapshot} "
            "arrived"
        )

    def _cut(self, snapshot: SnapshotId) -> list[Effect]:
        try:
            state = self._capture()
        except UsageError as error:
            return self._cannot_record(snapshot, text_of(error))
        self._recordings[snapshot] = self._begin_recording(state)
        effects: list[Effect] = [
            SendMarker(target, self._marker_to(target, snapshot)) for target in self._sent_counts
        ]
        return effects + self._complete(snapshot)

    def _cannot_record(self, snapshot: SnapshotId, detail: str) -> list[Effect]:
        self._recordings.pop(snapshot, None)
        self._end(snapshot, Phase.ABANDONED)
        return [NotRecorded(snapshot, detail)]

    def _complete(self, snapshot: SnapshotId) -> list[Effect]:
        recording = self._recordings[snapshot]
        if recording.awaited:
            return []
        del self._recordings[snapshot]
        self._end(snapshot, TRANSITIONS[Phase.RECORDING][Stimulus.LAST_MARKER])
        return [Recorded(recording.fragment(snapshot))]

    def _end(self, snapshot: SnapshotId, phase: Phase) -> None:
        self._ended[snapshot] = phase
        while len(self._ended) > ENDED_COUNT_MAX:
            forgotten, _ = self._ended.popitem(last=False)
            self._forgotten_number = max(self._forgotten_number, forgotten.number)


class Recorder(Recordings[Recording]):
    """Chandy and Lamport's rules for one process.

    To examine other rules, override `initiate`, `receive`, `marker` or `abandon` in a subclass, and
    give it to `explore`, `play` or ``RunConfig`` as `recorder`. Call ``super()`` for what stays as
    it is. All other public methods are final, and names with an underscore can change. A
    constructor of your own passes all its arguments on.
    """

    @property
    @final
    def received_counts(self) -> Mapping[ProcessId, int]:
        """How many messages were received so far, since the first epoch, by source."""
        return self._received_counts

    def receive(self, source: ProcessId, batch: Batch) -> None:
        """Note that the messages of `batch` were delivered to the application. Raises
        ProtocolViolation if their numbers do not follow: something was lost or doubled."""
        received_count = self._received_counts[source]
        if batch.first != received_count + 1:
            raise ProtocolViolation(
                f"channel {Channel(source, self._process)}: message {received_count + 1} should "
                f"come next, but {batch.first} came"
            )
        self._received_counts[source] = received_count + batch.count
        for recording in self._recordings.values():
            if (batches := recording.awaited.get(source)) is not None:
                batches.append(batch)

    def marker(self, source: ProcessId, marker: Marker) -> list[Effect]:
        """Take a marker that came on the channel from `source`. Raises ProtocolViolation if it is
        the second marker of its snapshot on this channel."""
        effects, recording = self._marked(source, marker.snapshot)
        if recording is None:
            return effects
        recording.close(source)
        return effects + self._complete(marker.snapshot)

    def _begin_recording(self, state: ProcessState) -> Recording:
        return Recording(state, dict(self._sent_counts), dict(self._received_counts))

    def _marker_to(self, target: ProcessId, snapshot: SnapshotId) -> Marker:
        return Marker(snapshot)
