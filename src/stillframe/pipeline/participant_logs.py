"""The logs that one participant reads and writes, its positions on them, and the barrier rules.

    ROOT/participants/epoch-2/positions/NAME.json    the positions that a service last reported

A query is called by its sources between two micro-batches. Nothing is kept from call to call that
is not on the disk as well: the offsets committed in the checkpoint are the query's positions on all
its logs, and the logs contain the barriers. Each source of a query runs in a separate
operating-system process, and any of them may be the one that records.

A service keeps its positions in memory alone and submits them with its state. It reports them now
and then, for display only, so these files cost no sync and may be missing.
"""

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from stillframe.durable_files import partial_path
from stillframe.errors import NotConsistent, Refused, StillframeError, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline import checkpoint, pending_snapshot
from stillframe.pipeline.locks import PARTICIPANTS, poll_s
from stillframe.pipeline.log import LogReader, LogWriter
from stillframe.pipeline.metadata import (
    PIPELINE_FILE,
    Metadata,
    ObjectMetadata,
    check_positions,
    read_metadata,
    read_object_metadata,
)
from stillframe.pipeline.pending_snapshot import ParticipantFragment, QueryState, Request
from stillframe.pipeline.query_runs import QueryRun, current_run, interrupt_start
from stillframe.pipeline.snapshot_manifest import pinned_path, pinning_directory
from stillframe.protocol.aligner import Mode, Reading, may_record, read_end
from stillframe.storage.files import below, replace
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.storage import Version
from stillframe.store.sealed_json import FORMAT, read_sealed, seal

OVERDUE_S = 2.0
"""A coordinator abandons a snapshot at its deadline. If the snapshot is still pending this long
after it, the coordinator was killed, and its barriers hold no participant any more. The clocks of
the machines of one cluster differ by less."""
REPORT_INTERVAL_S = 0.5
OBJECT_REPORT_INTERVAL_S = 5.0
"""Minimum intervals between two reports of a service's positions, in seconds."""


