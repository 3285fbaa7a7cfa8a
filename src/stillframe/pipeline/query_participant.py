"""One query of a pipeline and the barrier rules: called by its sources between two micro-batches.

Nothing is kept from call to call that is not on the disk as well: the offsets committed in the
checkpoint are the query's positions on all its logs, and the logs contain the barriers. Each source
of a query runs in an operating-system process of its own, and any of them may be the one that
records.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from stillframe.errors import NotConsistent, Refused
from stillframe.pipeline import checkpoint
from stillframe.pipeline.log import LogReader, LogWriter
from stillframe.pipeline.metadata import PIPELINE_FILE, Metadata, checkpoint_path, read_metadata
from stillframe.pipeline.pending_snapshot import (
    PINNED,
    ParticipantFragment,
    QueryState,
    Request,
    forward_barrier,
    has_recorded,
    readings,
    request_path,
    submit,
    under_way,
)
from stillframe.protocol.aligner import Mode, may_record, read_end

OVERDUE_S = 2.0
"""A coordinator abandons a snapshot at its deadline. If the snapshot is still pending this long
after it, the coordinator was killed, and its barriers hold no participant any more. The clocks of
the machines of one cluster differ by less."""


def at_boundary(
    root: Path,
    metadata: Metadata,
    participant: str,
    readers: dict[str, LogReader],
    tails: dict[str, int],
    *,
    is_patient: bool,
    positions: Callable[[], dict[str, int]],
    record: Callable[[Request], None],
) -> dict[str, int]:
    """Record if it is time to, and return up to where the next action may read each log.

    Call it between two actions. When it returns with the state recorded, the barrier is on every
    outgoing log.

    Args:
        root: the pipeline.
        metadata: of the epoch that the participant is in.
        participant: its name.
        readers: of its incoming logs.
        tails: where each of them ends now; determined before this call, so that a barrier among
            them belongs to a request that exists already.
        is_patient: whether it may be held at a barrier until others come. One that is not records
            unaligned, whatever the mode.
        positions: returns its positions between the two actions.
        record: records its state, appends the barrier to its outgoing logs and submits its
            fragment.
    """
    request = under_way(root)
    if (
        request is None
        or request.epoch != metadata.epoch
        or time.time() > request.deadline_at + OVERDUE_S
        or has_recorded(root, request.snapshot, participant)
    ):
        return tails
    mode = request.mode if is_patient else Mode.UNALIGNED
    found = readings(root, request.snapshot, readers, positions(), tails)
    if may_record(mode, found, is_initiator=participant in metadata.dataflow.initiators()):
        record(request)
        return tails
    limits = {name: read_end(mode, reading) for name, reading in found.items()}
    return {name: tails[name] if end is None else end for name, end in limits.items()}


def readers_of(root: Path, metadata: Metadata, participant: str) -> dict[str, LogReader]:
    """Return a reader for every log that a participant reads."""
    incoming = metadata.dataflow.incoming(participant)
    return {log.name: LogReader(root, log, metadata.segments[log.name]) for log in incoming}


def writers_of(root: Path, metadata: Metadata, participant: str) -> dict[str, LogWriter]:
    """Return a writer for every log that a participant appends to."""
    outgoing = metadata.dataflow.outgoing(participant)
    return {log.name: LogWriter(root, log, metadata) for log in outgoing}


class Epoch:
    """Checks whether the pipeline is still in the epoch in which a participant started.

    Args:
        root: the pipeline.
        metadata: of the epoch in which it started.
        participant: its name, for the error.
    """

    def __init__(self, root: Path, metadata: Metadata, participant: str) -> None:
        self._root = root
        self._epoch = metadata.epoch
        self._participant = participant
        self._identity: tuple[int, int] | None = None

    def check(self) -> None:
        """Refuse to continue if the pipeline was restored since.

        Raises:
            Refused: it was.
        """
        status = (self._root / PIPELINE_FILE).stat()
        identity = (status.st_ino, status.st_mtime_ns)
        if identity == self._identity:
            return
        epoch = read_metadata(self._root).epoch
        if epoch != self._epoch:
            raise Refused(
                f"{self._participant} is of epoch {self._epoch}, and the pipeline {self._root} "
                f"was restored and is in epoch {epoch}: start it again"
            )
        self._identity = identity


class QueryParticipant:
    """A query as a participant in snapshots.

    Args:
        root: the pipeline.
        query: its name.
        is_patient: whether it may be held at a barrier: not if it runs with AvailableNow, which
            takes being held for the end, nor if it does not run at all.

    Raises:
        NotConsistent: the checkpoint is of a query that reads other logs.
        Damaged: an entry that it has still to read is missing.
    """

    def __init__(self, root: Path, query: str, *, is_patient: bool = True) -> None:
        self.metadata = read_metadata(root)
        self.metadata.dataflow.check_participant(query, "query")
        self.query = query
        self.is_patient = is_patient
        self.epoch = Epoch(root, self.metadata, f"query {query}")
        self.readers = readers_of(root, self.metadata, query)
        self.checkpoint = checkpoint_path(root, self.metadata.epoch, query)
        self._root = root
        self._writers: dict[str, LogWriter] | None = None
        for name, position in self.positions()[1].items():
            self.readers[name].check_whole(position)

    def positions(self) -> tuple[int | None, dict[str, int]]:
        """Return the last committed micro-batch, and the query's positions on its logs.

        Raises:
            NotConsistent: the checkpoint is of a query that reads other logs.
        """
        found = checkpoint.last_committed(self.checkpoint)
        if found is None:
            return None, dict(self.metadata.starts[self.query])
        if found.positions.keys() != self.readers.keys():
            raise NotConsistent(
                f"query {self.query} reads {_names(found.positions)} in its checkpoint "
                f"{self.checkpoint}, and {_names(self.readers)} in the pipeline's description: "
                "read every declared channel exactly once"
            )
        return found.batch, found.positions

    def check_stands_at(self, positions: dict[str, int]) -> None:
        """Refuse to read on from `positions`, between two micro-batches, if the pipeline's
        checkpoint of the query has others.

        Raises:
            NotConsistent: they are those of another checkpoint, or its commits come later.
        """
        committed = self.positions()[1]
        if any(committed[log] != position for log, position in positions.items()):
            raise NotConsistent(
                f"query {self.query} reads on from {positions}, and its checkpoint "
                f"{self.checkpoint} ends at {committed}: start it with start_query, or with "
                "checkpointLocation set to what checkpoint_location returns and without "
                "asynchronous progress tracking"
            )

    def at_boundary(self, tails: dict[str, int]) -> dict[str, int]:
        """Record if it is time to, and return up to where the next micro-batch may read.

        Call it between two micro-batches, with the tails of all incoming logs.
        """
        return at_boundary(
            self._root,
            self.metadata,
            self.query,
            self.readers,
            tails,
            is_patient=self.is_patient,
            positions=lambda: self.positions()[1],
            record=self._record,
        )

    def _record(self, request: Request) -> None:
        """Record the state after the last committed micro-batch. All of it may be repeated after an
        interruption, as long as no other micro-batch has started."""
        batch, positions = self.positions()
        if self._writers is None:
            self._writers = writers_of(self._root, self.metadata, self.query)
        if batch is not None:
            directory = request_path(self._root, request.snapshot)
            checkpoint.pin(self.checkpoint, batch, directory / PINNED / self.query)
        fragment = ParticipantFragment(
            snapshot=request.snapshot,
            participant=self.query,
            recorded_at=time.time(),
            positions=positions,
            barriers=forward_barrier(self._writers, request, batch=batch),
            query=QueryState(batch),
        )
        submit(self._root, fragment)


def _names(logs: Iterable[str]) -> str:
    return ", ".join(sorted(logs)) or "no channel"
