"""The logs that one service reads and writes, and its positions on them.

    ROOT/participants/epoch-2/positions/NAME.json    the positions that a service last reported

A query commits its positions to disk. A service keeps them in memory alone and submits them with
its state. It reports them now and then, for display only, so these files cost no sync and may be
missing.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa

from stillframe.durable_files import partial_path
from stillframe.errors import StillframeError, UsageError
from stillframe.pipeline.locks import PARTICIPANTS
from stillframe.pipeline.metadata import Metadata, check_positions
from stillframe.pipeline.pending_snapshot import Request, ServiceState
from stillframe.pipeline.query_participant import ParticipantLogs
from stillframe.store.sealed_json import FORMAT, read_sealed, seal

REPORT_INTERVAL_S = 0.5
"""Minimum interval between two reports of a service's positions, in seconds."""


class ReportedPositions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of such a file."""

    format: int = FORMAT
    positions: dict[str, int]


def reported_positions(
    root: Path, metadata: Metadata, service: str
) -> tuple[dict[str, int], float] | None:
    """Return the positions that a service reported, and when; None if it has not reported any, or
    if they cannot be read."""
    path = _report_path(root, metadata.epoch, service)
    with contextlib.suppress(OSError, StillframeError):
        reported_at = path.stat().st_mtime
        positions = read_sealed(path, ReportedPositions).positions
        check_positions(positions, metadata.dataflow.incoming(service), service)
        return positions, reported_at
    return None


def _report_path(root: Path, epoch: int, service: str) -> Path:
    return root / PARTICIPANTS / f"epoch-{epoch}" / "positions" / f"{service}.json"


class ServiceLogs(ParticipantLogs):
    """The logs of a service, and its positions on them. Raises Damaged if an entry that it has
    still to read is missing."""

    def __init__(
        self, root: Path, service: str, metadata: Metadata, positions: dict[str, int]
    ) -> None:
        super().__init__(root, metadata, service, "service")
        self._positions = dict(positions)
        for name, reader in self.readers.items():
            reader.check_whole(self._positions[name])
        _ = self.writers  # what keeps a service from appending is an error at its start
        self._last = ""
        self._reported: dict[str, int] = {}
        self._report_from = 0.0

    @property
    def positions(self) -> dict[str, int]:
        """The position of the service on each log that it reads."""
        return dict(self._positions)

    def report(self) -> None:
        """Report the positions now and then; if they cannot be written, do without."""
        now = time.monotonic()
        if now < self._report_from or self._reported == self._positions:
            return
        self._report_from, self._reported = now + REPORT_INTERVAL_S, dict(self._positions)
        path = _report_path(self._root, self.metadata.epoch, self._participant)
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            partial = partial_path(path)
            partial.write_bytes(seal(ReportedPositions(positions=self._reported)))
            partial.replace(path)

    def append(self, log: str, records: pa.Table) -> None:
        """Append records to a log.

        Raises:
            UsageError: the service writes no such log, or the columns are not the declared ones.
            StoreError: the disk is full or failed; nothing was appended.
        """
        writer = self.writers.get(log)
        if writer is None:
            raise UsageError(
                f"service {self._participant} writes no channel {log!r}; it writes "
                f"{', '.join(self.writers) or 'none'}"
            )
        if records.num_rows:
            writer.append(records)

    def at_boundary(self, *, is_patient: bool, record: Callable[[Request], None]) -> dict[str, int]:
        """Record if it is time to, and return up to where the next action may read
        (``record_or_limit``). Raises Refused if the pipeline was restored: this epoch has ended."""
        self.check_epoch()
        tails = {log: reader.tail(self._positions[log]) for log, reader in self.readers.items()}
        return self.record_or_limit(tails, lambda: self._positions, record, is_patient=is_patient)

    def take(self, ends: dict[str, int]) -> tuple[str, pa.Table] | None:
        """Return the next records before `ends`, and their log; the logs take turns."""
        while ready := sorted(log for log, end in ends.items() if self._positions[log] < end):
            self._last = next((log for log in ready if log > self._last), ready[0])
            reader = self.readers[self._last]
            entry = reader.entry(self._positions[self._last])
            self._positions[self._last] += 1
            reader.forget(self._positions[self._last])
            if entry.files:
                return self._last, reader.table(entry)
        return None

    def submit(
        self,
        request: Request,
        state: ServiceState | None,
        *,
        system: str | None = None,
        failure: str | None = None,
    ) -> None:
        """Append the barrier to every log that is written, and submit the fragment.

        `state` was recorded in the same atomic step; if that failed, `failure` says why. `system`
        is the name of the system that the service is a process of.
        """
        self.submit_fragment(request, self.positions, service=state, system=system, failure=failure)
