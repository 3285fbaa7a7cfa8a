"""Who holds a snapshot up: from what processes say of themselves, which process or channel it is.

A snapshot waits for a process whose part is missing, but that process is seldom the cause: in a
mesh all parts are missing when one process stands still, because everybody awaits its marker. By
the marker rules (Chandy & Lamport 1985, section 3.2) a marker comes on a channel when its source
has recorded its state and its target has handled what is in front of it. So for each marker that
is awaited either the source is to be looked at, or the channel, or the target.
"""

import enum
import math
from collections.abc import Mapping

import msgspec

from stillframe.errors import ProtocolViolation
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.protocol.recorder import Phase
from stillframe.topology import Description

QUANTITY_COUNT_MAX, NAME_CHARS_MAX, TEXT_CHARS_MAX = 32, 64, 1000
"""Of conserved quantities a process names so many, with names so long; or says so much of why not.
"""
SENTENCE_COUNT_MAX = 8
"""So many causes are told in words; that many at once have one cause that is elsewhere."""


class ChannelEnd(msgspec.Struct, frozen=True):
    """What one end of a channel knows of it.

    `unhandled_bytes` are those that were sent and, as far as this end knows, not handled yet.
    `is_full` says that the source waits for the target before it handles anything itself. `count`
    is how many messages this end has sent, or received, since the very beginning.
    """

    is_connected: bool
    unhandled_bytes: int
    is_full: bool = False
    count: int = 0


class RecordingStanding(msgspec.Struct, frozen=True):
    """How far a process is with one snapshot.

    `awaited` are the sources whose markers have not come, `recording_s` is how many seconds ago it
    recorded its state; both mean something in the phase RECORDING alone.
    """

    snapshot: SnapshotId
    phase: Phase
    awaited: tuple[ProcessId, ...] = ()
    recording_s: float = 0.0


class Standing(msgspec.Struct, frozen=True):
    """What a process says of itself when it is asked.

    `is_busy` says that it is in the middle of an atomic action: what is asked for waits for its
    end. `incoming` and `outgoing` are its ends of its channels, by the process at the other.
    `quantities` is what it has of conserved quantities, if that is asked, or why it cannot say.
    `moment_s` is when it says this, by a clock of its own of which only differences mean anything.
    """

    is_busy: bool
    snapshots: tuple[RecordingStanding, ...]
    incoming: dict[ProcessId, ChannelEnd]
    outgoing: dict[ProcessId, ChannelEnd]
    quantities: dict[str, int | float] | str = {}
    moment_s: float = 0.0

    def of(self, snapshot: SnapshotId) -> RecordingStanding:
        """Return how far it is with `snapshot`."""
        for standing in self.snapshots:
            if standing.snapshot == snapshot:
                return standing
        return RecordingStanding(snapshot, Phase.IDLE)


def check_standing(
    standing: Standing,
    process: ProcessId,
    asked: tuple[SnapshotId, ...],
    description: Description,
) -> None:
    """See that what `process` says of itself is an answer to what it was `asked`.

    Raises:
        ProtocolViolation: it is not: it names other snapshots, or channels that it does not have.
    """
    sources = set(description.incoming(process))
    awaited = [source for told in standing.snapshots for source in told.awaited]
    if (
        tuple(told.snapshot for told in standing.snapshots) != asked
        or standing.incoming.keys() != sources
        or standing.outgoing.keys() != set(description.outgoing(process))
        or not sources.issuperset(awaited)
        or len(awaited) > len(sources) * len(asked)
        or not _is_bounded(standing.quantities)
        or not 0 <= standing.moment_s < math.inf
    ):
        raise ProtocolViolation(
            "its answer is not to what it was asked: it names other snapshots or channels"
        )


def _is_bounded(quantities: dict[str, int | float] | str) -> bool:
    if isinstance(quantities, str):
        return len(quantities) <= TEXT_CHARS_MAX
    return len(quantities) <= QUANTITY_COUNT_MAX and all(
        len(name) <= NAME_CHARS_MAX for name in quantities
    )


class Cause(enum.Enum):
    """Why a part of a snapshot is missing; the first of them explain most."""

    SILENT = "silent"
    BUSY = "busy"
    DISCONNECTED = "disconnected"
    HELD = "held"
    BEHIND = "behind"
    UNREACHED = "unreached"
    SENDING = "sending"


