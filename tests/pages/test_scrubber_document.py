"""The snapshot to drag: which executions it is offered for, and what it begins with."""

import re
from typing import Any

import pytest

from stillframe.model import Channel, SnapshotId
from stillframe.pages.scrubber_document import scrubber_document
from stillframe.sim.scenario import Played, play_text
from stillframe.trace import Event, MarkerStep, MessageId, Step, Trace
from tests.diagram.scripts import NAMES, played, text_of


def offered(script: Played) -> dict[str, Any] | None:
    """Return what is to be dragged in the page of a script."""
    world = script.world
    trace = world.epoch.trace(world.description)
    return scrubber_document(trace, script.narrator.name, played=script)


def test_the_lecture_by_the_clock_can_be_dragged() -> None:
    """Each event at its tick, each marker with the delay that the script gives; in half ticks."""
    found = offered(played("lecture-ticks"))
    assert found is not None
    assert found["unit"] == "tick"
    assert found["processes"] == ["P1", "P2", "P3"]
    assert (found["initiator"], found["at"]) == (0, 5)
    assert [label for _, label, _ in found["events"]] == [*"AIBFGCHDJEK"]
    assert {label: at // 2 for _, label, at in found["events"]}["D"] == 9
    delays = {(a, b): delay for a, b, delay in found["channels"]}
    assert (delays[0, 1], delays[0, 2], delays[2, 1]) == (8, 2, 8)
    assert found["messages"][0][0] == "I>G"


def test_the_lecture_can_be_dragged_by_its_steps() -> None:
    """P1 initiates behind the second step, B; the fast marker comes behind the fourth, I."""
    found = offered(played("lecture"))
    assert found is not None
    assert found["unit"] == "step"
    assert (found["initiator"], found["at"]) == (0, 5)
    assert {label: at // 2 for _, label, at in found["events"]}["I"] == 4
    delays = {(a, b): delay for a, b, delay in found["channels"]}
    assert found["at"] + delays[0, 2] == 9
    assert [name for name, *_ in found["messages"]] == ["B>F", "I>G", "H>D", "E>K"]


def test_a_script_with_one_snapshot_is_offered_and_one_with_two_is_not() -> None:
    """One snapshot is dragged, not several."""
    assert {name for name in NAMES if offered(played(name)) is None} == {"two-initiators"}


def test_a_trace_of_any_system_is_offered_with_the_names_that_it_has() -> None:
    """Events without a label are called by their numbers."""
    steps: list[Step] = [
        Event("A", sent=(MessageId(Channel("A", "B"), 1),)),
        MarkerStep("A", SnapshotId("A", 1), is_cut=True, targets=("B",)),
        Event("B", accepted=(MessageId(Channel("A", "B"), 1),)),
        MarkerStep("B", SnapshotId("A", 1), source="A", is_cut=True),
    ]
    found = scrubber_document(Trace(("A", "B"), steps), str)
    assert found is not None
    assert [label for _, label, _ in found["events"]] == ["A#1", "B#1"]
    assert [(at, delay) for at in [found["at"]] for *_, delay in found["channels"]] == [(3, 4)]
    overtaken = scrubber_document(Trace(("A", "B"), [*steps[:2], steps[3], steps[2]]), str)
    assert overtaken is None, "the marker overtook a message: dragging would not be true"
    assert scrubber_document(Trace(("A", "B"), steps[:3]), str) is None, "a marker never came"


SYSTEM = "system\nP1: A B\nP2: C D\nmessages: A>C B>D\n----\n\nticks\n"


@pytest.mark.parametrize(
    "run",
    [
        "0 P1 does A\n1 P1 does B\n",
        "0 P1 does A\n0 P1 initiates P1-1\n1 P1 does B\n5 P2 initiates P2-2\n",
        "0 P1 does A\n1 P1 initiates P1-1\n101 P1 does B\n",
    ],
    ids=["none", "two", "too long"],
)
def test_it_is_not_offered_where_it_would_not_be_true(run: str) -> None:
    """No snapshot or two, or too long a time."""
    assert offered(play_text(SYSTEM + run)) is None


@pytest.mark.parametrize(
    ("run", "unit"),
    [
        ("delays 1 1 1\n0 P1 does A\n0 P1 initiates P1-1\n1 P1 does B\n", "step"),
        ("0 P1 does A\n1 P1 initiates P1-1\n2 P1 does B\n----\n\nawaited\n", "step"),
        ("0 P1 does A\n1 P1 initiates P1-1\n2 P1 does B\n", "tick"),
    ],
    ids=["in order", "goes on", "by the clock"],
)
def test_where_the_clock_does_not_say_all_steps_are_counted(run: str, unit: str) -> None:
    """Delays that depend on the markers, or something that happens outside of time."""
    found = offered(play_text(SYSTEM + run))
    assert found is not None
    assert found["unit"] == unit


def test_two_messages_that_come_at_once_leave_no_room_for_a_marker() -> None:
    """So there is nothing to drag."""
    run = "A>C takes 5\n0 P1 does A\n1 P1 does B\n2 P1 initiates P1-1\n"
    assert offered(play_text(SYSTEM + run)) is None


@pytest.mark.parametrize(
    "run",
    [
        "marker P1->P2 takes 9\n0 P1 does A\n1 P1 initiates P1-1\n2 P1 does B\n",
        "0 P1 initiates P1-1\n0 P1 does A\n1 P1 does B\n",
    ],
    ids=["held up", "in the same tick"],
)
def test_where_the_snapshot_changes_what_the_clock_says_steps_are_counted(run: str) -> None:
    """A marker held a message up, or something was done behind the cut in its tick: what is dragged
    begins as it was."""
    script = play_text(SYSTEM + run)
    found = offered(script)
    assert found is not None
    assert found["unit"] == "step"
    world = script.world
    trace = world.epoch.trace(world.description)
    (whites, _) = trace.cut_of(SnapshotId("P1", 1))
    before = [at for process, _, at in found["events"] if process == 0 and at < found["at"]]
    assert len(before) == whites


def test_a_label_is_drawn_as_far_as_there_is_room() -> None:
    """To the next event of its process; all of it is in the title."""
    label = "Payment(amount=4)"
    steps: list[Step] = [
        MarkerStep("A", SnapshotId("A", 1), is_cut=True),
        *(Event("A", label) for _ in range(2)),
    ]
    found = scrubber_document(Trace(("A",), steps), str)
    assert found is not None
    drawn = re.findall(r"<text[^>]*>([^<]*)</text>", found["picture"])
    assert drawn.count("Pay…") == 2
    assert label not in drawn
    assert f"{label} at step 2" in found["picture"]


def test_comments_and_names_of_all_kinds_do_no_harm() -> None:
    """Lines of comment in the block are left out; the same text is shown as in the script."""
    text = text_of("lecture-ticks").replace("ticks\n", "ticks\n# P1 initiates nothing here\n", 1)
    assert offered(play_text(text)) == offered(played("lecture-ticks"))
