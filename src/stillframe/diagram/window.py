"""Which steps of a trace are drawn, and what connects them."""

from itertools import islice

import msgspec

from stillframe.errors import UsageError
from stillframe.model import ProcessId, SnapshotId
from stillframe.trace import Event, MarkerStep, MessageId, Position, Step, Trace

PROCESS_COUNT_MAX = 60
"""If there are more, those that take no step in the window are left out."""


class MessageLink(msgspec.Struct, frozen=True):
    """In which steps of the window a message was sent and accepted; None: not in the window."""

    message: MessageId
    sent: int | None
    accepted: int | None

    @property
    def is_open(self) -> bool:
        """Whether it does not arrive in the window."""
        return self.accepted is None


class MarkerLink(msgspec.Struct, frozen=True):
    """In which steps of the window a marker was sent and came; None: not in the window."""

    snapshot: SnapshotId
    source: ProcessId
    target: ProcessId
    sent: int | None
    came: int | None

    @property
    def is_open(self) -> bool:
        """Whether it does not arrive in the window."""
        return self.came is None


class Window(msgspec.Struct, frozen=True):
    """Consecutive steps of a trace. All indices count from 0, at the first step of the window.

    Attributes:
        before_count: how many steps of the trace come before it.
        done: how many events of each process come before it.
        positions: of each step, which event it is; None for a step of a snapshot.
        processes: those that have a line in the picture.
        previous: of each step, the index of the step before it on its line; None for the first.
        causes: of each step, those in which what it accepts was sent.
    """

    before_count: int
    done: dict[ProcessId, int]
    steps: tuple[Step, ...]
    positions: tuple[Position | None, ...]
    processes: tuple[ProcessId, ...]
    messages: tuple[MessageLink, ...]
    markers: tuple[MarkerLink, ...]
    previous: tuple[int | None, ...]
    causes: tuple[tuple[int, ...], ...]


def select(trace: Trace, *, first: int, step_count_max: int) -> Window:
    """Return the window of `trace` that begins with its step `first`, from 1.

    Raises:
        UsageError: there is no such step, or no step may be shown.
    """
    if step_count_max < 1:
        raise UsageError(f"{step_count_max} steps cannot be shown: show at least one")
    if not 1 <= first <= max(1, len(trace.steps)):
        raise UsageError(
            f"there is no step {first:,} to begin with: the trace has {len(trace.steps):,} steps"
        )
    counts = dict.fromkeys(trace.processes, 0)
    for step in islice(trace.steps, first - 1):
        counts[step.process] += isinstance(step, Event)
    done = dict(counts)
    steps = trace.steps[first - 1 : first - 1 + step_count_max]
    positions: list[Position | None] = []
    for step in steps:
        if isinstance(step, Event):
            counts[step.process] += 1
        position = Position(step.process, counts[step.process])
        positions.append(position if isinstance(step, Event) else None)
    processes = trace.processes
    if len(processes) > PROCESS_COUNT_MAX:
        busy = {step.process for step in steps}
        processes = tuple(process for process in processes if process in busy)
    messages = _link_messages(steps)
    markers = _link_markers(steps)
    causes: list[list[int]] = [[] for _ in steps]
    for begin, end in (
        *((link.sent, link.accepted) for link in messages),
        *((link.sent, link.came) for link in markers),
    ):
        if begin is not None and end is not None:
            causes[end].append(begin)
    return Window(
        before_count=first - 1,
        done=done,
        steps=steps,
        positions=tuple(positions),
        processes=processes,
        messages=messages,
        markers=markers,
        previous=_previous(steps),
        causes=tuple(map(tuple, causes)),
    )


def _previous(steps: tuple[Step, ...]) -> tuple[int | None, ...]:
    last: dict[ProcessId, int] = {}
    found = []
    for index, step in enumerate(steps):
        found.append(last.get(step.process))
        last[step.process] = index
    return tuple(found)


def _link_messages(steps: tuple[Step, ...]) -> tuple[MessageLink, ...]:
    links: dict[MessageId, MessageLink] = {}
    for index, step in enumerate(steps):
        if isinstance(step, Event):
            for message in step.accepted:
                sent = links[message].sent if message in links else None
                links[message] = MessageLink(message, sent, index)
            for message in step.sent:
                links[message] = MessageLink(message, index, None)
    return tuple(links.values())


def _link_markers(steps: tuple[Step, ...]) -> tuple[MarkerLink, ...]:
    links: dict[tuple[SnapshotId, ProcessId, ProcessId], MarkerLink] = {}
    for index, step in enumerate(steps):
        if isinstance(step, MarkerStep):
            snapshot, process = step.snapshot, step.process
            if step.source is not None:
                key = (snapshot, step.source, process)
                sent = links[key].sent if key in links else None
                links[key] = MarkerLink(snapshot, step.source, process, sent, index)
            for target in step.targets:
                key = (snapshot, process, target)
                links.setdefault(key, MarkerLink(snapshot, process, target, index, None))
    return tuple(links.values())
