"""``stillframe sim explore``: every interleaving of a small system."""

import json

import pytest

from stillframe.sim import StateView
from tests.cli.conftest import Call, rows_and_words

HERE = "tests.cli.systems_for_sim"
FIGURES = ("state_count", "history_count", "finished_count", "run_count")


def figures(document: dict[str, int]) -> tuple[int, ...]:
    """Return the four counts."""
    return tuple(document[name] for name in FIGURES)


def test_two_accounts_are_explored_by_default(call: Call) -> None:
    """Four figures, what always held and what was seen."""
    result = call("sim", "explore")
    assert result.exit_code == 0
    rows, words = rows_and_words(result.stdout)
    assert [(" ".join(name), count) for *name, count in rows] == [
        ("global states", "63"),
        ("histories", "103"),
        ("finished histories", "16"),
        ("runs", "102"),
    ]
    assert words == [
        "PASS: every invariant holds",
        "PASS: every cut is consistent",
        "PASS: every snapshot is published in the end",
        "seen: a channel held a message at the cut",
        "seen: the recorded state need not have occurred",
        "never seen: two snapshots were pending at once",
    ]


def test_as_json_there_are_the_same_figures(call: Call) -> None:
    """And the shortest run to what was seen."""
    result = call("sim", "explore", "--json")
    document = json.loads(result.stdout)
    assert (document["ok"], document["broken"]) == (True, {})
    assert figures(document) == (63, 103, 16, 102)
    assert document["seen"]["a channel held a message at the cut"]["run"] == [
        "P2 does pay",
        "P1 initiates P1-1",
        "deliver P1->P2",
        "deliver P2->P1",
        "deliver P2->P1",
    ]
    assert result.stderr == ""


def test_acts_say_how_much_happens(call: Call) -> None:
    """For the processes that are named; several times adds up."""
    document = json.loads(
        call("sim", "explore", "--acts", "P1=pay,pay", "--acts", "P2=pay", "--json").stdout
    )
    assert figures(document) == (153, 377, 50, 944)
    again = call(
        "sim", "explore", "--acts", "P1=pay", "--acts", "P2=pay", "--acts", "P1=pay", "--json"
    )
    assert figures(json.loads(again.stdout)) == (153, 377, 50, 944)
    silent = json.loads(call("sim", "explore", "--acts", "P1=", "--json").stdout)
    assert figures(silent) == (4, 4, 1, 1)


def test_two_initiators_make_two_snapshots(call: Call) -> None:
    """Of the same process, too; they overlap."""
    arguments = (
        "sim",
        "explore",
        "--initiator",
        "P1",
        "--initiator",
        "P2",
        "--acts",
        "P1=pay",
        "--json",
    )
    document = json.loads(call(*arguments).stdout)
    assert figures(document) == (95, 130, 16, 173)
    overlap = document["seen"]["two snapshots were pending at once"]
    assert overlap == {
        "what": "P1-1, P2-2 are pending",
        "run": ["P1 initiates P1-1", "P2 initiates P2-2"],
    }
    twice = ("sim", "explore", "--initiator", "P1", "--initiator", "P1", "--acts", "P1=", "--json")
    document = json.loads(call(*twice).stdout)
    assert document["ok"] is True
    assert "two snapshots were pending at once" in document["seen"]


def test_where_order_is_not_kept_markers_are_a_no_with_the_shortest_run(call: Call) -> None:
    """Exit 1: the inconsistent cut, and choice by choice how to get there."""
    result = call("sim", "explore", "--network", "reordering")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    begin = lines.index("FAIL: every cut is consistent")
    assert lines[begin + 1].startswith("  the cut of snapshot P1-1 is not consistent: message P1")
    assert lines[begin + 2 : begin + 7] == [
        "  the shortest run to it:",
        "    P1 initiates P1-1",
        "    P1 does pay",
        "    deliver P1->P2 at 1",
        "    deliver P1->P2",
    ]
    as_json = call("sim", "explore", "--network", "reordering", "--json")
    assert as_json.exit_code == 1
    document = json.loads(as_json.stdout)
    assert document["ok"] is False
    assert document["broken"]["every cut is consistent"]["run"][2] == "deliver P1->P2 at 1"


def test_where_order_is_not_kept_colours_are_a_yes(call: Call) -> None:
    """Lai and Yang's rules do not need it."""
    result = call("sim", "explore", "--network", "reordering", "--rules", "lai-yang")
    assert result.exit_code == 0
    assert "PASS: every cut is consistent\n" in result.stdout
    assert "no:" not in result.stdout


def test_where_messages_are_lost_a_snapshot_may_never_end(call: Call) -> None:
    """Exit 1, and only that promise is broken."""
    result = call("sim", "explore", "--network", "lossy", "--json")
    assert result.exit_code == 1
    broken = json.loads(result.stdout)["broken"]
    assert broken == {
        "every snapshot is published in the end": {
            "what": "snapshot P1-1: it never ends",
            "run": ["P1 initiates P1-1", "lose P1->P2"],
        }
    }


