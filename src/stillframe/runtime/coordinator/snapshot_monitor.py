"""The progress of snapshots: which processes hold one up, whether it is late, how its markers went.

Status requests are sent only when a client wants to know, and shortly before a deadline. A process
replies between two atomic actions, so a missing reply is information too.
"""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from stillframe.model import Fragment, MarkerTimes, ProcessId, SnapshotId
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.stragglers import (
    PendingSnapshot,
    ProcessStatus,
    check_status,
    find_stragglers,
)
from stillframe.runtime import control
from stillframe.runtime.coordinator.membership import CoordinatorConfig, Membership

ANSWER_S = 0.5
"""How long a client waits for status replies, in seconds."""
UNANSWERED_COUNT_MAX = 4
"""A process that owes this many replies is sent no further request: they must not pile up."""
POLL_BEFORE_S = 1.0
"""How long before its deadline the stragglers of a snapshot are looked for, in seconds; at the
earliest after half its time."""
TIMELINE_COUNT_MAX = 32
"""How many timelines are kept."""


class _StatusQuery:
    """One status request to all processes, and the replies so far."""

    def __init__(self, snapshots: tuple[SnapshotId, ...]) -> None:
        self.snapshots = snapshots
        self.replies: dict[ProcessId, ProcessStatus] = {}
        self.is_complete = asyncio.Event()


