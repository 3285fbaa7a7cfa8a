"""Where a log states what was sent and received, the clocks decide which message it was."""

import pytest

from stillframe.errors import NotConsistent
from stillframe.importer.clocks import ClockedEvent
from stillframe.importer.execution import build


def send(line: int, host: str, clock: dict[str, int], to: str, content: object) -> ClockedEvent:
    """Return an event that sends."""
    return ClockedEvent(line, host, clock, "", sent_to=to, content=content)


def receive(
    line: int, host: str, clock: dict[str, int], source: str, content: object
) -> ClockedEvent:
    """Return an event that receives."""
    return ClockedEvent(line, host, clock, "", received_from=source, content=content)


def accepted(*events: ClockedEvent) -> dict[str, list[list[str]]]:
    """Return which messages the events of each process accept."""
    return {
        process: [[str(message) for message in event.accepted] for event in line]
        for process, line in build(events, where="log").trace.lines.items()
    }


def test_a_message_that_overtakes_another_is_told_by_its_clock() -> None:
    """Same content, other order: the clock says which send it was."""
    assert accepted(
        send(1, "a", {"a": 1}, "b", "x"),
        send(2, "a", {"a": 2}, "b", "x"),
        receive(3, "b", {"b": 1, "a": 2}, "a", "x"),
        receive(4, "b", {"b": 2, "a": 2}, "a", "x"),
    )["b"] == [["a->b #2"], ["a->b #1"]]


def test_a_receiver_that_knew_of_the_send_is_told_by_content() -> None:
    """News through a third host came first; then the content finds the message."""
    assert accepted(
        send(1, "a", {"a": 1}, "b", "first"),
        send(2, "a", {"a": 2}, "b", "second"),
        send(3, "a", {"a": 3}, "c", "news"),
        receive(4, "c", {"c": 1, "a": 3}, "a", "news"),
        send(5, "c", {"c": 2, "a": 3}, "b", "news"),
        receive(6, "b", {"b": 1, "a": 3, "c": 2}, "c", "news"),
        receive(7, "b", {"b": 2, "a": 3, "c": 2}, "a", "second"),
        receive(8, "b", {"b": 3, "a": 3, "c": 2}, "a", "first"),
    )["b"] == [["c->b #1"], ["a->b #2"], ["a->b #1"]]


def test_a_message_that_is_logged_again_is_no_message() -> None:
    """A process that puts a message back into its own queue does not get it from elsewhere."""
    events = [
        send(1, "a", {"a": 1}, "b", "x"),
        receive(2, "b", {"b": 1, "a": 1}, "a", "x"),
        receive(3, "b", {"b": 2, "a": 1}, "a", "x"),
    ]
    execution = build(events, where="log")
    assert execution.repeat_count == 1
    assert [len(event.accepted) for event in execution.trace.lines["b"]] == [1, 0]
    assert execution.trace.message_count == 1


def test_a_message_to_itself_is_received_after_it_was_sent() -> None:
    """A channel may lead from a process to itself; what comes before the send is a repeat."""
    assert accepted(
        receive(1, "a", {"a": 1}, "a", "x"),
        send(2, "a", {"a": 2}, "a", "x"),
        receive(3, "a", {"a": 3}, "a", "x"),
    )["a"] == [[], [], ["a->a #1"]]


def test_what_was_never_received_is_in_transit() -> None:
    """Also if it went to a host of which the log has no event."""
    trace = build(
        [send(1, "a", {"a": 1}, "b", "x"), send(2, "a", {"a": 2}, "gone", "y")], where="log"
    ).trace
    waiting = [str(m) for messages in trace.in_transit(trace.end).values() for m in messages]
    assert waiting == ["a->b #1", "a->gone #1"]
    assert trace.processes == ("a", "b", "gone")


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        (
            [ClockedEvent(1, "a", {"a": 1}, ""), receive(2, "b", {"b": 1, "a": 1}, "a", "x")],
            (
                "log, line 2, host 'b': by its clock it receives a message of event 1 of host 'a' "
                "(line 1), but that event sends nothing to it"
            ),
        ),
        (
            [send(1, "a", {"a": 1}, "b", "x"), ClockedEvent(2, "b", {"b": 1, "a": 1}, "")],
            (
                "log, line 2, host 'b': the clock learned of event 1 of host 'a' (line 1), but "
                "the log names no message received here"
            ),
        ),
        (
            [
                send(1, "a", {"a": 1}, "b", "x"),
                send(2, "c", {"c": 1}, "b", "x"),
                receive(3, "b", {"b": 1, "a": 1, "c": 1}, "a", "x"),
            ],
            (
                "log, line 3, host 'b': "
                "the clock learned of event 1 of host 'a' (line 1) and event 1 "
                "of host 'c' (line 2), but the only message received here is from 'a'"
            ),
        ),
        (
            [receive(1, "b", {"b": 1}, "x", "x")],
            (
                "log, line 1, host 'b': it receives from 'x', which is unknown: it has no event in "
                "this log"
            ),
        ),
    ],
    ids=["no such send", "learned without a message", "two messages at once", "unknown source"],
)
def test_statements_that_contradict_the_clocks_are_refused(
    events: list[ClockedEvent], sentence: str
) -> None:
    """The sentence names line, host and the event at the other end."""
    with pytest.raises(NotConsistent) as error:
        build(events, where="log")
    assert str(error.value) == sentence
