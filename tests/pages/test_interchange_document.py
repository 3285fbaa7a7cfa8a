"""The interchanges of a page: those of the proof, and bounded."""

import pytest
from hypothesis import given

from stillframe.diagram.cuts import Choice
from stillframe.pages.player_document import INTERCHANGE_COUNT_MAX, interchange_document
from stillframe.protocol.equivalent import equivalent
from stillframe.trace import Event, Trace
from tests.diagram.runs import SNAPSHOT, lecture, traces


@given(traces(step_count_max=40))
def test_they_lead_to_the_equivalent_computation(trace: Trace) -> None:
    """Made one by one they bring every white event before every red one, in as many as there are
    inversions."""
    for snapshot in trace.snapshots:
        found = interchange_document(trace, Choice(snapshot))
        if found["problem"]:
            assert "did not record a state" in found["problem"]
            continue
        order = [position for position, _ in trace.positions()]
        assert [is_white for *_, is_white in found["events"]] == [
            position in equivalent(trace, trace.cut_of(snapshot)).white for position in order
        ]
        for place in found["swaps"]:
            order[place : place + 2] = order[place + 1], order[place]
        assert tuple(order) == equivalent(trace, trace.cut_of(snapshot)).positions
        assert found["total"] == len(found["swaps"])


def test_a_red_message_is_named_with_both_its_events() -> None:
    """The cut is not consistent: there is nothing to interchange, and the row shows why."""
    found = interchange_document(lecture(), Choice(cut=(4, 2, 1)))
    assert found["swaps"] == []
    assert found["problem"].startswith("Not possible: message P2->P1 #1 is red: P2 sent it in")
    assert [found["events"][place][1] for place in found["broken"]] == ["H", "D"]


def test_only_so_many_are_shown() -> None:
    """Of 90 x 90 interchanges the first 500, with how many there would be."""
    steps = [Event("P1", "red")] * 90 + [Event("P2", "white")] * 90
    found = interchange_document(Trace(["P1", "P2"], steps), Choice(cut=(0, 90)))
    assert (len(found["swaps"]), found["total"]) == (INTERCHANGE_COUNT_MAX, 8100)


@pytest.mark.parametrize(
    ("trace", "choice", "sentence"),
    [
        (Trace(["P1"], [Event("P1")] * 201), Choice(cut=(7,)), "Not shown: there are 201 events"),
        (
            Trace(["P1", "P2", "P3"], lecture().steps[:10]),
            Choice(SNAPSHOT),
            "Not possible: snapshot P1-1 has no cut: P2 did not record a state.",
        ),
    ],
)
def test_what_cannot_be_shown_is_said(trace: Trace, choice: Choice, sentence: str) -> None:
    """In a sentence, and without a row."""
    assert interchange_document(trace, choice)["problem"].startswith(sentence)
