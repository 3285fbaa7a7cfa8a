"""The progress of a pending snapshot: who has recorded, who has not, and what they wait for.

Everything is read from the disk, so any program may ask, even while the coordinator waits.
"""

from collections.abc import Mapping

import msgspec

from stillframe.errors import Damaged
from stillframe.model import SnapshotId
from stillframe.pipeline import checkpoint
from stillframe.pipeline.metadata import Metadata
from stillframe.pipeline.pending_snapshot import (
    ParticipantFragment,
    Request,
    pending_request,
    read_fragment,
)
from stillframe.pipeline.query_runs import of_current_checkpoint
from stillframe.pipeline.stopped import has_joined
from stillframe.protocol.aligner import Mode
from stillframe.storage.location import Location


class AwaitedChannel(msgspec.Struct, frozen=True):
    """A channel of an awaited participant.

    Attributes:
        log: its name.
        source: who appends to it.
        position: how far the participant has read; None if only the participant itself knows.
        barrier: the position of the barrier; None before its source has appended it.
    """

    log: str
    source: str
    position: int | None
    barrier: int | None


class Awaited(msgspec.Struct, frozen=True):
    """A participant that has not recorded, and its positions on the logs that it reads.

    Attributes:
        participant: its name.
        since: when it could first have recorded: when the last of its barriers was appended to its
            logs, or when the snapshot began. None while it waits for the barriers of others.
        channels: the logs that it reads.
        has_joined: False for a service that must be started: it has no state to record.
    """

    participant: str
    since: float | None
    channels: tuple[AwaitedChannel, ...]
    has_joined: bool = True

    @property
    def is_straggler(self) -> bool:
        """Whether it holds up all the others: it has what it needs, or has not joined."""
        return self.since is not None or not self.has_joined

    def sentence(self) -> str:
        """Return a sentence on what it does at the moment."""
        if not self.has_joined:
            return f"service {self.participant} has not joined: start it"
        if not self.channels:
            return f"{self.participant} has not recorded"
        missing = [f"{c.log} (from {c.source})" for c in self.channels if c.barrier is None]
        if missing:
            return f"{self.participant} waits for the barrier on {', '.join(missing)}"
        behind = [
            f"{c.barrier - c.position} entries before it on {c.log}"
            for c in self.channels
            if c.barrier is not None and c.position is not None and c.position < c.barrier
        ]
        where = f": it is {' and '.join(behind)}" if behind else ""
        return f"{self.participant} has reached its barrier but has not recorded{where}"


class Progress(msgspec.Struct, frozen=True):
    """A pending snapshot. Times are seconds since 1970.

    Attributes:
        snapshot: its id.
        mode: how it is taken.
        initiated_at: when it was requested.
        deadline_at: when it is abandoned.
        recorded: when each participant recorded, for those that have.
        awaiting: the other participants.
    """

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
    def stragglers(self) -> tuple[Awaited, ...]:
        """The participants that delay all others. They could record and have not, or have not
        joined."""
        return tuple(one for one in self.awaiting if one.is_straggler)

    def straggler_sentence(self) -> str:
        """Return a sentence on the stragglers."""
        return "; ".join(awaited.sentence() for awaited in self.stragglers or self.awaiting)


class ProgressReader:
    """Reads the progress of the snapshots of a pipeline; each fragment is read once."""

    def __init__(self, root: Location) -> None:
        self._root = root
        self._snapshot: SnapshotId | None = None
        self._fragments: dict[str, ParticipantFragment] = {}

    def read(self, metadata: Metadata) -> Progress | None:
        """Return the progress of the pending snapshot; None if there is none in this epoch."""
        while (request := pending_request(self._root)) and request.epoch == metadata.epoch:
            try:
                self._read_fragments(metadata, request)
                found = progress_of(self._root, metadata, request, self._fragments)
            except Damaged:
                if pending_request(self._root) == request:
                    raise
                continue
            # If it ended while it was read, removed files looked as if they had never existed.
            if pending_request(self._root) == request:
                return found
        return None

    def _read_fragments(self, metadata: Metadata, request: Request) -> None:
        if request.snapshot != self._snapshot:
            self._snapshot, self._fragments = request.snapshot, {}
        for name in metadata.dataflow.participants:
            if name not in self._fragments:
                fragment = read_fragment(self._root, request.snapshot, name)
                if fragment is not None:
                    # The state of a service may be large, and is not needed here.
                    self._fragments[name] = msgspec.structs.replace(fragment, service=None)


def progress_of(
    root: Location,
    metadata: Metadata,
    request: Request,
    fragments: Mapping[str, ParticipantFragment],
) -> Progress:
    """Return the progress of the snapshot of `request`, given the fragments submitted so far."""
    flow = metadata.dataflow
    asked = flow.asked(request.mode)
    recorded = {n: fragments[n].recorded_at for n in asked if n in fragments}
    barriers = {log: at for name in recorded for log, at in fragments[name].barriers.items()}
    awaiting = []
    for name in (name for name in asked if name not in recorded):
        # In mode retained no participant waits for a barrier.
        logs = () if request.mode is Mode.RETAINED else flow.incoming(name)
        is_query = name in flow.queries
        positions: dict[str, int] = {}
        if is_query:
            found = of_current_checkpoint(root, metadata.epoch, name, checkpoint.last_committed)
            positions = metadata.starts[name] if found is None else found.positions
        channels = tuple(
            AwaitedChannel(log.name, log.source, positions.get(log.name), barriers.get(log.name))
            for log in logs
        )
        arrived_at = [recorded[log.source] for log in logs if log.name in barriers]
        is_enabled = len(arrived_at) == len(logs) or (
            request.mode is Mode.UNALIGNED and (arrived_at or name in flow.initiators())
        )
        since = max([request.initiated_at, *arrived_at]) if is_enabled else None
        is_joined = is_query or has_joined(root, metadata, name)
        awaiting.append(Awaited(name, since, channels, has_joined=is_joined))
    return Progress(
        snapshot=request.snapshot,
        mode=request.mode,
        initiated_at=request.initiated_at,
        deadline_at=request.deadline_at,
        recorded=recorded,
        awaiting=tuple(awaiting),
    )
