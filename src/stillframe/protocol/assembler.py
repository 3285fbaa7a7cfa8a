"""Assembles fragments to a complete, checked snapshot or ``Abandoned``. Time is an argument."""

import math
from collections.abc import Iterable

import msgspec

from stillframe.errors import NotConsistent, ProtocolViolation, UsageError, check_kind
from stillframe.model import (
    Abandoned,
    Channel,
    ChannelState,
    Fragment,
    GlobalState,
    ProcessId,
    Reason,
    Snapshot,
    SnapshotId,
    natural_order,
)
from stillframe.protocol.policy import LastRecorded
from stillframe.topology import Description, Topology


class _Pending(msgspec.Struct):
    initiated_at: float
    deadline: float
    fragments: dict[ProcessId, Fragment]
    excluded: dict[ProcessId, SnapshotId] = msgspec.field(default_factory=dict)


class Assembler:
    """Puts fragments together, any number of snapshots at once, all of one epoch. Each must have
    all processes and channels of the topology."""

    def __init__(self, description: Description, epoch: int) -> None:
        self.description = description
        self._epoch = epoch
        self._processes = sorted(description.processes, key=natural_order)
        self._incoming = {p: description.incoming(p) for p in description.processes}
        self._outgoing = {p: description.outgoing(p) for p in description.processes}
        self._pending: dict[SnapshotId, _Pending] = {}

    @property
    def pending(self) -> tuple[SnapshotId, ...]:
        """The pending snapshots, oldest first."""
        return tuple(self._pending)

    def missing(self, snapshot: SnapshotId) -> tuple[ProcessId, ...]:
        """Return the processes whose fragments of a pending `snapshot` are missing."""
        have = self._pending[snapshot].fragments
        return tuple(process for process in self._processes if process not in have)

    def times(self, snapshot: SnapshotId) -> tuple[float, float]:
        """Return when a pending `snapshot` began, and its deadline."""
        pending = self._pending[snapshot]
        return pending.initiated_at, pending.deadline

    def begin(self, snapshot: SnapshotId, now: float, *, timeout_s: float) -> None:
        """Expect the fragments of `snapshot`, until `timeout_s` seconds from `now`."""
        self._pending[snapshot] = _Pending(now, now + timeout_s, {})

    def add(self, fragment: Fragment, now: float) -> Snapshot | Abandoned | None:
        """Add one process's fragment; return the snapshot if it was the last. A fragment of a
        snapshot that has ended is checked, and dropped. A complete snapshot whose books do not
        balance is abandoned, with the channel in `detail`. ProtocolViolation if the fragment does
        not fit the description, or came twice."""
        self._check(fragment)
        pending = self._pending.get(fragment.snapshot)
        if pending is None or fragment.state.process in pending.excluded:
            return None
        if fragment.state.process in pending.fragments:
            raise ProtocolViolation(f"{_where(fragment)}: it arrived twice")
        return self._put(fragment, pending, now)

    def exclude(
        self, snapshot: SnapshotId, last: LastRecorded, now: float
    ) -> Snapshot | Abandoned | None:
        """Add `last` in place of a process's fragment; return as ``add`` does. It does nothing if
        that was added, or the snapshot has ended. ProtocolViolation if the process has channels:
        its cut is needed."""
        pending = self._pending.get(snapshot)
        process = last.state.process
        if pending is None or process in pending.fragments:
            return None
        fragment = Fragment(snapshot, last.state, {}, ())
        self._check(fragment)
        pending.excluded[process] = last.snapshot
        return self._put(fragment, pending, now)

    def abandon(self, snapshot: SnapshotId, reason: Reason, detail: str = "") -> Abandoned | None:
        """Abandon `snapshot`; None if it is not pending."""
        if snapshot not in self._pending:
            return None
        missing = self.missing(snapshot)
        del self._pending[snapshot]
        return Abandoned(snapshot, reason, missing, detail)

    def next_deadline(self) -> float | None:
        """When `expire` should next be called; None if nothing is pending."""
        return min((pending.deadline for pending in self._pending.values()), default=None)

    def expire(self, now: float) -> list[Abandoned]:
        """Abandon every snapshot whose deadline has passed."""
        late = self.late(now)
        return [ended for s in late if (ended := self.abandon(s, Reason.DEADLINE)) is not None]

    def late(self, now: float) -> list[SnapshotId]:
        """Return the snapshots whose deadline has passed, oldest first."""
        return [s for s, pending in self._pending.items() if pending.deadline <= now]

    def _put(
        self, fragment: Fragment, pending: _Pending, now: float
    ) -> Snapshot | Abandoned | None:
        snapshot = fragment.snapshot
        pending.fragments[fragment.state.process] = fragment
        if self.missing(snapshot):
            return None
        del self._pending[snapshot]
        state = self._assemble(pending.fragments)
        try:
            state.check_books()
        except NotConsistent as error:
            return Abandoned(snapshot, Reason.NOT_CONSISTENT, detail=str(error))
        fragments = pending.fragments.values()
        return Snapshot(
            snapshot,
            self._epoch,
            pending.initiated_at,
            now,
            state,
            pause_s=max(fragment.pause_s for fragment in fragments),
            capture_s=max(fragment.capture_s for fragment in fragments),
            excluded=pending.excluded,
        )

    def _check(self, fragment: Fragment) -> None:
        """Check a fragment against the description; ProtocolViolation if it does not fit."""
        process = fragment.state.process
        where = _where(fragment)
        if process not in self.description.processes:
            raise ProtocolViolation(f"{where}: there is no such process")
        sources = tuple(record.source for record in fragment.incoming)
        if (
            sources != self._incoming[process]
            or tuple(fragment.sent_counts) != self._outgoing[process]
            or fragment.state.kind != self.description.processes[process]
        ):
            raise ProtocolViolation(f"{where}: its channels or its class are not those agreed on")
        pause_s, capture_s = fragment.pause_s, fragment.capture_s
        # JSON has no word for what is no number: a manifest with it could not be read again.
        if not all(0 <= seconds < math.inf for seconds in (pause_s, capture_s)):
            raise ProtocolViolation(
                f"{where}: it reports a pause of {pause_s} s and a capture of {capture_s} s"
            )
        if (times := fragment.marker_times) is not None:
            named = times.came_s.keys() | ({times.marked_by} - {None})
            moments = (times.cut_at, *times.came_s.values())
            if not named <= set(sources) or not all(map(math.isfinite, moments)):
                raise ProtocolViolation(f"{where}: it names markers that it cannot receive")

    def _assemble(self, fragments: dict[ProcessId, Fragment]) -> GlobalState:
        incoming = {
            Channel(record.source, process): record
            for process, fragment in fragments.items()
            for record in fragment.incoming
        }
        return GlobalState(
            processes=tuple(fragments[process].state for process in self.description.processes),
            channels=tuple(
                ChannelState(
                    channel=channel,
                    sent_count=fragments[channel.source].sent_counts[channel.target],
                    received_count=incoming[channel].received_count,
                    batches=incoming[channel].batches,
                )
                for channel in self.description.channels
            ),
        )


