"""Stragglers: the processes and channels that hold a snapshot up, found from status reports.

A snapshot waits for a process whose fragment is missing, but that process is seldom the cause: in a
mesh all fragments are missing when one process stops, because all others await its marker. By the
marker rules (Chandy & Lamport 1985, section 3.2) a marker arrives on a channel when its source has
recorded its state and its target has handled the messages before it. So the cause of each awaited
marker is in its source, its channel, or its target.
"""

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from stillframe.errors import ProtocolViolation
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.protocol.recorder import Phase
from stillframe.topology import Description

QUANTITY_COUNT_MAX, NAME_CHARS_MAX, TEXT_CHARS_MAX = 32, 64, 1000
"""Limits of a status: conserved quantities, the length of their names, and that of an error."""
SENTENCE_COUNT_MAX = 8
"""How many causes are described at most; that many at once have a common cause elsewhere."""


class EndpointStatus(msgspec.Struct, frozen=True):
    """The status of a channel at one end. `unhandled_bytes` were sent and, as far as this end
    knows, not handled yet. `is_full` says that the source waits for the target before it handles
    anything itself. `count` is how many messages this end has sent, or received, since the first
    epoch."""

    is_connected: bool
    unhandled_bytes: int
    is_full: bool = False
    count: int = 0


class RecordingStatus(msgspec.Struct, frozen=True):
    """The phase of a process in one snapshot. In phase RECORDING, `awaited` are the sources whose
    markers have not arrived, and `recording_s` is how many seconds ago it recorded its state."""

    snapshot: SnapshotId
    phase: Phase
    awaited: tuple[ProcessId, ...] = ()
    recording_s: float = 0.0


class ProcessStatus(msgspec.Struct, frozen=True):
    """The status that a process reports on request.

    `is_busy` says that it is in the middle of an atomic action, for whose end a snapshot waits.
    `incoming` and `outgoing` are its ends of its channels, by the process at the other end.
    `quantities` are its conserved quantities, if requested, or why it cannot compute them.
    `moment_s` is the time of the report, by a clock whose differences alone have a meaning.
    """

    is_busy: bool
    snapshots: tuple[RecordingStatus, ...]
    incoming: dict[ProcessId, EndpointStatus]
    outgoing: dict[ProcessId, EndpointStatus]
    quantities: dict[str, int | float] | str = {}
    moment_s: float = 0.0

    def of(self, snapshot: SnapshotId) -> RecordingStatus:
        """Return its status in `snapshot`."""
        for recording in self.snapshots:
            if recording.snapshot == snapshot:
                return recording
        return RecordingStatus(snapshot, Phase.IDLE)


def check_status(
    status: ProcessStatus,
    process: ProcessId,
    asked: tuple[SnapshotId, ...],
    description: Description,
) -> None:
    """Check that a status is that of `process`, and about the snapshots that were `asked` for;
    ProtocolViolation if it names others, or channels that the process does not have."""
    sources = set(description.incoming(process))
    awaited = [source for shown in status.snapshots for source in shown.awaited]
    if (
        tuple(shown.snapshot for shown in status.snapshots) != asked
        or status.incoming.keys() != sources
        or status.outgoing.keys() != set(description.outgoing(process))
        or not sources.issuperset(awaited)
        or len(awaited) > len(sources) * len(asked)
        or not _is_bounded(status.quantities)
        or not 0 <= status.moment_s < math.inf
    ):
        raise ProtocolViolation(
            "its answer does not match the request: it names other snapshots or channels"
        )


def _is_bounded(quantities: dict[str, int | float] | str) -> bool:
    if isinstance(quantities, str):
        return len(quantities) <= TEXT_CHARS_MAX
    return len(quantities) <= QUANTITY_COUNT_MAX and all(
        len(name) <= NAME_CHARS_MAX for name in quantities
    )


class Cause(enum.Enum):
    """The reason why a fragment of a snapshot is missing; the first of them explain most."""

    SILENT = "silent"
    BUSY = "busy"
    DISCONNECTED = "disconnected"
    HELD = "held"
    BEHIND = "behind"
    UNREACHED = "unreached"
    SENDING = "sending"


