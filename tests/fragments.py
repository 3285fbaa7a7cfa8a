"""Fragments of snapshots on a disk, as processes write them, made of snapshots."""

from collections.abc import Callable, Iterable

from stillframe.model import Fragment, IncomingRecord, ProcessId, Snapshot, SnapshotId
from stillframe.storage.location import Location
from stillframe.store.fragments import FragmentSource, FragmentTopology, FragmentWriter
from stillframe.topology import Description

Times = tuple[float, float]
"""When a process recorded its state, and when its fragment was complete."""


def fragments_of(snapshot: Snapshot) -> list[Fragment]:
    """Return what each process recorded of a snapshot."""
    channels = snapshot.state.channels
    return [
        Fragment(
            snapshot.id,
            state,
            {c.channel.target: c.sent_count for c in channels if c.channel.source == state.process},
            tuple(
                IncomingRecord(c.channel.source, c.received_count, c.batches)
                for c in channels
                if c.channel.target == state.process
            ),
            pause_s=snapshot.pause_s,
            capture_s=snapshot.capture_s,
        )
        for state in snapshot.state.processes
    ]


def write_fragments(
    directory: Location,
    description: Description,
    snapshots: Iterable[Snapshot],
    *,
    reference: str | None = None,
    run: str = "run",
    began_from: SnapshotId | None = None,
    change: Callable[[Fragment], Fragment | None] = lambda fragment: fragment,
    times: Callable[[Snapshot, ProcessId], Times] | None = None,
    moment_s: Callable[[Snapshot, ProcessId], float] = lambda snapshot, _: snapshot.id.number,
) -> None:
    """Write what each process recorded of `snapshots`.

    Args:
        directory: where to.
        description: of their topology.
        snapshots: which.
        reference: where the topology is.
        run: the name of the run of the system.
        began_from: the snapshot that it went on from.
        change: returns what to write for a fragment; None for nothing.
        times: returns when a process recorded its state and was done; as the snapshot says, if it
            is None.
        moment_s: returns when a process recorded its state, by a clock of its own.
    """
    topology = FragmentTopology(reference=reference, description=description)
    for snapshot in snapshots:
        for fragment in map(change, fragments_of(snapshot)):
            if fragment is None:
                continue
            process = fragment.state.process
            writer = FragmentWriter(
                directory, FragmentSource(process, snapshot.epoch, run, began_from), topology
            )
            at = snapshot.initiated_at, snapshot.completed_at
            recorded_at, completed_at = at if times is None else times(snapshot, process)
            writer.write(
                fragment,
                moment_s=float(moment_s(snapshot, process)),
                recorded_at=recorded_at,
                completed_at=completed_at,
            )