def assemble(topology: Topology, fragments: Iterable[Fragment]) -> Snapshot:
    """Return the snapshot that the fragments of all processes form, if it is consistent.

    It is consistent if on every channel the messages that were received before the target's cut,
    and those recorded as in transit, are exactly the messages that were sent before the source's
    cut. Every snapshot is checked in this way before it is published.

    Args:
        topology: the system.
        fragments: one of each process, in any order.

    Returns:
        The snapshot, of epoch 0 and without times.

    Raises:
        NotConsistent: the books of a channel do not balance; it is named.
        UsageError: a fragment is missing, there twice, or of another snapshot, or it does not fit
            the topology.
    """
    check_kind("topology", topology, Topology, "the Topology of the system")
    assembler, first, outcome = Assembler(topology.description, 0), None, None
    for fragment in fragments:
        check_kind("a fragment", fragment, Fragment, "Fragments")
        if first is None:
            first = fragment.snapshot
            assembler.begin(first, 0.0, timeout_s=0.0)
        if fragment.snapshot != first or outcome is not None:
            why = f"with {first}" if fragment.snapshot != first else "after one of each process"
            raise UsageError(f"{_where(fragment)}: it comes {why}")
        try:
            outcome = assembler.add(fragment, 0.0)
        except ProtocolViolation as error:
            raise UsageError(str(error)) from error
    if outcome is None:
        missing = topology.processes if first is None else assembler.missing(first)
        raise UsageError(f"there is no fragment of {', '.join(missing)}")
    if isinstance(outcome, Abandoned):
        raise NotConsistent(outcome.detail, snapshot=first)
    return outcome


def _where(fragment: Fragment) -> str:
    return f"fragment of snapshot {fragment.snapshot} from process {fragment.state.process!r}"
