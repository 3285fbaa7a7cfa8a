"""Participants and the barrier rules, and queries as participants.

A query is called by its sources between two micro-batches. Nothing is kept from call to call that
is not on the disk as well: the offsets committed in the checkpoint are the query's positions on all
its logs, and the logs contain the barriers. Each source of a query runs in an operating-system
process of its own, and any of them may be the one that records.
"""

import time
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from stillframe.errors import NotConsistent, Refused
from stillframe.pipeline import checkpoint
from stillframe.pipeline.log import LogReader, LogWriter
from stillframe.pipeline.metadata import PIPELINE_FILE, Metadata, checkpoint_path, read_metadata
from stillframe.pipeline.pending_snapshot import (
    PINNED,
    ParticipantFragment,
    QueryState,
    Request,
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


class ParticipantLogs:
    """A participant's logs, in the epoch in which it started; `kind` is "query" or "service"."""

    def __init__(self, root: Path, metadata: Metadata, participant: str, kind: str) -> None:
        self.metadata = metadata
        self.readers = {
            log.name: LogReader(root, log, metadata.segments[log.name])
            for log in metadata.dataflow.incoming(participant)
        }
        self._root = root
        self._participant = participant
        self._kind = kind
        self._identity: tuple[int, int] | None = None

    @cached_property
    def writers(self) -> dict[str, LogWriter]:
        """A writer for every log that the participant appends to; made when it is first needed."""
        outgoing = self.metadata.dataflow.outgoing(self._participant)
        return {log.name: LogWriter(self._root, log, self.metadata) for log in outgoing}

    def check_epoch(self) -> None:
        """Refuse to continue if the pipeline was restored since.

        Raises:
            Refused: it was.
        """
        status = (self._root / PIPELINE_FILE).stat()
        identity = (status.st_ino, status.st_mtime_ns)
        if identity == self._identity:
            return
        epoch = read_metadata(self._root).epoch
        if epoch != self.metadata.epoch:
            raise Refused(
                f"{self._kind} {self._participant} is of epoch {self.metadata.epoch}, and the "
                f"pipeline {self._root} was restored and is in epoch {epoch}: start it again"
            )
        self._identity = identity

    def record_or_limit(
        self,
        tails: dict[str, int],
        positions: Callable[[], dict[str, int]],
        record: Callable[[Request], None],
        *,
        is_patient: bool,
    ) -> dict[str, int]:
        """Record if it is time to, and return up to where the next action may read each log.

        Call it between two actions. When it returns with the state recorded, the barrier is on
        every outgoing log.

        Args:
            tails: where each incoming log ends now; determined before this call, so that a barrier
                among them belongs to a request that exists already.
            positions: returns the participant's positions between the two actions.
            record: records its state, appends the barrier to its outgoing logs and submits its
                fragment.
            is_patient: whether it may be held at a barrier until others come. One that is not
                records unaligned, whatever the mode.
        """
        request = under_way(self._root)
        if (
            request is None
            or request.epoch != self.metadata.epoch
            or time.time() > request.deadline_at + OVERDUE_S
            or has_recorded(self._root, request.snapshot, self._participant)
        ):
            return tails
        mode = request.mode if is_patient else Mode.UNALIGNED
        found = readings(self._root, request.snapshot, self.readers, positions(), tails)
        is_initiator = self._participant in self.metadata.dataflow.initiators()
        if may_record(mode, found, is_initiator=is_initiator):
            record(request)
            return tails
        limits = {name: read_end(mode, reading) for name, reading in found.items()}
        return {name: tails[name] if end is None else end for name, end in limits.items()}

    def submit_fragment(
        self, request: Request, positions: dict[str, int], batch: int | None = None, **content: Any
    ) -> None:
        """Append the barrier to every outgoing log, and submit the fragment with its `content`.
        Repeating this before anything else is appended changes nothing.

        `batch` is the micro-batch after which a query has recorded its state.

        Raises:
            NotConsistent: a log holds records of a later micro-batch.
        """
        barriers = {
            name: writer.append_barrier(request.snapshot, request.mode, batch=batch)
            for name, writer in self.writers.items()
        }
        fragment = ParticipantFragment(
            snapshot=request.snapshot,
            participant=self._participant,
            recorded_at=time.time(),
            positions=positions,
            barriers=barriers,
            **content,
        )
        submit(self._root, fragment)


class QueryParticipant(ParticipantLogs):
    """A query as a participant in snapshots.

    If `is_patient`, it may be held at a barrier: not if it runs with AvailableNow, which takes
    being held for the end, nor if it does not run at all.

    Raises:
        NotConsistent: the checkpoint is of a query that reads other logs.
        Damaged: an entry that it has still to read is missing.
    """

    def __init__(self, root: Path, query: str, *, is_patient: bool = True) -> None:
        metadata = read_metadata(root)
        metadata.dataflow.check_participant(query, "query")
        super().__init__(root, metadata, query, "query")
        self.query = query
        self.is_patient = is_patient
        self.checkpoint = checkpoint_path(root, metadata.epoch, query)
        for name, position in self.positions()[1].items():
            self.readers[name].check_whole(position)

    def positions(self) -> tuple[int | None, dict[str, int]]:
        """Return the last committed micro-batch, and the query's positions on its logs. Raises
        NotConsistent if the checkpoint is of a query that reads other logs."""
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
        checkpoint of the query has others. Raises NotConsistent if they are those of another
        checkpoint, or its commits come later."""
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
        return self.record_or_limit(
            tails, lambda: self.positions()[1], self._record, is_patient=self.is_patient
        )

    def _record(self, request: Request) -> None:
        """Record the state after the last committed micro-batch. All of it may be repeated after an
        interruption, as long as no other micro-batch has started."""
        batch, positions = self.positions()
        if batch is not None:
            directory = request_path(self._root, request.snapshot)
            checkpoint.pin(self.checkpoint, batch, directory / PINNED / self.query)
        self.submit_fragment(request, positions, batch, query=QueryState(batch))


def _names(logs: Iterable[str]) -> str:
    return ", ".join(sorted(logs)) or "no channel"
