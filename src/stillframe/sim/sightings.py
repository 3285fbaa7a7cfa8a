"""What should be seen *sometimes* over many seeds: otherwise finding nothing wrong says little."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from stillframe.model import Abandoned, Reason, Snapshot, SnapshotId
from stillframe.sim.epoch import Epoch
from stillframe.sim.run import Run
from stillframe.trace import Event, MarkerStep


def _snapshots(run: Run) -> Iterator[tuple[Epoch, Snapshot]]:
    for epoch in run.world.epochs:
        for outcome in epoch.outcomes.values():
            if isinstance(outcome, Snapshot):
                yield epoch, outcome


def _was_abandoned(run: Run, reason: Reason) -> bool:
    return any(
        isinstance(outcome, Abandoned) and outcome.reason is reason
        for epoch in run.world.epochs
        for outcome in epoch.outcomes.values()
    )


def _never_occurred(run: Run) -> bool:
    for epoch, snapshot in _snapshots(run):
        trace = epoch.trace(run.world.description)
        if trace.present_at(trace.cut_of(snapshot.id)) is None:
            return True
    return False


def _overlapped(run: Run) -> bool:
    for epoch in run.world.epochs:
        began: dict[SnapshotId, int] = {}
        for index, step in enumerate(epoch.steps):
            if isinstance(step, MarkerStep):
                began.setdefault(step.snapshot, index)
        spans = sorted((first, epoch.ended_at.get(s, 10**9)) for s, first in began.items())
        if any(later[0] < earlier[1] for earlier, later in pairwise(spans)):
            return True
    return False


def _several_initiated(run: Run) -> bool:
    return any(
        sum(s.is_cut and s.source is None and s.snapshot == snapshot.id for s in markers) > 1
        for epoch, snapshot in _snapshots(run)
        if (markers := [s for s in epoch.steps if isinstance(s, MarkerStep)])
    )


SIGHTINGS: Mapping[str, Callable[[Run], bool]] = {
    "a snapshot was published": lambda run: any(_snapshots(run)),
    "a channel held messages at the cut": lambda run: any(
        snapshot.state.message_count for _, snapshot in _snapshots(run)
    ),
    "the recorded state never occurred": _never_occurred,
    "two snapshots were under way at once": _overlapped,
    "several processes initiated one snapshot": _several_initiated,
    "a snapshot was abandoned at its deadline": lambda run: _was_abandoned(run, Reason.DEADLINE),
    "a snapshot was abandoned because a process died": lambda run: _was_abandoned(
        run, Reason.PROCESS_DIED
    ),
    "the system went back to a snapshot": lambda run: any(
        epoch.start is not None for epoch in run.world.epochs
    ),
    "messages recorded on channels were received again": lambda run: any(
        epoch.start is not None and epoch.start.state.message_count > 0
        for epoch in run.world.epochs
    ),
    "the system went back to its beginning": lambda run: any(
        epoch.start is None and epoch.number > 1 for epoch in run.world.epochs
    ),
    "a connection of an older epoch was refused": lambda run: any(
        epoch.refused_count for epoch in run.world.epochs
    ),
    "a connection was lost and taken up again": lambda run: any(
        epoch.resent_count for epoch in run.world.epochs
    ),
    "something was on its way twice": lambda run: any(
        epoch.dropped_count for epoch in run.world.epochs
    ),
    "processes were cut off from the others": lambda run: any(
        epoch.held_count for epoch in run.world.epochs
    ),
    "a batch held several messages": lambda run: any(
        frame.batch is not None and frame.batch.count > 1
        for epoch in run.world.epochs
        for taken in epoch.taken
        for _, frame in taken.frames
    ),
    "one action accepted several messages": lambda run: any(
        isinstance(step, Event) and len(step.accepted) > 1
        for epoch in run.world.epochs
        for step in epoch.steps
    ),
}
"""What is looked for where channels keep order; name -> was it seen in this run? A fault counts
where it had an effect: what was lost was sent again, what came twice was dropped, what had to cross
a partition was held up."""


def sightings(run: Run) -> list[str]:
    """Return which of `SIGHTINGS` were seen in `run`."""
    return [name for name, was_seen in SIGHTINGS.items() if was_seen(run)]
