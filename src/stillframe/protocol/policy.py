"""Decisions after the end of a snapshot, which a coordinator carries out.

An abandoned snapshot changes nothing in the system, and the next one is another attempt: so by
default it is not repeated. An immediate retry is for snapshots that are rare.

*When may processes be notified that a snapshot was published?* The notice tells a process that all
processes have recorded their fragments: a message from all of them, though no channel carries it. A
snapshot that is pending at that time, and was initiated before the other was complete, could show
one process after the notice, and another one before its cut of the published snapshot: an effect
without its cause. So the notice waits for such snapshots. This costs nothing as long as snapshots
do not overlap, and deadlines bound the wait.

*Which processes may a snapshot exclude?* Those without channels. A cut is consistent if it has no
effect without its cause, and a message is the only cause between processes (Chandy & Lamport 1985,
section 3.1). Every past state of a process without channels is part of a consistent cut, and so is
the one that it recorded last. An older state of a process with channels is not: its neighbours may
since have received messages that it had not sent in that state, and messages that it had sent and
they had not received would be lost.
"""

import enum
from collections import deque
from collections.abc import Collection, Iterable

import msgspec

from stillframe.model import (
    Abandoned,
    KeyedChange,
    ProcessId,
    ProcessState,
    Reason,
    Snapshot,
    SnapshotId,
    encode_array,
)
from stillframe.topology import Description

TRY_COUNT_MAX = 3
"""The maximum number of attempts for one request, under ``Policy.RETRY``."""
TOLD_COUNT_MAX = 3
"""How many of the last abandoned snapshots are reported when there were too many."""


class Policy(enum.Enum):
    """Policies for a snapshot with a missing fragment."""

    ABANDON = "abandon"
    RETRY = "retry"
    EXCLUDE = "exclude"


_RETRIED = frozenset({Reason.DEADLINE, Reason.NOT_RECORDED})
"""Another try may go better. A death or a stop ends the epoch; parts that contradict each other do
so again or hide a bug; and a full disk is not emptier at once: the next snapshot is the later try.
"""
_COUNTED = frozenset(Reason) - {Reason.PROCESS_DIED, Reason.STOPPED}
"""What says something about taking snapshots; deaths are counted where processes are restarted."""


def next_initiator(
    policy: Policy,
    ended: Abandoned,
    *,
    tried: Collection[ProcessId],
    at_fault: Collection[ProcessId],
    description: Description,
) -> ProcessId | None:
    """Return the initiator of the next attempt at an abandoned snapshot; None if there is none.
    Processes that are not among those `tried`, the initiators of all attempts so far, come first.
    Those `at_fault`, stragglers or processes that could not record their state, are left out."""
    if policy is not Policy.RETRY or ended.reason not in _RETRIED or len(tried) >= TRY_COUNT_MAX:
        return None
    able = [process for process in description.processes if process not in at_fault]
    fresh = [process for process in able if process not in tried]
    return next(iter((*fresh, *able)), None)


class AbandonmentLimit:
    """Counts consecutive abandoned requests, and tolerates `count_max` of them, or with None all.
    All attempts of one request count once."""

    def __init__(self, count_max: int | None) -> None:
        self._count_max = count_max
        self._count = 0
        self._last: deque[Abandoned] = deque(maxlen=TOLD_COUNT_MAX)

    def published(self) -> None:
        """Reset the count after a published snapshot."""
        self._count = 0
        self._last.clear()

    def abandoned(self, ended: Abandoned) -> str | None:
        """Count a request whose last attempt was abandoned; return in words why that is one too
        many, or None if it is tolerated. If a process died or the system was stopped, it neither
        counts nor resets the count."""
        if ended.reason not in _COUNTED:
            return None
        self._count += 1
        self._last.append(ended)
        if self._count_max is None or self._count <= self._count_max:
            return None
        last = "".join(f"\n  {abandoned}" for abandoned in self._last)
        return (
            f"{self._count} snapshots in a row were abandoned, and {self._count_max} are "
            f"tolerated. The last of them:{last}\nFix the cause named there, or give snapshots "
            "more time (--timeout) or tolerate more of them (--max-abandoned)"
        )


class PublicationNotices:
    """The published snapshots whose notices are due, in the order of publication."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[SnapshotId, set[SnapshotId]]] = deque()

    def published(self, snapshot: SnapshotId, under_way: Iterable[SnapshotId]) -> list[SnapshotId]:
        """Add a published snapshot; return the snapshots to announce now, in this order. Those
        `under_way` lack some fragment."""
        self._waiting.append((snapshot, set(under_way)))
        return self._ready()

    def ended(self, snapshot: SnapshotId) -> list[SnapshotId]:
        """Remove a snapshot that is complete or abandoned from those that notices wait for; return
        the snapshots to announce now, in this order."""
        for _, awaited in self._waiting:
            awaited.discard(snapshot)
        return self._ready()

    def _ready(self) -> list[SnapshotId]:
        ready = []
        while self._waiting and not self._waiting[0][1]:
            ready.append(self._waiting.popleft()[0])
        return ready


class LastRecorded(msgspec.Struct, frozen=True):
    """The state that a process recorded last, and its snapshot."""

    state: ProcessState
    snapshot: SnapshotId


class LastStates:
    """The states that the processes without channels recorded last; `began` are those that a
    restored epoch began with."""

    def __init__(
        self, description: Description, began: dict[ProcessId, LastRecorded] | None = None
    ) -> None:
        self._description = description
        self._last = {p: last for p, last in (began or {}).items() if not self._channels_of(p)}

    def published(self, snapshot: Snapshot) -> None:
        """Use `snapshot`, the new restore point, from now on. No older state may be used again:
        processes were notified that the system will not roll back behind it."""
        nothing = KeyedChange((), 0, encode_array([]))
        for state in snapshot.state.processes:
            if not self._channels_of(state.process):
                kept = state
                if state.keyed:  # that is stored with this snapshot
                    keyed = dict.fromkeys(state.keyed, nothing)
                    kept = msgspec.structs.replace(state, base=snapshot.id, keyed=keyed)
                origin = snapshot.excluded.get(state.process, snapshot.id)
                self._last[state.process] = LastRecorded(kept, origin)

    def of(self, process: ProcessId) -> LastRecorded | None:
        """Return the state to use if `process` is excluded; None if it cannot be."""
        return self._last.get(process)

    def refusal(self, process: ProcessId) -> str:
        """Return in words why `process` cannot be excluded."""
        channels = self._channels_of(process)
        if not channels:
            return f"{process} cannot be excluded: no snapshot has its state yet"
        return (
            f"{process} cannot be excluded: it has channels ({', '.join(channels)}), and with "
            "its older state the others would have received messages that it had not sent, or "
            "lost messages that it had"
        )

    def _channels_of(self, process: ProcessId) -> list[str]:
        return [str(c) for c in self._description.channels if process in (c.source, c.target)]
