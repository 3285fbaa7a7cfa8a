"""The logs of a pipeline at one process of a system: records in, records out, one cut for both.

A process that is a service of a pipeline has channels of two kinds: over TCP to the other processes
of its system, and logs. When it records its state for a snapshot of the system that belongs to one
of the pipeline, it puts the barrier on its logs in the same atomic step. When a barrier is in sight
in a log, it begins the system's snapshot itself, as if a marker had come.
"""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from stillframe.durable_files import shell_command
from stillframe.errors import Unavailable, UsageError
from stillframe.model import ProcessState, SnapshotId
from stillframe.pipeline.locks import participant_lock
from stillframe.pipeline.metadata import Metadata, begin_taking_part, read_metadata
from stillframe.pipeline.participant_logs import ServiceLogs
from stillframe.pipeline.pending_snapshot import (
    Request,
    ServiceState,
    has_recorded,
    pending_request,
    system_cut,
)
from stillframe.pipeline.snapshot_manifest import read_manifest
from stillframe.pipeline.stopped import (
    ServiceRecord,
    is_as_restored,
    stopped_service,
    write_service_record,
)


def check_unused(root: Path, head: Metadata, service: str) -> None:
    """Refuse to run a service as a process of a system if it ran alone in this epoch. The system
    starts where the epoch started, and would do everything a second time. UsageError if it left;
    StillRunning if it died, or was the process of a system and died."""
    resting = stopped_service(root, head, service)
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


class PipelineLogs:
    """The logs that one process of a system, a service of the pipeline at `root`, reads and writes;
    `system` is the name of the system (``pipeline.pending_snapshot``).

    Raises:
        UsageError: the pipeline has no such service, or it ran alone in this epoch, and left.
        NotAtRest: it died in this epoch, and its state with it.
        Unavailable: another program runs it.
        Damaged: an item that it has still to read is missing.
    """

    def __init__(self, root: Path, process: str, *, system: str) -> None:
        self._root = root
        self._process = process
        self._system = system
        read_metadata(root).dataflow.check_participant(process, "service")
        begin_taking_part(root)
        self._lock = participant_lock(root, process)
        if not self._lock.acquire():
            raise Unavailable(f"another program runs service {process}: stop that one first")
        try:
            self._metadata = read_metadata(root)
            check_unused(root, self._metadata, process)
            self._ends = ServiceLogs(root, process, self._metadata, self._metadata.starts[process])
            self._ends.is_patient = False
            write_service_record(root, process, ServiceRecord(epoch=self._metadata.epoch))
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
        the pipeline was restored.
        """
        self._ends.report()
        wanted: list[Request] = []
        ends = self._ends.at_boundary(wanted.append)
        for request in wanted:
            cut = system_cut(self._root, request.snapshot, self._system)
            if cut is not None:
                initiate(cut.snapshot)
            if not has_recorded(self._root, request.snapshot, self._process):
                return None  # nothing more is read until the state before it is recorded
        return self._ends.take(ends) if may_read else None

    def recorded(self, snapshot: SnapshotId, state: ProcessState) -> None:
        """Put the barrier on every log that is written, and submit the fragment.

        Called in the step in which the process recorded its state and sent its markers. Does
        nothing for a snapshot of the system that belongs to none of the pipeline.
        """
        request = pending_request(self._root)
        if request is None or request.epoch != self._metadata.epoch:
            return
        cut = system_cut(self._root, request.snapshot, self._system)
        if cut is None or cut.snapshot != snapshot:
            return
        encoded = ServiceState(state.kind, state.encoded)
        positions = self._ends.positions()
        self._ends.submit(request, positions, service=encoded, system=self._system)