class Straggler(msgspec.Struct, frozen=True):
    """A process or a channel that holds a snapshot up: the fragment of `process` is missing, and
    markers are awaited on `channels`, for this cause.

    `since` is by the coordinator's clock: for a silent process, its last sign of life; for others,
    when the marker was due there. For BEHIND, `unhandled_bytes` at most are before the marker; for
    HELD, `waits_for` are the processes that it waits for.
    """

    process: ProcessId
    cause: Cause
    since: float
    channels: tuple[Channel, ...] = ()
    unhandled_bytes: int = 0
    waits_for: tuple[ProcessId, ...] = ()

    def sentence(self, now: float) -> str:
        """Return it in words, as of `now`."""
        process, channels = self.process, ", ".join(map(str, self.channels))
        since = f"for {max(0.0, now - self.since):.1f} s"
        awaited = f"; markers are awaited on {channels}" if channels else ""
        match self.cause:
            case Cause.SILENT:
                text = (
                    f"{process} does not answer, and has sent nothing {since}: it is stopped, or "
                    f"in a long action{awaited}"
                )
            case Cause.BUSY:
                text = (
                    f"{process} is in the middle of an action, and has been awaited "
                    f"{since}{awaited}"
                )
            case Cause.DISCONNECTED:
                text = f"channel {channels} is not connected; its marker has been awaited {since}"
            case Cause.HELD:
                text = (
                    f"{process} handles nothing until {', '.join(self.waits_for)} has handled "
                    f"its messages; the marker on {channels} has been awaited {since}"
                )
            case Cause.BEHIND:
                behind = f"behind at most {self.unhandled_bytes:,} bytes that it has not handled"
                where = behind if self.unhandled_bytes else "which is in transit"
                text = f"{process} has awaited the marker on {channels} {since}, {where}"
            case Cause.UNREACHED:
                text = f"{process} has not recorded its state: no marker has arrived there{awaited}"
            case Cause.SENDING:
                text = f"{process} has recorded its fragment, which has not arrived yet"
        return text


class PendingSnapshot(msgspec.Struct, frozen=True):
    """A pending snapshot: its start and deadline, the processes without a fragment, and why."""

    snapshot: SnapshotId
    initiated_at: float
    deadline: float
    missing: tuple[ProcessId, ...]
    stragglers: tuple[Straggler, ...] = ()

    @property
    def at_fault(self) -> tuple[ProcessId, ...]:
        """The processes that hold it up; all that are missing, if no cause is known."""
        victims = (Cause.UNREACHED, Cause.SENDING)
        found = dict.fromkeys(h.process for h in self.stragglers if h.cause not in victims)
        return tuple(found) or self.missing

    def sentences(self, now: float) -> list[str]:
        """Return the stragglers in words, as of `now`."""
        shown = [straggler.sentence(now) for straggler in self.stragglers[:SENTENCE_COUNT_MAX]]
        left_out = len(self.stragglers) - len(shown)
        return [*shown, f"and {left_out} more"] if left_out else shown


def find_stragglers(
    pending: PendingSnapshot,
    description: Description,
    answers: Mapping[ProcessId, ProcessStatus],
    heard_at: Mapping[ProcessId, float],
    now: float,
) -> PendingSnapshot:
    """Return a pending snapshot with its stragglers. The processes without one of the current
    status reports in `answers`, which were in at `now`, did not answer; `heard_at` has the last
    sign of life of each process."""
    search = _Search(pending, description, answers, heard_at, now)
    found = [each for process in pending.missing for each in search.look_at(process)]
    return msgspec.structs.replace(pending, stragglers=_merged(found))


def _merged(found: list[Straggler]) -> tuple[Straggler, ...]:
    """Return the stragglers, the most informative first: one for all channels with a common cause,
    but one for each channel that is itself the cause."""
    groups: dict[tuple[int, ProcessId, str], list[Straggler]] = {}
    causes = list(Cause)
    for each in found:
        is_apart = each.cause in (Cause.DISCONNECTED, Cause.BEHIND)
        channel = str(each.channels[0]) if is_apart else ""
        groups.setdefault((causes.index(each.cause), each.process, channel), []).append(each)
    return tuple(
        msgspec.structs.replace(
            group[-1],
            since=min(each.since for each in group),
            channels=tuple(sorted({channel for each in group for channel in each.channels})),
        )
        for _, group in sorted(groups.items())
    )


