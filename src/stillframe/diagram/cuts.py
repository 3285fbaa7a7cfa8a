"""The cuts that a diagram shows, and the steps in which processes and channels were recorded for
them.

A channel is recorded from the step in which its target records its state, until its marker has come
and all that was sent before the cut of its source. If channels keep order, the marker comes last
(Chandy & Lamport 1985); with colours instead, messages may come behind it (Lai & Yang 1987).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from stillframe.diagram import text_metrics
from stillframe.diagram.window import Window
from stillframe.errors import UsageError
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.trace import Cut, Event, MarkerStep, MessageId, Trace

SNAPSHOT_CHARS_MAX = 24


class Choice(msgspec.Struct, frozen=True):
    """A selected cut: that of a snapshot, or else one that the user gave."""

    snapshot: SnapshotId | None = None
    cut: Cut | None = None

    @property
    def name(self) -> str:
        """Its name in the address of a page."""
        return "cut" if self.snapshot is None else str(self.snapshot)


class Crossing(NamedTuple):
    """The points where a cut crosses the lines of the processes that reach it. Each has the number
    of its process's events before the cut, and of the steps of the trace until it is reached."""

    counts: dict[ProcessId, int]
    reached: dict[ProcessId, int]


class ChannelRecording(msgspec.Struct, frozen=True):
    """The recording of a channel, from step `begin` to step `end`, counted from 1; None: never.

    `caught` is what it holds, with the step in which each message came, or None if it did not.
    `orphans` were accepted before the cut and sent after it: no contents are possible.
    """

    begin: int | None
    end: int | None
    caught: tuple[tuple[MessageId, int | None], ...]
    orphans: tuple[MessageId, ...]


class Recording(msgspec.Struct, frozen=True):
    """The recording of a cut. It has the number of events of each process before it, the number of
    steps until each has reached it (missing if it does not), and the recording of each channel."""

    whites: Cut
    reached: dict[ProcessId, int]
    channels: dict[Channel, ChannelRecording]


class StyledCut(msgspec.Struct, frozen=True):
    """A cut in a diagram; `colour` is the index of its colour, `end` the step count of the window.

    `counts` has how many events of each process lie before it; a process that did not record its
    state for the snapshot is missing. `reached` has in which step of the window each process
    reached it; -1 if before the window, and `end` if after it. `in_transit` and `orphans` are those
    on channels between processes that reached it.
    """

    name: str
    snapshot: SnapshotId | None
    colour: int
    counts: dict[ProcessId, int]
    reached: dict[ProcessId, int]
    end: int
    in_transit: dict[Channel, tuple[MessageId, ...]]
    orphans: tuple[MessageId, ...]

    def has_reached(self, process: ProcessId, step_count: int) -> bool:
        """Return whether `process` is known to have reached the cut after `step_count` steps of the
        window. After all of them, the steps that follow are known, too."""
        reached = self.reached.get(process)
        return reached is not None and (reached < step_count or step_count == self.end)

    def is_between_reached(self, channel: Channel, step_count: int) -> bool:
        """Return whether both ends of `channel` are known to have reached the cut."""
        return all(self.has_reached(end, step_count) for end in (channel.source, channel.target))


def snapshot_name(snapshot: SnapshotId) -> str:
    """Return the id of a snapshot, shortened for a diagram."""
    return text_metrics.shorten(str(snapshot), char_count_max=SNAPSHOT_CHARS_MAX)


def style_cuts(
    trace: Trace, window: Window, *, snapshot: SnapshotId | None, cuts: Sequence[Cut]
) -> tuple[list[StyledCut], StyledCut | None]:
    """Return the cuts of all snapshots that take a step in the window, of `snapshot`, and `cuts`.
    The second value is the cut that the diagram is about: `snapshot`, else the first of `cuts`,
    else the only snapshot. UsageError if the trace has no such snapshot, or cannot have such a cut.
    """
    in_window = {step.snapshot for step in window.steps if isinstance(step, MarkerStep)}
    shown = [name for name in trace.snapshots if name in in_window or name == snapshot]
    if snapshot is not None and snapshot not in shown:
        shown.append(snapshot)  # the trace does not have it, which is refused below
    choices = [*map(Choice, shown), *(Choice(cut=cut) for cut in cuts)]
    names = [f"snapshot {snapshot_name(name)}" for name in shown]
    names += ["cut"] if len(cuts) == 1 else [f"cut {n}" for n in range(1, len(cuts) + 1)]
    styled = []
    for colour, (name, choice, crossing) in enumerate(
        zip(names, choices, find_crossings(trace, choices), strict=True)
    ):
        counts = crossing.counts
        cut = tuple(counts.get(process, 0) for process in trace.processes)
        styled.append(
            StyledCut(
                name=name,
                snapshot=choice.snapshot,
                colour=colour,
                counts=counts,
                reached={
                    process: min(max(number - 1 - window.before_count, -1), len(window.steps))
                    for process, number in crossing.reached.items()
                },
                end=len(window.steps),
                in_transit={
                    channel: messages
                    for channel, messages in trace.in_transit(cut).items()
                    if {channel.source, channel.target} <= counts.keys()
                },
                orphans=tuple(
                    orphan
                    for orphan in trace.orphans(cut)
                    if {orphan.channel.source, orphan.channel.target} <= counts.keys()
                ),
            )
        )
    if snapshot is not None or cuts:
        return styled, next(cut for cut in styled if cut.snapshot == snapshot)
    return styled, styled[0] if len(styled) == 1 else None


