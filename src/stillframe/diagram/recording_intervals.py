"""Find the steps in which each process and each channel of a trace was recorded for a cut.

A channel is recorded from the step in which its target records its state, until its marker has come
and all that was sent before the cut of its source. If channels keep order, the marker comes last
(Chandy & Lamport 1985); with colours instead, messages may come behind it (Lai & Yang 1987).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from stillframe.errors import UsageError
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.trace import Cut, Event, MessageId, Trace


class Choice(msgspec.Struct, frozen=True):
    """A selected cut: that of a snapshot, or one that the user gave.

    Attributes:
        snapshot: whose cut it is; None for one that the user gave.
        cut: the one that the user gave; None for that of a snapshot.
    """

    snapshot: SnapshotId | None = None
    cut: Cut | None = None

    @property
    def name(self) -> str:
        """Its name in the address of a page."""
        return "cut" if self.snapshot is None else str(self.snapshot)


class Crossing(NamedTuple):
    """Where a cut crosses the lines of the processes that reach it.

    Attributes:
        counts: how many events of each process are before it.
        reached: after how many steps of the trace each process has reached it.
    """

    counts: dict[ProcessId, int]
    reached: dict[ProcessId, int]

    def whites(self, trace: Trace) -> Cut:
        """Return how many events of each process are before the cut; all, if it reached none."""
        ends = zip(trace.processes, trace.end, strict=True)
        return tuple(self.counts.get(process, end) for process, end in ends)


def find_crossings(trace: Trace, choices: Sequence[Choice]) -> list[Crossing]:
    """Return where each of some cuts crosses the lines of `trace`, in one pass over its steps.

    Raises:
        UsageError: the trace has no such snapshot, or cannot have such a cut.
    """
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


class ChannelRecording(msgspec.Struct, frozen=True):
    """What is recorded of a channel, and when; steps are counted from 1.

    Attributes:
        begin: the step from which on it is recorded; None if it never is.
        end: the step in which that is over; None if it never is.
        caught: what it holds: in which step each message came; None if it did not come.
        orphans: what was accepted before the cut and sent after it: no contents are possible.
    """

    begin: int | None
    end: int | None
    caught: tuple[tuple[MessageId, int | None], ...]
    orphans: tuple[MessageId, ...]


class Recording(msgspec.Struct, frozen=True):
    """What is recorded for a cut.

    Attributes:
        whites: how many events of each process are before it.
        reached: after how many steps each process has reached it; those that do not are missing.
        channels: what is recorded of each channel.
    """

    whites: Cut
    reached: dict[ProcessId, int]
    channels: dict[Channel, ChannelRecording]


def record(trace: Trace, choice: Choice) -> Recording:
    """Return what is recorded for a cut of `trace`.

    Raises:
        UsageError: the trace has no such snapshot or cut.
    """
    (crossing,) = find_crossings(trace, [choice])
    whites, reached = crossing.whites(trace), crossing.reached
    came: dict[MessageId, int] = {}
    markers: dict[Channel, int] = {}
    for number, step in enumerate(trace.steps, 1):
        if isinstance(step, Event):
            came |= dict.fromkeys(step.accepted, number)
        elif step.source is not None and step.snapshot == choice.snapshot:
            markers[Channel(step.source, step.process)] = number
    if choice.cut is not None:  # without markers it is known as soon as both ends are
        ends = {c: (reached.get(c.source), reached.get(c.target)) for c in trace.channels}
        markers = {c: max(a, b) for c, (a, b) in ends.items() if a is not None and b is not None}
    in_transit, orphans = trace.in_transit(whites), tuple(trace.orphans(whites))
    return Recording(
        whites=whites,
        reached=reached,
        channels={
            channel: _channel(
                reached.get(channel.target),
                markers.get(channel),
                [(message, came.get(message)) for message in in_transit[channel]],
                (orphan for orphan in orphans if orphan.channel == channel),
                is_user_cut=choice.cut is not None,
            )
            for channel in trace.channels
        },
    )


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
