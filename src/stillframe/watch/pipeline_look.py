"""Looks how a pipeline is, from its files alone, and cheaply: it never lists a log nor reads it.

Of each log the newest item is read, and the one at which each reader stands: items say how many
records come before them. What has not changed since the last look is not read again.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stillframe.errors import StillframeError
from stillframe.model import SnapshotId
from stillframe.pipeline import checkpoint
from stillframe.pipeline.dataflow import Log
from stillframe.pipeline.head import HEAD, Head, checkpoint_path, read_head
from stillframe.pipeline.locks import POLL_S, is_running
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.part import Part, Request, read_part, under_way
from stillframe.pipeline.progress import Progress, progress_of
from stillframe.pipeline.resting import standing

RUNNING, BUSY, STOPPED, DEAD, ABSENT = "running", "busy", "stopped", "dead", "absent"
"""How a query or service can be. A service that is absent has not joined; one that is dead has
taken its state with it; one that is stopped, as any query, goes on from what is on the disk."""

_LET_GO_COUNT = 6


class ParticipantLook(msgspec.Struct, frozen=True):
    """How a query or service is.

    Attributes:
        status: one of the words above.
        positions: where it stands on each log that it reads; empty if nobody can say.
        batch: the last committed micro-batch of a query; None if there is none.
        since: when it committed that, or when a service said where it stands, in seconds since
            1970; None if nothing is known.
    """

    status: str
    positions: dict[str, int] = {}
    batch: int | None = None
    since: float | None = None


class Reading(msgspec.Struct, frozen=True):
    """How far one target has read a log; `records` is None if the item that says so is gone."""

    position: int | None
    records: int | None


class LogLook(msgspec.Struct, frozen=True):
    """How much was appended to a log since the pipeline was made, and how far each target is."""

    items: int
    records: int
    readings: dict[str, Reading]


class Look(msgspec.Struct, frozen=True):
    """How a pipeline was at a moment, in seconds since 1970.

    Attributes:
        at: when.
        head: of the epoch.
        began_at: when the epoch began.
        participants: every query and service, by name.
        logs: every log, by name.
        progress: of the snapshot under way; None if there is none.
        troubles: what could not be read, in sentences.
    """

    at: float
    head: Head
    began_at: float
    participants: dict[str, ParticipantLook]
    logs: dict[str, LogLook]
    progress: Progress | None
    troubles: tuple[str, ...] = ()


class Looker:
    """Looks at one pipeline again and again; one call at a time.

    Args:
        root: the pipeline.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._identity: tuple[int, int] | None = None
        self._head: Head | None = None
        self._began_at = 0.0
        self._logs: dict[str, _LogLooker] = {}
        self._queries: dict[str, _QueryLooker] = {}
        self._ran: set[str] = set()
        self._parts: dict[str, Part] = {}
        self._snapshot: SnapshotId | None = None

    def look(self) -> Look:
        """Return how the pipeline is now.

        Raises:
            UsageError: it is gone.
            Damaged, StoreError: what it consists of cannot be read.
        """
        head = self._read_head()
        troubles: list[str] = []
        names = head.dataflow.participants
        participants = {name: self._participant(head, name, troubles) for name in names}
        positions = {name: look.positions for name, look in participants.items()}
        logs = {}
        for log in head.dataflow.logs:
            with _troubles_noted(troubles):
                logs[log.name] = self._logs[log.name].look(
                    {target: positions[target].get(log.name) for target in log.targets}
                )
        progress = None
        with _troubles_noted(troubles):
            progress = self._progress(head)
        return Look(
            at=time.time(),
            head=head,
            began_at=self._began_at,
            participants=participants,
            logs=logs,
            progress=progress,
            troubles=tuple(troubles),
        )

    def _read_head(self) -> Head:
        path = self.root / HEAD
        status = path.stat() if path.exists() else None
        identity = None if status is None else (status.st_ino, status.st_mtime_ns)
        if self._head is None or status is None or identity != self._identity:
            head = read_head(self.root)
            self._head, self._identity = head, identity
            self._began_at = 0.0 if status is None else status.st_mtime
            self._logs = {log.name: _LogLooker(self.root, log, head) for log in head.dataflow.logs}
            self._queries = {
                query: _QueryLooker(checkpoint_path(self.root, head.epoch, query))
                for query in head.dataflow.queries
            }
        return self._head

    def _participant(self, head: Head, name: str, troubles: list[str]) -> ParticipantLook:
        runs = self._runs(name)
        with _troubles_noted(troubles):
            if name in self._queries:
                return self._queries[name].look(head.starts[name], runs=runs)
            stands = standing(self.root, head, name)
            if runs:
                status = RUNNING
            elif stands.has_joined:
                status = STOPPED if stands.has_state else DEAD
            else:
                status = ABSENT
            return ParticipantLook(status, stands.positions, since=stands.since)
        return ParticipantLook(RUNNING if runs else STOPPED)

    def _runs(self, name: str) -> bool:
        """Return whether a program runs a participant.

        One that takes a snapshot holds the locks of those that do not run, for moments; whoever
        runs one does not let go.
        """
        attempts = 1 if name in self._ran else _LET_GO_COUNT
        for attempt in range(attempts):
            if not is_running(self.root, name):
                self._ran.discard(name)
                return False
            if attempt + 1 < attempts:
                time.sleep(POLL_S)
        self._ran.add(name)
        return True

    def _progress(self, head: Head) -> Progress | None:
        request = under_way(self.root)
        if request is None or request.epoch != head.epoch:
            return None
        if request.snapshot != self._snapshot:
            self._snapshot, self._parts = request.snapshot, {}
        for name in head.dataflow.participants:
            if name not in self._parts:
                part = read_part(self.root, request.snapshot, name)
                if part is not None:
                    # Its state may be long, and nobody asks for it here.
                    self._parts[name] = msgspec.structs.replace(part, service=None)
        found = progress_of(self.root, head, request, self._parts)
        return found if self._is_still(request) else None

    def _is_still(self, request: Request) -> bool:
        """Return whether a snapshot is still under way: if it ended while it was read, what had
        vanished looked as if it had not been there."""
        now = under_way(self.root)
        return now is not None and now.snapshot == request.snapshot


