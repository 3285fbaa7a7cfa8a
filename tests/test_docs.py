"""What the README shows is what happens: its program and its commands are run."""

import ast
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import Result

from stillframe.cli.app import app
from stillframe.cli.command import DeferredCommand
from stillframe.diagram import layout, svg
from stillframe.model import Channel
from stillframe.protocol.recorder import TRANSITIONS, Stimulus
from stillframe.sim.scenario import play_text
from stillframe.state_codec import StateCodec
from tests.doc_pages import blocks, called
from tests.nightly import by_night
from tests.wheels import Distributions, environment, outside

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
STATE = ROOT / "docs" / "state.md"
PROOF = ROOT / "docs" / "proof.md"
PLAYER = ROOT / "docs" / "player.md"
PROVING_COMMANDS = tuple(f"stillframe {name} " for name in ("sim", "explore", "trace", "view"))
SEEDS = ("1..200", by_night("1..200", check="1..20"))
FLAGS = re.DOTALL | re.MULTILINE
Answer = Callable[[str], Result]
NOISE = re.compile(r"snapshots? (was|were) due and skipped|^snapshot P")


def shape(output: str) -> list[str]:
    """Return the lines with every measured number masked, one of each shape, in order."""
    lines: list[str] = []
    for line in output.splitlines():
        if NOISE.search(line):
            continue
        masked = re.sub(r"(?<![\w-])(?!300\b)\d[\d,.]*( ms| s)?\b", "#", line)
        masked = re.sub(r"P1-\d+", "P1-#", masked)
        masked = re.sub(r"\s+|─+", " ", masked).strip()
        # That comes on a busy machine alone.
        if masked and masked not in lines and not masked.startswith("waiting for "):
            lines.append(masked)
    return lines


