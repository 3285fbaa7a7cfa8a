"""The logs of a pipeline at one process of a system: records in, records out, one cut for both.

A process that is a service of a pipeline has channels of two kinds: over TCP to the other processes
of its system, and logs. When it records its state for a snapshot of the system that belongs to one
of the pipeline, it puts the barrier on its logs in the same atomic step. When a barrier is in sight
in a log, it begins the system's snapshot itself, as if a marker had come.

An object store may take its time, or not answer. It is looked at in a thread meanwhile, so that the
channels over TCP are served. What the process itself does there, in its actions, keeps it waiting.
"""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from stillframe.durable_files import shell_command
from stillframe.errors import Damaged, Refused, StoreError, Unavailable, UsageError
from stillframe.model import ProcessState, SnapshotId
from stillframe.pipeline.locks import participant_lock
from stillframe.pipeline.metadata import Metadata, begin_taking_part, read_metadata
from stillframe.pipeline.participant_logs import ServiceLogs
from stillframe.pipeline.pending_snapshot import (
    Request,
    ServiceState,
    SystemCut,
    pending_request,
    system_cut,
)
from stillframe.pipeline.snapshot_manifest import read_manifest
from stillframe.pipeline.stopped import OwnRecord, is_as_restored
from stillframe.storage.location import Location
from stillframe.storage.remote import started


def check_unused(
    root: Location,
    head: Metadata,
    service: str,
    resting: tuple[dict[str, int], ServiceState] | None,
) -> None:
    """Refuse to run a service, whose record is `resting`, as a process of a system if it ran alone
    in this epoch. The system starts where the epoch started, and would do everything a second time.
    """
    if resting is None:
        return
    if head.restored_from is not None:
        part = read_manifest(root, head.restored_from).fragment(service)
        if is_as_restored(head, part, resting):
            return
    raise UsageError(
        f"service {service} ran alone in the current epoch of the pipeline {root}, and left: as "
        "a process of a system it would start again from the beginning of the epoch. Run it "
        "alone again, or restore the pipeline from a snapshot of the system with "
        f"'{shell_command('pipeline', 'restore', root)}'"
    )


class _Look(NamedTuple):
    """The state of the pipeline: where each log may be read up to, and the snapshots to record.
    Each comes with the system's part in it, if that was announced."""

    ends: dict[str, int]
    wanted: list[tuple[Request, SystemCut | None]]


class PipelineLogs:
    """The logs that one process of a system, a service of the pipeline at `root`, reads and writes.
    `system` is the name of the system (``pipeline.pending_snapshot``). The state of the process
    belongs to this `epoch` of the pipeline.

    Raises:
        UsageError: the pipeline has no such service, or it ran alone in this epoch, and left.
        NotAtRest: it died in this epoch, and its state with it.
        Unavailable: another program runs it.
        Refused: the pipeline was restored since the system began to start.
        Damaged: an item that it has still to read is missing.
    """

    def __init__(self, root: Location, process: str, *, system: str, epoch: int) -> None:
        self._root = root
        self._process = process
        self._system = system
        self._looking: Future[_Look] | None = None
        self._found: _Look | None = None
        read_metadata(root).dataflow.check_participant(process, "service")
        begin_taking_part(root)
        self._lock = participant_lock(root, process)
        if not self._lock.acquire():
            raise Unavailable(f"another program runs service {process}: stop that one first")
        try:
            self._metadata = read_metadata(root)
            if self._metadata.epoch != epoch:
                raise Refused(
                    f"the system begins with its state in epoch {epoch} of the pipeline {root}, "
                    f"which was restored meanwhile and is in epoch {self._metadata.epoch}: start "
                    "the system again"
                )
            record = OwnRecord(root, self._metadata, process)
            check_unused(root, self._metadata, process, record.stopped())
            self._ends = ServiceLogs(root, process, self._metadata, self._metadata.starts[process])
            self._ends.is_patient = False
            record.write()
        except BaseException:
            self._lock.release()
            raise

    def append(self, log: str, records: pa.Table) -> None:
        """Append records to a log, as a part of the current action. A UsageError if this process
        writes no such log, or the columns are not the declared ones; a StoreError if the disk is
        full or failed: nothing was appended then."""
        self._ends.append(log, records)

    def poll(
        self, initiate: Callable[[SnapshotId], None], *, may_read: bool
    ) -> tuple[str, pa.Table] | None:
        """Return the next records and their log, None if there are none now. Call it between two
        actions; what it returned counts as received.

        `initiate` begins a snapshot of the system at this process, if it has not recorded it;
        `may_read` is false when there is no room for what the process may send. Raises Refused if
        the pipeline was restored, and Unavailable if another program took this place.
        """
        self._lock.check_held("process", self._process)
        found = self._look() if isinstance(self._root, Path) else self._last_look()
        if found is None:
            return None
        for request, cut in found.wanted:
            if cut is not None:
                initiate(cut.snapshot)
            if self._ends.recorded != request.snapshot:
                return None  # nothing more is read until the state before it is recorded
        try:
            return self._ends.take(found.ends) if may_read else None
        except StoreError as error:
            self._check_passes(error)
            self._found = None
            return None

    def _look(self) -> _Look:
        self._ends.report()
        wanted: list[Request] = []
        ends = self._ends.at_boundary(wanted.append)
        return _Look(
            ends, [(one, system_cut(self._root, one.snapshot, self._system)) for one in wanted]
        )

    def _last_look(self) -> _Look | None:
        """Return what was found in the object store, and look again when it is time to; None while
        there is no answer. If there is an error, the process runs on."""
        if self._looking is None:
            if self._found is not None and not self._ends.is_poll_due():
                return self._found
            self._looking = started(self._look, "pipeline")
        elif self._looking.done():
            looking, self._looking, self._found = self._looking, None, None
            try:
                self._found = looking.result()
            except StoreError as error:
                self._check_passes(error)
            return self._found
        return None

    def recorded(self, snapshot: SnapshotId, state: ProcessState) -> None:
        """Put the barrier on every log that is written, and submit the fragment.

        Called in the step in which the process recorded its state and sent its markers. Does
        nothing for a snapshot of the system that belongs to none of the pipeline.
        """
        try:
            self._submit(snapshot, state)
        except StoreError as error:
            # Without this fragment the pipeline's snapshot is abandoned, and nothing is read before
            # its end.
            self._check_passes(error)

    def _check_passes(self, error: StoreError) -> None:
        """Raise an error, unless it is of an object store, which may be back later."""
        if isinstance(error, Damaged) or isinstance(self._root, Path):
            raise error

    def _submit(self, snapshot: SnapshotId, state: ProcessState) -> None:
        request = pending_request(self._root)
        if request is None or request.epoch != self._metadata.epoch:
            return
        cut = system_cut(self._root, request.snapshot, self._system)
        if cut is None or cut.snapshot != snapshot:
            return
        encoded = ServiceState(state.kind, state.encoded)
        positions = self._ends.positions()
        self._ends.submit(request, positions, service=encoded, system=self._system)