class _LogLooker:
    def __init__(self, root: Path, log: Log, head: Head) -> None:
        self._log = log
        self._reader = LogReader(root, log, head.stretches[log.name])
        self._tail = 0
        self._totals: dict[int, int] = {0: 0}

    def look(self, positions: dict[str, int | None]) -> LogLook:
        """Return how the log is; `positions` says where each target stands."""
        known = [position for position in positions.values() if position is not None]
        start = max([self._tail, *known])
        if not (self._is_there(start) or (start and self._is_there(start - 1))):
            start = max(start, self._reader.first_kept())
        self._tail = tail = self._reader.tail(start)
        totals = {0: 0, tail: self._total(tail) or 0}
        for position in known:
            total = self._total(position)
            if total is not None:
                totals[position] = total
        self._reader.forget(tail)
        self._totals = totals
        readings = {
            target: Reading(position, None if position is None else totals.get(position))
            for target, position in positions.items()
        }
        return LogLook(tail, totals[tail], readings)

    def _total(self, position: int) -> int | None:
        """Return how many records come before a position; None if what says so was trimmed."""
        if position in self._totals:
            return self._totals[position]
        if not self._is_there(position - 1):
            return None
        return sum(self._reader.offsets_at(position))

    def _is_there(self, number: int) -> bool:
        return self._reader.item_path(number).exists()


class _QueryLooker:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: tuple[int, int] | None = None
        self._committed: checkpoint.Committed | None = None
        self._planned: int | None = None
        self._since: float | None = None

    def look(self, start: dict[str, int], *, runs: bool) -> ParticipantLook:
        """Return how the query is; `start` is where it began in this epoch."""
        seen = checkpoint.changed_at(self._directory)
        if seen != self._seen:
            self._committed = checkpoint.last_committed(self._directory)
            self._planned = checkpoint.planned_batch(self._directory)
            self._since = None
            if self._committed is not None:
                self._since = checkpoint.committed_at(self._directory, self._committed.batch)
            self._seen = seen
        done = self._committed
        batch = None if done is None else done.batch
        is_busy = self._planned is not None and (batch is None or self._planned > batch)
        status = (BUSY if is_busy else RUNNING) if runs else STOPPED
        positions = start if done is None else done.positions
        return ParticipantLook(status, positions, batch, self._since)


@contextlib.contextmanager
def _troubles_noted(troubles: list[str]) -> Iterator[None]:
    """Let what cannot be read be told, and the rest be shown."""
    try:
        yield
    except StillframeError as error:
        troubles.append(str(error))
