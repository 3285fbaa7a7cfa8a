"""Narrates a simulated world step by step, with the rule that was followed."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import msgspec

from stillframe.model import Abandoned, Batch, Channel, Fragment, ProcessState, Snapshot, SnapshotId
from stillframe.protocol.recorder import Progress
from stillframe.protocol.replay import RESTORED
from stillframe.sim import choices
from stillframe.sim.scripted_process import message_name
from stillframe.sim.world import Epoch, World
from stillframe.trace import Event, MarkerStep, MessageId

_SHOWN_CHARACTER_MAX = 200


class Narrator:
    """Narrates what happened in a world since the last call.

    `narrated` has for each narrated step of the current epoch its line, and those of snapshots that
    ended thereafter.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.narrated: list[list[str]] = []
        self._epoch_count = 1
        self._narrated_outcomes: set[tuple[int, SnapshotId]] = set()

    @property
    def _epoch(self) -> Epoch:
        return self._world.epochs[self._epoch_count - 1]

    def news(self) -> list[str]:
        """Return a line for each step that is new, and for each snapshot that ended."""
        lines = []
        while self._epoch_count < len(self._world.epochs):
            lines += self._epoch_news()
            self._epoch_count += 1
            self.narrated = []
            start = self._epoch.start
            began = f"from snapshot {start.id}" if start is not None else "from the initial states"
            lines.append(f"epoch {self._epoch_count} begins {began}")
        lines += self._epoch_news()
        if self._world.refusal:
            lines.append(f"the rules are broken, and the run ends: {self._world.refusal}")
        return lines

    def _epoch_news(self) -> list[str]:
        epoch, lines = self._epoch, []
        for step in epoch.steps[len(self.narrated) :]:
            lines.append(self._event(step) if isinstance(step, Event) else self._marker_step(step))
            self.narrated.append(lines[-1:])
        for snapshot, outcome in epoch.outcomes.items():
            if (self._epoch_count, snapshot) not in self._narrated_outcomes:
                self._narrated_outcomes.add((self._epoch_count, snapshot))
                if isinstance(outcome, Abandoned):
                    outcome_lines = [str(outcome)]
                else:
                    outcome_lines = [f"snapshot {snapshot} is complete:", *self.contents(outcome)]
                lines += outcome_lines
                if self.narrated:
                    self.narrated[-1] += outcome_lines
        return lines

    def _event(self, event: Event) -> str:
        if event.handler == RESTORED:
            again = f"; in transit again: {_sent(event, self.name)}" if event.sent else ""
            return f"{event.process} has its recorded state{again}"
        recorder, kept = self._world.recorders[event.process], []
        for snapshot in self._world.epoch.initiated:
            if (progress := recorder.progress(snapshot)) is not None:
                firsts = {(source, b.first) for source, bs in progress.awaited.items() for b in bs}
                kept += [
                    (message, snapshot)
                    for message in event.accepted
                    if (message.channel.source, message.number) in firsts
                ]
        is_named = event.label in {self.name(message) for message in event.accepted}
        return event_words(event, "" if is_named else event.label, self.name, kept)

    def name(self, message: MessageId) -> str:
        """Return a message as a script calls it, or else as it prints itself."""
        return self._shown(message.channel, self._epoch.contents[message])

    def _shown(self, channel: Channel, encoded: bytes) -> str:
        decoded = self._world.runners[channel.target].decode(encoded)
        return message_name(decoded)[:_SHOWN_CHARACTER_MAX]

    def _marker_step(self, step: MarkerStep) -> str:
        progress = self._world.recorders[step.process].progress(step.snapshot)
        head, held = self._cause(step), self._closed(step, progress)
        if step.is_cut:
            fragment = self._fragment(step)
            state = fragment.state if fragment is not None else progress.state if progress else None
            shown = shown_state(state) if state else ""
            closed = [f"{step.source}->{step.process}"] if held is not None else []
            awaited = [f"{s}->{step.process}" for s in progress.awaited] if progress else []
            return f"{head}: {cut_words(step, shown, closed, awaited)}"
        if step.source is None:
            return head
        channel = Channel(step.source, step.process)
        if held is not None:
            return f"{head}: {channel_words(channel, self._held(channel, held))}"
        if progress is not None:
            return f"{head}: {channel_words(channel, None)}"
        return f"{head}, which has ended for it"

    def _cause(self, step: MarkerStep) -> str:
        if step.source is not None:
            return f"{step.process} gets the marker of {step.snapshot} from {step.source}"
        if step.process in self._world.description.initiators(step.snapshot.initiator):
            return f"{step.process} initiates {step.snapshot}"
        return f"{step.process} learns of {step.snapshot} from the colour of the next message"

    def _fragment(self, step: MarkerStep) -> Fragment | None:
        return self._epoch.fragments.get(step.snapshot, {}).get(step.process)

    def _closed(self, step: MarkerStep, progress: Progress | None) -> Iterable[Batch] | None:
        """Return what the channel of a step's marker held; None if that is unknown."""
        if step.source is None:
            return None
        if (fragment := self._fragment(step)) is not None:
            return next(r.batches for r in fragment.incoming if r.source == step.source)
        return progress.closed.get(step.source) if progress is not None else None

    def _held(self, channel: Channel, batches: Iterable[Batch]) -> str:
        messages = [m for batch in batches for m in batch.messages()]
        return ", ".join(self._shown(channel, message) for message in messages) or "nothing"

    def contents(self, snapshot: Snapshot) -> list[str]:
        """Return the content of a snapshot, a line for each process and each channel that is not
        empty, and whether the system was ever in that state."""
        lines = [f"  {s.process} {shown_state(s)}" for s in snapshot.state.processes]
        empty_count = 0
        for state in snapshot.state.channels:
            if state.message_count:
                lines.append(f"  {state.channel} held {self._held(state.channel, state.batches)}")
            else:
                empty_count += 1
        channels = "channel is" if empty_count == 1 else "channels are"
        lines += [f"  {empty_count} {channels} empty"] if empty_count else []
        # Whether the system was ever in the recorded state: Chandy & Lamport 1985, section 4.
        trace = self._epoch.trace(self._world.description)
        number = trace.present_at(trace.cut_of(snapshot.id))
        if number is None:
            return [*lines, "  the system was never in this state, but it could have been"]
        before = islice(trace.positions(), number)
        event_count = sum(event.handler != RESTORED for _, event in before)
        return [*lines, f"  so it was after {event_count} event{'' if event_count == 1 else 's'}"]


