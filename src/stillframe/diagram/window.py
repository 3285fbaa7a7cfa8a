"""Select the steps of a trace that are drawn, and the messages and markers between them."""

from collections import defaultdict
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from stillframe.errors import UsageError
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.trace import Event, MessageId, Position, Step, Trace

Name = TypeVar("Name", MessageId, SnapshotId)

PROCESS_COUNT_MAX = 60
"""Maximum number of lines; beyond it, processes without a step in the window are left out."""


class Link(msgspec.Struct, Generic[Name], frozen=True):
    """A message or marker on a channel, and in which steps of the window it was sent and came;
    None: not in the window. `name` is the message, or the snapshot of the marker."""

    channel: Channel
    name: Name
    sent: int | None
    came: int | None


AnyLink = Link[MessageId] | Link[SnapshotId]


class Window(msgspec.Struct, frozen=True):
    """Consecutive steps of a trace. All indices count from 0, at the first step of the window.

    Before it come `before_count` steps of the trace, and `done` events of each process. Of each
    step, `positions` has which event it is (None for a step of a snapshot), `previous` the index of
    the step before it on its line, and `causes` those in which what it accepts was sent. The
    `processes` have a line in the picture.
    """

    before_count: int
    done: dict[ProcessId, int]
    steps: tuple[Step, ...]
    positions: tuple[Position | None, ...]
    processes: tuple[ProcessId, ...]
    messages: tuple[Link[MessageId], ...]
    markers: tuple[Link[SnapshotId], ...]
    previous: tuple[int | None, ...]
    causes: tuple[tuple[int, ...], ...]


def select(trace: Trace, *, first: int, step_count_max: int) -> Window:
    """Return the window of `trace` that begins with its step `first`, from 1; a UsageError says
    that there is no such step, or that no step may be shown."""
    if step_count_max < 1:
        raise UsageError(f"{step_count_max} steps cannot be shown: show at least one")
    if not 1 <= first <= max(1, len(trace.steps)):
        raise UsageError(
            f"there is no step {first:,} to begin with: the trace has {len(trace.steps):,} steps"
        )
    counts = dict.fromkeys(trace.processes, 0)
    for step in islice(trace.steps, first - 1):
        counts[step.process] += isinstance(step, Event)
    done = {**counts}
    steps = trace.steps[first - 1 : first - 1 + step_count_max]
    positions: list[Position | None] = []
    previous: list[int | None] = []
    last: dict[ProcessId, int] = {}
    for index, step in enumerate(steps):
        previous.append(last.get(step.process))
        last[step.process] = index
        if isinstance(step, Event):
            counts[step.process] += 1
        position = Position(step.process, counts[step.process])
        positions.append(position if isinstance(step, Event) else None)
    processes = trace.processes
    if len(processes) > PROCESS_COUNT_MAX:
        busy = {step.process for step in steps}
        processes = tuple(process for process in processes if process in busy)
    messages, markers = _links(steps)
    causes: list[list[int]] = [[] for _ in steps]
    links: list[AnyLink] = [*messages, *markers]
    for link in links:
        if link.sent is not None and link.came is not None:
            causes[link.came].append(link.sent)
    return Window(
        before_count=first - 1,
        done=done,
        steps=steps,
        positions=tuple(positions),
        processes=processes,
        messages=messages,
        markers=markers,
        previous=tuple(previous),
        causes=tuple(map(tuple, causes)),
    )


def _links(
    steps: tuple[Step, ...],
) -> tuple[tuple[Link[MessageId], ...], tuple[Link[SnapshotId], ...]]:
    messages = defaultdict[MessageId, list[int | None]](lambda: [None, None])
    markers = defaultdict[tuple[SnapshotId, Channel], list[int | None]](lambda: [None, None])
    for index, step in enumerate(steps):
        if isinstance(step, Event):
            for message in step.accepted:
                messages[message][1] = index
            for message in step.sent:
                messages[message][0] = index
        else:
            if step.source is not None:
                markers[step.snapshot, Channel(step.source, step.process)][1] = index
            for target in step.targets:
                markers[step.snapshot, Channel(step.process, target)][0] = index
    return (
        tuple(Link(message.channel, message, *ends) for message, ends in messages.items()),
        tuple(Link(channel, snapshot, *ends) for (snapshot, channel), ends in markers.items()),
    )