class ParticipantLogs(ABC):
    """A participant's logs, in the epoch in which it started; `kind` is "query" or "service". One
    that is not patient is never held at a barrier until others come: it records unaligned, whatever
    the mode."""

    def __init__(self, root: Location, metadata: Metadata, participant: str, kind: str) -> None:
        self.metadata = metadata
        self.is_patient = True
        self.poll_s = poll_s(root)
        self.readers = {
            log.name: LogReader(root, log, metadata.segments[log.name])
            for log in metadata.dataflow.incoming(participant)
        }
        self._root = root
        self._participant = participant
        self._kind = kind
        self.is_remote = isinstance(root, ObjectPath)
        self._run: QueryRun | None = None
        self._identity: tuple[int, int] | None = None
        self._known: tuple[ObjectMetadata, Version] | None = None
        self.recorded: SnapshotId | None = None
        """The last snapshot for which its fragment was submitted here."""

    @property
    def is_asked(self) -> bool:
        """Whether a snapshot was pending when the pipeline was last read; in an object store."""
        return self._known is not None and self._known[0].request is not None

    @abstractmethod
    def positions(self) -> dict[str, int]:
        """Return the participant's position on each log that it reads, between two actions."""

    @cached_property
    def writers(self) -> dict[str, LogWriter]:
        """A writer for every log that the participant appends to; made when it is first needed."""
        run = None if self._run is None else self._run.number
        return writers_of(self._root, self.metadata, self._participant, run)

    def check_whole(self) -> None:
        """Refuse logs with an entry missing that is still to be read; raises Damaged."""
        for name, position in self.positions().items():
            self.readers[name].check_whole(position)

    def check_epoch(self) -> None:
        """Refuse to continue if the pipeline was restored since; raises Refused."""
        if isinstance(self._root, ObjectPath):
            self._known = read_object_metadata(self._root, self._known)
            self._check_is_current(self._known[0].epoch)
            return
        status = (self._root / PIPELINE_FILE).stat()
        identity = (status.st_ino, status.st_mtime_ns)
        if identity == self._identity:
            return
        self._check_is_current(read_metadata(self._root).epoch)
        self._identity = identity

    def _check_is_current(self, epoch: int) -> None:
        if epoch != self.metadata.epoch:
            raise Refused(
                f"{self._kind} {self._participant} is of epoch {self.metadata.epoch}, but the "
                f"pipeline {self._root} was restored and is in epoch {epoch}: start it again"
            )

    def _pending_request(self) -> Request | None:
        """Return the request of the pending snapshot, if any; in an object store Refused as well,
        as ``check_epoch``, because one read says both."""
        if isinstance(self._root, ObjectPath):
            self.check_epoch()
            return None if self._known is None else self._known[0].request
        return pending_snapshot.pending_request(self._root)

    def tails(self, positions: dict[str, int] | None = None) -> dict[str, int]:
        """Return where each incoming log ends now, which is not before these `positions`."""
        known = self.positions() if positions is None else positions
        return {name: reader.tail(known[name]) for name, reader in self.readers.items()}

    def record_or_limit(
        self, tails: dict[str, int], record: Callable[[Request], None]
    ) -> dict[str, int]:
        """Record if it is time to, and return up to where the next action may read each log.

        Call it between two actions, with `tails` from before this call, so that a barrier among
        them belongs to a request that exists already. `record` records the state, and submits it.
        When this returns with the state recorded, the barrier is on every outgoing log.
        """
        request = self._pending_request()
        if (
            request is None
            or request.snapshot == self.recorded
            or request.epoch != self.metadata.epoch
            or time.time() > request.deadline_at + OVERDUE_S
            or self._has_recorded(request.snapshot)
        ):
            return tails
        if request.mode is Mode.RETAINED:
            record(request)  # at once: a search for barriers in the unread entries is not needed
            return tails
        mode = request.mode if self.is_patient else Mode.UNALIGNED
        found = self._readings(request.snapshot, tails)
        is_initiator = self._participant in self.metadata.dataflow.initiators()
        if may_record(mode, found, is_initiator=is_initiator):
            record(request)
            return tails
        limits = {name: read_end(mode, reading) for name, reading in found.items()}
        return {name: tails[name] if end is None else end for name, end in limits.items()}

    def _has_recorded(self, snapshot: SnapshotId) -> bool:
        if self._run is not None and isinstance(self._root, ObjectPath):
            # One of a driver that was replaced meanwhile does not count.
            name = self._participant
            fragment = pending_snapshot.read_fragment(self._root, snapshot, name)
            if fragment is not None and not self._run.has(fragment):
                return False
        return pending_snapshot.has_recorded(self._root, snapshot, self._participant)

    def _readings(self, snapshot: SnapshotId, tails: dict[str, int]) -> dict[str, Reading]:
        """Return the participant's position, and the barrier's, on each log that it reads. A
        barrier ahead is found in the log itself. One that was passed, which only at-least-once
        allows, is known from the fragment of the log's source."""
        found, positions = {}, self.positions()
        for name, reader in self.readers.items():
            position = _after_old_barriers(reader, snapshot, positions[name], tails[name])
            barrier = reader.find_barrier(snapshot, position, tails[name])
            if barrier is None:
                fragment = pending_snapshot.read_fragment(self._root, snapshot, reader.log.source)
                barrier = None if fragment is None else fragment.barriers.get(name)
            found[name] = Reading(position, barrier)
        return found

    def submit(
        self, request: Request, positions: dict[str, int], *, batch: int | None = None, **more: Any
    ) -> None:
        """Append the barrier to every outgoing log, and submit the fragment; repeating this before
        anything else is appended changes nothing. `positions` and the state, which `more` has, were
        taken in one atomic step; `batch` as for ``append_barrier``."""
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
            **more,
        )
        pending_snapshot.submit_fragment(self._root, fragment)
        self.recorded = request.snapshot


def writers_of(
    root: Location, metadata: Metadata, participant: str, run: int | None = None
) -> dict[str, LogWriter]:
    """Return a writer for every log that a participant appends to, in this run of a query."""
    # In an object store nothing but its number keeps an entry of a second writer out. A query has
    # a program for each of its sources; a service is the only one that appends to its logs.
    is_alone = isinstance(root, ObjectPath) and participant in metadata.dataflow.services
    outgoing = metadata.dataflow.outgoing(participant)
    return {
        log.name: LogWriter(root, log, metadata, is_alone=is_alone, run=run) for log in outgoing
    }


def _after_old_barriers(reader: LogReader, snapshot: SnapshotId, position: int, tail: int) -> int:
    """Return `position`, past old barriers and other entries without records: no participant reads
    on merely to step over one."""
    while position < tail:
        entry = reader.entry(position)
        if entry.files or getattr(entry.content, "snapshot", None) == snapshot:
            break
        position += 1
    return position


