"""The document of the player: an execution to go through step by step, forwards and backwards,
described by the narration of its simulation or from the trace alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from stillframe.diagram import animated_svg, layout, window
from stillframe.diagram.cuts import ChannelRecording, Choice, record
from stillframe.diagram.text_metrics import count
from stillframe.errors import NotConsistent, UsageError
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.pages.scrubber_document import scrubber_document
from stillframe.protocol.equivalent import equivalent, interchanges
from stillframe.sim.narration import channel_words, cut_words, event_words, shown_state
from stillframe.sim.scenario import Played
from stillframe.trace import Cut, MarkerStep, MessageId, Position, Trace, clean_label

STEP_COUNT_MAX = 200
"""Drawing all steps takes time quadratic in their number."""
SNAPSHOT_COUNT_MAX = 8
"""Maximum number of selectable snapshots: the first, and the one that the user gave."""
CHANNELS_MAX = 24
"""Maximum number of listed channels: those with messages come first."""
EVENT_COUNT_MAX = 200
"""Maximum number of events that are shown in a row."""
INTERCHANGE_COUNT_MAX = 500
"""Maximum number of interchanges that are shown; the page gives the total."""
LABELS_MAX = 8
"""Maximum number of events that are listed; of more only the number is given."""


class Story(msgspec.Struct, frozen=True):
    """The description of an execution. It has a line for each step that is shown, with its rule,
    and further lines for what ended with it; the names of messages for readers; and the records of
    each process for a snapshot, as far as they are known."""

    trace: Trace
    lines: tuple[tuple[str, ...], ...]
    name: Callable[[MessageId], str]
    states: Mapping[tuple[SnapshotId, ProcessId], str]

    def state(self, snapshot: SnapshotId | None, process: ProcessId, event_count: int) -> str:
        """Return what `process` recorded for `snapshot`, or else which events that was after."""
        if snapshot is not None and (known := self.states.get((snapshot, process))) is not None:
            return known
        return state_after(self.trace, process, event_count)


def script_story(played: Played, shown: window.Window) -> Story:
    """Return the description of the last epoch of a script, in the words of its narrator."""
    world = played.world
    begin = shown.before_count
    return Story(
        trace=world.trace(),
        lines=tuple(map(tuple, played.narrator.narrated[begin : begin + len(shown.steps)])),
        name=played.narrator.name,
        states={
            (snapshot, process): shown_state(fragment.state)
            for snapshot, fragments in world.epoch.fragments.items()
            for process, fragment in fragments.items()
        },
    )


def trace_story(trace: Trace, shown: window.Window) -> Story:
    """Return the description of a trace of any origin."""
    name = partial(layout.message_name, trace)
    return Story(trace, tuple(trace_lines(trace, shown, name)), name, {})


def state_after(trace: Trace, process: ProcessId, event_count: int) -> str:
    """Return the state of `process` after `event_count` events as far as a trace knows it: the
    names of these events, if they have names and are few."""
    labels = [event.label for event in trace.lines[process][:event_count]]
    if len(labels) <= LABELS_MAX and all(labels):
        return f"{{{', '.join(labels)}}}"
    return f"after {count(event_count, 'event')}"


def trace_lines(
    trace: Trace, shown: window.Window, name: Callable[[MessageId], str]
) -> Iterator[tuple[str]]:
    """Yield a line for each step that is shown, with the rule that it follows, in the words of the
    narrator of a simulated world, which knows more."""
    snapshots = dict.fromkeys(s.snapshot for s in shown.steps if isinstance(s, MarkerStep))
    recordings = {snapshot: record(trace, Choice(snapshot)) for snapshot in snapshots}
    done = dict(shown.done)
    for number, step in enumerate(shown.steps, shown.before_count + 1):
        if isinstance(step, MarkerStep):
            state = state_after(trace, step.process, done[step.process])
            channels = recordings[step.snapshot].channels
            yield (_marker_line(step, state, channels, number, name),)
            continue
        done[step.process] += 1
        what = step.label or f"event {Position(step.process, done[step.process])}"
        kept = [
            (message, snapshot)
            for snapshot, recording in recordings.items()
            for message in step.accepted
            if (message, number) in recording.channels[message.channel].caught
        ]
        yield (event_words(step, what, name, kept),)


def _marker_line(
    step: MarkerStep,
    state: str,
    channels: Mapping[Channel, ChannelRecording],
    number: int,
    name: Callable[[MessageId], str],
) -> str:
    process, snapshot = step.process, step.snapshot
    if step.source is not None:
        cause = f"{process} gets the marker of {snapshot} from {step.source}"
    else:
        verb = "initiates" if process == snapshot.initiator else "learns of"
        cause = f"{process} {verb} {snapshot}"
    if step.is_cut:
        own = [channel for channel in channels if channel.target == process]
        ended = [channel for channel in own if channels[channel].end == number]
        return f"{cause}: {cut_words(step, state, ended, [c for c in own if c not in ended])}"
    if step.source is None:
        return cause
    channel = Channel(step.source, process)
    recorded = channels.get(channel)
    if recorded is None or recorded.end is None or recorded.end > number:
        return f"{cause}: {channel_words(channel, None)}"
    names = ", ".join(name(message) for message, _ in recorded.caught)
    return f"{cause}: {channel_words(channel, names or 'nothing')}"


def player_document(
    trace: Trace,
    *,
    title: str,
    played: Played | None = None,
    snapshot: SnapshotId | None = None,
    cuts: Sequence[Cut] = (),
    first: int = 1,
    step_count_max: int = STEP_COUNT_MAX,
) -> dict[str, Any]:
    """Return the document that ``player.js`` shows: `step_count_max` steps from step `first`, with
    `snapshot` chosen at first. `cuts`, at most one, can be chosen as well.

    A script that was played tells more than its trace. A UsageError says that the trace has no such
    snapshot, cut or step.
    """
    shown = window.select(trace, first=first, step_count_max=step_count_max)
    story = trace_story(trace, shown) if played is None else script_story(played, shown)
    choices, unlisted = _choices(shown, snapshot, cuts)
    wanted = [c.snapshot == snapshot if snapshot is not None else bool(c.cut) for c in choices]
    return {
        "kind": "play",
        "title": clean_label(title),
        "about": ", ".join(
            (
                count(len(trace.processes), "process"),
                count(len(trace.channels), "channel"),
                count(trace.event_count, "event"),
                layout.count_messages(trace, trace.message_count),
            )
        ),
        "is_exact": not trace.are_messages_implied,
        "notice": layout.left_out(trace, shown),
        "unlisted": unlisted,
        "picture": animated_svg.draw(trace, choices, first=first, step_count_max=step_count_max),
        "processes": [clean_label(process) for process in trace.processes],
        "steps": [[clean_label(line) for line in lines] for lines in story.lines],
        "choices": [_choice(story, choice, shown) for choice in choices],
        "scrubber": scrubber_document(trace, story.name, played=played),
        "chosen": wanted.index(True) if True in wanted else 0,
    }


def _choices(
    shown: window.Window, snapshot: SnapshotId | None, cuts: Sequence[Cut]
) -> tuple[list[Choice], int]:
    """Return the cuts to choose from, and how many snapshots are not among them."""
    in_window = dict.fromkeys(s.snapshot for s in shown.steps if isinstance(s, MarkerStep))
    listed = list(in_window)[:SNAPSHOT_COUNT_MAX]
    if snapshot is not None and snapshot not in listed:
        listed = [*listed[: SNAPSHOT_COUNT_MAX - 1], snapshot]
    unlisted = len({*in_window} - {*listed})
    return [*map(Choice, listed), *(Choice(cut=cut) for cut in cuts)], unlisted


def _choice(story: Story, choice: Choice, shown: window.Window) -> dict[str, Any]:
    """Return the state and channels at a cut, with the shown steps in which they become known."""
    trace, recording = story.trace, record(story.trace, choice)
    before = shown.before_count

    def at(step: int | None) -> int | None:
        return None if step is None else max(0, step - before)

    full = [c for c, found in recording.channels.items() if found.caught or found.orphans]
    listed = {*[*dict.fromkeys([*full, *trace.channels])][:CHANNELS_MAX]}
    return {
        "name": choice.name,
        "is_snapshot": choice.snapshot is not None,
        "states": [
            [at(recording.reached.get(process)), clean_label(state)]
            for process, event_count in zip(trace.processes, recording.whites, strict=True)
            for state in [story.state(choice.snapshot, process, event_count)]
        ],
        "channels": [
            {
                "name": clean_label(str(channel)),
                "begin": at(found.begin),
                "end": at(found.end),
                "holds": [
                    [at(number), clean_label(story.name(message))]
                    for message, number in found.caught
                    if number is not None
                ],
                "orphans": [clean_label(story.name(message)) for message in found.orphans],
            }
            for channel, found in recording.channels.items()
            if channel in listed
        ],
        "unlisted": len(recording.channels) - len(listed),
        "interchanges": interchange_document(trace, choice),
    }


def interchange_document(trace: Trace, choice: Choice) -> dict[str, Any]:
    """Return the row of events, and the interchanges that bring the white ones before the red.

    ``swaps`` has for each interchange the place, from 0, of the red event that changes places with
    the white one behind it. ``problem`` is a sentence, if there are none to show; ``broken`` has
    the places of the two events that make them impossible.
    """
    found: dict[str, Any] = {"swaps": [], "total": 0, "problem": "", "broken": []}
    if trace.event_count > EVENT_COUNT_MAX:
        there = f"there are {count(trace.event_count, 'event')}"
        problem = f"Not shown: {there}, and a row of up to {EVENT_COUNT_MAX} can be read."
        return found | {"problem": problem}
    try:
        cut = trace.cut_of(choice.snapshot) if choice.snapshot is not None else choice.cut
    except UsageError as error:
        return found | {"problem": clean_label(f"Not possible: {error}.")}
    assert cut is not None, choice
    order = [position for position, _ in trace.positions()]
    whites = dict(zip(trace.processes, cut, strict=True))
    found["events"] = [
        [
            trace.index_of[position.process],
            clean_label(trace.event(position).label or str(position)),
            position.index <= whites[position.process],
        ]
        for position in order
    ]
    try:
        total = equivalent(trace, cut).inversion_count
    except NotConsistent as error:
        orphan = next(trace.orphans(cut))
        accepter = trace.accepted_in(orphan)
        assert accepter is not None, orphan
        broken = [order.index(trace.sent_in(orphan)), order.index(accepter)]
        return found | {"problem": clean_label(f"Not possible: {error}."), "broken": broken}
    places = {position: place for place, position in enumerate(order)}
    swaps = []
    for change in islice(interchanges(trace, cut), INTERCHANGE_COUNT_MAX):
        place = places[change.red]
        assert places[change.white] == place + 1, change
        places[change.red], places[change.white] = place + 1, place
        swaps.append(place)
    return found | {"swaps": swaps, "total": total}
