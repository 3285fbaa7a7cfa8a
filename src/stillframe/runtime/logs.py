"""The logs of a pipeline at one process of a system: records in, records out, one cut for both.

A process that is a service of a pipeline has channels of two kinds: over TCP to the other processes
of its system, and logs. When it records its state for a snapshot of the system that belongs to one
of the pipeline, it puts the barrier on its logs in the same atomic step. When a barrier is in sight
in a log, it begins the system's snapshot itself, as if a marker had come.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from stillframe.errors import Unavailable, UsageError
from stillframe.model import ProcessState, SnapshotId
from stillframe.pipeline.head import Head, read_head
from stillframe.pipeline.locks import participant_lock
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.member import Epoch, consider, writers_of
from stillframe.pipeline.part import (
    Part,
    Request,
    ServiceState,
    forward,
    hand_in,
    has_recorded,
    under_way,
)
from stillframe.pipeline.resting import ServiceRecord, write_service_record
from stillframe.pipeline.systems import system_cut

POLL_S = 0.01
"""How often a process looks for new records, and for the beginning of a snapshot."""


class Logs:
    """The logs that one process of a system reads and writes.

    Args:
        root: the pipeline.
        process: who reads and writes; a service of the pipeline.
        system: the name of the system (``pipeline.systems``).

    Raises:
        UsageError: the pipeline has no such service.
        Unavailable: another program runs it.
    """

    def __init__(self, root: Path, process: str, *, system: str) -> None:
        self._root = root
        self._process = process
        self._system = system
        self._head: Head = read_head(root)
        self._head.dataflow.check_participant(process, "service")
        self._lock = participant_lock(root, process)
        if not self._lock.take_soon():
            raise Unavailable(f"service {process} is run by another program: end that one first")
        self._epoch = Epoch(root, self._head, f"service {process}")
        self._positions = dict(self._head.starts[process])
        self._readers = {
            log.name: LogReader(root, log, self._head.stretches[log.name])
            for log in self._head.dataflow.incoming(process)
        }
        self._writers = writers_of(root, self._head, process)
        self._last = ""
        write_service_record(root, process, ServiceRecord(epoch=self._head.epoch))

    def append(self, log: str, records: pa.Table) -> None:
        """Append records to a log. It is part of the current action.

        Raises:
            UsageError: this process writes no such log, or the columns are not the declared ones.
            StoreError: the disk is full or failed; nothing was appended.
        """
        writer = self._writers.get(log)
        if writer is None:
            raise UsageError(
                f"process {self._process} writes no channel {log!r} of the pipeline; it writes "
                f"{', '.join(self._writers) or 'none'}"
            )
        if records.num_rows:
            writer.append(records)

    def poll(
        self, initiate: Callable[[SnapshotId], None], *, may_read: bool
    ) -> tuple[str, pa.Table] | None:
        """Return the next records to handle, and from which log; None if there are none now.

        Call it between two atomic actions; what it returned counts as received.

        Args:
            initiate: begins a snapshot of the system at this process, if it has not recorded it.
            may_read: whether there is room for what the process may send in answer.

        Raises:
            Refused: the pipeline was restored: this epoch of the system is over.
        """
        self._epoch.check()
        tails = {log: reader.tail(self._positions[log]) for log, reader in self._readers.items()}
        wanted: list[Request] = []
        ends = consider(
            self._root,
            self._head,
            self._process,
            self._readers,
            tails,
            is_patient=False,
            positions=lambda: self._positions,
            record=wanted.append,
        )
        for request in wanted:
            cut = system_cut(self._root, request.snapshot, self._system)
            if cut is not None:
                initiate(cut.snapshot)
            if not has_recorded(self._root, request.snapshot, self._process):
                return None  # nothing more is read until the state before it is recorded
        return self._next(ends) if may_read else None

    def recorded(self, snapshot: SnapshotId, state: ProcessState) -> None:
        """Put the barrier on every log that is written, and hand in the part.

        Called in the step in which the process recorded its state and sent its markers. Does
        nothing for a snapshot of the system that belongs to none of the pipeline.
        """
        request = under_way(self._root)
        if request is None or request.epoch != self._head.epoch:
            return
        cut = system_cut(self._root, request.snapshot, self._system)
        if cut is None or cut.snapshot != snapshot:
            return
        hand_in(
            self._root,
            Part(
                snapshot=request.snapshot,
                participant=self._process,
                recorded_at=time.time(),
                positions=dict(self._positions),
                barriers=forward(self._writers, request),
                service=ServiceState(state.kind, state.encoded),
                system=self._system,
            ),
        )

    def _next(self, ends: dict[str, int]) -> tuple[str, pa.Table] | None:
        """Take the next item, from every log in its turn."""
        while ready := sorted(log for log, end in ends.items() if self._positions[log] < end):
            self._last = next((log for log in ready if log > self._last), ready[0])
            reader = self._readers[self._last]
            item = reader.item(self._positions[self._last])
            self._positions[self._last] += 1
            reader.forget(self._positions[self._last])
            if item.files:
                return self._last, reader.table(item)
        return None
