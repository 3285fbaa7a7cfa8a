"""Decisions after the end of a snapshot, which a coordinator carries out.

An abandoned snapshot changes nothing in the system, and the next one is another attempt: so by
default it is not repeated. An immediate retry is for snapshots that are rare.

*When may processes be notified that a snapshot was published?* The notice tells a process that all
processes have recorded their fragments: a message from all of them, though no channel carries it. A
snapshot that is pending at that time, and was initiated before the other was complete, could show
one process after the notice, and another one before its cut of the published snapshot: an effect
without its cause. So the notice waits for such snapshots. This costs nothing as long as snapshots
do not overlap, and deadlines bound the wait.
"""

import enum
from collections import deque
from collections.abc import Collection, Iterable

from stillframe.model import Abandoned, ProcessId, Reason, SnapshotId
from stillframe.topology import Description

TRY_COUNT_MAX = 3
"""The maximum number of attempts for one request, under ``Policy.RETRY``."""
TOLD_COUNT_MAX = 3
"""How many of the last abandoned snapshots are reported when there were too many."""


class Policy(enum.Enum):
    """What to do with a snapshot of which a fragment is missing."""

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

    Processes that have not initiated yet come first; stragglers are left out.

    Args:
        policy: the requested policy.
        ended: the outcome of the last attempt.
        tried: the initiators of all attempts so far, in their order.
        at_fault: the stragglers, and processes that could not record their state.
        description: the processes.
    """
    if policy is not Policy.RETRY or ended.reason not in _RETRIED or len(tried) >= TRY_COUNT_MAX:
        return None
    able = [process for process in description.processes if process not in at_fault]
    fresh = [process for process in able if process not in tried]
    return next(iter((*fresh, *able)), None)


class AbandonmentLimit:
    """Counts consecutive abandoned requests, of which `count_max` are tolerated; None for any
    number. All attempts of one request count once."""

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
            f"tolerated. The last of them:{last}\nMend what is named there, or give snapshots more "
            "time (--timeout) or tolerate more of them (--tolerate)"
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
