"""The progress of snapshots: which processes hold one up, whether it is late, how its markers went.

Status requests are sent only when a client wants to know, and shortly before a deadline. A process
replies between two atomic actions, so a missing reply is information too.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from stillframe.model import Fragment, MarkerTimes, ProcessId, SnapshotId
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.stragglers import ProcessStatus, UnderWay, check_status, find_stragglers
from stillframe.runtime import control
from stillframe.topology import Description

ANSWER_S = 0.5
"""How long a client waits for status replies, in seconds."""
UNANSWERED_COUNT_MAX = 4
"""A process that owes this many replies is sent no further request: they must not pile up."""
POLL_BEFORE_S = 1.0
"""How long before its deadline the stragglers of a snapshot are looked for, in seconds; at the
earliest after half its time."""
TIMELINE_COUNT_MAX = 32
"""How many timelines are kept."""


class StatusQuery:
    """One status request to all processes, and the replies so far."""

    def __init__(self, processes: Iterable[ProcessId], snapshots: tuple[SnapshotId, ...]) -> None:
        self.snapshots = snapshots
        self.replies: dict[ProcessId, ProcessStatus] = {}
        self.is_complete = asyncio.Event()
        self._pending = set(processes)

    def add(self, process: ProcessId, status: ProcessStatus) -> None:
        """Record the reply of `process`."""
        self.replies[process] = status
        if self._pending <= self.replies.keys():
            self.is_complete.set()


class StatusPoller:
    """Polls the processes of one epoch and derives the stragglers of each snapshot.

    Args:
        description: the processes and channels.
        assembler: knows the snapshots under way.
        send: sends a message to one process.
        now: the clock of the assembler.
    """

    def __init__(
        self,
        description: Description,
        assembler: Assembler,
        *,
        send: Callable[[ProcessId, control.ToProcess], None],
        now: Callable[[], float],
    ) -> None:
        self._description = description
        self._assembler = assembler
        self._send = send
        self._now = now
        self._last_message_at: dict[ProcessId, float] = {}
        self._unanswered: Counter[ProcessId] = Counter()
        self._open: dict[int, StatusQuery] = {}
        self._number = 0

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
            query.add(process, reply.status)

    def request(self, snapshots: tuple[SnapshotId, ...], *, has_quantities: bool = False) -> int:
        """Send a status request about `snapshots`, and for conserved quantities if
        `has_quantities`, to all processes; return its number. Call ``close`` with that, whatever
        becomes of the replies."""
        self._number += 1
        self._open[self._number] = StatusQuery(self._description.processes, snapshots)
        for process in self._description.processes:
            if self._unanswered[process] < UNANSWERED_COUNT_MAX:
                self._unanswered[process] += 1
                self._send(process, control.StatusRequest(self._number, snapshots, has_quantities))
        return self._number

    def close(self, number: int, snapshots: Iterable[SnapshotId]) -> tuple[UnderWay, ...]:
        """Close a query; return the stragglers of those of `snapshots` that are still under way."""
        replies, now = self._open.pop(number).replies, self._now()
        found = []
        for snapshot in snapshots:
            if snapshot in self._assembler.pending:
                initiated_at, deadline = self._assembler.times(snapshot)
                missing = self._assembler.missing(snapshot)
                under_way = UnderWay(snapshot, initiated_at, deadline, missing)
                found.append(
                    find_stragglers(
                        under_way, self._description, replies, self._last_message_at, now
                    )
                )
        return tuple(found)

    async def poll_pending(self) -> tuple[UnderWay, ...]:
        """Poll the processes, and return the snapshots under way, oldest first."""
        snapshots = self._assembler.pending
        if not snapshots:
            return ()
        number = self.request(snapshots)
        await self._replies(number)
        return self.close(number, snapshots)

    async def poll(self) -> tuple[tuple[UnderWay, ...], dict[ProcessId, ProcessStatus]]:
        """Poll the processes, and return the snapshots under way, oldest first, and the status of
        each process that has replied in time."""
        snapshots = self._assembler.pending
        number = self.request(snapshots, has_quantities=True)
        replies = await self._replies(number)
        return self.close(number, snapshots), replies

    async def _replies(self, number: int) -> dict[ProcessId, ProcessStatus]:
        query = self._open[number]
        try:
            async with asyncio.timeout(ANSWER_S):
                await query.is_complete.wait()
        except TimeoutError:
            pass  # a process that has not replied by now is named
        except BaseException:
            self.close(number, ())
            raise
        return query.replies


class Deadlines:
    """The deadlines of the snapshots under way.

    Args:
        assembler: knows them.
        poller: finds the stragglers shortly before.
        timeout_s: how long each snapshot may take, in seconds.
        now: the clock of the assembler.
        expired: called with a snapshot whose deadline has passed; it ends it.
    """

    def __init__(
        self,
        assembler: Assembler,
        poller: StatusPoller,
        *,
        timeout_s: float,
        now: Callable[[], float],
        expired: Callable[[SnapshotId], None],
    ) -> None:
        self._assembler = assembler
        self._poller = poller
        self._poll_before_s = min(POLL_BEFORE_S, timeout_s / 2)
        self._now = now
        self._expired = expired
        self._queries: dict[SnapshotId, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set_timer(self) -> None:
        """Set the timer anew: a snapshot has started or ended."""
        self.close()
        wake = min(map(self._wake_at, self._assembler.pending), default=None)
        if wake is not None:
            self._timer = asyncio.get_running_loop().call_later(
                max(0.0, wake - self._now()), self._wake
            )

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stragglers(self, snapshot: SnapshotId) -> UnderWay | None:
        """Return, once, what was found out about a pending `snapshot`; None if there was no time
        to poll."""
        query = self._queries.pop(snapshot, None)
        found = () if query is None else self._poller.close(query, (snapshot,))
        return next(iter(found), None)

    def _wake_at(self, snapshot: SnapshotId) -> float:
        _, deadline = self._assembler.times(snapshot)
        return deadline if snapshot in self._queries else deadline - self._poll_before_s

    def _wake(self) -> None:
        now = self._now()
        for snapshot in self._assembler.late(now):
            self._expired(snapshot)
        for snapshot in self._assembler.pending:
            if snapshot not in self._queries and self._wake_at(snapshot) <= now:
                self._queries[snapshot] = self._poller.request((snapshot,))
        self.set_timer()


class SnapshotTimeline(msgspec.Struct, frozen=True):
    """How the markers of one snapshot went through the system.

    Attributes:
        snapshot: its id.
        initiated_at: when it started, in seconds since 1970 by the coordinator's clock.
        ended_at: when it was published or abandoned; None if it is under way.
        is_published: whether it is in the store.
        times: the marker times that each process sent with its fragment.
        fragment_at: when the fragment of each process arrived, by the coordinator's clock.
        epoch: of the system then; 0 is of a version that does not say it.
    """

    snapshot: SnapshotId
    initiated_at: float
    ended_at: float | None = None
    is_published: bool = False
    times: dict[ProcessId, MarkerTimes] = {}
    fragment_at: dict[ProcessId, float] = msgspec.field(default_factory=dict, name="part_at")
    epoch: int = 0


class SnapshotTimelines:
    """The timelines of the last snapshots, for display: in memory, and of all epochs, because the
    one that a crash has ended is of interest. What must last is in the history."""

    def __init__(self) -> None:
        self._timelines: OrderedDict[SnapshotId, SnapshotTimeline] = OrderedDict()

    def started(self, snapshot: SnapshotId, at: float, epoch: int) -> None:
        """Record that `snapshot` was initiated."""
        self._timelines[snapshot] = SnapshotTimeline(
            snapshot, at, times={}, fragment_at={}, epoch=epoch
        )
        while len(self._timelines) > TIMELINE_COUNT_MAX:
            self._timelines.popitem(last=False)

    def add_fragment(self, fragment: Fragment, at: float) -> None:
        """Record that a fragment, which was checked, arrived at `at`."""
        timeline = self._timelines.get(fragment.snapshot)
        if timeline is not None:
            process = fragment.state.process
            timeline.fragment_at[process] = at
            if fragment.marker_times is not None:
                timeline.times[process] = fragment.marker_times

    def finished(self, snapshot: SnapshotId, at: float, *, is_published: bool) -> None:
        """Record that `snapshot` was published or abandoned."""
        timeline = self._timelines.get(snapshot)
        if timeline is not None:
            self._timelines[snapshot] = msgspec.structs.replace(
                timeline, ended_at=at, is_published=is_published
            )

    def latest(self) -> tuple[SnapshotTimeline, ...]:
        """Return what is kept, the oldest first."""
        return tuple(self._timelines.values())
