"""The logs that one service reads and writes, and where it stands on them."""

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from stillframe.errors import UsageError
from stillframe.pipeline.head import Head
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.member import Epoch, consider, writers_of
from stillframe.pipeline.part import Part, Request, ServiceState, forward, hand_in
from stillframe.pipeline.positions import note_positions

NOTE_S = 0.5
"""So often at most a service notes where it stands, in seconds."""


class Ends:
    """A service's ends of its channels.

    Args:
        root: the pipeline.
        service: who reads and writes.
        head: of the epoch that it is in.
        positions: where it stands on each log that it reads.

    Raises:
        Damaged: an item that it has still to read is missing.
    """

    def __init__(self, root: Path, service: str, head: Head, positions: dict[str, int]) -> None:
        self._root = root
        self._service = service
        self._head = head
        self._positions = dict(positions)
        self._readers = {
            log.name: LogReader(root, log, head.stretches[log.name])
            for log in head.dataflow.incoming(service)
        }
        for name, reader in self._readers.items():
            reader.check_whole(self._positions[name])
        self._writers = writers_of(root, head, service)
        self._epoch = Epoch(root, head, f"service {service}")
        self._last = ""
        self._noted: dict[str, int] = {}
        self._note_from = 0.0

    @property
    def positions(self) -> dict[str, int]:
        """Where the service stands on each log that it reads."""
        return dict(self._positions)

    def note(self) -> None:
        """Say now and then where the service stands, for those who look on (``resting``)."""
        now = time.monotonic()
        if now >= self._note_from and self._noted != self._positions:
            self._note_from, self._noted = now + NOTE_S, dict(self._positions)
            note_positions(self._root, self._head.epoch, self._service, self._noted)

    def append(self, log: str, records: pa.Table) -> None:
        """Append records to a log.

        Raises:
            UsageError: the service writes no such log, or the columns are not the declared ones.
            StoreError: the disk is full or failed; nothing was appended.
        """
        writer = self._writers.get(log)
        if writer is None:
            raise UsageError(
                f"service {self._service} writes no channel {log!r}; it writes "
                f"{', '.join(self._writers) or 'none'}"
            )
        if records.num_rows:
            writer.append(records)

    def consider(self, *, is_patient: bool, record: Callable[[Request], None]) -> dict[str, int]:
        """Record if it is time to, and return up to where the next action may read
        (``member.consider``).

        Raises:
            Refused: the pipeline was restored: this epoch is over.
        """
        self._epoch.check()
        tails = {log: reader.tail(self._positions[log]) for log, reader in self._readers.items()}
        return consider(
            self._root,
            self._head,
            self._service,
            self._readers,
            tails,
            is_patient=is_patient,
            positions=lambda: self._positions,
            record=record,
        )

    def take(self, ends: dict[str, int]) -> tuple[str, pa.Table] | None:
        """Return the next records before `ends`, and from which log; from every one in its turn."""
        while ready := sorted(log for log, end in ends.items() if self._positions[log] < end):
            self._last = next((log for log in ready if log > self._last), ready[0])
            reader = self._readers[self._last]
            item = reader.item(self._positions[self._last])
            self._positions[self._last] += 1
            reader.forget(self._positions[self._last])
            if item.files:
                return self._last, reader.table(item)
        return None

    def hand_in(
        self,
        request: Request,
        state: ServiceState | None,
        *,
        system: str | None = None,
        failure: str | None = None,
    ) -> None:
        """Put the barrier on every log that is written, and hand in the part.

        Args:
            request: the snapshot.
            state: as the service recorded it, in the same atomic step; None if that failed.
            system: the name of the system that the service is a process of (``systems``).
            failure: why it could not be recorded.
        """
        hand_in(
            self._root,
            Part(
                snapshot=request.snapshot,
                participant=self._service,
                recorded_at=time.time(),
                positions=self.positions,
                barriers=forward(self._writers, request),
                service=state,
                system=system,
                failure=failure,
            ),
        )
