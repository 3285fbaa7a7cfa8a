"""Asks for snapshots, collects their parts, gives up in time, publishes. One epoch each.

The coordinator decides nothing about what a snapshot is: ``protocol/assembler.py`` does. Writing
happens in a thread, one snapshot after the other, so that asking and collecting go on meanwhile.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import assert_never

from stillframe.errors import ProtocolViolation, StillframeError, UsageError
from stillframe.model import (
    Abandoned,
    Fragment,
    ProcessId,
    ProcessState,
    Reason,
    Snapshot,
    SnapshotId,
)
from stillframe.protocol.announcements import Announcements
from stillframe.protocol.assembler import Assembler
from stillframe.restore import Start
from stillframe.runtime import control, events
from stillframe.runtime.host import describe
from stillframe.runtime.pieces import Pieces
from stillframe.runtime.roster import Roster
from stillframe.store.manifest import Entry
from stillframe.store.store import Store

PENDING_COUNT_MAX = 64
"""So many snapshots may be under way at once; more are refused."""


class Coordinator:
    """Takes snapshots of the processes of one epoch.

    Args:
        store: where snapshots are published; open for writing.
        check: raises a UsageError if a recorded state could not be restored.
        secret: the secret of this epoch.
        starts: where each process begins; None for a fresh start.
        first_number: the number of the first snapshot.
        timeout_s: how long a snapshot may take until it is abandoned.
        marker_wait_s: how long a marker may wait for messages to ride on; 0 sends it at once.
        emit: takes what happens.
        departed: called with a process whose connection ended, and with its last words.
    """

    def __init__(
        self,
        store: Store,
        *,
        check: Callable[[ProcessState], None],
        secret: bytes,
        starts: dict[ProcessId, Start] | None,
        first_number: int,
        timeout_s: float,
        marker_wait_s: float,
        emit: Callable[[events.Event], None],
        departed: Callable[[ProcessId, control.Failure | None], None],
    ) -> None:
        self.store = store
        self.emit = emit
        self.next_number = first_number
        self._check = check
        self._timeout_s = timeout_s
        self._description = store.description
        self.roster = Roster(
            store.description,
            epoch=store.epoch,
            secret=secret,
            starts=starts,
            marker_wait_s=marker_wait_s,
            emit=emit,
            heard=self._heard,
            departed=departed,
        )
        self._assembler = Assembler(self._description, store.epoch)
        self._pieces = Pieces()
        self._announcements = Announcements()
        self._wanted: set[ProcessId] = set()
        self._results: dict[SnapshotId, asyncio.Future[Entry | Abandoned]] = {}
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._writing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        # Wall time that goes on evenly: a clock that is set must not move a deadline.
        self._clock_offset_s = time.time() - time.monotonic()

    @property
    def under_way(self) -> tuple[SnapshotId, ...]:
        """The snapshots that have begun and are neither published nor abandoned, oldest first."""
        return tuple(self._results)

    def missing(self, snapshot: SnapshotId) -> tuple[ProcessId, ...]:
        """Return the processes that a snapshot under way waits for."""
        return self._assembler.missing(snapshot) if snapshot in self._assembler.pending else ()

    def begin(self, initiator: ProcessId) -> asyncio.Future[Entry | Abandoned]:
        """Begin a snapshot; the future has its entry in the store, or why it was abandoned.

        Raises:
            UsageError: there is no such process, or too many snapshots are under way.
        """
        initiators = self._description.initiators(initiator)
        if len(self._results) >= PENDING_COUNT_MAX:
            raise UsageError(
                f"{PENDING_COUNT_MAX} snapshots are under way already: wait until one has ended"
            )
        snapshot = SnapshotId(initiator, self.next_number)
        self.next_number += 1
        self._results[snapshot] = asyncio.get_running_loop().create_future()
        result = self._results[snapshot]
        self._assembler.begin(snapshot, self._now(), timeout_s=self._timeout_s)
        self._set_timer()
        for process in initiators:
            self.roster.say(process, control.Initiate(snapshot))
        return result

    def _heard(self, process: ProcessId, message: control.AboutSnapshots) -> None:
        match message:
            case control.PartRows() | control.PartPiece():
                if message.snapshot in self._assembler.pending:
                    self._pieces.add(process, message)
            case control.Part(fragment):
                self._take_part(process, fragment)
            case control.CouldNotRecord(snapshot, detail):
                self._give_up(snapshot, Reason.NOT_RECORDED, f"{process}: {detail}")
            case control.Wanted():
                self._begin_for(process)
            case _:
                assert_never(message)

    def _begin_for(self, process: ProcessId) -> None:
        """Begin a snapshot that a process wants; one more after its own that is under way."""
        if any(snapshot.initiator == process for snapshot in self._results):
            self._wanted.add(process)
        elif len(self._results) < PENDING_COUNT_MAX:
            _ = self.begin(process)

    def _take_part(self, process: ProcessId, fragment: Fragment) -> None:
        if fragment.state.process != process:
            raise ProtocolViolation(f"it speaks for {fragment.state.process!r}")
        self._complete(self._assembler.add(self._pieces.complete(fragment), self._now()))

    async def close(self) -> None:
        """Abandon what is under way, finish what is being written, and hang up."""
        self._is_closed = True
        self.roster.expect_departures()
        if self._timer is not None:
            self._timer.cancel()
        for snapshot in self._assembler.pending:
            self._give_up(snapshot, Reason.STOPPED)
        await asyncio.gather(*self._writing)
        self.roster.hang_up()
        self._writer.shutdown()

    def process_died(self) -> None:
        """Abandon every snapshot under way: one process will not record its part any more."""
        for snapshot in self._assembler.pending:
            self._give_up(snapshot, Reason.PROCESS_DIED)

    def _complete(self, outcome: Snapshot | Abandoned | None) -> None:
        match outcome:
            case Snapshot():
                self._announce(self._announcements.ended(outcome.id))
                task = asyncio.get_running_loop().create_task(self._publish(outcome))
                self._writing.add(task)
                task.add_done_callback(self._writing.discard)
            case Abandoned():
                self._end(outcome.snapshot, outcome)
        self._set_timer()

    async def _publish(self, snapshot: Snapshot) -> None:
        loop = asyncio.get_running_loop()
        outcome: Entry | Abandoned
        try:
            outcome = await loop.run_in_executor(self._writer, self._write, snapshot)
        except Exception as error:
            detail = str(error) if isinstance(error, StillframeError) else describe(error)
            outcome = Abandoned(snapshot.id, Reason.NOT_PUBLISHED, (), detail)
        # A snapshot that cannot be written because one that it is based on is not there would be
        # followed by others like it. Which error that is need not be known: to record everything
        # once is right after any.
        self.roster.say_to_all(control.InStore(snapshot.id if isinstance(outcome, Entry) else None))
        if isinstance(outcome, Entry) and outcome.is_restore_point:
            under_way = self._assembler.pending
            self._announce(self._announcements.published(snapshot.id, under_way))
        self._end(snapshot.id, outcome)

    def _announce(self, snapshots: Iterable[SnapshotId]) -> None:
        for snapshot in snapshots:
            self.roster.say_to_all(control.Published(snapshot))

    def _write(self, snapshot: Snapshot) -> Entry | Abandoned:
        """Publish a snapshot that can be restored. Runs in the writer's thread."""
        for state in snapshot.state.processes:
            try:
                self._check(state)
            except UsageError as error:
                detail = f"{state.process}: {error}"
                return Abandoned(snapshot.id, Reason.NOT_RECORDED, (), detail)
        return self.store.publish(snapshot)

    def _give_up(self, snapshot: SnapshotId, reason: Reason, detail: str = "") -> None:
        abandoned = self._assembler.abandon(snapshot, reason, detail)
        if abandoned is not None:
            self._end(snapshot, abandoned)

    def _end(self, snapshot: SnapshotId, outcome: Entry | Abandoned) -> None:
        if isinstance(outcome, Abandoned):
            self._pieces.forget(snapshot)
            self.roster.say_to_all(control.Abandon(snapshot))
            self._announce(self._announcements.ended(snapshot))
        result = self._results.pop(snapshot)
        if not result.done():
            result.set_result(outcome)
        if snapshot.initiator in self._wanted and not self._is_closed:
            self._wanted.discard(snapshot.initiator)
            self._begin_for(snapshot.initiator)
        if isinstance(outcome, Abandoned):
            self.emit(events.SnapshotAbandoned(outcome))
        else:
            self.emit(events.SnapshotPublished(outcome))

    def _now(self) -> float:
        return self._clock_offset_s + time.monotonic()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._assembler.next_deadline()
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_later(
                max(0.0, deadline - self._now()), self._expire
            )

    def _expire(self) -> None:
        for abandoned in self._assembler.expire(self._now()):
            self._end(abandoned.snapshot, abandoned)
        self._set_timer()