class SnapshotMonitor:
    """Polls the processes of one epoch, finds the stragglers of each pending snapshot, and enforces
    the deadlines. `expired` is called with a snapshot whose deadline has passed, and ends it. `now`
    is the clock of the assembler."""

    def __init__(
        self,
        assembler: Assembler,
        membership: Membership,
        config: CoordinatorConfig,
        *,
        now: Callable[[], float],
        expired: Callable[[SnapshotId], None],
    ) -> None:
        self._description = assembler.description
        self._assembler = assembler
        self._poll_before_s = min(POLL_BEFORE_S, config.timeout_s / 2)
        self._send = membership.send
        self._now = now
        self._expired = expired
        self._last_message_at: dict[ProcessId, float] = {}
        self._unanswered: Counter[ProcessId] = Counter()
        self._open: dict[int, _StatusQuery] = {}
        self._number = 0
        self._last_polls: dict[SnapshotId, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def on_message(self, process: ProcessId) -> None:
        """Record that `process` is alive: it has sent something."""
        self._last_message_at[process] = self._now()

    def on_rejoin(self, process: ProcessId) -> None:
        """Expect no reply to what was sent to `process` before its new connection."""
        self._unanswered[process] = 0

    def on_reply(self, process: ProcessId, reply: control.StatusReply) -> None:
        """Take a reply; one to a closed query only shows that the process is alive, one that does
        not fit its query is a ProtocolViolation."""
        self._unanswered[process] = 0
        query = self._open.get(reply.number)
        if query is not None:
            check_status(reply.status, process, query.snapshots, self._description)
            query.replies[process] = reply.status
            if len(query.replies) == len(self._description.processes):
                query.is_complete.set()

    async def poll_pending(self) -> tuple[PendingSnapshot, ...]:
        """Poll the processes, and return the pending snapshots, oldest first."""
        if not self._assembler.pending:
            return ()
        pending, _ = await self.poll(has_quantities=False)
        return pending

    async def poll(
        self, *, has_quantities: bool = True
    ) -> tuple[tuple[PendingSnapshot, ...], dict[ProcessId, ProcessStatus]]:
        """Poll the processes, for their conserved quantities too if `has_quantities`; return the
        pending snapshots, oldest first, and the status of each process that replied in time."""
        snapshots = self._assembler.pending
        number = self._request(snapshots, has_quantities=has_quantities)
        query = self._open[number]
        try:
            with contextlib.suppress(TimeoutError):  # what has not replied by now is named
                async with asyncio.timeout(ANSWER_S):
                    await query.is_complete.wait()
        finally:
            pending = self._close(number, snapshots)
        return pending, query.replies

    def stragglers(self, snapshot: SnapshotId) -> PendingSnapshot | None:
        """Return, once, what was found out shortly before the deadline about a pending `snapshot`;
        None if there was no time to poll."""
        query = self._last_polls.pop(snapshot, None)
        found = () if query is None else self._close(query, (snapshot,))
        return next(iter(found), None)

    def set_timer(self) -> None:
        """Reset the timer: a snapshot has started or ended."""
        self.cancel_timer()
        wake = min(map(self._wake_at, self._assembler.pending), default=None)
        if wake is not None:
            self._timer = asyncio.get_running_loop().call_later(
                max(0.0, wake - self._now()), self._wake
            )

    def cancel_timer(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _request(self, snapshots: tuple[SnapshotId, ...], *, has_quantities: bool = False) -> int:
        """Send a status request to all processes; return its number. Call ``_close`` with that,
        whatever becomes of the replies."""
        self._number += 1
        self._open[self._number] = _StatusQuery(snapshots)
        for process in self._description.processes:
            if self._unanswered[process] < UNANSWERED_COUNT_MAX:
                self._unanswered[process] += 1
                self._send(process, control.StatusRequest(self._number, snapshots, has_quantities))
        return self._number

    def _close(self, number: int, snapshots: Iterable[SnapshotId]) -> tuple[PendingSnapshot, ...]:
        """Close a query; return the stragglers of those of `snapshots` that are still pending."""
        replies, now = self._open.pop(number).replies, self._now()
        times, missing = self._assembler.times, self._assembler.missing
        pending = [
            PendingSnapshot(one, *times(one), missing(one))
            for one in snapshots
            if one in self._assembler.pending
        ]
        description, heard_at = self._description, self._last_message_at
        return tuple(find_stragglers(one, description, replies, heard_at, now) for one in pending)

    def _wake_at(self, snapshot: SnapshotId) -> float:
        _, deadline = self._assembler.times(snapshot)
        return deadline if snapshot in self._last_polls else deadline - self._poll_before_s

    def _wake(self) -> None:
        now = self._now()
        for snapshot in self._assembler.late(now):
            self._expired(snapshot)
        for snapshot in self._assembler.pending:
            if snapshot not in self._last_polls and self._wake_at(snapshot) <= now:
                self._last_polls[snapshot] = self._request((snapshot,))
        self.set_timer()


class SnapshotTimeline(msgspec.Struct):
    """The times at which the markers of one snapshot reached the processes. `times` has the times
    that each process sent with its fragment, by its own clock; all other times are seconds since
    1970 by the coordinator's clock. `ended_at` is None while the snapshot is pending;
    `fragment_at` is when each fragment arrived. `epoch` is 0 if the sender's version does not
    report it."""

    snapshot: SnapshotId
    initiated_at: float
    ended_at: float | None = None
    is_published: bool = False
    times: dict[ProcessId, MarkerTimes] = {}
    fragment_at: dict[ProcessId, float] = {}
    epoch: int = 0


class SnapshotTimelines:
    """The timelines of the last snapshots, for display: in memory, and of all epochs, because the
    one that a crash has ended is of interest. What must last is in the history."""

    def __init__(self) -> None:
        self._timelines: OrderedDict[SnapshotId, SnapshotTimeline] = OrderedDict()

    def started(self, snapshot: SnapshotId, at: float, epoch: int) -> None:
        """Record that `snapshot` was initiated."""
        self._timelines[snapshot] = SnapshotTimeline(snapshot, at, epoch=epoch)
        while len(self._timelines) > TIMELINE_COUNT_MAX:
            self._timelines.popitem(last=False)

    def add_fragment(self, fragment: Fragment, at: float) -> None:
        """Record that a fragment, which was checked, arrived at `at`."""
        if (timeline := self._timelines.get(fragment.snapshot)) is not None:
            process = fragment.state.process
            timeline.fragment_at[process] = at
            if fragment.marker_times is not None:
                timeline.times[process] = fragment.marker_times

    def finished(self, snapshot: SnapshotId, at: float, *, is_published: bool) -> None:
        """Record that `snapshot` was published or abandoned."""
        if (timeline := self._timelines.get(snapshot)) is not None:
            timeline.ended_at, timeline.is_published = at, is_published

    def latest(self) -> tuple[SnapshotTimeline, ...]:
        """Return what is kept, the oldest first."""
        return tuple(self._timelines.values())
