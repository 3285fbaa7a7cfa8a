"""The document of the player: an execution to go through step by step, forwards and backwards."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from stillframe.diagram import animated_svg, layout, window
from stillframe.diagram.cuts import Choice, record
from stillframe.diagram.text_metrics import count
from stillframe.errors import NotConsistent, UsageError
from stillframe.model import SnapshotId
from stillframe.pages import narration
from stillframe.pages.narration import Story
from stillframe.pages.scrubber_document import scrubber_document
from stillframe.protocol.equivalent import equivalent, interchanges
from stillframe.sim.scenario import Played
from stillframe.trace import Cut, MarkerStep, Trace, clean_label

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
    """Return the document that ``player.js`` shows, with `snapshot` chosen at first, and at most
    one of `cuts` to choose besides.

    A script that was played tells more than its trace. A UsageError says that the trace has no such
    snapshot, cut or step.
    """
    shown = window.select(trace, first=first, step_count_max=step_count_max)
    story = (
        narration.of_trace(trace, shown) if played is None else narration.of_script(played, shown)
    )
    choices, unlisted = _choices(shown, snapshot, cuts)
    wanted = [c.snapshot == snapshot if snapshot is not None else bool(c.cut) for c in choices]
    return {
        "kind": "play",
        "title": clean_label(title),
        "about": ", ".join(
            count(number, noun)
            for number, noun in (
                (len(trace.processes), "process"),
                (len(trace.channels), "channel"),
                (trace.event_count, "event"),
                (trace.message_count, "message"),
            )
        ),
        "notice": layout.left_out(trace, first=first, step_count_max=step_count_max),
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
    if trace.event_count > EVENT_COUNT_MAX:
        there = f"there are {count(trace.event_count, 'event')}"
        return _without(f"Not shown: {there}, and a row of up to {EVENT_COUNT_MAX} can be read.")
    try:
        cut = trace.cut_of(choice.snapshot) if choice.snapshot is not None else choice.cut
    except UsageError as error:
        return _without(clean_label(f"Not possible: {error}."))
    assert cut is not None, choice
    order = [position for position, _ in trace.positions()]
    whites = dict(zip(trace.processes, cut, strict=True))
    found = {
        "events": [
            [
                trace.index_of[position.process],
                clean_label(trace.event(position).label or str(position)),
                position.index <= whites[position.process],
            ]
            for position in order
        ]
    }
    try:
        total = equivalent(trace, cut).inversion_count
    except NotConsistent as error:
        orphan = next(trace.orphans(cut))
        accepter = trace.accepted_in(orphan)
        assert accepter is not None, orphan
        broken = [order.index(trace.sent_in(orphan)), order.index(accepter)]
        return found | _without(clean_label(f"Not possible: {error}.")) | {"broken": broken}
    places = {position: place for place, position in enumerate(order)}
    swaps = []
    for change in islice(interchanges(trace, cut), INTERCHANGE_COUNT_MAX):
        place = places[change.red]
        assert places[change.white] == place + 1, change
        places[change.red], places[change.white] = place + 1, place
        swaps.append(place)
    return found | {"swaps": swaps, "total": total, "problem": "", "broken": []}


def _without(problem: str) -> dict[str, Any]:
    return {"swaps": [], "total": 0, "problem": problem, "broken": []}
