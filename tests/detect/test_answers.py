"""What objects of the user's classes answer, and whose mistake it is if that makes no sense."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stillframe.detect import view
from stillframe.errors import ApplicationError
from stillframe.model import SnapshotId
from stillframe.waiting import for_all

SNAPSHOT = SnapshotId("P", 7)
Ask = Callable[[object, str, SnapshotId], Any]


def test_who_has_no_such_method_says_the_least() -> None:
    """Is active, waits for nobody, has nothing."""
    nobody = object()
    assert view.is_passive(nobody, "process A", SNAPSHOT) is False
    assert view.waits_for(nobody, "process A", SNAPSHOT) is None
    assert view.conserved(nobody, "process A", SNAPSHOT) == {}


def test_answers_are_taken_as_they_are() -> None:
    """A bool, a wait, whole and broken numbers."""
    one = SimpleNamespace(
        is_passive=lambda: True,
        waits_for=lambda: for_all("B"),
        conserved=lambda: {"EUR": -1, "kg": 0.5},
    )
    assert view.is_passive(one, "process A", SNAPSHOT) is True
    assert view.waits_for(one, "process A", SNAPSHOT) == for_all("B")
    assert view.conserved(one, "process A", SNAPSHOT) == {"EUR": -1, "kg": 0.5}


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (view.is_passive, 1),
        (view.is_passive, None),
        (view.waits_for, "B"),
        (view.waits_for, ("B",)),
        (view.conserved, None),
        (view.conserved, {"EUR": "1"}),
        (view.conserved, {"EUR": True}),
        (view.conserved, {"EUR": float("inf")}),
        (view.conserved, {"EUR": float("nan")}),
        (view.conserved, {1: 1}),
    ],
)
def test_an_answer_that_makes_no_sense_is_the_programs_mistake(ask: Ask, answer: object) -> None:
    """The error names process, method, answer and snapshot, and what to return."""
    method = ask.__name__
    one = SimpleNamespace(**{method: lambda: answer})
    with pytest.raises(ApplicationError, match="on snapshot P-7: return") as error:
        ask(one, "process A", SNAPSHOT)
    assert str(error.value).startswith(f"process A: {method}() returned {answer!r}")


def test_a_method_that_raises_is_named() -> None:
    """Also one that ends the program, and a field that has taken its name."""

    def leave() -> bool:
        raise SystemExit(0)

    with pytest.raises(ApplicationError, match=r"process A: is_passive\(\) raised SystemExit: 0"):
        view.is_passive(SimpleNamespace(is_passive=leave), "process A", SNAPSHOT)
    with pytest.raises(ApplicationError, match="is_passive is not a method of SimpleNamespace but"):
        view.is_passive(SimpleNamespace(is_passive=True), "process A", SNAPSHOT)
