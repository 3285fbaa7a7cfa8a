"""Describe an execution step by step, from the narration of its simulation or the trace alone."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec

from stillframe.diagram import layout
from stillframe.diagram.cuts import Choice, record
from stillframe.diagram.text_metrics import count
from stillframe.diagram.window import Window
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.sim.narration import shown_state
from stillframe.sim.scenario import Played
from stillframe.trace import Event, MarkerStep, MessageId, Position, Trace

LABELS_MAX = 8
"""Maximum number of events that are listed; of more only the number is given."""


class Story(msgspec.Struct, frozen=True):
    """The description of an execution: for each step that is shown what was done by which rule, and
    in further lines what ended with it; what people call a message; and what a process recorded for
    a snapshot, as far as that is known."""

    trace: Trace
    lines: tuple[tuple[str, ...], ...]
    name: Callable[[MessageId], str]
    states: Mapping[tuple[SnapshotId, ProcessId], str]

    def state(self, snapshot: SnapshotId | None, process: ProcessId, event_count: int) -> str:
        """Return what `process` recorded for `snapshot`, or else which events that was after."""
        if snapshot is not None and (known := self.states.get((snapshot, process))) is not None:
            return known
        return state_after(self.trace, process, event_count)


def of_script(played: Played, shown: Window) -> Story:
    """Return the description of the last epoch of a script, in the words of its narrator."""
    world = played.world
    begin = shown.before_count
    return Story(
        trace=world.epoch.trace(world.description),
        lines=tuple(map(tuple, played.narrator.narrated[begin : begin + len(shown.steps)])),
        name=played.narrator.name,
        states={
            (snapshot, process): shown_state(fragment.state)
            for snapshot, fragments in world.epoch.fragments.items()
            for process, fragment in fragments.items()
        },
    )


def of_trace(trace: Trace, shown: Window) -> Story:
    """Return the description of a trace of any origin."""
    name = partial(layout.message_name, trace)
    return Story(trace, tuple(Narrator(trace, shown, name).lines()), name, {})


def state_after(trace: Trace, process: ProcessId, event_count: int) -> str:
    """Return the state of `process` after so many events as far as a trace knows it: which they
    were, if they have names and are few."""
    labels = [event.label for event in trace.lines[process][:event_count]]
    if len(labels) <= LABELS_MAX and all(labels):
        return f"{{{', '.join(labels)}}}"
    return f"after {count(event_count, 'event')}"


class Narrator:
    """Describes the steps of a trace that are shown, each with the rule that it follows, in the
    words of the narrator of a simulated world, which knows more."""

    def __init__(self, trace: Trace, shown: Window, name: Callable[[MessageId], str]) -> None:
        self._trace = trace
        self._shown = shown
        self._name = name
        snapshots = dict.fromkeys(s.snapshot for s in shown.steps if isinstance(s, MarkerStep))
        self._recordings = {snapshot: record(trace, Choice(snapshot)) for snapshot in snapshots}
        self._done = dict(shown.done)
        self._number = shown.before_count

    def lines(self) -> Iterator[tuple[str]]:
        """Yield a line for each step, in their order."""
        for step in self._shown.steps:
            self._number += 1
            yield (self._event(step) if isinstance(step, Event) else self._marker_step(step),)

    def _event(self, event: Event) -> str:
        self._done[event.process] += 1
        what = event.label or f"event {Position(event.process, self._done[event.process])}"
        sends = ", ".join(f"{self._name(m)} to {m.channel.target}" for m in event.sent)
        sends = f"; sends {sends}" if sends else ""
        if not event.accepted:
            return f"{event.process} does {what}{sends}"
        accepts = ", ".join(f"{self._name(m)} from {m.channel.source}" for m in event.accepted)
        kept = ", ".join(
            f"{message.channel} keeps {self._name(message)} for {snapshot}"
            for snapshot, recording in self._recordings.items()
            for message in event.accepted
            if (message, self._number) in recording.channels[message.channel].caught
        )
        told = f"{event.process} accepts {accepts}: does {what}{sends}"
        return f"{told}; {kept}" if kept else told

    def _marker_step(self, step: MarkerStep) -> str:
        process, snapshot = step.process, step.snapshot
        if step.source is not None:
            cause = f"gets the marker of {snapshot} from {step.source}"
        else:
            verb = "initiates" if process == snapshot.initiator else "learns of"
            cause = f"{verb} {snapshot}"
        if step.is_cut:
            return f"{process} {cause}: {'; '.join(self._record(step))}"
        if step.source is None:
            return f"{process} {cause}"
        return f"{process} {cause}: {self._close(snapshot, Channel(step.source, process))}"

    def _record(self, step: MarkerStep) -> Iterator[str]:
        process, recording = step.process, self._recordings[step.snapshot]
        yield f"records its state {state_after(self._trace, process, self._done[process])}"
        own = [channel for channel in self._trace.channels if channel.target == process]
        ended = [c for c in own if recording.channels[c].end == self._number]
        yield from (f"{channel} is empty" for channel in ended)
        if step.targets:
            yield f"sends a marker to {', '.join(step.targets)}"
        if recorded := [channel for channel in own if channel not in ended]:
            yield f"records {', '.join(map(str, recorded))} from now on"

    def _close(self, snapshot: SnapshotId, channel: Channel) -> str:
        recorded = self._recordings[snapshot].channels.get(channel)
        if recorded is None or recorded.end is None or recorded.end > self._number:
            return f"goes on recording {channel}, where more was sent before the cut"
        names = ", ".join(self._name(message) for message, _ in recorded.caught)
        return f"{channel} held {names or 'nothing'}"
