"""Golden runs: what happens is what the file says; and what a .run file can and cannot say."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.errors import StillframeError, UsageError
from stillframe.model import Abandoned, Reason, SnapshotId
from stillframe.sim.checker import check_run
from stillframe.sim.choices import Act
from stillframe.sim.scenario import FILE_CHARACTER_MAX, Played, play_text
from stillframe.sim.world import deliverable
from tests.sim.reading import holds, not_empty

ROOT = Path(__file__).parent.parent.parent
INCLUDED = ROOT / "src" / "stillframe" / "sim" / "runs"
OWN = Path(__file__).parent / "runs"
GOLDEN = sorted([*INCLUDED.glob("*.run"), *OWN.glob("*.run")])
SYSTEM = "system\nP1: A B\nP2: C D\nmessages: B>C\n"
"""Lines 1 to 4 of the scripts below; line 5 is empty."""


def played(path: Path) -> Played:
    """Play a file."""
    return play_text(path.read_text(encoding="utf-8"))


def played_or_refused(text: str) -> Played | str:
    """Play a text; return why not if it is refused."""
    try:
        return play_text(text)
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_run_happens_as_it_is_written(path: Path) -> None:
    """Every block has its outcome, what happens is exactly that, and no promise is broken."""
    run = played(path)
    assert run.text() == path.read_text(encoding="utf-8")
    assert [block.line for block in run.blocks if block.expected is None] == []
    assert run.differing == ()
    assert check_run(run.world) is None


def test_the_golden_runs_are_all_there() -> None:
    """Those that come with stillframe, and more of our own: none gets lost unseen."""
    assert len(GOLDEN) == len(list(INCLUDED.iterdir())) + len(list(OWN.iterdir()))
    assert {"lecture", "lecture-ticks", "never-occurred", "token"} <= {p.stem for p in GOLDEN}


@pytest.mark.parametrize("name", ["lecture", "lecture-ticks"])
def test_the_lecture_example_gives_the_lecture_result(name: str) -> None:
    """P1 {A, B}, P2 {F, G, H}, P3 {I}; H>D on P2->P1, and the five other channels empty."""
    done, channels = holds(played(INCLUDED / f"{name}.run").world, "P1-1")
    assert done == {"P1": ["A", "B"], "P2": ["F", "G", "H"], "P3": ["I"]}
    assert channels == {
        "P1->P2": [],
        "P1->P3": [],
        "P2->P1": ["H>D"],
        "P2->P3": [],
        "P3->P1": [],
        "P3->P2": [],
    }


def test_the_recorded_state_of_never_occurred_never_occurred() -> None:
    """Chandy & Lamport 1985, section 4: the cut is consistent, but the system passed it by."""
    run = played(INCLUDED / "never-occurred.run")
    world = run.world
    trace = world.epoch.trace(world.description)
    cut = trace.cut_of(SnapshotId("p", 1))
    counts = dict.fromkeys(trace.processes, 0)
    passed = [tuple(counts.values())]
    for position, _ in trace.positions():
        counts[position.process] += 1
        passed.append(tuple(counts.values()))
    assert trace.is_consistent(cut)
    assert cut not in passed
    assert len(passed) == 5
    assert holds(world, "p-1") == ({"p": [], "q": ["M'"]}, {"p->q": [], "q->p": ["M'>takesM'"]})


def test_the_token_is_in_the_channel_alone() -> None:
    """Chandy & Lamport 1985, example 2.1: p has passed it, q has not received it."""
    assert holds(played(INCLUDED / "token.run").world, "q-1") == (
        {"p": ["passes"], "q": []},
        {"p->q": ["passes>receives"], "q->p": []},
    )


def test_after_the_deadlock_nothing_can_happen() -> None:
    """No channel holds anything, and no process has an action of its own left to take."""
    run = played(INCLUDED / "deadlock.run")
    done, channels = holds(run.world, "P1-1")
    assert done == {"P1": ["asks"], "P2": ["begs"]}
    assert channels == {"P1->P2": [], "P2->P1": []}
    assert deliverable(run.world) == []
    for process, runner in run.world.runners.items():
        assert runner.actions
        for action in runner.actions:
            with pytest.raises(UsageError, match=f"{process} cannot do {action} now"):
                run.world.take(Act(process, action))


def test_two_initiators_record_different_channels() -> None:
    """The message of A is in the channel for P2-2, and not yet sent for P1-1."""
    run = played(INCLUDED / "two-initiators.run")
    assert holds(run.world, "P1-1") == ({"P1": [], "P2": []}, {"P1->P2": [], "P2->P1": []})
    assert holds(run.world, "P2-2") == ({"P1": ["A"], "P2": []}, {"P1->P2": ["A>C"], "P2->P1": []})


@pytest.mark.parametrize(
    ("name", "snapshot", "expected"),
    [
        ("overlapping", "P1-1", {}),
        ("overlapping", "P2-2", {"P1->P2": ["A>D"]}),
        ("overlapping", "P3-3", {"P2->P3": ["B>E"]}),
        ("chain", "P2-1", {"P1->P2": ["A>C"]}),
        ("long-channel", "P2-1", {"P1->P2": ["B>W", "C>X", "D>Y"]}),
        ("lost-connection", "P1-1", {}),
        (
            "joint",
            "P1-1",
            {"P1->P4": ["A>G"], "P2->P4": ["B>G"], "P3->P1": ["C>E"], "P3->P2": ["C>F"]},
        ),
        ("overtaking", "P1-1", {"P1->P2": ["slow(1)>gets"]}),
        ("star", "hub-1", {"P2->hub": ["B>gotB"], "P3->hub": ["C>gotC"]}),
        ("slow-marker-ticks", "P1-1", {"P2->P1": ["B>C"]}),
    ],
)
def test_a_golden_run_keeps_what_its_comment_says(
    name: str, snapshot: str, expected: dict[str, list[str]]
) -> None:
    """The channels that hold something, message by message, in order."""
    assert not_empty(holds(played(OWN / f"{name}.run").world, snapshot)) == expected


def test_a_restart_receives_again_what_was_on_the_channels() -> None:
    """The new epoch begins with the states of the snapshot, then its messages, in order."""
    world = played(OWN / "crash.run").world
    start = world.epoch.start
    assert start is not None
    assert (world.epoch.number, str(start.id)) == (2, "P2-1")
    assert [event.label for event in world.epoch.trace(world.description).lines["P2"]] == [
        "restored",
        "X",
        "Y",
        "Z",
    ]


def test_an_abandoned_snapshot_names_who_was_missing() -> None:
    """By the deadline no part was complete; the late markers did not change that."""
    outcomes = played(OWN / "abandoned.run").world.epoch.outcomes
    outcome = outcomes[SnapshotId("P1", 1)]
    assert isinstance(outcome, Abandoned)
    assert (outcome.reason, outcome.missing) == (Reason.DEADLINE, ("P1", "P2", "P3"))


def test_a_rewritten_file_keeps_its_comments_and_is_a_fixed_point() -> None:
    """Comments above, between and in commands, blank lines in them, and the last ones stay; blocks
    without an outcome get one; played again, it says the same."""
    text = (
        "# first\n\n  # second\nsystem\n# about P1\nP1: A\nP2: C\nmessages: A>C\n\n\n\n"
        "# third\n#\nP1 does A\nawaited\n\n# the\n\n# end\n"
    )
    run = play_text(text)
    assert run.differing == ()
    assert run.text() == (
        "# first\n\n  # second\nsystem\n# about P1\nP1: A\nP2: C\nmessages: A>C\n"
        "----\n2 processes, 2 channels, 1 message\n\n"
        "# third\n#\nP1 does A\nawaited\n----\nP1 does A; sends A>C to P2\nP1 has done all\n"
        "P2 waits for A>C from P1 to do C\n1 messages and markers are on their way\n\n"
        "# the\n\n# end\n"
    )
    again = play_text(run.text())
    assert again.text() == run.text()
    assert again.blocks[1].expected == again.happened[1]


def test_what_differs_is_found_by_its_block() -> None:
    """A wrong outcome is one, an outcome that is not there is none."""
    run = play_text(f"{SYSTEM}\nP1 does A\n----\nP1 does B\n\nP1 does B\n")
    assert run.differing == (1,)
    assert run.happened[1:] == (("P1 does A",), ("P1 does B; sends B>C to P2",))


def test_what_is_on_its_way_before_a_block_of_ticks_arrives_in_it() -> None:
    """In the order of sending, also in front of what the block sends itself."""
    run = play_text(
        "system\nP1: A B\nP2: C D\nmessages: A>C B>D\n\nP1 does A\n\nticks\n0 P1 does B\n"
    )
    assert run.happened[2] == (
        "   0  P1 does B; sends B>D to P2",
        "   1  P2 accepts A>C from P1: does C",
        "   1  P2 accepts B>D from P1: does D",
    )


def test_what_has_arrived_before_a_block_of_ticks_does_not_arrive_again() -> None:
    """Only what is on its way takes a delay."""
    run = play_text(
        "system\nP1: A B\nP2: C D\nmessages: A>C B>D\n\nP1 does A\ndeliver P1->P2\n\n"
        "ticks\ndelays 7\n1 P1 does B\n"
    )
    assert run.happened[2] == (
        "   1  P1 does B; sends B>D to P2",
        "   8  P2 accepts B>D from P1: does D",
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the file is empty: begin with a block 'system'"),
        ("# only words\n", "the file is empty"),
        ("P1 does A\n", "line 1: the first block must begin with 'system'"),
        ("\n\n----\nx\n", "line 3: there is no command above '----': write at least one"),
        ("system\n", "line 1: a script has no process: write a line"),
        ("system\nP1: A\x1b[31m\n", "line 2: '\\x1b' cannot be in a .run file: remove it"),
        ("# \u2028.\nsystem\n", "line 1: '\\u2028' cannot be in a .run file"),
        (f"{SYSTEM}\nP1 flies\n", "line 6: 'P1 flies' is not a choice; choices are"),
        (f"{SYSTEM}\nP1 does\n", "line 6: 'P1 does' is not a choice"),
        (f"{SYSTEM}\nP1 does A\n# -\nP1 does X\n", "line 8: P1 does X: P1 has no action 'X'; it"),
        (f"{SYSTEM}\nP1 does send\n", "line 6: P1 does send: P1 has no action 'send'"),
        (f"{SYSTEM}\nP1 does __init__\n", "line 6: P1 does __init__: P1 has no action"),
        (f"{SYSTEM}\nP9 does A\n", "line 6: P9 does A: there is no process 'P9'; there are P1, P2"),
        (
            f"{SYSTEM}\nP1 does B\n",
            "line 6: process P1 cannot do B now: it did nothing so far, and",
        ),
        (f"{SYSTEM}\nP2 does C\n", "line 6: P2 does C: P2 has no action 'C'; it has D"),
        (f"{SYSTEM}\ndeliver P1->P2\n", "line 6: deliver P1->P2: 0 messages and markers are on P1"),
        (f"{SYSTEM}\ndeliver P1->P9\n", "line 6: deliver P1->P9: there is no channel P1->P9"),
        (f"{SYSTEM}\ndeliver P1->P2 at 1\n", "line 6: deliver P1->P2 at 1: 0 messages and markers"),
        (f"{SYSTEM}\nlose P1->P2\n", "line 6: lose P1->P2: 0 messages and markers are on P1->P2"),
        (f"{SYSTEM}\nP1 initiates P9-1\n", "line 6: there is no process 'P9'; there are P1, P2"),
        (f"{SYSTEM}\nP1 initiates 1\n", "line 6: '1' is not a snapshot id, which looks like P1-17"),
        (f"{SYSTEM}\nP1 hears that P1-1 is over\n", "line 6: P1 hears that P1-1 is over: snapshot"),
        (
            f"{SYSTEM}\nconnect P1->P2\n",
            "line 6: connect P1->P2: the connection of P1->P2 is already open",
        ),
        (f"{SYSTEM}\nP1 crashes\nP1 does A\n", "line 7: P1 does A: process P1 has crashed"),
        (f"{SYSTEM}\npartition P9\n", "line 6: partition P9: there is no process 'P9'"),
        (
            "system\nP1: A\nP2: B\nP3: C\nmessages: A>C B>C\n\nP1 does A\ndeliver P1->P3\n",
            (
                "line 8: deliver P1->P3: the next messages there are accepted in one event: "
                "deliver P1->P3,"
            ),
        ),
    ],
)
def test_what_cannot_be_played_is_named_with_its_line(text: str, sentence: str) -> None:
    """The line, what is wrong, and what to do."""
    with pytest.raises(UsageError) as caught:
        play_text(text)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("P1 does A", "line 7: 'P1 does A': write 'TICK CHOICE', 'delays N N ...', 'B>F takes N'"),
        ("0 deliver P1->P2", "line 7: '0 deliver P1->P2': at a tick a process acts or initiates"),
        ("12345678 P1 does A", "line 7: '12345678 P1 does A': write 'TICK CHOICE'"),
        ("9999999 P1 does A", "line 7: tick 9999999: P1 does A: ticks are 0 to 1,000,000"),
        ("delays 1 x", "line 7: 'delays 1 x': 'x' is not a number of ticks"),
        ("delays 1 -1", "line 7: 'delays 1 -1': '-1' is not a number of ticks"),
        ("delays 12345678", "line 7: 'delays 12345678': '12345678' is not a number of ticks"),
        ("delays \u00b2", "line 7: 'delays \u00b2': '\u00b2' is not a number of ticks"),
        ("B>C takes", "line 7: 'B>C takes': write 'TICK CHOICE'"),
        ("B>C takes 9999999\n0 P1 does A\n1 P1 does B", "line 7: 'B>C takes 9999999': '9999999'"),
        (
            "B>X takes 5\n0 P1 does A",
            "line 7: 'B>X takes 5': nothing of that name was sent in this",
        ),
        ("marker P1->P2 takes 4", "line 7: 'marker P1->P2 takes 4': nothing of that name"),
        ("3 P1 does A\n\n\n", ""),
        (
            "3 P1 does A\n2 P1 does B",
            "line 8: tick 2: P1 does B: ticks are 0 to 1,000,000 and must",
        ),
        ("3 P1 does B", "line 7: tick 3: process P1 cannot do B now: it did nothing so far"),
        ("3 P1 does C", "line 7: tick 3: P1 does C: P1 has no action 'C'"),
        ("1 P1 flies", "line 7: 'P1 flies' is not a choice"),
    ],
)
def test_what_is_wrong_in_ticks_is_named_with_its_line(lines: str, sentence: str) -> None:
    """The line of the command, and the tick if it fails there."""
    text = f"{SYSTEM}\nticks\n{lines}\n"
    if not sentence:
        assert play_text(text).happened[1] == ("   3  P1 does A",)
        return
    with pytest.raises(UsageError) as caught:
        play_text(text)
    assert str(caught.value).startswith(sentence)


def test_an_arrival_that_fails_names_the_line_of_the_action_that_led_to_it() -> None:
    """C is accepted too early, and was sent by B: with its tick, in which no action is taken."""
    script = "system\nP1: A B X\nP2: D C\nmessages: B>C\n"
    text = f"{script}\nticks\n# first\n0 P1 does A\n2 P1 does B\n\n"
    with pytest.raises(
        UsageError, match=r"^line 9: tick 3: process P2 cannot do C now: it did not"
    ):
        play_text(text)


def test_the_line_of_a_mistake_in_the_system_is_named() -> None:
    """Comments and empty lines are counted."""
    with pytest.raises(UsageError, match=r"^line 6: 'A-C' is not a message"):
        play_text("# first\n\nsystem\n# P1\nP1: A B\nmessages: A-C\nP2: C\n")


def test_ticks_need_every_connection() -> None:
    """A lost one must be mended first: nothing would ever arrive on it."""
    with pytest.raises(UsageError, match=r"^line 8: the connection of P1->P2 is lost: .*'connect'"):
        play_text(f"{SYSTEM}\nbreak P1->P2\n\nticks\n0 P1 does A\n")


def test_a_file_that_is_too_long_is_refused_at_once() -> None:
    """A million characters are the most."""
    with pytest.raises(UsageError, match=r"a \.run file has at most 1,000,000 characters"):
        play_text("#" * (FILE_CHARACTER_MAX + 1))


HOSTILE = {
    "one line": "system\nP1: " + "A" * 900_000,
    "many processes": "system\n" + "".join(f"P{i}:\n" for i in range(90_000)),
    "many events": "system\nP1: " + " ".join(f"E{i}" for i in range(100_000)),
    "many messages": "system\nP1: A\nP2: B\nmessages:" + " A>B" * 200_000,
    "a long delivery": SYSTEM + "\ndeliver " + "P1->P2," * 100_000,
    "a long partition": SYSTEM + "\npartition " + "P1 " * 200_000 + "!",
    "a long name": SYSTEM + "\nP1 does " + "A" * 900_000,
    "a long number": SYSTEM + "\ndeliver P1->P2 at " + "9" * 900_000,
    "a long snapshot": SYSTEM + "\nP1 initiates P1-" + "9" * 900_000,
    "many channels": "system\nP1: A\nP2: B\nchannels: " + "P1->P2-" * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_quickly(name: str) -> None:
    """With an error of ours, and no text that is as long as the file."""
    begin = time.process_time()
    with pytest.raises(StillframeError) as caught:
        play_text(HOSTILE[name])
    assert time.process_time() - begin < 2.0
    assert len(str(caught.value)) < 1100


COMMANDS = [
    "P1 does A",
    "P1 does B",
    "P2 does D",
    "P1 initiates P1-1",
    "P2 initiates P2-2",
    "deliver P1->P2",
    "deliver P2->P1",
    "double P1->P2",
    "break P1->P2",
    "connect P1->P2",
    "P2 crashes",
    "restart",
    "expire",
    "partition P1",
    "heal",
    "awaited",
    "ticks",
    "0 P1 does A",
    "----",
    "# why",
    "",
]


@given(st.lists(st.sampled_from(COMMANDS), max_size=12))
def test_whatever_is_played_is_a_fixed_point(lines: list[str]) -> None:
    """A file either is refused with its line, or its rewritten text gives the same text again."""
    text = SYSTEM + "\n" + "\n".join(lines)
    run = played_or_refused(text)
    if isinstance(run, str):
        assert run.startswith("line ")
        return
    again = play_text(run.text())
    assert again.text() == run.text()
    assert again.differing == ()
    assert [b.commands for b in again.blocks] == [b.commands for b in run.blocks]


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_any_text_is_played_or_refused(text: str) -> None:
    """Never another error than ours."""
    for tried in (text, SYSTEM + "\n" + text):
        run = played_or_refused(tried)
        assert run if isinstance(run, str) else run.blocks
