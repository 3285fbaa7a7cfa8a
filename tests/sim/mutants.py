"""Recording rules with one thing wrong each: the checker must find every one.

Each class changes one rule of ``Recorder`` (Chandy-Lamport), or of ``LaiYangRecorder`` (Lai-Yang),
and nothing else.
"""

# ruff: noqa: D102 - each class says which rule its methods change

from typing import Any

import msgspec

from stillframe.model import Batch, Marker, ProcessId, ProcessState, SnapshotId
from stillframe.protocol import lai_yang
from stillframe.protocol.lai_yang import Colour, CountingMarker, LaiYangRecorder
from stillframe.protocol.recorder import Effect, Phase, Recorded, Recorder, Recording, SendMarker

# --- markers


class NoRelay(Recorder):
    """A process that learns of a snapshot from a marker sends none itself."""

    def marker(self, source: ProcessId, marker: Marker) -> list[Effect]:
        return [e for e in super().marker(source, marker) if not isinstance(e, SendMarker)]


class MarkerTwice(Recorder):
    """Two markers go out on each channel."""

    def _cut(self, snapshot: SnapshotId) -> list[Effect]:
        effects = super()._cut(snapshot)
        return [e for e in effects if isinstance(e, SendMarker)] + effects


class MarkerForgotten(Recorder):
    """No marker goes out on the last channel, if there are several."""

    def _cut(self, snapshot: SnapshotId) -> list[Effect]:
        effects = super()._cut(snapshot)
        markers = [e for e in effects if isinstance(e, SendMarker)]
        return [e for e in effects if len(markers) < 2 or e is not markers[-1]]


class MarkerLate(Recorder):
    """Markers go out at the next step of recording, not with the state."""

    _waiting: tuple[Effect, ...] = ()

    def _cut(self, snapshot: SnapshotId) -> list[Effect]:
        effects = super()._cut(snapshot)
        out, self._waiting = self._waiting, tuple(e for e in effects if isinstance(e, SendMarker))
        return [*out, *(e for e in effects if not isinstance(e, SendMarker))]

    def marker(self, source: ProcessId, marker: Marker) -> list[Effect]:
        out = self._waiting
        self._waiting = ()
        return [*out, *super().marker(source, marker)]


# --- the state of the process


class StateLate(Recorder):
    """Markers go out before the state is recorded: that happens one message later."""

    def receive(self, source: ProcessId, batch: Batch) -> None:
        super().receive(source, batch)
        for recording in self._recordings.values():
            if not any(recording.awaited[s][1:] for s in recording.awaited):
                recording.state = self._capture()


class StateAtTheEnd(Recorder):
    """The channels are recorded rightly, but the state is that of the last marker's arrival."""

    def _complete(self, snapshot: SnapshotId) -> list[Effect]:
        self._recordings[snapshot].state = self._capture()
        return super()._complete(snapshot)


class StateShared(Recorder):
    """What is recorded shares its memory with the live state, and changes with it."""

    def __init__(self, process: ProcessId, **options: Any) -> None:
        super().__init__(process, **options)
        self._live = bytearray()
        capture = self._capture

        def shared() -> ProcessState:
            state = capture()
            self._live[:] = state.encoded
            return msgspec.structs.replace(state, encoded=self._live)

        self._capture = shared

    def receive(self, source: ProcessId, batch: Batch) -> None:
        super().receive(source, batch)
        self._capture()


# --- which messages are recorded


class _Closing(Recorder):
    """Says which channels are complete when a marker comes; late markers are let pass."""

    def marker(self, source: ProcessId, marker: Marker) -> list[Effect]:
        if self.phase(marker.snapshot) is Phase.RECORDED:
            return []
        is_first = self.phase(marker.snapshot) is Phase.IDLE
        effects = self._cut(marker.snapshot) if is_first else []
        recording = self._recordings.get(marker.snapshot)
        if recording is None:
            return effects
        for complete in self._closed_by(source, recording, is_first=is_first):
            recording.close(complete)
        return effects + self._complete(marker.snapshot)

    def _closed_by(
        self, source: ProcessId, recording: Recording, *, is_first: bool
    ) -> list[ProcessId]:
        raise NotImplementedError


class StopsAtFirst(_Closing):
    """The first marker that comes ends the recording of every channel."""

    def _closed_by(
        self, source: ProcessId, recording: Recording, *, is_first: bool
    ) -> list[ProcessId]:
        return list(recording.awaited)


class FirstRecorded(_Closing):
    """The channel on which the first marker came is recorded like the others, up to the end."""

    def _closed_by(
        self, source: ProcessId, recording: Recording, *, is_first: bool
    ) -> list[ProcessId]:
        if is_first and len(recording.awaited) > 1:
            self._firsts = {**getattr(self, "_firsts", {}), id(recording): source}
            return []
        first = getattr(self, "_firsts", {}).get(id(recording))
        is_last = {*recording.awaited} == {source, first}
        return [source, first] if is_last and first is not None else [source]


class StopsLate(_Closing):
    """No channel's recording ends before every marker has come."""

    def __init__(self, process: ProcessId, **options: Any) -> None:
        super().__init__(process, **options)
        self._came: dict[int, set[ProcessId]] = {}

    def _closed_by(
        self, source: ProcessId, recording: Recording, *, is_first: bool
    ) -> list[ProcessId]:
        came = self._came.setdefault(id(recording), set())
        came.add(source)
        return list(recording.awaited) if came == {*recording.awaited} else []


class InitiatorBlind(_Closing):
    """The initiator takes its channels for empty."""

    def initiate(self, snapshot: SnapshotId) -> list[Effect]:
        effects = super().initiate(snapshot)
        recording = self._recordings.get(snapshot)
        if not effects or recording is None:
            return effects
        for source in list(recording.awaited):
            recording.close(source)
        return effects + self._complete(snapshot)

    def _closed_by(
        self, source: ProcessId, recording: Recording, *, is_first: bool
    ) -> list[ProcessId]:
        return [source]


