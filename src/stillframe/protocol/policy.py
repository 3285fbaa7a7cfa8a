"""What comes after a snapshot that was given up: decisions alone, which a coordinator carries out.

A snapshot that is given up changes nothing in the system, and the next one is another try: so by
default it is let go. To try again at once is for snapshots that are rare.
"""

import enum
from collections import deque
from collections.abc import Collection

from stillframe.model import Abandoned, ProcessId, Reason
from stillframe.topology import Description

TRY_COUNT_MAX = 3
"""So many tries one request for a snapshot has, under ``Policy.RETRY``."""
TOLD_COUNT_MAX = 3
"""So many of the last snapshots that were given up are told when there were too many."""


class Policy(enum.Enum):
    """What to do with a snapshot for which a part is missing."""

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
    """Return who initiates the next try of a snapshot that was given up; None if there is none.

    One that has not tried yet comes before one that has, but nobody who is at fault.

    Args:
        policy: what was asked for.
        ended: the last try.
        tried: the initiators of all tries so far, the last one at the end.
        at_fault: the processes that held it up, or could not record their state.
        description: which processes there are.
    """
    if policy is not Policy.RETRY or ended.reason not in _RETRIED or len(tried) >= TRY_COUNT_MAX:
        return None
    able = [process for process in description.processes if process not in at_fault]
    fresh = [process for process in able if process not in tried]
    return next(iter((*fresh, *able)), None)


class Tolerance:
    """Counts the snapshots that were given up in a row; tries of one request are one.

    Args:
        count_max: how many are tolerated in a row; None for any number.
    """

    def __init__(self, count_max: int | None) -> None:
        self._count_max = count_max
        self._count = 0
        self._last: deque[Abandoned] = deque(maxlen=TOLD_COUNT_MAX)

    def published(self) -> None:
        """A snapshot was published: the row has ended."""
        self._count = 0
        self._last.clear()

    def abandoned(self, ended: Abandoned) -> str | None:
        """Note that a snapshot was given up for good; return in words why that is one too many.

        Args:
            ended: the outcome of its last try.

        Returns:
            None if it is tolerated: also if it says nothing, because a process died or the system
            was stopped; such a one neither counts nor ends the row.
        """
        if ended.reason not in _COUNTED:
            return None
        self._count += 1
        self._last.append(ended)
        if self._count_max is None or self._count <= self._count_max:
            return None
        told = "".join(f"\n  {abandoned}" for abandoned in self._last)
        return (
            f"{self._count} snapshots in a row were abandoned, and {self._count_max} are "
            f"tolerated. The last of them:{told}\nMend what is named there, or give snapshots more "
            "time (--timeout) or tolerate more of them (--tolerate)"
        )
