"""Asks the processes how far they are with snapshots that take long.

Nothing of this travels while snapshots are quick: processes are asked when somebody wants to know,
and shortly before a deadline. They answer between two atomic actions, so one that does not answer
has told something as well.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from stillframe.model import ProcessId, SnapshotId
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.stragglers import ProcessStatus, UnderWay, check_status, find_stragglers
from stillframe.runtime import control
from stillframe.topology import Description

ANSWER_S = 0.5
"""So long somebody who looks waits for answers, in seconds."""
UNANSWERED_COUNT_MAX = 4
"""Of a process that owes so many answers nothing more is asked: its mail must not pile up."""


class Question:
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


class Inquiry:
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
        self._open: dict[int, Question] = {}
        self._number = 0

    def heard(self, process: ProcessId) -> None:
        """Note that `process` said something."""
        self._heard_at[process] = self._now()

    def returned(self, process: ProcessId) -> None:
        """Note that `process` has come back on a new connection: what it was asked is lost."""
        self._unanswered[process] = 0

    def answered(self, process: ProcessId, answer: control.Answer) -> None:
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
        self._open[self._number] = Question(self._description.processes, snapshots)
        for process in self._description.processes:
            if self._unanswered[process] < UNANSWERED_COUNT_MAX:
                self._unanswered[process] += 1
                self._say(process, control.Ask(self._number, snapshots, has_quantities))
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
