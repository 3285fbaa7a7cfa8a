"""Watches the deadlines of snapshots: asks who holds one up shortly before, and tells when it is
late."""

import asyncio
from collections.abc import Callable

from stillframe.model import SnapshotId
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.stragglers import UnderWay
from stillframe.runtime.inquiry import Inquiry

ASK_BEFORE_S = 1.0
"""So long before its deadline it is asked who holds a snapshot up, but not before half its time."""


class Deadlines:
    """The deadlines of the snapshots under way.

    Args:
        assembler: knows them.
        inquiry: asks the processes.
        timeout_s: how long each snapshot may take, in seconds.
        now: the clock of the assembler.
        late: called with a snapshot whose deadline has passed; it ends it.
    """

    def __init__(
        self,
        assembler: Assembler,
        inquiry: Inquiry,
        *,
        timeout_s: float,
        now: Callable[[], float],
        late: Callable[[SnapshotId], None],
    ) -> None:
        self._assembler = assembler
        self._inquiry = inquiry
        self._ask_before_s = min(ASK_BEFORE_S, timeout_s / 2)
        self._now = now
        self._late = late
        self._questions: dict[SnapshotId, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set_timer(self) -> None:
        """Look at the snapshots under way, because one has begun or ended."""
        self.close()
        wake = min(map(self._wake_at, self._assembler.pending), default=None)
        if wake is not None:
            self._timer = asyncio.get_running_loop().call_later(
                max(0.0, wake - self._now()), self._wake
            )

    def close(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def findings(self, snapshot: SnapshotId) -> UnderWay | None:
        """Return what was found out about a pending `snapshot`; None if there was no time to ask.

        That is told once.
        """
        question = self._questions.pop(snapshot, None)
        found = () if question is None else self._inquiry.close(question, (snapshot,))
        return next(iter(found), None)

    def _wake_at(self, snapshot: SnapshotId) -> float:
        _, deadline = self._assembler.times(snapshot)
        return deadline if snapshot in self._questions else deadline - self._ask_before_s

    def _wake(self) -> None:
        now = self._now()
        for snapshot in self._assembler.late(now):
            self._late(snapshot)
        for snapshot in self._assembler.pending:
            if snapshot not in self._questions and self._wake_at(snapshot) <= now:
                self._questions[snapshot] = self._inquiry.ask((snapshot,))
        self.set_timer()