class RecordedTwice(Recorder):
    """Every message of a channel is recorded twice."""

    def receive(self, source: ProcessId, batch: Batch) -> None:
        super().receive(source, batch)
        for recording in self._recordings.values():
            if source in recording.awaited:
                recording.awaited[source].append(batch)


class AfterMarker(Recorder):
    """What arrives behind the marker is recorded, too."""

    def receive(self, source: ProcessId, batch: Batch) -> None:
        super().receive(source, batch)
        for recording in self._recordings.values():
            if source in recording.closed:
                recording.closed[source] += (batch,)


class OldestOnly(Recorder):
    """Of several snapshots under way, only the one begun first records the channels."""

    def receive(self, source: ProcessId, batch: Batch) -> None:
        super().receive(source, batch)
        for recording in list(self._recordings.values())[1:]:
            if source in recording.awaited:
                recording.awaited[source].pop()


class EndsForgotten(Recorder):
    """A snapshot that was given up is forgotten: its late marker begins it anew."""

    def _end(self, snapshot: SnapshotId, phase: Phase) -> None:
        if phase is not Phase.ABANDONED:
            super()._end(snapshot, phase)


# --- the books, wrong in ways in which they balance


class _Shifting(Recorder):
    """Changes the finished part of a process."""

    def _complete(self, snapshot: SnapshotId) -> list[Effect]:
        recording = self._recordings[snapshot]
        if not recording.awaited:
            self._shift(recording)
        return super()._complete(snapshot)

    def _shift(self, recording: Recording) -> None:
        raise NotImplementedError


class CountsShifted(_Shifting):
    """Sent and received are each one too many, and the messages are numbered to fit."""

    def _shift(self, recording: Recording) -> None:
        for target in recording.sent_counts:
            recording.sent_counts[target] += 1
        for source, batches in recording.closed.items():
            recording.received_counts[source] += 1
            recording.closed[source] = tuple(
                Batch(batch.first + 1, batch.count, batch.encoded) for batch in batches
            )


class MessagesForgotten(_Shifting):
    """What a channel held is counted as received, and not recorded."""

    def _shift(self, recording: Recording) -> None:
        for source, batches in recording.closed.items():
            recording.received_counts[source] += sum(batch.count for batch in batches)
            recording.closed[source] = ()


class MessagesExchanged(_Shifting):
    """The numbers on a channel are right, but the first message is recorded for all of them."""

    def _shift(self, recording: Recording) -> None:
        for source, batches in recording.closed.items():
            recording.closed[source] = tuple(
                Batch.of(batch.first, batches[0].messages()[:1] * batch.count) for batch in batches
            )


class NeverDone(Recorder):
    """A process with all its markers does not hand in its part."""

    def _complete(self, snapshot: SnapshotId) -> list[Effect]:
        return [e for e in super()._complete(snapshot) if not isinstance(e, Recorded)]


# --- colours


class ColourUnmet(LaiYangRecorder):
    """A red message is accepted by a white process as if it were white."""

    def meet(self, colour: Colour) -> list[Effect]:
        return []

    def receive(self, source: ProcessId, batch: Batch, colour: Colour) -> list[Effect]:
        known = tuple(red for red in colour if self.phase(red) is not Phase.IDLE)
        return super().receive(source, batch, known)


class ColourUnchecked(ColourUnmet):
    """The same, and no number is checked against the marker's count."""

    def _settle(
        self, source: ProcessId, snapshot: SnapshotId, recording: lai_yang._ColourRecording
    ) -> list[Effect]:
        counts = recording.counts[source]
        if counts.sent_count is None or counts.white_count < counts.sent_count:
            return []
        recording.close(source)
        return self._complete(snapshot)


class ColourUnsent(LaiYangRecorder):
    """Messages leave a red process white."""

    @property
    def colour(self) -> Colour:
        return ()


class ColourAtMarker(LaiYangRecorder):
    """A channel is taken for complete when its marker comes, as if order were kept."""

    def marker(self, source: ProcessId, marker: CountingMarker) -> list[Effect]:
        effects, recording = self._marked(source, marker.snapshot)
        if recording is None:
            return effects
        recording.counts[source].sent_count = marker.sent_count
        recording.close(source)
        return effects + self._complete(marker.snapshot)


class ColourShort(LaiYangRecorder):
    """The marker says that one message fewer was sent."""

    def _marker_to(self, target: ProcessId, snapshot: SnapshotId) -> CountingMarker:
        return CountingMarker(snapshot, max(0, self._sent_counts[target] - 1))


class ColourRedRecorded(LaiYangRecorder):
    """Red messages are recorded on their channel, like white ones."""

    def _begin_recording(self, state: ProcessState) -> lai_yang._ColourRecording:
        recording = super()._begin_recording(state)
        recording.add = _adding_all(recording)  # type: ignore[method-assign]
        return recording


def _adding_all(recording: lai_yang._ColourRecording) -> Any:
    def add(source: ProcessId, batch: Batch, *, is_red: bool) -> None:
        recording.counts[source].add(batch, is_red=is_red)
        recording.awaited[source].append(batch)

    return add


class ColourStateLate(LaiYangRecorder):
    """The state is recorded after the red message was accepted, not before."""

    def receive(self, source: ProcessId, batch: Batch, colour: Colour) -> list[Effect]:
        for snapshot, recording in self._recordings.items():
            if snapshot in colour and not any(recording.awaited.values()):
                recording.state = self._capture()
        return super().receive(source, batch, colour)
