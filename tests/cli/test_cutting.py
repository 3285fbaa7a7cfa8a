"""``stillframe trace cuts``: how many there are, where a predicate holds, what breaks one, and what
happened before an event."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stillframe import tracefile
from stillframe.cli import trace as trace_commands
from stillframe.cuts import CutView
from stillframe.model import Channel, SnapshotId
from stillframe.trace import Event, MarkerStep, MessageId, Step, Trace
from tests.cli.conftest import Call, rows_and_words

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
    result = call("trace", "cuts", trace, "--cut", "P1=1")
    assert result.exit_code == 0
    assert rows_and_words(result.stdout) == (
        [["P1", "1", "2"], ["P2", "0", "1"]],
        ["in transit on P1->P2: 1 message", "yes: the cut is consistent"],
    )
    assert json.loads(call("trace", "cuts", trace, "--cut", "P1=2, P2=1", "--json").stdout) == {
        "version": 2,
        "is_consistent": True,
        "cut": {"P1": 2, "P2": 1},
        "in_transit": {"P1->P2": 1},
        "is_in_transit_exact": True,
        "orphans": [],
    }


def test_of_messages_that_clocks_imply_at_least_so_many_are_in_transit(
    call: Call, tmp_path: Path
) -> None:
    """A message that taught its receiver nothing is in no clock: no count is presented as exact."""
    log, trace = tmp_path / "a.log", tmp_path / "a.trace"
    log.write_text('ask\na {"a":1}\nanswer\nb {"a":1, "b":1}\n', encoding="utf-8")
    assert call("trace", "import", log, "--out", trace).exit_code == 0
    result = call("trace", "cuts", trace, "--cut", "a=1")
    assert rows_and_words(result.stdout)[1] == [
        "in transit on a->b: at least 1 message",
        "yes: the cut is consistent",
    ]
    assert result.stderr == (
        "the log does not state messages, and its clocks do not show those that taught their "
        "receivers nothing: more may be in transit\n"
    )
    assert "at least 1" in call("trace", "cuts", trace).stdout
    answer = json.loads(call("trace", "cuts", trace, "--json").stdout)
    assert answer["is_message_count_exact"] is False
    document = json.loads(call("trace", "cuts", trace, "--cut", "a=1", "--json").stdout)
    assert document["is_in_transit_exact"] is False
    result = call("view", trace, "--cut", "a=1", "--out", tmp_path / "a.svg")
    assert "cut: consistent, with at least 1 message in transit" in result.stdout.splitlines()
    picture = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "channel a-&gt;b: at least ask→answer" in picture
    assert call("view", trace, "--cut", "a=0", "--out", tmp_path / "a.svg").exit_code == 0
    result = call("trace", "cuts", trace, "--where", f"{__name__}:never")
    assert "more may be in transit" in result.stderr
    assert "1 channel with nothing known" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_an_inconsistent_cut_is_a_no_with_the_message_that_breaks_it(
    call: Call, trace: Path
) -> None:
    """Exit 1; where the message is accepted and where it is sent."""
    result = call("trace", "cuts", trace, "--cut", "P2=1", "--json")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "no: the cut P1=0, P2=1 is not consistent: message P1->P2 #1 is accepted inside, in event "
        "P2#1 (answer), but sent outside, in event P1#1 (ask);"
    )
    answer = json.loads(result.stdout)
    assert answer["is_consistent"] is False
    assert answer["orphans"] == [{"channel": "P1->P2", "number": 1}]


def test_a_snapshot_along_an_inconsistent_cut_cannot_be_proved(call: Call, tmp_path: Path) -> None:
    """P1 asks after its cut, and P2 answers before its own."""
    snapshot, path = SnapshotId("P1", 1), tmp_path / "a.trace"
    steps: list[Step] = [
        MarkerStep("P1", snapshot, is_cut=True, targets=("P2",)),
        Event("P1", "ask", sent=(ASKED,)),
        Event("P2", "answer", accepted=(ASKED,)),
        MarkerStep("P2", snapshot, source="P1", is_cut=True),
    ]
    tracefile.write(path, Trace(["P1", "P2"], steps))
    result = call("trace", "cuts", path, "--prove", "P1-1", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["is_consistent"] is False
    assert "FAIL: snapshot P1-1: " in result.stderr
    assert (
        "message P1->P2 #1 is red: P1 sent it in event P1#1 (ask), after its cut" in result.stderr
    )


def test_the_smallest_cut_with_an_event_is_its_past(call: Call, trace: Path) -> None:
    """What happened before an event, itself with it, is the least consistent cut that has it."""
    result = call("trace", "cuts", trace, "--before", "P2#1", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "version": 2,
        "event": "P2#1",
        "cut": {"P1": 1, "P2": 1},
        "in_transit": {"P2->P1": 1},
        "is_in_transit_exact": True,
    }
    assert result.stderr == "done: 1 event happened before P2#1\n"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--cut", "P1=1", "--before", "P1#1"),
            "ask one question at a time: --cut, --before, --where",
        ),
        (("--cut", "P1"), "'P1' is not part of a cut"),
        (("--cut", "P1=1,P1=2"), "'P1=2' is not part of a cut"),
        (("--cut", "P9=1"), "the trace has no process 'P9': it has P1, P2"),
        (("--cut", "P1=3"), "no cut has 3 events of P1, which has 2"),
        (("--before", "P1"), "'P1' is not an event, such as P2#7"),
        (("--before", "P1#9"), "there is no event P1#9: process P1 has 2"),
        (("--where", "answered"), "'answered' does not name a predicate: write MODULE:FUNCTION"),
        (("--where", "nowhere_at_all:x"), "there is no module 'nowhere_at_all' here"),
        (("--where", "json:nothing"), "json has no function 'nothing'"),
        (
            ("--where", f"{__name__}:wrong"),
            "the predicate raised KeyError: 'x', evaluated at the cut {'P1': 0, 'P2': 0}",
        ),
        (("--where", f"{__name__}:leaving"), "the predicate raised SystemExit: 0, evaluated at"),
        (
            ("--where", f"{__name__}:later"),
            "a coroutine, evaluated at the cut {'P1': 0, 'P2': 0}: ret",
        ),
        (("--where", f"{__name__}:yielding"), "a generator, evaluated at"),
        (("--where", f"{__name__}:saying_no"), "the predicate returned 'no', a str, evaluated at"),
        (("--where", f"{__name__}:saying_nothing"), "the predicate returned None, a NoneType, ev"),
        (("--where", f"{__name__}:saying_one"), "the predicate returned 1, a int, evaluated at"),
    ],
)
def test_a_wrong_question_says_why(
    call: Call, trace: Path, options: tuple[str, ...], sentence: str
) -> None:
    """Exit 2 and a sentence."""
    result = call("trace", "cuts", trace, *options)
    assert result.exit_code == 2
    assert sentence in result.stderr


def answered(view: CutView) -> bool:
    """Return whether P2 has answered, and P1 has not heard."""
    return len(view.events("P2")) == 1 and len(view.events("P1")) == 1


def alone(view: CutView) -> bool:
    """Return whether P1 waits for what it asked."""
    return len(view.events("P1")) == 1 and view.last("P3") is None


def never(view: CutView) -> bool:
    """Return false."""
    return False


def wrong(view: CutView) -> bool:
    """Fail."""
    raise KeyError("x")


def leaving(view: CutView) -> bool:
    """Try to end the program."""
    raise SystemExit(0)


async def later(view: CutView) -> bool:
    """Return false, but not at once."""
    return False


def yielding(view: CutView) -> Iterator[bool]:
    """Return what is always true."""
    yield False


def saying_no(view: CutView) -> str:
    """Return what counts as true."""
    return "no"


def saying_nothing(view: CutView) -> None:
    """Return nothing."""


def saying_one(view: CutView) -> int:
    """Return a number."""
    return 1


def printing(view: CutView) -> bool:
    """Print."""
    sys.stdout.write(f"asked {view.cut}\n")
    return True


def test_what_a_predicate_prints_is_no_data(call: Call, trace: Path) -> None:
    """It goes to stderr."""
    result = call("trace", "cuts", trace, "--where", f"{__name__}:printing", "--json")
    assert json.loads(result.stdout)["holding_count"] == 4
    assert "asked (0, 0)\n" in result.stderr


def test_a_predicate_is_counted(call: Call, trace: Path) -> None:
    """In how many cuts it holds, the first of them, and whether it held whatever the order was."""
    result = call("trace", "cuts", trace, "--where", f"{__name__}:answered", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "version": 2,
        "consistent_cut_count": 4,
        "holding_count": 1,
        "possibly": True,
        "definitely": True,
        "first": {
            "cut": {"P1": 1, "P2": 1},
            "in_transit": {"P2->P1": 1},
            "is_in_transit_exact": True,
        },
    }
    assert result.stderr.startswith("yes: it holds in 1 of 4 consistent cuts")
    assert "definitely: whatever the order was" in result.stderr


def test_a_predicate_may_hold_in_some_orders_only(call: Call, tmp_path: Path) -> None:
    """Two that never talk: one can be first, but need not."""
    path = tmp_path / "a.trace"
    tracefile.write(path, Trace(["P1", "P3"], [Event("P1"), Event("P3")]))
    result = call("trace", "cuts", path, "--where", f"{__name__}:alone")
    assert result.exit_code == 0
    assert "it holds in 1 of 4 consistent cuts" in result.stdout
    assert "possibly: in some orders of the events it never held" in result.stdout


def test_a_predicate_that_never_holds_is_a_no(call: Call, trace: Path) -> None:
    """Exit 1, for people and as JSON."""
    result = call("trace", "cuts", trace, "--where", f"{__name__}:never", "--json")
    assert result.exit_code == 1
    assert result.stderr == "no: it holds in none of 4 consistent cuts\n"
    answer = json.loads(result.stdout)
    assert (answer["possibly"], answer["definitely"], answer["first"]) == (False, False, None)


def test_cuts_are_counted_up_to_a_bound(
    call: Call, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly, or how many there are at least, and the option that counts more."""
    exact = call("trace", "cuts", trace)
    assert (exact.stdout.splitlines()[-1].split(), exact.stderr) == (["2", "3", "3", "4"], "")
    bounded = call("trace", "cuts", trace, "--steps", "1")
    assert bounded.stdout.splitlines()[-1].split() == ["2", "3", "3", "at", "least", "2"]
    assert bounded.stderr == "counting stopped at its limit of 1 step: raise it with --steps\n"
    answer = json.loads(call("trace", "cuts", trace, "--steps", "1", "--json").stdout)
    assert (answer["consistent_cut_count"], answer["consistent_cut_count_min"]) == (None, 2)
    monkeypatch.setattr(trace_commands, "COUNTED_MAX", 3)
    answer = json.loads(call("trace", "cuts", trace, "--json").stdout)
    assert (answer["consistent_cut_count"], answer["consistent_cut_count_min"]) == (None, 3)


def test_too_many_cuts_are_not_asked_at(
    call: Call, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than never to end, it says so."""
    monkeypatch.setattr(trace_commands, "SEARCHED_MAX", 3)
    result = call("trace", "cuts", trace, "--where", f"{__name__}:never")
    assert result.exit_code == 2
    assert "more than 3 consistent cuts, too many to evaluate" in result.stderr