@dataclass
class _Search:
    """One search; see ``find_stragglers`` for the arguments."""

    pending: PendingSnapshot
    description: Description
    answers: Mapping[ProcessId, ProcessStatus]
    heard_at: Mapping[ProcessId, float]
    now: float

    def __post_init__(self) -> None:
        self._snapshot = self.pending.snapshot
        self._began = self.pending.initiated_at
        self._missing = frozenset(self.pending.missing)
        self._marked = {
            source
            for process in self.description.processes
            for source in self.description.incoming(process)
            if self._has_marker_of(process, source)
        }

    def look_at(self, process: ProcessId) -> Iterator[Straggler]:
        """Yield why the fragment of `process` is missing."""
        answer = self.answers.get(process)
        if answer is None:
            yield self._silent(process)
            return
        status = answer.of(self._snapshot)
        if status.phase is Phase.IDLE:
            since = self._began
            sources = tuple(filter(self._has_recorded, self.description.incoming(process)))
            if answer.is_busy:
                yield Straggler(process, Cause.BUSY, since)
            elif not sources:
                yield Straggler(process, Cause.UNREACHED, since)
        elif status.phase is Phase.RECORDING:
            since, sources = self.now - status.recording_s, status.awaited
        else:
            yield Straggler(process, Cause.SENDING, self._began)
            return
        for source in sources:
            channel = Channel(source, process)
            if self._has_recorded(source):
                yield self._look_at_marker(channel, answer, since)
            else:
                yield from self._look_at_source(channel)

    def _look_at_marker(self, channel: Channel, answer: ProcessStatus, since: float) -> Straggler:
        source, target = channel.source, channel.target
        received, other = answer.incoming[source], self.answers.get(source)
        ends = [received] if other is None else [received, other.outgoing[target]]
        full = tuple(t for t, outgoing in answer.outgoing.items() if outgoing.is_full)
        cause = Cause.BEHIND
        if not all(end.is_connected for end in ends):
            cause = Cause.DISCONNECTED
        elif other is None and not received.unhandled_bytes:
            return self._silent(source, channel)
        elif answer.is_busy:
            cause = Cause.BUSY
        elif full:
            return Straggler(target, Cause.HELD, since, (channel,), waits_for=full)
        behind = max(end.unhandled_bytes for end in ends) if cause is Cause.BEHIND else 0
        return Straggler(target, cause, since, (channel,), behind)

    def _look_at_source(self, channel: Channel) -> Iterator[Straggler]:
        """Yield why the source of `channel` has not recorded its state."""
        source, began = channel.source, self._began
        answer = self.answers.get(source)
        if answer is None:
            yield self._silent(source, channel)
        elif answer.is_busy:
            yield Straggler(source, Cause.BUSY, began, (channel,))
        elif not any(map(self._has_recorded, self.description.incoming(source))):
            yield Straggler(source, Cause.UNREACHED, began, (channel,))
        # Else a marker is in transit to it, which is reported for that marker's channel.

    def _silent(self, process: ProcessId, *channels: Channel) -> Straggler:
        # Before the snapshot began, no sign of life was due.
        since = max(self._began, self.heard_at.get(process, self._began))
        return Straggler(process, Cause.SILENT, since, channels)

    def _has_recorded(self, process: ProcessId) -> bool:
        if process not in self._missing or process in self._marked:
            return True
        answer = self.answers.get(process)
        return answer is not None and answer.of(self._snapshot).phase is not Phase.IDLE

    def _has_marker_of(self, process: ProcessId, source: ProcessId) -> bool:
        if process not in self._missing:
            return True
        if (answer := self.answers.get(process)) is None:
            return False
        status = answer.of(self._snapshot)
        return status.phase is Phase.RECORDED or (
            status.phase is Phase.RECORDING and source not in status.awaited
        )
