"""Which cuts a picture shows, and what each message and event is to them."""

from collections.abc import Iterable, Sequence

import msgspec

from stillframe.errors import UsageError
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.trace import Cut, Event, MarkerStep, MessageId, Trace
from stillframe.view import lettering
from stillframe.view.window import Window

SNAPSHOT_CHARS_MAX = 24


class ShownCut(msgspec.Struct, frozen=True):
    """A cut in a picture.

    Attributes:
        name: what people call it.
        snapshot: whose cut it is; None for one that was asked for.
        colour: the index of its colour.
        counts: how many events of each process lie before it; a process that did not record its
            state for the snapshot is missing.
        reached: in which step of the window each process reached it; -1 if before the window, and
            the number of steps if after it.
        in_transit: what it catches on each channel between processes that reached it.
        orphans: what it shows as accepted and not as sent.
    """

    name: str
    snapshot: SnapshotId | None
    colour: int
    counts: dict[ProcessId, int]
    reached: dict[ProcessId, int]
    in_transit: dict[Channel, tuple[MessageId, ...]]
    orphans: tuple[MessageId, ...]

    def has_reached(self, process: ProcessId, step_count: int, window: Window) -> bool:
        """Return whether `process` is known to have reached the cut after so many steps of the
        window; after all of them, whatever comes later is known, too."""
        reached = self.reached.get(process)
        return reached is not None and (reached < step_count or step_count == len(window.steps))

    def is_between_reached(self, channel: Channel, step_count: int, window: Window) -> bool:
        """Return whether both ends of `channel` are known to have reached the cut."""
        return self.has_reached(channel.source, step_count, window) and self.has_reached(
            channel.target, step_count, window
        )


def name_of(snapshot: SnapshotId) -> str:
    """Return the id of a snapshot, not too long for a picture."""
    return lettering.shorten(str(snapshot), char_count_max=SNAPSHOT_CHARS_MAX)


def show_cuts(
    trace: Trace, window: Window, *, snapshot: SnapshotId | None, cuts: Sequence[Cut]
) -> tuple[ShownCut, ...]:
    """Return the cuts of all snapshots that take a step in the window, of `snapshot`, and `cuts`.

    Raises:
        UsageError: the trace has no such snapshot, or cannot have such a cut.
    """
    if snapshot is not None and snapshot not in trace.snapshots:
        names = ", ".join(map(str, trace.snapshots[:10])) or "none"
        raise UsageError(f"the trace has no snapshot {snapshot}; it has {names}")
    in_window = {step.snapshot for step in window.steps if isinstance(step, MarkerStep)}
    wanted = [name for name in trace.snapshots if name in in_window or name == snapshot]
    counts, reached = _recordings(trace, window, wanted)
    shown = [
        _make(
            trace,
            f"snapshot {name_of(name)}",
            snapshot=name,
            colour=colour,
            counts=counts[name],
            reached=reached[name],
        )
        for colour, name in enumerate(wanted)
    ]
    for number, cut in enumerate(cuts, 1):
        trace.check_cut(cut)
        name = "cut" if len(cuts) == 1 else f"cut {number}"
        by_process = dict(zip(trace.processes, cut, strict=True))
        shown.append(
            _make(
                trace,
                name,
                snapshot=None,
                colour=len(shown),
                counts=by_process,
                reached=_arrivals(window, by_process),
            )
        )
    return tuple(shown)


def choose(
    shown: Sequence[ShownCut], *, snapshot: SnapshotId | None, cuts: Sequence[Cut]
) -> ShownCut | None:
    """Return the cut that a picture is about: the snapshot that was asked for, else the first cut
    that was, else the only snapshot."""
    if snapshot is not None:
        return next(cut for cut in shown if cut.snapshot == snapshot)
    if cuts:
        return next(cut for cut in shown if cut.snapshot is None)
    return shown[0] if len(shown) == 1 else None


def _make(
    trace: Trace,
    name: str,
    *,
    snapshot: SnapshotId | None,
    colour: int,
    counts: dict[ProcessId, int],
    reached: dict[ProcessId, int],
) -> ShownCut:
    cut = tuple(counts.get(process, 0) for process in trace.processes)

    def is_known(channel: Channel) -> bool:
        return channel.source in counts and channel.target in counts

    in_transit = trace.in_transit(cut)
    return ShownCut(
        name=name,
        snapshot=snapshot,
        colour=colour,
        counts=counts,
        reached=reached,
        in_transit={channel: in_transit[channel] for channel in in_transit if is_known(channel)},
        orphans=tuple(orphan for orphan in trace.orphans(cut) if is_known(orphan.channel)),
    )


def _recordings(
    trace: Trace, window: Window, wanted: Iterable[SnapshotId]
) -> tuple[dict[SnapshotId, dict[ProcessId, int]], dict[SnapshotId, dict[ProcessId, int]]]:
    """Return for each snapshot after how many events, and in which step of the window, each process
    recorded its state."""
    done = dict.fromkeys(trace.processes, 0)
    counts: dict[SnapshotId, dict[ProcessId, int]] = {name: {} for name in wanted}
    reached: dict[SnapshotId, dict[ProcessId, int]] = {name: {} for name in counts}
    for number, step in enumerate(trace.steps):
        if isinstance(step, Event):
            done[step.process] += 1
        elif step.is_cut and step.snapshot in counts:
            counts[step.snapshot].setdefault(step.process, done[step.process])
            index = min(max(number - window.before_count, -1), len(window.steps))
            reached[step.snapshot].setdefault(step.process, index)
    return counts, reached


def _arrivals(window: Window, counts: dict[ProcessId, int]) -> dict[ProcessId, int]:
    """Return in which step of the window each process does the last of so many events."""
    reached = {
        process: -1 if count <= window.done[process] else len(window.steps)
        for process, count in counts.items()
    }
    for index, position in enumerate(window.positions):
        if position is not None and position.index == counts[position.process]:
            reached[position.process] = index
    return reached