class QueryParticipant(ParticipantLogs):
    """A query as a participant in snapshots. It is not patient if it runs with AvailableNow, which
    takes being held for the end, nor if it does not run at all. NotConsistent if the checkpoint is
    of a query that reads other logs, or lacks what the epoch began with; Damaged if an entry that
    it has still to read is missing."""

    def __init__(self, root: Location, query: str) -> None:
        metadata = read_metadata(root)
        metadata.dataflow.check_participant(query, "query")
        super().__init__(root, metadata, query, "query")
        self._run = current_run(root, metadata.epoch, query)
        self.is_starting = self._run.is_starting
        """Whether another program is starting the query, or was interrupted."""
        self._checkpoint = self._run.checkpoint
        self._state = QueryState(None)
        if self._run.number is not None:
            self._state = QueryState(None, self._run.number)
        self.check_whole()

    def positions(self) -> dict[str, int]:
        """Return the query's positions after its last committed micro-batch."""
        return self._committed()[1]

    def _committed(self) -> tuple[int | None, dict[str, int]]:
        found = checkpoint.last_committed(self._checkpoint)
        first = self.metadata.batches[self._participant][-1].first
        if first > (0 if found is None else found.batch + 1):
            raise NotConsistent(
                f"the checkpoint {self._checkpoint} of query {self._participant} ends before "
                f"micro-batch {first}, with which the epoch begins: it was deleted, or another "
                "program has just started the query"
            )
        if found is None:
            return None, dict(self.metadata.starts[self._participant])
        if found.positions.keys() != self.readers.keys():
            raise NotConsistent(
                f"query {self._participant} reads {_names(found.positions)} in its checkpoint "
                f"{self._checkpoint}, and {_names(self.readers)} in the pipeline's description: "
                "read every declared channel exactly once"
            )
        return found.batch, found.positions

    def check_stands_at(self, positions: dict[str, int]) -> None:
        """Raise NotConsistent if the query would read on from other positions than those of its
        checkpoint: they are of another one, or its commits come later."""
        committed = self.positions()
        if any(committed[log] != position for log, position in positions.items()):
            raise NotConsistent(
                f"query {self._participant} continues from {positions}, but its checkpoint "
                f"{self._checkpoint} ends at {committed}: start it with start_query, or with "
                "checkpointLocation set to the result of checkpoint_location and without "
                "asynchronous progress tracking"
            )

    def _pending_request(self) -> Request | None:
        """See ``ParticipantLogs``. In mode retained it is not asked: its versions are looked at."""
        request = super()._pending_request()
        return None if request is None or request.mode is Mode.RETAINED else request

    def at_boundary(self, tails: dict[str, int]) -> dict[str, int]:
        """Record or limit between two micro-batches, as ``record_or_limit``."""
        return self.record_or_limit(tails, self._record)

    def _record(self, request: Request) -> None:
        """Record the state after the last committed micro-batch. All of it may be repeated after an
        interruption, as long as no other micro-batch has started."""
        if self.is_starting and isinstance(self._root, ObjectPath):
            # A frozen program would continue from what it has copied before this is recorded.
            epoch, name = self.metadata.epoch, self._participant
            self._run = interrupt_start(self._root, epoch, name)
            self._state = QueryState(None, self._run.number or 0)
        batch, positions = self._committed()
        state = msgspec.structs.replace(self._state, batch=batch)
        if batch is not None:
            directory = pinning_directory(self._root, request.snapshot)
            checkpoint.pin(
                self._checkpoint, batch, pinned_path(directory, self._participant, state)
            )
        self.submit(request, positions, batch=batch, query=state)


def _names(logs: Iterable[str]) -> str:
    return ", ".join(sorted(logs)) or "no channel"


