"""How far a snapshot under way is: who has recorded, who is awaited, and for what.

Everything is read from the disk, so anybody may ask, also while the coordinator waits.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from stillframe.model import SnapshotId
from stillframe.pipeline import checkpoint
from stillframe.pipeline.head import Head, checkpoint_path
from stillframe.pipeline.part import Part, Request, read_part
from stillframe.pipeline.resting import has_joined
from stillframe.protocol.aligner import Mode


class AwaitedChannel(msgspec.Struct, frozen=True):
    """A channel of an awaited participant.

    `barrier` is the barrier's position on it, None while its source has not put it there.
    `position` is where the participant stands, None if only the participant itself knows.
    """

    log: str
    source: str
    position: int | None
    barrier: int | None


class Awaited(msgspec.Struct, frozen=True):
    """A participant that has not recorded, and where it stands on the logs that it reads.

    `since` is when it could have begun to act: when the last of its barriers was put on its logs,
    or when the snapshot began; None as long as it waits for the barriers of others. A service that
    has not joined has no state that could be recorded: it must be started.
    """

    participant: str
    since: float | None
    channels: tuple[AwaitedChannel, ...]
    has_joined: bool = True

    def sentence(self) -> str:
        """Return what it does at the moment, for people."""
        if not self.has_joined:
            return f"service {self.participant} has not joined: start it"
        missing = [f"{c.log} (from {c.source})" for c in self.channels if c.barrier is None]
        if missing:
            return f"{self.participant} waits for the barrier on {', '.join(missing)}"
        behind = [
            f"{c.barrier - c.position} items before it on {c.log}"
            for c in self.channels
            if c.barrier is not None and c.position is not None and c.position < c.barrier
        ]
        where = f": it stands {' and '.join(behind)}" if behind else ""
        return f"{self.participant} has its barrier in sight and has not recorded{where}"


class Progress(msgspec.Struct, frozen=True):
    """A snapshot under way. Times are seconds since 1970."""

    snapshot: SnapshotId
    mode: Mode
    initiated_at: float
    deadline_at: float
    recorded: dict[str, float]
    awaiting: tuple[Awaited, ...]

    @property
    def awaited(self) -> tuple[str, ...]:
        """The participants that have not recorded."""
        return tuple(awaited.participant for awaited in self.awaiting)

    @property
    def culprits(self) -> tuple[Awaited, ...]:
        """Those that hold up all the others. They have what they need and have not recorded, or
        have not joined."""
        return tuple(
            awaited
            for awaited in self.awaiting
            if awaited.since is not None or not awaited.has_joined
        )

    def culprit_sentence(self) -> str:
        """Return who holds the snapshot up, for people."""
        return "; ".join(awaited.sentence() for awaited in self.culprits or self.awaiting)


def progress_of(
    root: Path, head: Head, request: Request, parts: Mapping[str, Part] | None = None
) -> Progress:
    """Return how far the snapshot of `request` is.

    Args:
        root: the pipeline.
        head: as it is now.
        request: of the snapshot.
        parts: those that have been handed in, by participant; None to look for them on the disk.
    """
    if parts is None:
        parts = _parts(root, head, request)
    recorded: dict[str, float] = {}
    barriers: dict[str, tuple[int, float]] = {}
    for name in head.dataflow.participants:
        if name in parts:
            recorded[name] = parts[name].recorded_at
            for log, position in parts[name].barriers.items():
                barriers[log] = (position, recorded[name])
    return Progress(
        snapshot=request.snapshot,
        mode=request.mode,
        initiated_at=request.initiated_at,
        deadline_at=request.deadline_at,
        recorded=recorded,
        awaiting=tuple(
            _awaited(root, head, request, name, barriers)
            for name in head.dataflow.participants
            if name not in recorded
        ),
    )


def _parts(root: Path, head: Head, request: Request) -> dict[str, Part]:
    found = {name: read_part(root, request.snapshot, name) for name in head.dataflow.participants}
    return {name: part for name, part in found.items() if part is not None}


def _awaited(
    root: Path, head: Head, request: Request, name: str, barriers: dict[str, tuple[int, float]]
) -> Awaited:
    positions: dict[str, int] = {}
    if name in head.dataflow.queries:
        found = checkpoint.last_committed(checkpoint_path(root, head.epoch, name))
        positions = head.starts[name] if found is None else found.positions
    channels = []
    times = [request.initiated_at]
    for log in head.dataflow.incoming(name):
        barrier, since = barriers.get(log.name, (None, None))
        if since is not None:
            times.append(since)
        channels.append(AwaitedChannel(log.name, log.source, positions.get(log.name), barrier))
    arrived = [c for c in channels if c.barrier is not None]
    is_enabled = len(arrived) == len(channels) or (
        request.mode is Mode.UNALIGNED and (arrived or name in head.dataflow.initiators())
    )
    since = max(times) if is_enabled else None
    return Awaited(
        name,
        since,
        tuple(channels),
        has_joined=name in head.dataflow.queries or has_joined(root, head, name),
    )
