"""What messages are called, and how many of them a legend names."""

import pytest

from stillframe.diagram import layout, text_metrics
from stillframe.model import Channel
from stillframe.trace import Event, MessageId, Trace

MESSAGES = tuple(MessageId(Channel("P1", "P2"), number) for number in range(1, 16))


@pytest.mark.parametrize(
    ("sender", "accepter", "name"),
    [
        ("H", "D", "H→D"),
        ("", "D", "#1"),
        ("H", "", "#1"),
        ("H", None, "H→…"),
        ("", None, "#1"),
        ("a label that is far too long", "D", "a label that is far too…→D"),
    ],
)
def test_a_message_is_called_after_its_events(sender: str, accepter: str | None, name: str) -> None:
    """After both, if both have names; else it has only its number."""
    steps = [Event("P1", sender, sent=MESSAGES[:1])]
    if accepter is not None:
        steps.append(Event("P2", accepter, accepted=MESSAGES[:1]))
    assert layout.message_name(Trace(["P1", "P2"], steps), MESSAGES[0]) == name


def test_of_many_messages_on_a_channel_some_are_named() -> None:
    """And the others are counted."""
    picture = layout.lay_out(Trace(["P1", "P2"], [Event("P1", sent=MESSAGES)]), cuts=[(1, 0)])
    listed = next(row.full for row in picture.legend if row.full.startswith("channel"))
    assert listed == (
        "channel P1->P2: #1, #2, #3, #4, #5, #6, #7, #8, #9, #10, #11, #12 and 3 more"
    )


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "channel", "0 channels"),
        (1, "process", "1 process"),
        (2, "process", "2 processes"),
        (12_345, "event", "12,345 events"),
    ],
)
def test_things_are_counted_in_words(number: int, noun: str, text: str) -> None:
    """One thing, several things."""
    assert text_metrics.count(number, noun) == text


def test_a_channel_with_an_effect_without_cause_is_not_called_empty() -> None:
    """It is counted apart: what was accepted on it was never sent."""
    steps = [Event("P1", sent=MESSAGES[:1]), Event("P2", accepted=MESSAGES[:1])]
    trace = Trace(["P1", "P2"], steps, [Channel("P2", "P1")])
    picture = layout.lay_out(trace, cuts=[(0, 1)])
    assert "1 channel empty, 1 channel without possible contents" in [
        row.full for row in picture.legend
    ]