@pytest.mark.nightly(part="soak")
@pytest.mark.slow
def test_the_readme_program_does_what_the_readme_shows(
    distributions: Distributions, tmp_path: Path
) -> None:
    """In an empty directory, with the installed wheel, both programs print what the page shows."""
    programs = environment(tmp_path / "venv", distributions.wheel)
    directory = tmp_path / "empty"
    directory.mkdir()
    for program in blocks("python", README.read_text()):
        (directory / program.splitlines()[0].removeprefix("# ")).write_text(program)
    session = next(
        block
        for block in blocks("console", README.read_text())
        if block.startswith("$ stillframe run")
    )
    steps = [step.partition("\n") for step in session.split("$ ")[1:]]
    printed = []
    for command, _, _ in steps:
        ended = subprocess.run(
            shlex.split(lasting(command)),
            cwd=directory,
            env=outside(programs),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        printed.append(ended.stdout + ended.stderr)
    run, totals = printed
    assert sorted(shape(run)) == sorted(shape(steps[0][2]))
    for lines in (totals, steps[1][2]):
        assert len(lines.splitlines()) >= 2
        for line in lines.splitlines():
            sums = re.fullmatch(r"P1-\d+ (\d+) (\d+) 300", line)
            assert sums
            assert int(sums[1]) + int(sums[2]) == 300


def lasting(command: str) -> str:
    """Return a command of the README that takes its time only at night."""
    return command.replace(
        "--duration 1500ms", by_night("--duration 1500ms", check="--duration 500ms")
    )


def test_the_process_of_the_page_on_large_states_can_be_recorded() -> None:
    """Its keyed field is one, and what it receives is what its row then holds."""
    (program,) = blocks("python", STATE.read_text())
    module: Any = types.ModuleType("state")
    sys.modules["state"] = module
    try:
        exec(program, vars(module))
        branch = module.Branch()
        branch.receive(Channel("A", "B"), module.Deposit("Ada", 7))
        codec = StateCodec(module.Branch)
    finally:
        del sys.modules["state"]
    assert codec.keyed.keys() == {"accounts"}
    assert codec.decode(codec.capture(branch))["accounts"] == {"Ada": module.Account(7, 1)}


@pytest.fixture
def answer(tmp_path: Path) -> Answer:
    """Call commands in a directory of this page with the log of the bakery, each of them once."""
    (tmp_path / "bakery.log").write_text((ROOT / "examples" / "bakery.log").read_text())
    return cache(lambda command: called(command, tmp_path))


@pytest.mark.nightly(part="simulator")
@pytest.mark.slow
@pytest.mark.parametrize("page", [README, PROOF, PLAYER], ids=lambda page: page.name)
def test_the_commands_that_prove_do_what_the_page_says(page: Path, answer: Answer) -> None:
    """Each command ends as its comment says (0, or "exit 1"), and what is shown of its output, in a
    block of text right behind it, is in its output. By day fewer seeds do for many."""
    session = re.findall(r"^```(console|text)\n(.*?)^```$", page.read_text(), FLAGS)
    output = ""
    count = 0
    for language, block in session:
        if language == "text":
            missing = [line for line in block.splitlines() if line not in output]
            assert missing == []
            continue
        output = ""
        for line in block.splitlines():
            command, _, comment = line.removeprefix("$ ").partition("  #")
            if not f"{command.strip()} ".startswith(PROVING_COMMANDS):
                continue
            count += 1
            done = answer(command.strip().replace(*SEEDS))
            assert done.exit_code == int("exit 1" in comment), (command, done.stderr)
            output += done.stdout + done.stderr
    assert count >= 5


def test_every_page_that_the_readme_links_is_there() -> None:
    """No link of the README or of a page in docs leads nowhere."""
    pages = [README, *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links {target}"


def test_the_identifiers_of_the_glossary_are_there() -> None:
    """Every class and file that the glossary names is in the code, and every command exists."""
    text = (ROOT / "docs" / "glossary.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row[3])}
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert len(named) > 30
    for name in named - {"mode aligned", "mode unaligned"}:
        word = re.split(r"[ (]", name.removeprefix("stillframe ").removeprefix("stillframe."))[0]
        is_file = (ROOT / "src" / "stillframe" / word).exists()
        assert is_file or re.search(rf"\b{word.strip('-').split('.')[-1]}\b", source), name


def test_the_walks_of_contributing_lead_somewhere() -> None:
    """Every function that a walk names is in the file that it names."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    steps = re.findall(r"\| `([\w/]+\.py)` \| `([\w.]+)` \|", text)
    assert len(steps) > 20
    for file, function in steps:
        defined: set[str] = set()
        for item in ast.parse((ROOT / "src" / "stillframe" / file).read_text()).body:
            if isinstance(item, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                defined.add(item.name)
            if isinstance(item, ast.ClassDef):
                members = [m for m in item.body if isinstance(m, ast.FunctionDef)]
                defined.update(f"{item.name}.{member.name}" for member in members)
        assert function in defined, f"{file} has no {function}"


def test_the_picture_of_the_proof_page_is_what_is_drawn() -> None:
    """The picture in the docs is the one that the code draws of the lecture example."""
    script = ROOT / "src" / "stillframe" / "sim" / "runs" / "lecture.run"
    world = play_text(script.read_text()).world
    picture = svg.draw(layout.lay_out(world.epoch.trace(world.description)))
    assert (ROOT / "docs" / "lecture.svg").read_text() == picture


def test_the_table_of_phases_is_the_one_that_runs() -> None:
    """The page shows every transition of the recorder, and no other."""
    rows = ["| phase | " + " | ".join(stimulus.value for stimulus in Stimulus) + " |"]
    for phase, steps in TRANSITIONS.items():
        after = [steps[s].value if s in steps else "" for s in Stimulus]
        rows.append(f"| {phase.value} | " + " | ".join(after) + " |")
    page = (ROOT / "docs" / "protocol.md").read_text()
    shown = [re.sub(r"\s+", " ", line) for line in page.splitlines() if line.startswith("| ")]
    assert shown == [re.sub(r"\s+", " ", row) for row in rows]


def unknown_words(span: str) -> list[str]:
    """Return the subcommands and options in a command that the command line does not have."""
    command: Any = typer.main.get_command(app)
    unknown = []
    options: set[str] = set()
    for word in span.split()[1:]:
        if hasattr(command, "commands"):
            name = word if word in command.commands else "script"  # `sim FILE` is short
            if name not in command.commands:
                return [word]
            command = command.commands[name]
            command = command.load() if isinstance(command, DeferredCommand) else command
            options = {one for parameter in command.params for one in parameter.opts}
        elif word.startswith("--") and word.rstrip(",") not in options | {"--help"}:
            unknown.append(word)
    return unknown


@pytest.mark.parametrize("page", [README, *sorted((ROOT / "docs").glob("*.md"))], ids=str)
def test_every_command_that_a_sentence_names_exists(page: Path) -> None:
    """Each command in code type between the words has that name and those options."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=FLAGS)
    spans = set(re.findall(r"`(stillframe [a-z][^`]*)`", text))
    assert {span: unknown for span in spans if (unknown := unknown_words(span))} == {}