class ReportedPositions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file of reported positions."""

    format: int = FORMAT
    positions: dict[str, int]


def reported_positions(
    root: Location, metadata: Metadata, service: str
) -> tuple[dict[str, int], float | None] | None:
    """Return the positions that a service reported, and when if that is known; None if none can be
    read."""
    path = _report_path(root, metadata.epoch, service)
    with contextlib.suppress(OSError, StillframeError):
        reported_at = path.stat().st_mtime if isinstance(path, Path) else None
        positions = read_sealed(path, ReportedPositions).positions
        check_positions(positions, metadata.dataflow.incoming(service), service)
        return positions, reported_at
    return None


def _report_path(root: Location, epoch: int, service: str) -> Location:
    return below(root, PARTICIPANTS, f"epoch-{epoch}", "positions", f"{service}.json")


class ServiceLogs(ParticipantLogs):
    """The logs of a service, and its positions on them; Damaged if an entry still to be read is
    missing. `writers` is given if they had to be made before something else (``writers_of``)."""

    def __init__(
        self,
        root: Location,
        service: str,
        metadata: Metadata,
        positions: dict[str, int],
        writers: dict[str, LogWriter] | None = None,
    ) -> None:
        super().__init__(root, metadata, service, "service")
        if writers is not None:
            self.writers = writers
        self._positions = dict(positions)
        self.check_whole()
        _ = self.writers  # what keeps a service from appending is an error at its start
        self._last = ""
        self._reported: dict[str, int] = {}
        self._report_from = 0.0
        self._limits: dict[str, int] = {}
        self._polled_at = -math.inf
        self._found_more = False

    def positions(self) -> dict[str, int]:
        """Return a copy of the positions, which advance with ``take``."""
        return dict(self._positions)

    def report(self) -> None:
        """Report the positions now and then; if they cannot be written, do without."""
        now = time.monotonic()
        if now < self._report_from or self._reported == self._positions:
            return
        path = _report_path(self._root, self.metadata.epoch, self._participant)
        is_remote = isinstance(path, ObjectPath)
        self._report_from = now + (OBJECT_REPORT_INTERVAL_S if is_remote else REPORT_INTERVAL_S)
        self._reported = self.positions()
        content = seal(ReportedPositions(positions=self._reported))
        with contextlib.suppress(OSError):
            if isinstance(path, ObjectPath):
                replace(path, content)
                return
            path.parent.mkdir(exist_ok=True)
            partial = partial_path(path)
            partial.write_bytes(content)
            partial.replace(path)

    def append(self, log: str, records: pa.Table) -> None:
        """Append records to a log; UsageError if the service writes no such log."""
        writer = self.writers.get(log)
        if writer is None:
            raise UsageError(
                f"service {self._participant} does not write channel {log!r}; it writes "
                f"{', '.join(self.writers) or 'none'}"
            )
        if not isinstance(records, pa.Table):
            raise UsageError(
                f"channel {log} takes a pyarrow.Table, and no {type(records).__name__}: make one "
                "with pyarrow.table(...) or pyarrow.Table.from_pandas(...)"
            )
        if records.num_rows:
            writer.append(records)

    def check_end(self) -> None:
        """Check that the state at the end fits the logs: Refused after a restore, Unavailable if an
        append has taken effect that was reported as failed."""
        self.check_epoch()
        for writer in self.writers.values():
            writer.settle()

    def at_boundary(self, record: Callable[[Request], None]) -> dict[str, int]:
        """Record or limit between two actions, as ``record_or_limit``; Refused after a restore."""
        if isinstance(self._root, ObjectPath):
            if not self.is_poll_due():
                return self._limits
        else:
            self.check_epoch()
        self._polled_at = time.monotonic()
        self._limits = self.record_or_limit(self.tails(), record)
        self._found_more = self._may_read()
        return self._limits

    def is_poll_due(self) -> bool:
        """Return whether to look at the object store again: now and then, and when everything is
        read that was found the last time. Until then the limits of that time hold, also for
        barriers: they are at entries that did not exist yet."""
        if time.monotonic() - self._polled_at >= self.poll_s:
            return True
        return self._found_more and not self._may_read()

    def _may_read(self) -> bool:
        return any(self._positions[log] < end for log, end in self._limits.items())

    def take(self, ends: dict[str, int]) -> tuple[str, pa.Table] | None:
        """Return the next records before `ends`, and their log; the logs are read round-robin."""
        while ready := sorted(log for log, end in ends.items() if self._positions[log] < end):
            self._last = next((log for log in ready if log > self._last), ready[0])
            reader = self.readers[self._last]
            entry = reader.entry(self._positions[self._last])
            # First: what cannot be read is not received, and may be read later.
            table = reader.table(entry) if entry.files else None
            self._positions[self._last] += 1
            reader.forget(self._positions[self._last])
            if table is not None:
                return self._last, table
        return None
