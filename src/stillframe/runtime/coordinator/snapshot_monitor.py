"""Asks the processes how far they are with snapshots that take long.

Nothing of this travels while snapshots are quick: processes are asked when somebody wants to know,
and shortly before a deadline. They answer between two atomic actions, so one that does not answer
has told something as well.
"""

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from stillframe.errors import ProtocolViolation
from stillframe.model import Fragment, MarkerTimes, ProcessId, SnapshotId
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.stragglers import ProcessStatus, UnderWay, check_status, find_stragglers
from stillframe.runtime import control
from stillframe.topology import Description

ANSWER_S = 0.5
"""So long somebody who looks waits for answers, in seconds."""
UNANSWERED_COUNT_MAX = 4
"""Of a process that owes so many answers nothing more is asked: its mail must not pile up."""


class StatusQuery:
    """One question to all processes about some snapshots, and what was answered until now."""

    def __init__(self, processes: Iterable[ProcessId], snapshots: tuple[SnapshotId, ...]) -> None:
        self.snapshots = snapshots
        self.answers: dict[ProcessId, ProcessStatus] = {}
        self.is_answered = asyncio.Event()
        self._awaited = set(processes)

    def take(self, process: ProcessId, standing: ProcessStatus) -> None:
        """Note the answer of `process`."""
        self.answers[process] = standing
        if self._awaited <= self.answers.keys():
            self.is_answered.set()


class StatusPoller:
    """Asks the processes of one epoch, and judges what they say.

    Args:
        description: the processes and channels.
        assembler: knows the snapshots under way.
        say: tells one process.
        now: the clock of the assembler.
    """

    def __init__(
        self,
        description: Description,
        assembler: Assembler,
        *,
        say: Callable[[ProcessId, control.ToProcess], None],
        now: Callable[[], float],
    ) -> None:
        self._description = description
        self._assembler = assembler
        self._say = say
        self._now = now
        self._heard_at: dict[ProcessId, float] = {}
        self._unanswered: Counter[ProcessId] = Counter()
        self._open: dict[int, StatusQuery] = {}
        self._number = 0

    def heard(self, process: ProcessId) -> None:
        """Note that `process` said something."""
        self._heard_at[process] = self._now()

    def returned(self, process: ProcessId) -> None:
        """Note that `process` has come back on a new connection: what it was asked is lost."""
        self._unanswered[process] = 0

    def answered(self, process: ProcessId, answer: control.StatusReply) -> None:
        """Take an answer; one to a question that is over only shows that the process is there.

        Raises:
            ProtocolViolation: it does not answer the question.
        """
        self._unanswered[process] = 0
        question = self._open.get(answer.number)
        if question is not None:
            check_status(answer.standing, process, question.snapshots, self._description)
            question.take(process, answer.standing)

    def ask(self, snapshots: tuple[SnapshotId, ...], *, has_quantities: bool = False) -> int:
        """Ask all processes about `snapshots`, and for what they have of conserved quantities if
        that is wanted; return the number of the question.

        Call ``close`` with it, whatever becomes of the answers.
        """
        self._number += 1
        self._open[self._number] = StatusQuery(self._description.processes, snapshots)
        for process in self._description.processes:
            if self._unanswered[process] < UNANSWERED_COUNT_MAX:
                self._unanswered[process] += 1
                self._say(process, control.StatusRequest(self._number, snapshots, has_quantities))
        return self._number

    def close(self, number: int, snapshots: Iterable[SnapshotId]) -> tuple[UnderWay, ...]:
        """End a question; return what holds up those of `snapshots` that are under way still."""
        answers, now = self._open.pop(number).answers, self._now()
        found = []
        for snapshot in snapshots:
            if snapshot in self._assembler.pending:
                initiated_at, deadline = self._assembler.times(snapshot)
                missing = self._assembler.missing(snapshot)
                under_way = UnderWay(snapshot, initiated_at, deadline, missing)
                found.append(
                    find_stragglers(under_way, self._description, answers, self._heard_at, now)
                )
        return tuple(found)

    async def look(self) -> tuple[UnderWay, ...]:
        """Ask, wait a little for answers, and return the snapshots under way, oldest first."""
        snapshots = self._assembler.pending
        if not snapshots:
            return ()
        number = self.ask(snapshots)
        await self._answers(number)
        return self.close(number, snapshots)

    async def observe(self) -> tuple[tuple[UnderWay, ...], dict[ProcessId, ProcessStatus]]:
        """Ask, wait a little for answers, and return the snapshots under way, oldest first, and
        what each process says that has answered."""
        snapshots = self._assembler.pending
        number = self.ask(snapshots, has_quantities=True)
        answers = await self._answers(number)
        return self.close(number, snapshots), answers

    async def _answers(self, number: int) -> dict[ProcessId, ProcessStatus]:
        """Wait a little for the answers to a question, and return those that came."""
        question = self._open[number]
        try:
            async with asyncio.timeout(ANSWER_S):
                await question.is_answered.wait()
        except TimeoutError:
            pass  # whoever has not answered by now is named
        except BaseException:
            self.close(number, ())
            raise
        return question.answers


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
        inquiry: StatusPoller,
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


