"""The document of the player: an execution to go through step by step, forwards and backwards."""

from collections.abc import Sequence
from typing import Any

from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.sim.scenario import Played
from stillframe.trace import Cut, MarkerStep, Trace, clean_label
from stillframe.view import diagram, interchanged, legend, stepped, telling, timed, window
from stillframe.view.recording import Choice, Recording, record
from stillframe.view.telling import Story

STEP_COUNT_MAX = 200
"""A picture of all steps takes time with the square of their number."""
SNAPSHOT_COUNT_MAX = 8
"""Of more snapshots only the first can be chosen, and the one that was asked for."""
CHANNELS_MAX = 24
"""Of more channels those are listed that hold something, and the first of the others."""


def document(
    trace: Trace,
    *,
    title: str,
    played: Played | None = None,
    snapshot: SnapshotId | None = None,
    cuts: Sequence[Cut] = (),
    first: int = 1,
    step_count_max: int = STEP_COUNT_MAX,
) -> dict[str, Any]:
    """Return what ``player.js`` shows.

    Args:
        trace: what happened.
        title: what it is called.
        played: the script that it is of, if it is of one; it tells more.
        snapshot: the one that is chosen at first.
        cuts: cuts to choose from besides those of snapshots; at most one.
        first: the step of the trace to begin with, from 1.
        step_count_max: how many steps are shown; the page says what it leaves out.

    Raises:
        UsageError: the trace has no such snapshot, cut or step.
    """
    shown = window.look(trace, first=first, step_count_max=step_count_max)
    story = telling.of_trace(trace, shown) if played is None else telling.of_script(played, shown)
    choices, unlisted = _choices(trace, shown, snapshot, cuts)
    wanted = [c.snapshot == snapshot if snapshot is not None else bool(c.cut) for c in choices]
    return {
        "kind": "play",
        "title": clean_label(title),
        "about": _about(trace),
        "notice": diagram.left_out(trace, first=first, step_count_max=step_count_max),
        "unlisted": unlisted,
        "picture": stepped.draw(trace, choices, first=first, step_count_max=step_count_max),
        "processes": [clean_label(process) for process in trace.processes],
        "steps": [[clean_label(line) for line in lines] for lines in story.lines],
        "choices": [_choice(story, choice, shown) for choice in choices],
        "timed": timed.document(trace, story.name, played=played),
        "chosen": wanted.index(True) if True in wanted else 0,
    }


def _about(trace: Trace) -> str:
    counts = (
        legend.count(len(trace.processes), "process"),
        legend.count(len(trace.channels), "channel"),
        legend.count(trace.event_count, "event"),
        legend.count(trace.message_count, "message"),
    )
    return ", ".join(counts)


def _choices(
    trace: Trace, shown: window.Window, snapshot: SnapshotId | None, cuts: Sequence[Cut]
) -> tuple[list[Choice], int]:
    """Return the cuts to choose from, and how many snapshots are not among them."""
    if snapshot is not None and snapshot not in trace.snapshots:
        names = ", ".join(map(str, trace.snapshots[:10])) or "none"
        raise UsageError(f"the trace has no snapshot {snapshot}; it has {names}")
    there = dict.fromkeys(s.snapshot for s in shown.steps if isinstance(s, MarkerStep))
    listed = list(there)[:SNAPSHOT_COUNT_MAX]
    if snapshot is not None and snapshot not in listed:
        listed = [*listed[: SNAPSHOT_COUNT_MAX - 1], snapshot]
    unlisted = len({*there} - {*listed})
    return [*map(Choice, listed), *(Choice(cut=cut) for cut in cuts)], unlisted


def _choice(story: Story, choice: Choice, shown: window.Window) -> dict[str, Any]:
    """Return what is known of a cut, and after how many of the steps that are shown."""
    trace, recording = story.trace, record(story.trace, choice)
    before = shown.before_count

    def at(step: int | None) -> int | None:
        return None if step is None else max(0, step - before)

    listed = _listed(trace, recording)
    return {
        "name": choice.name,
        "is_snapshot": choice.snapshot is not None,
        "states": [
            [at(recording.reached.get(process)), clean_label(state)]
            for process, count in zip(trace.processes, recording.whites, strict=True)
            for state in [story.state(choice.snapshot, process, count)]
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
        "interchanges": interchanged.document(trace, choice),
    }


def _listed(trace: Trace, recording: Recording) -> set[object]:
    """Return the channels that are listed: all, unless they are many."""
    full = [c for c, found in recording.channels.items() if found.caught or found.orphans]
    return {*[*dict.fromkeys([*full, *trace.channels])][:CHANNELS_MAX]}