@pytest.mark.parametrize("first", ["P1", "P2"])
def test_on_a_chain_as_many_initiate_as_it_takes(call: Call, first: str) -> None:
    """From its end, too: the search ends, and every snapshot is published."""
    result = call("sim", "explore", f"{HERE}:chain", "--initiator", first, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["broken"] == {}


def test_a_system_of_ones_own_does_each_action_once(call: Call) -> None:
    """As two accounts do that each pay once."""
    document = json.loads(call("sim", "explore", f"{HERE}:talkers", "--json").stdout)
    assert figures(document)[1:] == (103, 16, 102)


def test_a_handler_that_depends_on_chance_is_a_no(call: Call) -> None:
    """The shortest run is one action and its message."""
    result = call("sim", "explore", f"{HERE}:dicey")
    assert result.exit_code == 1
    assert "FAIL: every invariant holds\n" in result.stdout
    assert "    P1 does talk\n    deliver P1->P2\n" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--most", "102"], "there are more than 102 histories: reduce the actions, or raise the"),
        (["--most", "0"], "Invalid value for '--most'"),
        (["--acts", "P1"], "--acts 'P1': write PROCESS=ACTION,ACTION with actions of P1: pay"),
        (["--acts", "P1=fly"], "--acts 'P1=fly': write PROCESS=ACTION,ACTION with actions of P1"),
        (["--acts", "P1=pay,send"], "with actions of P1: pay"),
        (["--acts", "P1=pay("], "--acts 'P1=pay(': write PROCESS=ACTION,ACTION"),
        (["--acts", "P9=pay"], "there is no process 'P9'; there are P1, P2"),
        (["--acts", "\x1b[31m=pay"], "there is no process '\\x1b[31m'"),
        (["--initiator", "P9"], "there is no process 'P9'; there are P1, P2"),
        (["nosuch:x"], "there is no module 'nosuch' here"),
        (["lecture"], "'lecture' does not name a topology: write MODULE:TOPOLOGY"),
        ([f"{HERE}:broken"], "receive() raised ValueError: \\x1b[31mno on Note("),
    ],
)
def test_wrong_arguments_say_what_is_right(call: Call, arguments: list[str], says: str) -> None:
    """Exit 2 and a sentence, in which nothing writes on the terminal."""
    result = call("sim", "explore", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in " ".join(result.stderr.split())
    assert "\x1b" not in result.stderr


def test_a_process_that_draws_from_chance_cannot_be_explored(call: Call) -> None:
    """Done again it does something else: that is said, with what to do."""
    result = call("sim", "explore", "tests.cli.systems_for_sim:erratic", "--acts", "P1=talk")
    assert result.exit_code == 2
    assert "repeated, the same choices had another result" in result.stderr
    assert "take random numbers from a recorded field" in result.stderr


def nobody_is_rich(state: StateView) -> bool:
    """Return whether P1 has no more than at first."""
    return bool(state.processes["P1"].balance <= 100)


def both_have_paid(state: StateView) -> bool:
    """Return whether there is something on both channels."""
    return len([*state.in_transit()]) == 2


def test_conditions_of_ones_own_are_checked_in_every_state(call: Call) -> None:
    """A broken invariant is a no, with the shortest run; a predicate is seen or not."""
    rich, paid = f"{__name__}:nobody_is_rich", f"{__name__}:both_have_paid"
    options = ("sim", "explore", "--invariant", rich, "--predicate", paid)
    result = call(*options)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert f"seen: {paid}" in lines
    assert lines[lines.index(f"FAIL: {rich}") :][:5] == [
        f"FAIL: {rich}",
        f"  {rich}: it does not hold",
        "  the shortest run to it:",
        "    P2 does pay",
        "    deliver P2->P1",
    ]
    document = json.loads(call(*options, "--json").stdout)
    assert [*document["broken"]] == [rich]
    assert document["seen"][paid]["run"] == ["P1 does pay", "P2 does pay"]
    wrong = call("sim", "explore", "--invariant", "nowhere_at_all:x")
    assert wrong.exit_code == 2
    assert "there is no module 'nowhere_at_all' here" in wrong.stderr


def test_acts_may_have_arguments(call: Call) -> None:
    """As in a script; what a process has no action for is refused all the same."""
    two = call("sim", "explore", f"{HERE}:lenders", "--acts", "P1=lend(2,3),lend", "--json")
    assert json.loads(two.stdout)["ok"] is True
    wrong = call("sim", "explore", f"{HERE}:lenders", "--acts", "P1=borrow(2)")
    assert "write PROCESS=ACTION,ACTION with actions of P1: lend" in wrong.stderr