TIMELINE_COUNT_MAX = 32
"""Of so many snapshots the way of the markers is kept."""


class SnapshotTimeline(msgspec.Struct, frozen=True):
    """How the markers of one snapshot went through the system.

    Attributes:
        snapshot: which.
        initiated_at: when, in seconds since 1970 by the coordinator's clock.
        ended_at: when it was published or abandoned; None if it is under way.
        is_published: whether it is in the store.
        times: what each process said with its part.
        part_at: when the part of each process was in, by the coordinator's clock.
        epoch: of the system then; 0 is of a version that does not say it.
    """

    snapshot: SnapshotId
    initiated_at: float
    ended_at: float | None = None
    is_published: bool = False
    times: dict[ProcessId, MarkerTimes] = {}
    part_at: dict[ProcessId, float] = {}
    epoch: int = 0


class SnapshotTimelines:
    """The waves of the last snapshots, of whatever epoch: those of one that a death has ended are
    what people want to see."""

    def __init__(self) -> None:
        self._waves: OrderedDict[SnapshotId, SnapshotTimeline] = OrderedDict()

    def began(self, snapshot: SnapshotId, at: float, epoch: int) -> None:
        """Note that `snapshot` was initiated."""
        self._waves[snapshot] = SnapshotTimeline(snapshot, at, times={}, part_at={}, epoch=epoch)
        while len(self._waves) > TIMELINE_COUNT_MAX:
            self._waves.popitem(last=False)

    def took(self, fragment: Fragment, at: float, description: Description) -> None:
        """Note that the part of a process is in.

        Args:
            fragment: the part.
            at: when it was in.
            description: which channels there are.

        Raises:
            ProtocolViolation: it names channels that the process does not have, or no times.
        """
        process, times = fragment.state.process, fragment.marker_times
        if times is not None:
            sources = set(description.incoming(process))
            named = times.came_s.keys() | ({times.marked_by} - {None})
            if not named <= sources or not all(
                map(math.isfinite, (times.cut_at, *times.came_s.values()))
            ):
                raise ProtocolViolation("its part names markers that could not come to it")
        wave = self._waves.get(fragment.snapshot)
        if wave is not None:
            wave.part_at[process] = at
            if times is not None:
                wave.times[process] = times

    def ended(self, snapshot: SnapshotId, at: float, *, is_published: bool) -> None:
        """Note that `snapshot` was published or abandoned."""
        wave = self._waves.get(snapshot)
        if wave is not None:
            self._waves[snapshot] = msgspec.structs.replace(
                wave, ended_at=at, is_published=is_published
            )

    def latest(self) -> tuple[SnapshotTimeline, ...]:
        """Return what is kept, the oldest first."""
        return tuple(self._waves.values())
