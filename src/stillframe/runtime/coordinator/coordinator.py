"""Requests snapshots, collects their fragments, abandons late ones, publishes. One per epoch.

Snapshots are written one after the other in a thread, while others are requested and collected.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import assert_never

from stillframe.errors import (
    ProtocolViolation,
    StillframeError,
    StoreError,
    Unavailable,
    UsageError,
    describe,
    text_of,
)
from stillframe.model import (
    Abandoned,
    Fragment,
    ProcessId,
    ProcessState,
    Reason,
    Snapshot,
    SnapshotId,
)
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.policy import (
    LastRecorded,
    LastStates,
    Policy,
    PublicationNotices,
    next_initiator,
)
from stillframe.runtime import control, events
from stillframe.runtime.control import ChunkBuffer
from stillframe.runtime.coordinator.membership import CoordinatorConfig, EpochStart, Membership
from stillframe.runtime.coordinator.snapshot_monitor import SnapshotMonitor, SnapshotTimelines
from stillframe.runtime.os_process import current_process
from stillframe.storage.opened import trouble_of
from stillframe.store.history import SnapshotBegan
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store

PENDING_COUNT_MAX = 64
"""Maximum number of pending snapshots; more are refused."""
Result = asyncio.Future[SnapshotEntry | Abandoned]
"""The entry of a snapshot in the store, or why its last attempt was abandoned."""
STOPPING = "the system is stopping and takes its last snapshot: no other can start"


class Coordinator:
    """Takes snapshots of the processes of one epoch, and publishes them in `store`, which is open
    for writing; its history records each snapshot before any process is notified. `check` raises a
    UsageError if a recorded state could not be restored. `timelines` are of the last snapshots, if
    there were epochs before. If the system `is_bound` to a pipeline, the caller takes each snapshot
    for one of the pipeline, and announces it."""

    def __init__(
        self,
        store: Store,
        config: CoordinatorConfig,
        start: EpochStart,
        *,
        check: Callable[[ProcessState], None],
        timelines: SnapshotTimelines | None = None,
        is_bound: bool = False,
    ) -> None:
        self.store = store
        self.emit = start.emit
        self.next_number = start.first_number
        self._check = check
        self._config = config
        self._description = store.description
        self.membership = Membership(
            store.description, config, start, on_message=self._on_message, returned=self._on_rejoin
        )
        # By process, the newest restore point that it was notified of, or may have been before the
        # coordinator of this epoch died.
        self._announced: dict[ProcessId, SnapshotId] = {}
        current = store.current() if start.is_taken_over else None
        if current is not None and current.epoch == store.epoch:
            self._set_announced(current.id, current.excluded)
        self._assembler = Assembler(self._description, store.epoch)
        self._chunks = ChunkBuffer()
        self.timelines = SnapshotTimelines() if timelines is None else timelines
        self.monitor = SnapshotMonitor(
            self._assembler, self.membership, config, now=self.now, expired=self._on_deadline
        )
        last: dict[ProcessId, LastRecorded] = {}
        if start.starts is not None and (origin := store.restored_from) is not None:
            last = {
                process: LastRecorded(ProcessState(process, began.kind, began.encoded), origin)
                for process, began in start.starts.items()
            }
        self._last_states = LastStates(self._description, last)
        self._announcements = PublicationNotices()
        self._excluded: dict[SnapshotId, frozenset[ProcessId]] = {}
        self._requested: set[ProcessId] = set()
        self._results: dict[SnapshotId, Result] = {}
        self._tried: dict[SnapshotId, tuple[ProcessId, ...]] = {}
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._recorder = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")
        self._unrecorded: set[SnapshotId] = set()
        self._writing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._last: tuple[ProcessId, Result] | None = None
        self._is_last_begun = False
        self._is_bound = is_bound
        # Wall time that advances evenly, and never back in an epoch: a clock that is set must move
        # no deadline, and make no snapshot look as if it was begun before an earlier one.
        earlier = store.listing()[0] if start.is_taken_over else []
        ended_at = [entry.completed_at for entry in earlier if entry.epoch == store.epoch]
        self._clock_offset_s = max(time.time(), *ended_at, 0.0) - time.monotonic()
        store.clock = self.now

    @property
    def under_way(self) -> tuple[SnapshotId, ...]:
        """The snapshots that have begun and are neither published nor abandoned, oldest first."""
        return tuple(self._results)

    def begin(self, initiator: ProcessId) -> Result:
        """Begin a snapshot; raises a UsageError if there is no such process, or too many snapshots
        are pending."""
        self._description.check_process(initiator)
        if self._last is not None:
            raise Unavailable(STOPPING)
        if len(self._results) >= PENDING_COUNT_MAX:
            raise UsageError(f"{PENDING_COUNT_MAX} snapshots are pending: wait until one has ended")
        result: Result = asyncio.get_running_loop().create_future()
        self._begin(initiator, result, ())
        return result

    def begin_last(self, initiator: ProcessId) -> Result:
        """Begin the last snapshot of this epoch as soon as no other is in progress, and no other
        from now on; return as ``begin`` does. One that overlaps another could not be a restore
        point. Those in progress are abandoned when the timeout of a snapshot has passed."""
        self._description.check_process(initiator)
        loop = asyncio.get_running_loop()
        result: Result = loop.create_future()
        self._last = initiator, result
        self._requested.clear()
        self._begin_last_if_alone()
        if not self._is_last_begun:
            loop.call_later(self._config.timeout_s, self._abandon_others)
        return result

    def _begin_last_if_alone(self) -> None:
        # One that is complete and being written overlaps nothing that begins now.
        if self._last is None or self._is_last_begun or self._is_closed:
            return
        if self._assembler.pending or self._last[1].done():
            return
        self._is_last_begun = True
        self._begin(*self._last, ())

    def _abandon_others(self) -> None:
        if not self._is_last_begun and not self._is_closed:
            self.abandon_all(Reason.STOPPED)

    def _begin(
        self, initiator: ProcessId, result: Result, tried: tuple[ProcessId, ...]
    ) -> SnapshotId:
        """Begin an attempt at the snapshot of `result`, after those of the initiators `tried`."""
        snapshot = SnapshotId(initiator, self.next_number)
        self.next_number += 1
        self._results[snapshot] = result
        self._tried[snapshot] = (*tried, initiator)
        began_at = self.now()
        self._assembler.begin(snapshot, began_at, timeout_s=self._config.timeout_s)
        self.timelines.started(snapshot, began_at, self.store.epoch)
        self.monitor.set_timer()
        if self.store.is_remote:
            # An object store may take its time, or not answer: nothing else waits for it.
            task = asyncio.get_running_loop().create_task(self._initiate_later(snapshot))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
            return snapshot
        try:
            self.store.history.append(SnapshotBegan(snapshot))
        except StoreError as error:
            # In the next turn of the loop: the client that waits for it must know it first.
            loop = asyncio.get_running_loop()
            loop.call_soon(self._abandon, snapshot, Reason.NOT_PUBLISHED, str(error))
        else:
            self._initiate(snapshot)
        return snapshot

    async def _initiate_later(self, snapshot: SnapshotId) -> None:
        loop = asyncio.get_running_loop()
        self._unrecorded.add(snapshot)

        def record() -> None:
            # Others may have waited for the object store before; this one may have ended since.
            if snapshot in self._unrecorded:
                self.store.history.append(SnapshotBegan(snapshot))

        try:
            await loop.run_in_executor(self._recorder, record)
        except StoreError as error:
            self._abandon(snapshot, Reason.NOT_PUBLISHED, str(error))
        else:
            if snapshot in self._assembler.pending:
                self._initiate(snapshot)
        finally:
            self._unrecorded.discard(snapshot)

    def _initiate(self, snapshot: SnapshotId) -> None:
        for process in self._description.initiators(snapshot.initiator):
            self.membership.send(process, control.Initiate(snapshot))

    def _on_rejoin(self, process: ProcessId) -> None:
        """Send a process that has rejoined what it missed. What it had begun to send may be lost,
        so those snapshots are abandoned."""
        last_number, published = self.next_number - 1, self._announced.get(process)
        wait_s = self._config.marker_wait_s
        resumed = control.Rejoined(last_number, published, current_process(), wait_s)
        self.membership.send(process, resumed)
        self.monitor.on_rejoin(process)
        for snapshot in self._assembler.pending:
            if process in self._assembler.missing(snapshot):
                detail = f"{process} reconnected with a new one"
                self._abandon(snapshot, Reason.CONNECTION_BROKE, detail)

    def _on_message(self, process: ProcessId, message: control.SnapshotMessage) -> None:
        self.monitor.on_message(process)
        match message:
            case control.FragmentRows() | control.FragmentChunk():
                if message.snapshot in self._assembler.pending:
                    self._chunks.add(process, message)
            case control.FragmentComplete(fragment):
                self._on_fragment(process, fragment)
            case control.SnapshotDeclined(snapshot, detail):
                self._on_declined(process, snapshot, f"{process}: {detail}")
            case control.StatusReply():
                self.monitor.on_reply(process, message)
            case control.SnapshotRequested():
                self._begin_for(process)
            case _:
                assert_never(message)

    def _begin_for(self, process: ProcessId) -> None:
        """Begin a snapshot that a process requested, or after its own pending one."""
        if self._last is not None or self._is_bound:
            return
        if any(snapshot.initiator == process for snapshot in self._results):
            self._requested.add(process)
        elif len(self._results) < PENDING_COUNT_MAX:
            _ = self.begin(process)

    def _on_fragment(self, process: ProcessId, fragment: Fragment) -> None:
        if fragment.state.process != process:
            raise ProtocolViolation(f"it sent a fragment of {fragment.state.process!r}")
        now = self.now()
        outcome = self._assembler.add(self._chunks.complete(fragment), now)
        self.timelines.add_fragment(fragment, now)
        self._complete(outcome)

    def _on_declined(self, process: ProcessId, snapshot: SnapshotId, detail: str) -> None:
        """Exclude `process` if the policy and its channels allow it; otherwise abandon."""
        if self._exclude((process,), snapshot):
            return
        if self._config.policy is Policy.EXCLUDE:
            detail = f"{detail}; {self._last_states.refusal(process)}"
        self._abandon(snapshot, Reason.NOT_RECORDED, detail, at_fault=(process,))

    def _exclude(self, processes: tuple[ProcessId, ...], snapshot: SnapshotId) -> bool:
        """Use the last recorded states of `processes`; return False if that is impossible."""
        last = [found for p in processes if (found := self._last_states.of(p)) is not None]
        if self._config.policy is not Policy.EXCLUDE or len(last) < len(processes):
            return False
        for recorded in last:
            self._complete(self._assembler.exclude(snapshot, recorded, self.now()))
            # Its own cut is not in the snapshot: it must not take that for safe.
            self.membership.send(recorded.state.process, control.Abandon(snapshot))
        return True

    async def close(self) -> None:
        """Abandon pending snapshots, finish those being written, and close the connections."""
        self._is_closed = True
        self.membership.expect_departures()
        self.monitor.cancel_timer()
        self.abandon_all(Reason.STOPPED)
        await asyncio.gather(*self._writing)
        if self._last is not None and not self._last[1].done():
            self._last[1].set_exception(
                Unavailable("this epoch of the system ended before it started")
            )
        self.membership.hang_up()
        self._writer.shutdown()
        self._recorder.shutdown()

    def abandon_all(self, reason: Reason) -> None:
        """Abandon every snapshot that is not complete."""
        for snapshot in self._assembler.pending:
            self._abandon(snapshot, reason)

    def _complete(self, outcome: Snapshot | Abandoned | None) -> None:
        match outcome:
            case Snapshot():
                self._announce(self._announcements.ended(outcome.id))
                task = asyncio.get_running_loop().create_task(self._publish(outcome))
                self._writing.add(task)
                task.add_done_callback(self._writing.discard)
                self._begin_last_if_alone()
            case Abandoned():
                self._end(outcome.snapshot, outcome)
        self.monitor.set_timer()

    async def _publish(self, snapshot: Snapshot) -> None:
        loop = asyncio.get_running_loop()
        outcome: SnapshotEntry | Abandoned
        try:
            outcome = await loop.run_in_executor(self._writer, self._write, snapshot)
        except Exception as error:
            detail = text_of(error) if isinstance(error, StillframeError) else describe(error)
            outcome = Abandoned(snapshot.id, Reason.NOT_PUBLISHED, (), detail)
        # A snapshot that cannot be written because one that it is based on is not there would be
        # followed by others like it. Which error that is need not be known: to record everything
        # once is right after any.
        if isinstance(outcome, Abandoned):
            self.membership.broadcast(control.SnapshotDurable(None))
        else:
            # Of an excluded process it holds an older state.
            durable = control.SnapshotDurable(snapshot.id)
            self.membership.broadcast(durable, but=snapshot.excluded)
            if outcome.is_restore_point:
                self._excluded[snapshot.id] = frozenset(snapshot.excluded)
                under_way = self._assembler.pending
                self._announce(self._announcements.published(snapshot.id, under_way))
        self._end(snapshot.id, outcome)

    def _announce(self, snapshots: Iterable[SnapshotId]) -> None:
        if not self._is_bound:
            for snapshot in snapshots:
                self.announce(snapshot)

    def announce(self, snapshot: SnapshotId) -> None:
        """Notify the processes of a restore point, if they were not."""
        excluded = self._excluded.pop(snapshot, None)
        if excluded is not None:
            self._set_announced(snapshot, excluded)
            self.membership.broadcast(control.Published(snapshot), but=excluded)

    def _set_announced(self, snapshot: SnapshotId, excluded: Collection[ProcessId]) -> None:
        processes = self._description.processes
        self._announced |= {p: snapshot for p in processes if p not in excluded}

    def _write(self, snapshot: Snapshot) -> SnapshotEntry | Abandoned:
        """Publish a snapshot that can be restored. Runs in the writer's thread."""
        for state in snapshot.state.processes:
            try:
                self._check(state)
            except UsageError as error:
                detail = f"{state.process}: {error}"
                return Abandoned(snapshot.id, Reason.NOT_RECORDED, (), detail)
        for process, origin in snapshot.excluded.items():
            last = self._last_states.of(process)
            if last is not None and last.snapshot != origin:
                detail = (
                    f"{process} was excluded with its state in {origin}, before {last.snapshot} "
                    "was published: a restore would undo what has become safe since then"
                )
                return Abandoned(snapshot.id, Reason.NOT_RECORDED, (), detail)
        entry = self.store.publish(snapshot)
        if entry.is_restore_point:
            # Here, since the next snapshot is written before the event loop continues.
            self._last_states.published(snapshot)
        return entry

    def _abandon(
        self,
        snapshot: SnapshotId,
        reason: Reason,
        detail: str = "",
        *,
        at_fault: tuple[ProcessId, ...] = (),
    ) -> None:
        abandoned = self._assembler.abandon(snapshot, reason, detail)
        if abandoned is not None:
            self._end(snapshot, abandoned, at_fault)

    def _end(
        self,
        snapshot: SnapshotId,
        outcome: SnapshotEntry | Abandoned,
        at_fault: tuple[ProcessId, ...] = (),
    ) -> None:
        self._unrecorded.discard(snapshot)
        self.monitor.stragglers(snapshot)
        self._chunks.forget(snapshot)
        self.timelines.finished(
            snapshot, self.now(), is_published=isinstance(outcome, SnapshotEntry)
        )
        if isinstance(outcome, Abandoned):
            self.membership.broadcast(control.Abandon(snapshot))
            self._announce(self._announcements.ended(snapshot))
        retried_as = self._retry(snapshot, outcome, at_fault)
        result, _ = self._results.pop(snapshot), self._tried.pop(snapshot)
        if not result.done() and retried_as is None:
            result.set_result(outcome)
        if snapshot.initiator in self._requested and not self._is_closed:
            self._requested.discard(snapshot.initiator)
            self._begin_for(snapshot.initiator)
        if isinstance(outcome, Abandoned):
            self.emit(events.SnapshotAbandoned(outcome, retried_as))
        else:
            self.emit(events.SnapshotPublished(outcome))
        self._begin_last_if_alone()

    def now(self) -> float:
        """Return seconds since 1970 by the clock of this epoch, which only goes forward."""
        return self._clock_offset_s + time.monotonic()

    def _on_deadline(self, snapshot: SnapshotId) -> None:
        """Exclude the missing processes if that is possible; otherwise abandon, and name them."""
        if snapshot in self._unrecorded:
            cause = trouble_of(self.store.path) or "the object store is slow"
            detail = f"its start could not be written to {self.store.path} in time: {cause}"
            self._abandon(snapshot, Reason.NOT_PUBLISHED, detail)
            return
        missing = self._assembler.missing(snapshot)
        is_all = len(missing) == len(self._description.processes)
        if not is_all and self._exclude(missing, snapshot):
            return
        details, at_fault = [], missing
        if (under_way := self.monitor.stragglers(snapshot)) is not None:
            details, at_fault = under_way.sentences(self.now()), under_way.at_fault
        if self._config.policy is Policy.EXCLUDE and not is_all:
            refused = next(p for p in missing if self._last_states.of(p) is None)
            details.append(self._last_states.refusal(refused))
        self._abandon(snapshot, Reason.DEADLINE, "; ".join(details), at_fault=at_fault)

    def _retry(
        self,
        snapshot: SnapshotId,
        outcome: SnapshotEntry | Abandoned,
        at_fault: tuple[ProcessId, ...],
    ) -> SnapshotId | None:
        """Begin the next attempt, if the policy says so and a client waits for it."""
        result = self._results[snapshot]
        if self._is_closed or not isinstance(outcome, Abandoned) or result.done():
            return None
        if self._last is not None and result is not self._last[1]:
            return None  # the last one takes its place
        policy, tried = self._config.policy, self._tried[snapshot]
        initiator = next_initiator(
            policy, outcome, tried=tried, at_fault=at_fault, description=self._description
        )
        return None if initiator is None else self._begin(initiator, result, tried)
