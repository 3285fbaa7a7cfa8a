"""``stillframe sim``: seeds, one seed step by step, and scripts."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from stillframe import tracefile
from stillframe.cli.sim import parse_seeds
from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.protocol.lai_yang import LaiYangRecorder
from stillframe.sim import campaign
from stillframe.sim.campaign import COVERAGE, RunConfig, Tally
from stillframe.sim.network import Network
from stillframe.sim.scripted_process import RULES
from tests.cli.conftest import Call, rows_and_words
from tests.shapes import same_shape

HERE = "tests.cli.systems_for_sim"
RIGHT = """\
# A small one.
system
P1: A
P2: B
messages: A>B
----
2 processes, 2 channels, 1 message

P1 does A
P1 initiates P1-1
----
P1 does A; sends A>B to P2
P1 initiates P1-1: records its state {A}; sends a marker to P2; records P2->P1 from now on
"""
WRONG = RIGHT.replace("sends A>B to P2", "sends nothing")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that says something else than what happens."""
    path = tmp_path / "small.run"
    path.write_text(WRONG)
    return path


# --- seeds


TALLY = Tally(
    seed_count=6,
    choice_count=12_345,
    event_count=4_000,
    message_count=3_000,
    snapshot_count=30,
    published_count=20,
    inconsistent_count=7,
    refused_count=3,
    seen=dict.fromkeys(COVERAGE, 2),
)
Find = Callable[[Tally], list[RunConfig]]


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Find:
    """Let this have come of the seeds; return the settings of the runs that would be made."""

    def find(tally: Tally) -> list[RunConfig]:
        settings: list[RunConfig] = []

        def run_seeds(make_config: Callable[[], RunConfig], *_: object) -> Tally:
            settings.append(make_config())
            return tally

        monkeypatch.setattr(campaign, "run_seeds", run_seeds)
        return settings

    return find


def test_seeds_are_tried_and_what_was_seen_is_counted(call: Call, find: Find) -> None:
    """A table of sightings, and the verdict."""
    find(TALLY)
    result = call("sim", "run", "--seeds", "1..6")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].split() == ["seen", "in", "runs"]
    rows, words = rows_and_words(result.stdout)
    assert len(rows) == len(COVERAGE)
    assert words == ["PASS: 6 seeds, 12,345 choices, 30 snapshots: every invariant held"]


