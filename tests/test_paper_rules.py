"""Which rule of the papers in which module is shown by which test; every rule has one.

*C&L* is Chandy & Lamport 1985, *EWD 864a* Dijkstra 1983: their tests quote or retell a sentence.
*L&Y* is Lai & Yang 1987 and *Mattern* is Mattern 1993: their tests state the rule in our own words.
*Carbone* is Carbone et al. 2015: its tests begin with the section whose rule they retell.
What we add to the papers (giving up, deadlines, batches, counts in markers) is no rule of theirs
and has its tests beside the other tests of its module.
"""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PROTOCOL = TESTS.parent / "src" / "stillframe" / "protocol"
CITATION = re.compile(r"(C&L|EWD 864a|L&Y|Mattern)[ ,:]|4\.[23][ ,:]")

Rules = dict[str, tuple[str, ...]]
CL, EWD, COLOUR = "test_paper", "test_paper_ewd864a", "protocol/test_lai_yang"
CARBONE = "test_paper_carbone2015"

RULES: dict[str, Rules] = {
    "protocol/recorder.py": {
        "Marker-sending rule": (
            f"{CL}::test_marker_sending_rule",
            f"{CL}::test_a_process_sends_one_marker_on_each_channel",
        ),
        "Marker-receiving rule": (
            f"{CL}::test_marker_receiving_rule_when_the_state_is_not_recorded",
            f"{CL}::test_marker_receiving_rule_when_the_state_is_recorded",
        ),
        "a process may begin by itself, and so may several": (
            f"{CL}::test_termination_needs_a_path_from_an_initiator",
            f"{CL}::test_termination_on_a_strongly_connected_graph",
        ),
        "markers do not touch the application": (
            f"{CL}::test_the_marker_has_no_effect_on_the_underlying_computation",
        ),
        "channels keep order": (f"{CL}::test_the_channel_must_keep_order",),
        "what is on its way is recorded once": (
            f"{CL}::test_the_token_is_caught_in_the_channel",
            f"{CL}::test_there_are_never_two_tokens_nor_none",
        ),
        "no white action accepts a red message": (
            f"{EWD}::test_no_red_message_is_accepted_in_a_white_action",
        ),
    },
    "protocol/assembler.py": {
        "the parts make the global state when all are in": (
            f"{CL}::test_the_recorded_states_are_assembled_to_the_global_state",
        ),
        "the books balance": (f"{CL}::test_the_four_equations",),
    },
    "restore.py": {
        "a system may begin in the recorded state": (
            f"{CL}::test_a_system_that_begins_in_the_recorded_state_can_reach_the_same_end",
        )
    },
    "protocol/aligner.py": {
        "aligned": (
            f"{CARBONE}::test_sources_begin",
            f"{CARBONE}::test_a_barrier_blocks_its_input_until_all_have_come",
            f"{CARBONE}::test_all_barriers_make_the_snapshot",
            f"{CARBONE}::test_the_barrier_goes_out_before_the_inputs_are_released",
            f"{CARBONE}::test_only_states_are_in_the_snapshot",
            f"{CARBONE}::test_termination",
            f"{CARBONE}::test_feasibility",
            f"{CARBONE}::test_a_cycle_would_wait_for_ever",
        ),
        "unaligned": (
            f"{CARBONE}::test_what_is_on_a_cycle_belongs_to_the_snapshot",
            f"{CARBONE}::test_recovery_replays_what_was_logged",
        ),
        "at-least-once": (f"{CARBONE}::test_feasibility_is_lost_without_blocking",),
    },
    "protocol/equivalent.py": {
        "atomic actions accept and send on several channels": (
            f"{EWD}::test_an_action_accepts_and_sends_on_several_buffers_at_once",
        ),
        "nothing is accepted before it was sent": (f"{EWD}::test_buffers_have_no_clairvoyance",),
        "a red message in a white action forbids it": (
            f"{EWD}::test_only_where_no_white_action_accepts_a_red_message_the_colours_can_be_parted",
            "protocol/test_equivalent::test_a_red_message_accepted_in_a_white_action_is_named",
        ),
        "neighbours are interchanged, and each time one inversion goes": (
            f"{EWD}::test_neighbours_are_interchanged_until_no_inversion_is_left",
            "protocol/test_equivalent::test_each_interchange_takes_one_inversion_away",
            "protocol/test_equivalent::test_the_lectures_example_step_by_step",
            "protocol/test_equivalent::test_a_pair_that_does_not_commute_stops_the_interchanges",
        ),
        "the snapshot state is between the white actions and the red ones": (
            f"{EWD}::test_white_before_red_is_an_equivalent_computation",
            "protocol/test_equivalent::test_every_snapshot_lies_between_white_and_red",
        ),
        "the snapshot state need not have occurred, but could have": (
            f"{EWD}::test_there_need_not_be_a_moment_at_which_the_snapshot_state_occurred",
            f"{CL}::test_the_recorded_state_need_not_have_occurred",
            f"{CL}::test_the_recorded_state_can_be_reached_and_left",
        ),
    },
    "protocol/calls.py": {
        "Capture before accepting": (
            "protocol/test_calls::test_whatever_has_a_higher_colour_is_accepted_after_a_capture",
        ),
    },
    "protocol/lai_yang.py": {
        "Colouring": (f"{COLOUR}::test_a_message_has_the_colour_of_its_sender",),
        "Receiving": (
            f"{COLOUR}::test_a_white_process_records_its_state_before_it_accepts_a_red_message",
        ),
        "Channels": (
            f"{COLOUR}::test_a_channel_held_the_white_messages_that_a_red_process_accepts",
        ),
        "Counting": (
            f"{COLOUR}::test_a_channel_is_complete_when_as_many_white_messages_came_as_were_sent",
            f"{COLOUR}::test_the_marker_says_what_was_sent_at_the_cut",
        ),
    },
}
"""Module -> rule -> its tests. A rule that the module itself lists has its name there."""