def find_crossings(trace: Trace, choices: Sequence[Choice]) -> list[Crossing]:
    """Return where each of some cuts crosses the lines of `trace`, in one pass over its steps.
    UsageError if the trace has no such snapshot, or cannot have such a cut."""
    found = [Crossing({}, {}) for _ in choices]
    user_cuts: list[Crossing] = []
    of_snapshot: dict[SnapshotId, Crossing] = {}
    known = trace.snapshots
    for crossing, choice in zip(found, choices, strict=True):
        if choice.cut is not None:
            trace.check_cut(choice.cut)
            crossing.counts.update(zip(trace.processes, choice.cut, strict=True))
            crossing.reached.update({p: 0 for p, count in crossing.counts.items() if count == 0})
            user_cuts.append(crossing)
        elif choice.snapshot is not None and choice.snapshot in known:
            of_snapshot[choice.snapshot] = crossing
        else:
            names = ", ".join(map(str, known[:10])) or "none"
            raise UsageError(f"the trace has no snapshot {choice.snapshot}; it has {names}")
    done = dict.fromkeys(trace.processes, 0)
    for number, step in enumerate(trace.steps, 1):
        process = step.process
        if isinstance(step, Event):
            done[process] += 1
            for crossing in user_cuts:
                if done[process] == crossing.counts[process]:
                    crossing.reached[process] = number
        elif step.is_cut and step.snapshot in of_snapshot:
            of_snapshot[step.snapshot].counts.setdefault(process, done[process])
            of_snapshot[step.snapshot].reached.setdefault(process, number)
    return found


def record(trace: Trace, choice: Choice) -> Recording:
    """Return what is recorded for a cut of `trace`; a UsageError says that it has no such one."""
    ((counts, reached),) = find_crossings(trace, [choice])
    # All events of a process that does not reach the cut are before it.
    ends = zip(trace.processes, trace.end, strict=True)
    whites = tuple(counts.get(process, end) for process, end in ends)
    came: dict[MessageId, int] = {}
    markers: dict[Channel, int] = {}
    for number, step in enumerate(trace.steps, 1):
        if isinstance(step, Event):
            came |= dict.fromkeys(step.accepted, number)
        elif step.source is not None and step.snapshot == choice.snapshot:
            markers[Channel(step.source, step.process)] = number
    if choice.cut is not None:  # without markers it is known as soon as both ends are
        both = {c: (reached.get(c.source), reached.get(c.target)) for c in trace.channels}
        markers = {c: max(a, b) for c, (a, b) in both.items() if a is not None and b is not None}
    in_transit, orphans = trace.in_transit(whites), tuple(trace.orphans(whites))
    channels = {
        channel: _channel(
            reached.get(channel.target),
            markers.get(channel),
            [(message, came.get(message)) for message in in_transit[channel]],
            (orphan for orphan in orphans if orphan.channel == channel),
            is_user_cut=choice.cut is not None,
        )
        for channel in trace.channels
    }
    return Recording(whites, reached, channels)


def _channel(
    begin: int | None,
    marker: int | None,
    caught: list[tuple[MessageId, int | None]],
    orphans: Iterable[MessageId],
    *,
    is_user_cut: bool,
) -> ChannelRecording:
    if begin is None:
        return ChannelRecording(None, None, (), ())
    if is_user_cut:  # it holds what it holds, whether that comes or not
        known = [(message, marker) for message, _ in caught] if marker is not None else []
        return ChannelRecording(marker, marker, tuple(known), tuple(orphans))
    arrivals = [number for _, number in caught if number is not None]
    is_over = marker is not None and len(arrivals) == len(caught)
    end = max(marker or 0, *arrivals, 0) if is_over else None
    return ChannelRecording(begin, end, tuple(caught), tuple(orphans))
