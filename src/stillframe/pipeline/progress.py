"""The progress of a pending snapshot: who has recorded, who has not, and what they wait for.

Everything is read from the disk, so any program may ask, even while the coordinator waits.
"""

from collections.abc import Mapping

import msgspec

from stillframe.errors import Damaged
from stillframe.model import SnapshotId
from stillframe.pipeline import checkpoint
from stillframe.pipeline.metadata import Metadata
from stillframe.pipeline.participant_logs import reported_positions
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
        position: how far the participant has read; a service, as far as it last reported.
        barrier: the position of the barrier; None before its source has appended it.
    """

    log: str
    source: str
    position: int
    barrier: int | None

    @property
    def behind(self) -> int:
        """How many entries it has to read before its barrier; 0 while that is not known."""
        return 0 if self.barrier is None else max(0, self.barrier - self.position)


class Awaited(msgspec.Struct, frozen=True):
    """A participant that has not recorded, and its positions on the logs that it reads.

    Attributes:
        participant: its name.
        since: when it could first have recorded: when the last of its barriers was appended to its
            logs, or when the snapshot began. None while it waits for the barriers of others.
        channels: the logs that it reads.
        has_joined: False for a service that must be started: it has no state to record.
        batch: the micro-batch that a query is in; None between two of them, and for a service.
    """

    participant: str
    since: float | None
    channels: tuple[AwaitedChannel, ...]
    has_joined: bool = True
    batch: int | None = None

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
            f"{c.behind:,} {'entry' if c.behind == 1 else 'entries'} before its barrier on {c.log}"
            for c in self.channels
            if c.behind
        ]
        where = [] if self.batch is None else [f"in micro-batch {self.batch}"]
        if behind:
            where.append(" and ".join(behind))
        reached = "" if behind else "has reached its barrier but "
        words = f": it is {', '.join(where)}" if where else ""
        return f"{self.participant} {reached}has not recorded{words}"


class Progress(msgspec.Struct, frozen=True):
    """A pending snapshot. Times are seconds since 1970.

    Attributes:
        snapshot: its id.
        mode: how it is taken.
        initiated_at: when it was requested.
        deadline_at: when it is abandoned; later after each step (`steps`).
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

    @property
    def steps(self) -> tuple[object, ...]:
        """What changes with each step towards the end of the snapshot: who has recorded, and of
        each straggler its micro-batch and how far it is from its barriers. The steps are finite:
        a barrier stays where it is, and what comes after it counts for nothing."""
        return (
            frozenset(self.recorded),
            *(
                (one.participant, one.batch, tuple(c.behind for c in one.channels))
                for one in self.stragglers
            ),
        )

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
        batch = None
        if name in flow.queries:
            batch, positions = of_current_checkpoint(root, metadata.epoch, name, _where)
        else:
            positions = (reported_positions(root, metadata, name) or ({}, None))[0]
        positions = metadata.starts[name] | positions
        channels = tuple(
            AwaitedChannel(log.name, log.source, positions[log.name], barriers.get(log.name))
            for log in logs
        )
        arrived_at = [recorded[log.source] for log in logs if log.name in barriers]
        is_enabled = len(arrived_at) == len(logs) or (
            request.mode is Mode.UNALIGNED and (arrived_at or name in flow.initiators())
        )
        since = max([request.initiated_at, *arrived_at]) if is_enabled else None
        is_joined = name in flow.queries or has_joined(root, metadata, name)
        awaiting.append(Awaited(name, since, channels, has_joined=is_joined, batch=batch))
    return Progress(
        snapshot=request.snapshot,
        mode=request.mode,
        initiated_at=request.initiated_at,
        deadline_at=request.deadline_at,
        recorded=recorded,
        awaiting=tuple(awaiting),
    )


def _where(place: Location) -> tuple[int | None, dict[str, int]]:
    """Return the micro-batch that a query is in, and its committed positions, by its checkpoint."""
    found, planned = checkpoint.last_committed(place), checkpoint.planned_batch(place)
    if found is None:
        return planned, {}
    return planned if planned != found.batch else None, found.positions