def docstrings_of_tests(name: str) -> dict[str, str]:
    """Return the docstring of every test of a file."""
    tree = ast.parse((TESTS / f"{name}.py").read_text(encoding="utf-8"))
    functions = [item for item in tree.body if isinstance(item, ast.FunctionDef)]
    return {f.name: ast.get_docstring(f) or "" for f in functions if f.name.startswith("test_")}


@pytest.mark.parametrize(
    "test", sorted({test for rules in RULES.values() for tests in rules.values() for test in tests})
)
def test_every_rule_has_a_test_that_cites_its_source(test: str) -> None:
    """Each test of the table exists, and its docstring begins with the paper."""
    file, _, name = test.partition("::")
    docstrings = docstrings_of_tests(file)
    assert name in docstrings, "a rule has lost its test"
    assert CITATION.match(docstrings[name])


@pytest.mark.parametrize("file", [CL, EWD, CARBONE])
def test_every_paper_test_is_of_a_rule(file: str) -> None:
    """The table leaves no paper test out."""
    of_rules = {test for rules in RULES.values() for tests in rules.values() for test in tests}
    assert {f"{file}::{name}" for name in docstrings_of_tests(file)} <= of_rules


def test_every_rule_that_a_module_lists_is_in_the_table() -> None:
    """A rule is listed as ``* *Name.* ...`` at the top of its module; a new one needs a test."""
    listed = {}
    for path in sorted(PROTOCOL.glob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if names := set(re.findall(r"^\* \*([^*.]+)\.?\*", docstring, flags=re.MULTILINE)):
            listed[f"protocol/{path.name}"] = names
    assert listed.keys() >= {"protocol/recorder.py", "protocol/lai_yang.py"}
    for module, names in listed.items():
        assert names <= RULES[module].keys()
