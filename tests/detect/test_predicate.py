"""Verdicts in words, functions of one's own, and predicates that turn out not to be stable."""

import sys

import pytest

from stillframe.detect.predicate import (
    Sighting,
    Verdict,
    asking,
    deadlock,
    loss_against,
    not_stable,
    termination,
)
from stillframe.detect.view import View
from stillframe.errors import ApplicationError
from stillframe.model import SnapshotId
from stillframe.waiting import for_all
from tests.detect.test_deadlock import seen as waiting
from tests.detect.test_loss import seen as holding

NOTHING = View(SnapshotId("P", 7), {}, {})


def test_a_verdict_says_what_was_found() -> None:
    """Also when the predicate does not hold."""
    ring = {"A": for_all("B"), "B": for_all("A"), "C": for_all("A")}
    assert deadlock(waiting(ring)) == Verdict(
        holds=True, sentence="A waits for B waits for A; behind them: C"
    )
    assert not deadlock(waiting({"A": for_all("B"), "B": None})).holds
    assert termination(NOTHING).holds
    lost = loss_against({"EUR": {"A": 5}})
    assert lost(holding({"EUR": 4}, {})) == Verdict(holds=True, sentence="1 EUR lost: A 4")
    assert lost(holding({"EUR": 4}, {"EUR": 1})) == Verdict(
        holds=False, sentence="all is there: 5 EUR"
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


def sighting(number: int, begun: float, done: float, *, holds: bool, epoch: int = 1) -> Sighting:
    """Return a verdict on a snapshot that was taken from `begun` to `done`."""
    verdict = Verdict(holds=holds, sentence="")
    return Sighting(SnapshotId("P", number), epoch, begun, done, verdict)


def test_what_held_and_does_not_any_more_was_not_stable() -> None:
    """Two snapshots of one epoch show it, of which one began when the other was complete."""
    held, lost = sighting(1, 0, 1, holds=True), sighting(3, 1, 2, holds=False)
    assert not_stable([held, lost]) == (held, lost)
    assert not_stable([sighting(0, 0, 0.5, holds=False), held]) is None


def test_snapshots_that_overlap_show_nothing() -> None:
    """The cut of the one that was published later may be the earlier one."""
    assert not_stable([sighting(1, 0, 2, holds=True), sighting(2, 1, 3, holds=False)]) is None


def test_a_restore_takes_back_what_held() -> None:
    """In the next epoch everything may come differently."""
    held = sighting(1, 0, 1, holds=True)
    assert not_stable([held, sighting(2, 5, 6, holds=False, epoch=2)]) is None
