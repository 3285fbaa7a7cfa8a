"""One query of a pipeline and the barrier rules: asked by its sources between two micro-batches.

Nothing is remembered from call to call that is not on the disk as well: the committed offsets in
the checkpoint say where the query stands on all its logs, the logs say where the barriers are.
Each source of a query runs in an operating-system process of its own, and any of them may be the
one that records.
"""

import time
from collections.abc import Callable
from pathlib import Path

from stillframe.errors import NotConsistent, Refused
from stillframe.pipeline import checkpoint
from stillframe.pipeline.head import HEAD, Head, checkpoint_path, read_head
from stillframe.pipeline.log import LogReader, LogWriter
from stillframe.pipeline.part import (
    PINNED,
    Part,
    QueryState,
    Request,
    forward,
    hand_in,
    has_recorded,
    readings,
    request_path,
    under_way,
)
from stillframe.protocol.aligner import Mode, may_record, read_end

OVERDUE_S = 2.0
"""A coordinator gives a snapshot up at its deadline. If so long after it the snapshot is still
there, the coordinator was killed, and nobody waits at its barriers any more. Clocks of the machines
of one cluster differ by less."""


def consider(
    root: Path,
    head: Head,
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
        head: of the epoch that the participant is in.
        participant: who asks.
        readers: of its incoming logs.
        tails: where each of them ends now; looked at before this call, so that a barrier among
            them belongs to a request that is there already.
        is_patient: whether it may be held at a barrier until others come. One that is not records
            unaligned, whatever the mode.
        positions: where it stands between the two actions.
        record: records its state, puts the barrier on its outgoing logs and hands in its part.
    """
    request = under_way(root)
    if (
        request is None
        or request.epoch != head.epoch
        or time.time() > request.deadline_at + OVERDUE_S
        or has_recorded(root, request.snapshot, participant)
    ):
        return tails
    mode = request.mode if is_patient else Mode.UNALIGNED
    found = readings(root, request.snapshot, readers, positions(), tails)
    if may_record(mode, found, is_initiator=participant in head.dataflow.initiators()):
        record(request)
        return tails
    limits = {name: read_end(mode, reading) for name, reading in found.items()}
    return {name: tails[name] if end is None else end for name, end in limits.items()}


def writers_of(root: Path, head: Head, participant: str) -> dict[str, LogWriter]:
    """Return a writer for every log that a participant appends to."""
    return {log.name: LogWriter(root, log, head) for log in head.dataflow.outgoing(participant)}


class Epoch:
    """Knows whether the pipeline is still in the epoch in which a participant began.

    Args:
        root: the pipeline.
        head: of the epoch in which it began.
        participant: who it is, for the error.
    """

    def __init__(self, root: Path, head: Head, participant: str) -> None:
        self._root = root
        self._epoch = head.epoch
        self._participant = participant
        self._identity: tuple[int, int] | None = None

    def check(self) -> None:
        """Refuse to go on if the pipeline was restored since.

        Raises:
            Refused: it was.
        """
        status = (self._root / HEAD).stat()
        identity = (status.st_ino, status.st_mtime_ns)
        if identity == self._identity:
            return
        epoch = read_head(self._root).epoch
        if epoch != self._epoch:
            raise Refused(
                f"{self._participant} is of epoch {self._epoch}, and the pipeline {self._root} "
                f"was restored and is in epoch {epoch}: start it again"
            )
        self._identity = identity


class QueryMember:
    """The part that a query takes in snapshots.

    Args:
        root: the pipeline.
        query: its name.
        is_patient: whether it may be held at a barrier: not if it runs with AvailableNow, which
            takes being held for the end, nor if it does not run at all.

    Raises:
        NotConsistent: the checkpoint is of a query that reads other logs.
        Damaged: an item that it has still to read is missing.
    """

    def __init__(self, root: Path, query: str, *, is_patient: bool = True) -> None:
        self.head: Head = read_head(root)
        self.head.dataflow.check_participant(query, "query")
        self.query = query
        self.is_patient = is_patient
        self.epoch = Epoch(root, self.head, f"query {query}")
        self._root = root
        self.readers = {
            log.name: LogReader(root, log, self.head.stretches[log.name])
            for log in self.head.dataflow.incoming(query)
        }
        self.checkpoint = checkpoint_path(root, self.head.epoch, query)
        self._writers: dict[str, LogWriter] | None = None
        for name, position in self.positions()[1].items():
            self.readers[name].check_whole(position)

    def positions(self) -> tuple[int | None, dict[str, int]]:
        """Return the last committed micro-batch, and where the query stands on its logs.

        Raises:
            NotConsistent: the checkpoint is of a query that reads other logs.
        """
        found = checkpoint.last_committed(self.checkpoint)
        if found is None:
            return None, dict(self.head.starts[self.query])
        if found.positions.keys() != self.readers.keys():
            raise NotConsistent(
                f"query {self.query} reads {_names(found.positions)} in its checkpoint "
                f"{self.checkpoint}, and {_names(self.readers)} in the pipeline's description: "
                "read every declared channel exactly once"
            )
        return found.batch, found.positions

    def check_stands_at(self, positions: dict[str, int]) -> None:
        """Refuse to go on from where the pipeline's checkpoint of the query is not.

        Args:
            positions: where one of its sources is to go on, between two micro-batches.

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

    def ends(self, tails: dict[str, int]) -> dict[str, int]:
        """Record if it is time to, and return up to where the next micro-batch may read.

        Call it between two micro-batches, with the tails of all incoming logs (``consider``).
        """
        return consider(
            self._root,
            self.head,
            self.query,
            self.readers,
            tails,
            is_patient=self.is_patient,
            positions=lambda: self.positions()[1],
            record=self._record,
        )

    def _record(self, request: Request) -> None:
        """Record the state after the last committed micro-batch.

        All of it may be done again if it was cut short, as long as no other micro-batch began.
        """
        batch, positions = self.positions()
        if self._writers is None:
            self._writers = writers_of(self._root, self.head, self.query)
        if batch is not None:
            directory = request_path(self._root, request.snapshot)
            checkpoint.pin(self.checkpoint, batch, directory / PINNED / self.query)
        hand_in(
            self._root,
            Part(
                snapshot=request.snapshot,
                participant=self.query,
                recorded_at=time.time(),
                positions=positions,
                barriers=forward(self._writers, request, batch=batch),
                query=QueryState(batch),
            ),
        )


def _names(logs: dict[str, int] | dict[str, LogReader]) -> str:
    return ", ".join(sorted(logs)) or "no channel"