def test_many_seeds_are_tried_on_all_cores(
    call: Call, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same figures as one after the other: nothing depends on anything but the seed."""
    alone = call("sim", "run", "--seeds", "3..5", "--json")
    monkeypatch.setattr(campaign, "CHUNK_COUNT", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    pool = mock.Mock(wraps=ProcessPoolExecutor)
    monkeypatch.setattr(campaign, "ProcessPoolExecutor", pool)
    together = call("sim", "run", "--seeds", "3..5", "--json")
    assert [call.args for call in pool.call_args_list] == [(2,)]
    tally = json.loads(together.stdout)
    assert tally == json.loads(alone.stdout)
    assert (tally["ok"], tally["seed_count"], tally["broken"]) == (True, 3, [])
    assert tally["choice_count"] > tally["snapshot_count"] > 0
    assert set(tally["seen"]) | set(tally["unseen"]) == set(COVERAGE)
    assert len(together.stdout.splitlines()) == 1
    find(TALLY)
    canned = json.loads(call("sim", "run", "--seeds", "1..6", "--json").stdout)
    # What is seen depends on the seeds: the names are compared above, here what is said of each.
    (count,) = {*map(type, canned.pop("seen").values()), *map(type, tally.pop("seen").values())}
    assert count is int
    same_shape(canned, tally)


@pytest.mark.parametrize(
    ("network", "rules"),
    [("lossy", "chandy-lamport"), ("reordering", "chandy-lamport"), ("lossy", "lai-yang")],
)
def test_rules_that_do_not_fit_a_network_are_not_said_to_work(
    call: Call, find: Find, network: str, rules: str
) -> None:
    """Nothing wrong is published there, but the answer is no, for many seeds and for one."""
    options = ("--network", network, "--rules", rules)
    settings = find(TALLY)
    result = call("sim", "run", "--seeds", "1..6", *options)
    assert result.exit_code == 1
    assert rows_and_words(result.stdout)[1] == [
        (
            f"FAIL: {rules} does not support channels that are {network}: of 6 seeds 3 broke off; "
            "of 30 snapshots 20 were published, none of them wrong, and 7 were abandoned because "
            "their fragments contradicted each other"
        )
    ]
    document = json.loads(call("sim", "run", "--seeds", "1..6", "--json", *options).stdout)
    assert document["ok"] is False
    assert settings == [RunConfig(network=Network(network), recorder=RULES[rules])] * 2
    assert call("sim", "run", "--seeds", "3", "--steps", *options).exit_code == 1


def test_lai_yang_works_where_order_is_not_kept(call: Call, find: Find) -> None:
    """Those rules are made for it."""
    settings = find(TALLY)
    options = ("--network", "reordering", "--rules", "lai-yang")
    result = call("sim", "run", "--seeds", "1..6", *options)
    assert result.exit_code == 0
    assert "every invariant held" in result.stdout
    assert settings == [RunConfig(network=Network.REORDERING, recorder=LaiYangRecorder)]


def test_it_is_said_what_was_never_seen(call: Call, find: Find) -> None:
    """A few seeds do not show everything."""
    first, *rest = COVERAGE
    find(msgspec.structs.replace(TALLY, seen=dict.fromkeys(rest, 1)))
    assert f"never seen: {first}\n" in call("sim", "run", "--seeds", "1..6").stdout


def test_a_printed_schedule_is_done_again(call: Call, tmp_path: Path) -> None:
    """With what is told below each choice or without; other lines are refused by their number."""
    printed = call("sim", "run", "--seeds", "5", "--steps")
    file = tmp_path / "five.schedule"
    file.write_text(printed.stdout)
    again = call("sim", "run", "--seeds", "5", "--schedule", file)
    assert (again.exit_code, again.stdout) == (0, printed.stdout)
    file.write_text("  1.000 ms  P1 does pay\nP1 does pay\n")
    wrong = call("sim", "run", "--seeds", "5", "--schedule", file)
    assert wrong.exit_code == 2
    assert "line 2 of the schedule" in wrong.stderr


@pytest.mark.parametrize("name", ["lecture", "lecture-ticks"])
def test_a_script_that_comes_along_is_not_rewritten(call: Call, name: str) -> None:
    """It is everybody's."""
    result = call("sim", name, "--rewrite")
    assert result.exit_code == 2
    assert "copy it to rewrite it" in result.stderr


def test_a_trace_does_not_replace_its_script(call: Call, tmp_path: Path) -> None:
    """Not by another name either."""
    script = tmp_path / "mine.run"
    script.write_text("system\nP1: A\n")
    (tmp_path / "other").symlink_to(script)
    result = call("sim", script, "--trace", tmp_path / "other")
    assert result.exit_code == 2
    assert "the input: give another output file" in result.stderr
    assert script.read_text() == "system\nP1: A\n"


def test_one_seed_is_shown_step_by_step(call: Call) -> None:
    """Every choice with its time, what happened below it, and how many there were."""
    result = call("sim", "run", "--seeds", "5", "--steps")
    lines = result.stdout.splitlines()
    at_ms = [float(line.split(" ms  ")[0]) for line in lines if not line.startswith(" " * 14)]
    assert result.exit_code == 0
    assert at_ms == sorted(at_ms)
    assert result.stderr == f"PASS: seed 5: {len(at_ms)} choices, every invariant held\n"
    assert any(line.startswith(" " * 14 + "snapshot P") for line in lines)
    assert call("sim", "run", "--seeds", "5..5", "--steps").stdout == result.stdout


def test_one_seed_as_json_has_its_schedule(call: Call) -> None:
    """With what could go wrong in it, and what happened."""
    document = json.loads(call("sim", "run", "--seeds", "5", "--steps", "--json").stdout)
    assert (document["seed"], document["ok"], document["invariant"]) == (5, True, None)
    assert document["faults"]["delay_ms_max"] > 0
    assert {"at_ms", "choice"} == set(document["schedule"][0])
    assert len(document["happened"]) > len(document["schedule"])


def test_the_trace_of_a_seed_can_be_read(call: Call, tmp_path: Path) -> None:
    """And the snapshots in it have consistent cuts."""
    path = tmp_path / "five.trace"
    result = call("sim", "run", "--seeds", "5", "--trace", path)
    assert result.exit_code == 0
    assert f"is in {path}: stillframe view {path}\n" in result.stderr
    trace = tracefile.read(path)
    assert trace.event_count > 10
    assert call("trace", "cuts", path, "--cut", f"{trace.processes[0]}=0").exit_code == 0


def test_a_topology_of_ones_own_is_simulated(call: Call) -> None:
    """By its reference; what its messages hold cannot write on the terminal."""
    result = call("sim", "run", f"{HERE}:talkers", "--seeds", "1", "--steps")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout + result.stderr
    assert "sends Note(text='\\x1b[31mred') to P2" in result.stdout


def test_a_handler_that_fails_is_named_with_its_seed(call: Call) -> None:
    """It is the application's bug, so no verdict: exit 2."""
    result = call("sim", "run", f"{HERE}:broken", "--seeds", "1..3")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: seed 1: process P")
    assert "receive() raised ValueError: \\x1b[31mno on Note(text=" in result.stderr
    assert "\x1b" not in result.stderr


def test_a_handler_that_depends_on_chance_is_found_and_cut_down(call: Call) -> None:
    """Exit 1 with a schedule of few choices, and the command that shows the whole run; that one
    says the same."""
    result = call("sim", "run", f"{HERE}:dicey", "--seeds", "1..3")
    assert result.exit_code == 1
    assert result.stderr.startswith("SEED=1 broke an invariant; looking for the shortest schedule")
    assert "FAIL: seed 1: not kept: a snapshot changes nothing" in result.stderr
    assert len(result.stdout.splitlines()) == 2
    assert result.stdout.splitlines()[0].endswith(" does talk")
    assert " deliver P" in result.stdout.splitlines()[1]
    assert "\nshown are 2 of its " in result.stderr
    command = f"stillframe sim run {HERE}:dicey --seeds 1 --steps"
    assert f"every step of the whole run: {command}\n" in result.stderr
    whole = call(*command.split()[1:])
    assert whole.exit_code == 1
    assert whole.stderr.startswith("FAIL: seed 1: not kept: a snapshot changes nothing")
    assert len(whole.stdout.splitlines()) > 100


def test_a_broken_promise_as_json(call: Call) -> None:
    """The shortest schedule, and how long it was."""
    result = call("sim", "run", f"{HERE}:dicey", "--seeds", "1", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (document["ok"], document["invariant"]) == (False, "UNCHANGED")
    assert len(document["schedule"]) == 2 < document["choice_count_before"]


def test_the_command_that_shows_the_whole_run_has_its_options(call: Call) -> None:
    """Else it would show another one."""
    result = call(
        *("sim", "run", f"{HERE}:dicey", "--seeds", "1..2"),
        *("--network", "lossy", "--rules", "lai-yang"),
    )
    assert "--seeds 1 --network lossy --rules lai-yang --steps\n" in result.stderr


# --- scripts


def test_the_lecture_example_by_name(call: Call) -> None:
    """What comes with stillframe needs no path; the file is shown as it is."""
    result = call("sim", "lecture")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("# The example that every lecture on snapshots uses.\n")
    assert "  P2->P1 held H>D\n  5 channels are empty\n" in result.stdout
    assert call("sim", "lecture.run").stdout == result.stdout


def test_a_script_by_path_as_json(call: Call, script: Path) -> None:
    """Its blocks, and whether it happened as written."""
    script.write_text(RIGHT)
    document = json.loads(call("sim", script, "--json").stdout)
    assert document["is_as_written"] is True
    assert document["blocks"][1]["commands"] == ["P1 does A", "P1 initiates P1-1"]
    assert document["blocks"][1]["happened"][0] == "P1 does A; sends A>B to P2"


def test_a_script_that_says_something_else_is_a_no_with_the_difference(
    call: Call, script: Path
) -> None:
    """Exit 1; the file stays as it is."""
    result = call("sim", script)
    assert result.exit_code == 1
    assert "\n-P1 does A; sends nothing\n+P1 does A; sends A>B to P2\n" in result.stderr
    assert result.stderr.endswith(
        f"FAIL: the outcome differs from {script}; if it is right, use --rewrite\n"
    )
    assert result.stdout == RIGHT
    assert script.read_text() == WRONG
    assert json.loads(call("sim", script, "--json").stdout)["is_as_written"] is False


def test_rewrite_writes_what_happened(call: Call, script: Path) -> None:
    """Exit 0, comments and all; from then on the script is right."""
    assert call("sim", script, "--rewrite").exit_code == 0
    assert script.read_text() == RIGHT
    assert call("sim", script).exit_code == 0


def test_the_trace_of_a_script_has_its_snapshot(call: Call, tmp_path: Path) -> None:
    """And the cut of the lecture."""
    path = tmp_path / "lecture.trace"
    result = call("sim", "lecture", "--trace", path)
    assert result.stderr == f"the run is in {path}: stillframe view {path}\n"
    trace = tracefile.read(path)
    assert trace.processes == ("P1", "P2", "P3")
    assert trace.cut_of(SnapshotId("P1", 1)) == (2, 3, 1)


def test_the_snapshot_of_a_script_is_proved(call: Call) -> None:
    """EWD 864a: the white events of the lecture before its red ones."""
    result = call("sim", "lecture", "--prove", "P1-1")
    assert result.exit_code == 0
    assert "all 6 white events precede all 5 red ones" in result.stdout
    found = json.loads(call("sim", "lecture", "--prove", "P1-1", "--json").stdout)
    assert (found["is_consistent"], len(found["white"]), len(found["red"])) == (True, 6, 5)
    result = call("sim", "lecture", "--prove", "P9-9")
    assert result.exit_code == 2
    assert "there is no snapshot P9-9 in this run; there are P1-1" in result.stderr


def test_a_script_whose_system_went_back_has_the_trace_of_its_last_epoch(
    call: Call, tmp_path: Path
) -> None:
    """It is said so."""
    path, crash = tmp_path / "crash.trace", Path("tests/sim/runs/crash.run")
    result = call("sim", Path(__file__).parent.parent.parent / crash, "--trace", path)
    assert result.stderr == f"epoch 2, the last, is in {path}: stillframe view {path}\n"
    assert tracefile.read(path).event_count == 6


# --- what cannot work


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seeds", "5..1"], "--seeds '5..1': write FIRST..LAST, for example 1..200, or one"),
        (["--seeds", "x"], "--seeds 'x': write FIRST..LAST"),
        (["--seeds", "1..5", "--steps"], "apply to one run: give one seed, such as --seeds 17"),
        (["--trace", "x"], "apply to one run: give one seed"),
        (["nosuch"], "there is no script nosuch: give a .run file, or an included script:"),
        (["nosuch.run"], "an included script: deadlock, lecture, lecture-ticks, never-occurred"),
        (["./no/such.run"], "no/such.run: No such file or directory"),
        (["../lecture"], "there is no script ../lecture"),
        (["."], "there is no script ."),
        (["nosuch:x"], "there is no module 'nosuch' here"),
        (
            [f"{HERE}:Talker"],
            "has no topology 'Talker'; it has broken, chain, dicey, erratic, lenders, talkers",
        ),
        (["lecture", "--steps"], "No such option: --steps"),
        (
            ["run", "lecture"],
            "lecture is not MODULE:TOPOLOGY; to play a script, use 'stillframe sim",
        ),
        (["run", "--rewrite"], "No such option: --rewrite"),
        (["--network", "wet"], "'wet' is not one of"),
        (["--rules", "none"], "'none' is not one of"),
    ],
)
def test_wrong_arguments_say_what_is_right(
    call: Call, arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 2 and a sentence; nothing is written."""
    monkeypatch.chdir(tmp_path)
    result = call("sim", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"system\nP1: \xff\n", "is not a .run file: it is not text in UTF-8"),
        (b"system\nP1: A\n\nP1 flies\n", "line 4: 'P1 flies' is not a choice"),
        (b"system\nP1: \x1b[31m\n", "line 2: '\\x1b' cannot be in a .run file"),
        (b"", "the file is empty"),
        (b"#" * 1_000_001, "run: a .run file has at most 1,000,000 characters"),
        (b"\xc3\xa9" * 1_000_000, "line 1: the first block must begin with 'system'"),
    ],
    ids=["no text", "no choice", "escapes", "empty", "too long", "long"],
)
def test_a_file_that_is_no_script_says_why(
    call: Call, script: Path, content: bytes, says: str
) -> None:
    """Exit 2, and with --rewrite it stays as it is."""
    script.write_bytes(content)
    result = call("sim", script, "--rewrite")
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert script.read_bytes() == content


def test_a_directory_is_no_script(call: Call, tmp_path: Path) -> None:
    """Whatever its name."""
    (tmp_path / "a.run").mkdir()
    result = call("sim", tmp_path / "a.run")
    assert result.exit_code == 2
    assert "is not a regular file" in result.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1..200", range(1, 201)), ("17", range(17, 18)), ("0", range(1)), ("7..7", range(7, 8))],
)
def test_seeds_are_a_range_or_a_number(text: str, expected: range) -> None:
    """Both ends included."""
    assert parse_seeds(text) == expected


@pytest.mark.parametrize(
    "text", ["", "..", "1..", "..5", "1...5", "-1", "1-5", "1..5..9", " 1", "1234567890", "\u0661"]
)
def test_other_texts_are_no_seeds(text: str) -> None:
    """An error says what to write."""
    with pytest.raises(UsageError, match=r"write FIRST\.\.LAST, for example 1\.\.200"):
        parse_seeds(text)
