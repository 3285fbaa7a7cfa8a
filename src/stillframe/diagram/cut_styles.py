"""Select the cuts that a diagram shows, with their colours, messages and positions."""

from collections.abc import Sequence

import msgspec

from stillframe.diagram import text_metrics
from stillframe.diagram.recording_intervals import Choice, Crossing, find_crossings
from stillframe.diagram.window import Window
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.trace import Cut, MarkerStep, MessageId, Trace

SNAPSHOT_CHARS_MAX = 24


class StyledCut(msgspec.Struct, frozen=True):
    """A cut in a diagram.

    Attributes:
        name: as the legend shows it.
        snapshot: whose cut it is; None for one that the user gave.
        colour: the index of its colour.
        counts: how many events of each process lie before it; a process that did not record its
            state for the snapshot is missing.
        reached: in which step of the window each process reached it; -1 if before the window, and
            the number of steps if after it.
        end: how many steps the window has.
        in_transit: the messages in transit on each channel between processes that reached it.
        orphans: the messages accepted before the cut and sent after it.
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
        """Return whether `process` is known to have reached the cut after so many steps of the
        window; after all of them, whatever comes later is known, too."""
        reached = self.reached.get(process)
        return reached is not None and (reached < step_count or step_count == self.end)

    def is_between_reached(self, channel: Channel, step_count: int) -> bool:
        """Return whether both ends of `channel` are known to have reached the cut."""
        return all(self.has_reached(end, step_count) for end in (channel.source, channel.target))


def name_of(snapshot: SnapshotId) -> str:
    """Return the id of a snapshot, shortened for a diagram."""
    return text_metrics.shorten(str(snapshot), char_count_max=SNAPSHOT_CHARS_MAX)


def style_cuts(
    trace: Trace, window: Window, *, snapshot: SnapshotId | None, cuts: Sequence[Cut]
) -> tuple[tuple[StyledCut, ...], StyledCut | None]:
    """Return the cuts of all snapshots that take a step in the window, of `snapshot`, and `cuts`;
    and which of them the diagram is about: `snapshot`, else the first of `cuts`, else the only
    snapshot.

    Raises:
        UsageError: the trace has no such snapshot, or cannot have such a cut.
    """
    in_window = {step.snapshot for step in window.steps if isinstance(step, MarkerStep)}
    shown = [name for name in trace.snapshots if name in in_window or name == snapshot]
    if snapshot is not None and snapshot not in shown:
        shown.append(snapshot)  # the trace does not have it, which is refused below
    choices = [*map(Choice, shown), *(Choice(cut=cut) for cut in cuts)]
    names = [f"snapshot {name_of(name)}" for name in shown]
    names += ["cut"] if len(cuts) == 1 else [f"cut {n}" for n in range(1, len(cuts) + 1)]
    styled = tuple(
        _style(trace, window, crossing, name=name, snapshot=choice.snapshot, colour=colour)
        for colour, (name, choice, crossing) in enumerate(
            zip(names, choices, find_crossings(trace, choices), strict=True)
        )
    )
    if snapshot is not None or cuts:
        return styled, next(cut for cut in styled if cut.snapshot == snapshot)
    return styled, styled[0] if len(styled) == 1 else None


def _style(
    trace: Trace,
    window: Window,
    crossing: Crossing,
    *,
    name: str,
    snapshot: SnapshotId | None,
    colour: int,
) -> StyledCut:
    counts = crossing.counts
    cut = tuple(counts.get(process, 0) for process in trace.processes)

    def is_known(channel: Channel) -> bool:
        return channel.source in counts and channel.target in counts

    return StyledCut(
        name=name,
        snapshot=snapshot,
        colour=colour,
        counts=counts,
        reached={
            process: min(max(number - 1 - window.before_count, -1), len(window.steps))
            for process, number in crossing.reached.items()
        },
        end=len(window.steps),
        in_transit={c: held for c, held in trace.in_transit(cut).items() if is_known(c)},
        orphans=tuple(orphan for orphan in trace.orphans(cut) if is_known(orphan.channel)),
    )
