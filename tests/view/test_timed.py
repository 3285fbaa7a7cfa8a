"""The snapshot to drag: which scripts it is offered for, and what it begins with."""

import pytest

from stillframe.sim.scenario import play_text
from stillframe.view import timed
from tests.view.scripts import NAMES, played, text_of


def test_the_lecture_by_the_clock_can_be_dragged() -> None:
    """Each event at its tick, each marker with the delay that the script gives; in half ticks."""
    found = timed.document(played("lecture-ticks"))
    assert found is not None
    assert found["processes"] == ["P1", "P2", "P3"]
    assert (found["initiator"], found["at"]) == (0, 5)
    assert [label for _, label, _ in found["events"]] == [*"AIBFGCHDJEK"]
    assert {label: at // 2 for _, label, at in found["events"]}["D"] == 9
    delays = {(a, b): delay for a, b, delay in found["channels"]}
    assert (delays[0, 1], delays[0, 2], delays[2, 1]) == (8, 2, 8)
    assert found["messages"][0][0] == "I>G"


def test_others_have_no_clock() -> None:
    """What is delivered when somebody says so happens at no time."""
    offered = [name for name in NAMES if timed.document(played(name)) is not None]
    assert offered == ["lecture-ticks"]


SYSTEM = "system\nP1: A B\nP2: C D\nmessages: A>C B>D\n----\n\nticks\n"


@pytest.mark.parametrize(
    "run",
    [
        "0 P1 does A\n1 P1 does B\n",
        "0 P1 does A\n0 P1 initiates P1-1\n1 P1 does B\n5 P2 initiates P2-2\n",
        "delays 1 1 1\n0 P1 does A\n0 P1 initiates P1-1\n1 P1 does B\n",
        "A>C takes 5\n0 P1 does A\n1 P1 does B\n2 P1 initiates P1-1\n",
        "0 P1 does A\n1 P1 initiates P1-1\n101 P1 does B\n",
        "0 P1 does A\n1 P1 initiates P1-1\n2 P1 does B\n----\n\nawaited\n",
    ],
    ids=["none", "two", "in order", "at once", "too long", "goes on"],
)
def test_it_is_not_offered_where_it_would_not_be_true(run: str) -> None:
    """No snapshot or two, delays that depend on the markers, two messages that come at once and
    leave no room for a marker, too long a time, or something that happens outside of time."""
    assert timed.document(play_text(SYSTEM + run)) is None


def test_a_marker_that_held_messages_up_is_none_of_the_application() -> None:
    """What is dragged over is the execution without a snapshot."""
    run = "marker P1->P2 takes 9\n0 P1 does A\n1 P1 initiates P1-1\n2 P1 does B\n"
    slow = play_text(SYSTEM + run)
    assert [step.at for step in slow.world.epoch.steps][-1] == 11
    found = timed.document(slow)
    assert found is not None
    assert [at for *_, at in found["events"]] == [0, 2, 4, 6]


def test_comments_and_names_of_all_kinds_do_no_harm() -> None:
    """Lines of comment in the block are left out; the same text is shown as in the script."""
    text = text_of("lecture-ticks").replace("ticks\n", "ticks\n# P1 initiates nothing here\n", 1)
    assert timed.document(play_text(text)) == timed.document(played("lecture-ticks"))
