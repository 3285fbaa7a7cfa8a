"""``stillframe cuts``: is this cut consistent, and what happened before this event?"""

import json
from pathlib import Path

import pytest

from stillframe import tracefile
from stillframe.model import Channel
from stillframe.trace import Event, MessageId, Trace
from tests.cli.conftest import Call

ASKED = MessageId(Channel("P1", "P2"), 1)
ANSWERED = MessageId(Channel("P2", "P1"), 1)
LOST = MessageId(Channel("P1", "P2"), 2)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """P1 asks, P2 answers; then P1 says something that nobody hears."""
    path = tmp_path / "a.trace"
    steps = [
        Event("P1", "ask", sent=(ASKED,)),
        Event("P2", "answer", accepted=(ASKED,), sent=(ANSWERED,)),
        Event("P1", "hear", accepted=(ANSWERED,), sent=(LOST,)),
    ]
    tracefile.write(path, Trace(["P1", "P2"], steps))
    return path


def test_a_consistent_cut_is_a_yes(call: Call, trace: Path) -> None:
    """With what is in transit across it; processes that are left out have done nothing."""
    result = call("cuts", trace, "--cut", "P1=1")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()[-2:]] == [
        ["P1", "1", "2"],
        ["P2", "0", "1"],
    ]
    assert result.stderr.splitlines() == [
        "in transit on P1->P2: 1 message",
        "yes: the cut is consistent",
    ]
    assert json.loads(call("cuts", trace, "--cut", "P1=2, P2=1", "--json").stdout) == {
        "is_consistent": True,
        "cut": {"P1": 2, "P2": 1},
        "in_transit": {"P1->P2": 1},
        "orphans": [],
    }


def test_an_inconsistent_cut_is_a_no_with_the_message_that_breaks_it(
    call: Call, trace: Path
) -> None:
    """Exit 1; where the message is accepted and where it is sent."""
    result = call("cuts", trace, "--cut", "P2=1", "--json")
    assert result.exit_code == 1
    assert result.stderr == (
        "no: message P1->P2 #1 is accepted in P2#1, before the cut, but sent in P1#1, after it\n"
    )
    answer = json.loads(result.stdout)
    assert answer["is_consistent"] is False
    assert answer["orphans"] == [{"channel": "P1->P2", "number": 1}]


def test_the_smallest_cut_with_an_event_is_its_past(call: Call, trace: Path) -> None:
    """What happened before an event, itself with it, is the least consistent cut that has it."""
    result = call("cuts", trace, "--before", "P2#1", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "event": "P2#1",
        "cut": {"P1": 1, "P2": 1},
        "in_transit": {"P2->P1": 1},
    }
    assert result.stderr == "done: 1 event happened before P2#1\n"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "ask one question: --cut, --before"),
        (("--cut", "P1=1", "--before", "P1#1"), "ask one question: --cut, --before"),
        (("--cut", "P1"), "'P1' is no part of a cut"),
        (("--cut", "P1=1,P1=2"), "'P1=2' is no part of a cut"),
        (("--cut", "P9=1"), "the trace has no process 'P9': it has P1, P2"),
        (("--cut", "P1=3"), "P1 0..2, P2 0..1"),
        (("--before", "P1"), "'P1' is no event: they look like P2#7"),
        (("--before", "P1#9"), "there is no event P1#9: process P1 has 2"),
    ],
)
def test_a_wrong_question_says_why(
    call: Call, trace: Path, options: tuple[str, ...], sentence: str
) -> None:
    """Exit 2 and a sentence."""
    result = call("cuts", trace, *options)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_many_messages_that_break_a_cut_are_not_all_said(call: Call, tmp_path: Path) -> None:
    """Some, and how many more; JSON has them all."""
    path = tmp_path / "a.trace"
    messages = tuple(MessageId(Channel("P1", "P2"), number) for number in range(1, 31))
    steps = [Event("P1", sent=messages), Event("P2", accepted=messages)]
    tracefile.write(path, Trace(["P1", "P2"], steps))
    result = call("cuts", path, "--cut", "P2=1", "--json")
    assert result.stderr.splitlines()[-1] == "and 10 other messages: see --json"
    assert len(json.loads(result.stdout)["orphans"]) == 30