def event_words(
    event: Event,
    what: str,
    name: Callable[[MessageId], str],
    kept: Iterable[tuple[MessageId, SnapshotId]],
) -> str:
    """Return what an event accepted, did (`what`, if that says more) and sent; messages that were
    `kept` are recorded for a snapshot."""
    sends = f"; sends {_sent(event, name)}" if event.sent else ""
    if not event.accepted:
        return f"{event.process} does {what}{sends}"
    accepts = ", ".join(f"{name(m)} from {m.channel.source}" for m in event.accepted)
    does = f": does {what}" if what else ""
    keeps = ", ".join(f"{m.channel} keeps {name(m)} for {snapshot}" for m, snapshot in kept)
    return f"{event.process} accepts {accepts}{does}{sends}{f'; {keeps}' if keeps else ''}"


def _sent(event: Event, name: Callable[[MessageId], str]) -> str:
    return ", ".join(f"{name(message)} to {message.channel.target}" for message in event.sent)


def channel_words(channel: Channel, held: str | None) -> str:
    """Return what a marker ends: the recording of a channel, which `held` something; None if more
    of what was sent before the cut is to come."""
    if held is None:
        return f"keeps recording {channel}, where more was sent before the cut"
    return f"{channel} held {held}"


def cut_words(
    step: MarkerStep, state: str, empty: Iterable[object], recorded: Sequence[object]
) -> str:
    """Return what a process does by the rules where it records its `state`: which channels into it
    are `empty`, and which are `recorded` from now on."""
    rule = [f"records its state {state}".rstrip(), *(f"{channel} is empty" for channel in empty)]
    if step.targets:
        rule.append(f"sends a marker to {', '.join(step.targets)}")
    if recorded:
        rule.append(f"records {', '.join(map(str, recorded))} from now on")
    return "; ".join(rule)


def shown_state(state: ProcessState) -> str:
    """Return a recorded state as text: the events of a script, or field by field."""
    values = msgspec.msgpack.decode(state.encoded)
    if state.kind == "ScriptedProcess":
        return f"{{{', '.join(values['done'])}}}"
    return ", ".join(f"{name}={value}" for name, value in values.items())[:_SHOWN_CHARACTER_MAX]


def unrecorded_news(world: World, choice: choices.Choice) -> list[str]:
    """Return the effects of `choice`, just taken, that are not in the trace, because they are no
    step of a process."""
    match choice:
        case choices.DeliverNotice(process, snapshot):
            gives_up = isinstance(world.epoch.outcomes[snapshot], Abandoned)
            return [f"{process} {'abandons' if gives_up else 'has finished'} {snapshot}"]
        case choices.Duplicate(channel):
            return [f"the next frame on {channel} is in transit twice"]
        case choices.Break(channel):
            return [f"the connection of {channel} is lost, with everything on it"]
        case choices.Connect(channel):
            return [f"{channel} is connected again: frames that had not arrived are sent again"]
        case choices.Partition(processes):
            return [f"a partition separates {', '.join(processes)} from the others"]
        case choices.Heal():
            return ["the partition ends"]
        case choices.Crash(process):
            return [f"{process} crashes: the connections of its channels are lost"]
        case _:
            return []
