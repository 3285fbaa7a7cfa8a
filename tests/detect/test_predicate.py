"""Verdicts in words, functions of one's own, and predicates that turn out not to be stable."""

import sys

import pytest

import stillframe
from stillframe.detect.predicate import (
    Evaluation,
    Verdict,
    asking,
    deadlock,
    find_activity,
    loss_against,
    not_stable,
    termination,
)
from stillframe.detect.view import SnapshotView
from stillframe.errors import ApplicationError
from stillframe.model import Channel, SnapshotId
from stillframe.process import Message
from stillframe.waiting import for_all
from tests.detect.test_conservation import seen as holding
from tests.detect.test_deadlock import seen as waiting

NOTHING = SnapshotView(SnapshotId("P", 7), {}, {})


def test_a_verdict_says_what_was_found() -> None:
    """Also when the predicate does not hold."""
    ring = {"A": for_all("B"), "B": for_all("A"), "C": for_all("A")}
    assert deadlock(waiting(ring)) == Verdict(
        holds=True, sentence="A waits for B waits for A; waiting for them: C"
    )
    assert not deadlock(waiting({"A": for_all("B"), "B": None})).holds
    assert termination(NOTHING).holds
    lost = loss_against({"EUR": {"A": 5}})
    assert lost(holding({"EUR": 4}, {})) == Verdict(holds=True, sentence="1 EUR lost: A 4")
    assert lost(holding({"EUR": 4}, {"EUR": 1})) == Verdict(
        holds=False, sentence="nothing is missing: 5 EUR"
    )


def test_a_function_of_ones_own_is_asked() -> None:
    """It says yes or no; that it raises, or says something else, is told with the snapshot."""
    assert asking(lambda view: len(view.processes) == 0, "mine:empty")(NOTHING).holds
    with pytest.raises(ApplicationError, match="mine:wrong raised KeyError: 'X', on snapshot P-7"):
        asking(lambda view: bool(view.processes["X"]), "mine:wrong")(NOTHING)
    with pytest.raises(ApplicationError, match="mine:exit raised SystemExit: 0, on snapshot P-7"):
        asking(lambda _: sys.exit(0), "mine:exit")(NOTHING)
    with pytest.raises(ApplicationError, match="mine:much returned 3, a int, on snapshot P-7"):
        asking(lambda _: 3, "mine:much")(NOTHING)  # type: ignore[arg-type, return-value]


def evaluation(
    number: int, begun: float, done: float, *, holds: bool, epoch: int = 1
) -> Evaluation:
    """Return a verdict on a snapshot that was taken from `begun` to `done`."""
    verdict = Verdict(holds=holds, sentence="")
    return Evaluation(SnapshotId("P", number), epoch, begun, done, verdict)


def test_what_held_and_does_not_any_more_was_not_stable() -> None:
    """Two snapshots of one epoch show it, of which one began when the other was complete."""
    held, lost = evaluation(1, 0, 1, holds=True), evaluation(3, 1, 2, holds=False)
    assert not_stable([held, lost]) == (held, lost)
    assert not_stable([evaluation(0, 0, 0.5, holds=False), held]) is None


def test_snapshots_that_overlap_show_nothing() -> None:
    """The cut of the one that was published later may be the earlier one."""
    assert not_stable([evaluation(1, 0, 2, holds=True), evaluation(2, 1, 3, holds=False)]) is None


def test_a_restore_takes_back_what_held() -> None:
    """In the next epoch everything may come differently."""
    held = evaluation(1, 0, 1, holds=True)
    assert not_stable([held, evaluation(2, 5, 6, holds=False, epoch=2)]) is None


class Work(Message):
    """Something to do."""


class Passing(stillframe.Process):
    """Acts only when it receives."""

    done_count: int = 0


class Ticking(stillframe.Process):
    """Acts by itself as long as it has something left."""

    left_count: int = 0

    @stillframe.every(ms=10)
    def tick(self) -> None:
        """Do a little."""

    def is_passive(self) -> bool:
        """When nothing is left."""
        return self.left_count == 0


class Endless(stillframe.Process):
    """Acts by itself, and does not say when that ends."""

    @stillframe.every(ms=10)
    def tick(self) -> None:
        """Do a little."""


class Talking(stillframe.Process):
    """Has no action, and sends when a snapshot was published."""

    def on_published(self, snapshot: SnapshotId) -> None:
        """Say so."""


class Reading(stillframe.Process):
    """Has no action, and reads a log of a pipeline."""

    def receive_records(self, log: str, records: object) -> None:
        """Take them."""


def seen(*messages: Message, **processes: object) -> SnapshotView:
    """Return a global state with messages on one channel."""
    return SnapshotView(SnapshotId("P", 1), processes, {Channel("A", "B"): messages})


def test_terminated_is_who_is_passive_with_empty_channels() -> None:
    """A process without actions is passive by itself, one with actions when it says so."""
    assert find_activity(seen(A=Passing(), B=Ticking())) is None


def test_what_still_goes_on_is_named() -> None:
    """Processes that may act, and how many messages are on which channel."""
    found = find_activity(seen(Work(), Work(), A=Passing(), B=Ticking(left_count=1)))
    assert str(found) == "active: B; messages in transit: A->B 2"
    assert str(find_activity(seen(Work(), A=Passing()))) == "messages in transit: A->B 1"


def test_who_cannot_say_that_it_is_passive_is_active() -> None:
    """Actions without ``is_passive``, a state of another class, and who acts on what is no message:
    better no answer than a wrong one."""
    assert str(find_activity(seen(A=Endless()))) == "active: A"
    for process in (object(), Talking(), Reading()):
        assert str(find_activity(seen(A=process))) == "active: A"