class Holdup(msgspec.Struct, frozen=True):
    """A process or a channel that holds a snapshot up.

    Attributes:
        process: whose part is missing because of that.
        cause: what it is.
        since: since when, by the clock of whoever asked: for a silent process, since it was last
            heard of; for others, since the marker was due there.
        channels: on which markers are awaited because of that.
        unhandled_bytes: for BEHIND, how many bytes at most are in front of the marker.
        waits_for: for HELD, the processes that `process` waits for.
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
                    f"{process} does not answer, and was not heard of {since}: it is stopped, or "
                    f"in a long action{awaited}"
                )
            case Cause.BUSY:
                text = f"{process} is in the middle of an action, and is awaited {since}{awaited}"
            case Cause.DISCONNECTED:
                text = f"channel {channels} is not connected; its marker is awaited {since}"
            case Cause.HELD:
                text = (
                    f"{process} handles nothing until {', '.join(self.waits_for)} has handled what "
                    f"it was sent; the marker is awaited on {channels} {since}"
                )
            case Cause.BEHIND:
                behind = f"behind at most {self.unhandled_bytes:,} bytes that it has not handled"
                where = behind if self.unhandled_bytes else "which is on its way"
                text = f"{process} awaits the marker on {channels} {since}, {where}"
            case Cause.UNREACHED:
                text = f"{process} has not recorded its state: no marker has come to it{awaited}"
            case Cause.SENDING:
                text = f"{process} has recorded its part, which has not come yet"
        return text


class UnderWay(msgspec.Struct, frozen=True):
    """A snapshot under way: since when, until when at most, whose parts are missing, and why."""

    snapshot: SnapshotId
    initiated_at: float
    deadline: float
    missing: tuple[ProcessId, ...]
    holdups: tuple[Holdup, ...] = ()

    @property
    def at_fault(self) -> tuple[ProcessId, ...]:
        """The processes that hold it up; all that are missing, if nothing is known of the cause."""
        victims = (Cause.UNREACHED, Cause.SENDING)
        found = dict.fromkeys(h.process for h in self.holdups if h.cause not in victims)
        return tuple(found) or self.missing

    def sentences(self, now: float) -> list[str]:
        """Return in words what holds it up, as of `now`."""
        told = [holdup.sentence(now) for holdup in self.holdups[:SENTENCE_COUNT_MAX]]
        left_out = len(self.holdups) - len(told)
        return [*told, f"and {left_out} more"] if left_out else told


def judge(
    under_way: UnderWay,
    description: Description,
    answers: Mapping[ProcessId, Standing],
    heard_at: Mapping[ProcessId, float],
    now: float,
) -> UnderWay:
    """Return `under_way` with what holds it up.

    Args:
        under_way: the snapshot.
        description: which channels there are.
        answers: what processes said when they were asked just now; the others were asked as well,
            and have not answered.
        heard_at: when each process was last heard of, at all.
        now: when the answers were in.
    """
    case = _Case(under_way, description, answers, heard_at, now)
    for process in under_way.missing:
        case.look_at(process)
    return msgspec.structs.replace(under_way, holdups=case.holdups())


class _Case:
    """One judgement; see ``judge`` for the arguments."""

    def __init__(
        self,
        under_way: UnderWay,
        description: Description,
        answers: Mapping[ProcessId, Standing],
        heard_at: Mapping[ProcessId, float],
        now: float,
    ) -> None:
        self._snapshot = under_way.snapshot
        self._began = under_way.initiated_at
        self._missing = frozenset(under_way.missing)
        self._description = description
        self._answers = answers
        self._heard_at = heard_at
        self._now = now
        self._found: dict[tuple[int, ProcessId, Channel | None], Holdup] = {}
        self._marked = {
            source
            for process in description.processes
            for source in description.incoming(process)
            if self._has_marker_of(process, source)
        }

    def holdups(self) -> tuple[Holdup, ...]:
        """Return what was found, the most telling first."""
        order = sorted(self._found, key=lambda key: (key[0], key[1], str(key[2])))
        return tuple(self._found[key] for key in order)

    def look_at(self, process: ProcessId) -> None:
        """Find out why the part of `process` is missing."""
        answer = self._answers.get(process)
        if answer is None:
            self._blame(process, Cause.SILENT, self._silent_since(process))
            return
        standing = answer.of(self._snapshot)
        if standing.phase is Phase.IDLE:
            self._look_at_unrecorded(process, answer)
        elif standing.phase is Phase.RECORDING:
            since = self._now - standing.recording_s
            for source in standing.awaited:
                self._look_at_marker(Channel(source, process), answer, since)
        else:
            self._blame(process, Cause.SENDING, self._began)

    def _look_at_unrecorded(self, process: ProcessId, answer: Standing) -> None:
        sources = [s for s in self._description.incoming(process) if self._has_recorded(s)]
        if answer.is_busy:
            self._blame(process, Cause.BUSY, self._began)
        elif not sources:
            self._blame(process, Cause.UNREACHED, self._began)
        for source in sources:
            self._look_at_marker(Channel(source, process), answer, self._began)

    def _look_at_marker(self, channel: Channel, answer: Standing, since: float) -> None:
        """Find out why the marker on `channel` has not been handled; its target answered."""
        source, target = channel.source, channel.target
        end, other = answer.incoming[source], self._answers.get(source)
        if not self._has_recorded(source):
            self._blame_source(channel)
        elif not end.is_connected or (
            other is not None and not other.outgoing[target].is_connected
        ):
            self._blame(target, Cause.DISCONNECTED, since, channel, is_apart=True)
        elif other is None and not end.unhandled_bytes:
            self._blame(source, Cause.SILENT, self._silent_since(source), channel)
        elif answer.is_busy:
            self._blame(target, Cause.BUSY, since, channel)
        elif full := tuple(t for t, outgoing in answer.outgoing.items() if outgoing.is_full):
            self._blame(target, Cause.HELD, since, channel, waits_for=full)
        else:
            sent = 0 if other is None else other.outgoing[target].unhandled_bytes
            size = max(sent, end.unhandled_bytes)
            self._blame(target, Cause.BEHIND, since, channel, is_apart=True, unhandled_bytes=size)

    def _blame_source(self, channel: Channel) -> None:
        """The source of `channel` has not recorded its state: add the channel to why."""
        answer = self._answers.get(channel.source)
        if answer is None:
            self._blame(channel.source, Cause.SILENT, self._silent_since(channel.source), channel)
        elif answer.is_busy:
            self._blame(channel.source, Cause.BUSY, self._began, channel)
        elif not any(map(self._has_recorded, self._description.incoming(channel.source))):
            self._blame(channel.source, Cause.UNREACHED, self._began, channel)
        # Else a marker is on its way to it, which is told of that marker's channel.

    def _blame(
        self,
        process: ProcessId,
        cause: Cause,
        since: float,
        channel: Channel | None = None,
        *,
        is_apart: bool = False,
        unhandled_bytes: int = 0,
        waits_for: tuple[ProcessId, ...] = (),
    ) -> None:
        """Note a cause; with `is_apart` each channel is one of its own."""
        key = (list(Cause).index(cause), process, channel if is_apart else None)
        before = self._found.get(key)
        channels = () if before is None else before.channels
        if channel is not None and channel not in channels:
            channels = tuple(sorted((*channels, channel)))
        since = since if before is None else min(before.since, since)
        self._found[key] = Holdup(process, cause, since, channels, unhandled_bytes, waits_for)

    def _silent_since(self, process: ProcessId) -> float:
        # Before the snapshot began there was nothing that it should have said.
        return max(self._began, self._heard_at.get(process, self._began))

    def _has_recorded(self, process: ProcessId) -> bool:
        """Return whether `process` is known to have recorded its state."""
        if process not in self._missing or process in self._marked:
            return True
        answer = self._answers.get(process)
        return answer is not None and answer.of(self._snapshot).phase is not Phase.IDLE

    def _has_marker_of(self, process: ProcessId, source: ProcessId) -> bool:
        """Return whether `process` is known to have the marker on the channel from `source`."""
        if process not in self._missing:
            return True
        answer = self._answers.get(process)
        standing = RecordingStanding(self._snapshot, Phase.IDLE)
        if answer is not None:
            standing = answer.of(self._snapshot)
        return standing.phase is Phase.RECORDED or (
            standing.phase is Phase.RECORDING and source not in standing.awaited
        )
