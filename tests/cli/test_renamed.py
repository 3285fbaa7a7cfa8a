"""Former names of commands and options work for one release, and print the present ones once."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from stillframe.cli.app import app
from stillframe.cli.command import Command, DeferredCommand
from stillframe.cli.renamed import COMMANDS, OPTIONS, rename_command
from tests.cli.conftest import Call

ROOT = Path(__file__).parent.parent.parent
CHANGELOG = ROOT / "CHANGELOG.md"
FORMER = (Path(__file__).parent / "commands-0.1.0.txt").read_text().splitlines()
"""Every command of 0.1.0 with each of its options, as its own parser listed them."""
UNTIL = "Stillframe 0.3 will remove the old name"


def arguments(command: Any) -> list[str]:
    """Return as many arguments as a command requires, with names of files that do not exist."""
    required = [one for one in command.params if one.param_type_name == "argument" and one.required]
    options = [one for one in command.params if one.param_type_name == "option" and one.required]
    return [
        *(f"nowhere{index}" for index, _ in enumerate(required)),
        *(word for one in options for word in (one.opts[0], "new")),
    ]


def command_named(words: str) -> Any:
    """Return a command of the present tree."""
    found: Any = typer.main.get_command(app)
    for word in words.split():
        found = found.commands[word]
    return found.load() if isinstance(found, DeferredCommand) else found


@pytest.mark.parametrize("old", COMMANDS)
def test_every_former_command_does_what_its_new_name_does(
    old: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says the new name in one line, and then ends as the new one, with the same words."""
    monkeypatch.chdir(tmp_path)
    new = COMMANDS[old]
    rest = arguments(command_named(new))
    if old == "sim":
        rest = ["no_such_module:x", "--seeds", "1"]
    former = [*old.split(), *rest]
    if old == "spark verify --clock":
        former = ["spark", "verify", rest[0], "--clock", rest[1]]
    told, now = call(*former), call(*new.split(), *rest)
    assert told.stderr == f"'{old}' is now '{new}'; {UNTIL}\n{now.stderr}"
    assert (told.exit_code, told.stdout) == (now.exit_code, now.stdout)
    assert "Usage:" not in now.stderr


def names_in_the_changelog() -> dict[str, str]:
    """Return its table of commands and options, old -> new."""
    _, table = CHANGELOG.read_text(encoding="utf-8").split("#### Commands and options\n")
    rows = re.findall(r"^\| `(.+)` \| `(.+)` \|$", table.split("\n#### ")[0], re.MULTILINE)
    return dict(rows)


@pytest.mark.parametrize("line", FORMER)
def test_every_former_command_line_means_what_the_changelog_says(
    line: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all its options, and with each in two words; each new name is said once."""
    understood: list[Any] = []

    def record(command: Command, ctx: Any) -> None:
        understood.append((command.name, ctx.params))

    monkeypatch.setattr(Command, "invoke", record)
    table = names_in_the_changelog()
    words = line.split()
    name = next((n for n in (" ".join(words[:2]), words[0]) if n in table), words[0])
    if line.startswith("sim lecture"):
        table["sim"], name = "sim script", "sim"
    rest = words[len(name.split()) :]
    former = [*name.split(), *(part for one in rest for part in one.split("=", 1))]
    new = table.get(name, name).split()
    new += ["=".join([table.get(o, o), *v]) for o, *v in (one.split("=", 1) for one in rest)]
    told = call(*former)
    for arguments in (words, new):
        call(*arguments)
    assert [understood[0]] * 3 == understood, told.stderr
    given = {one.partition("=")[2] for one in rest} - {""}
    assert given <= values(understood[0][1])
    replaced = [w for w in (name, *(one.split("=")[0] for one in rest)) if w in table]
    replaced = [w for w in replaced if not line.startswith("sim lecture")]
    assert told.stderr.splitlines() == [f"'{w}' is now '{table[w]}'; {UNTIL}" for w in replaced]


def values(params: dict[str, Any]) -> set[str]:
    """Return the values that a command would get, one by one."""
    listed = (v if isinstance(v, list | tuple) else [v] for v in params.values())
    return {str(getattr(value, "value", value)) for some in listed for value in some}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--clock=P1#2", "logs"],
        ["logs", "--clock=P1#2"],
        ["--clock", "P1#2", "logs"],
        ["logs", "--store", "money", "--clock", "P1#2"],
        ["--store=money", "--clock=P1#2", "logs"],
    ],
)
def test_the_clock_of_an_event_is_a_command_however_it_was_asked(arguments: list[str]) -> None:
    """Its option is an argument now, behind the log; a store was and is of no use to it."""
    assert rename_command(["spark", "verify", *arguments]) == ["log", "clock", "logs", "P1#2"]


@pytest.mark.parametrize("old", OPTIONS)
def test_every_former_option_does_what_its_new_name_does(old: str, call: Call) -> None:
    """Also with its value in one word, and the new name is said once."""
    new = OPTIONS[old]
    names = [name for name in ("run", "savepoint") if new in options_of(name)]
    (name,) = names
    told = call(name, old, "1", f"{old}=2", "--help")
    now = call(name, "--help")
    assert told.stderr == f"'{old}' is now '{new}'; {UNTIL}\n"
    assert (told.exit_code, told.stdout) == (0, now.stdout)
    wrong = call(name, f"{old}=1", "--wrong")
    assert "No such option" in wrong.stderr
    assert "--wrong" in wrong.stderr
    assert old not in now.stdout.split()


def options_of(name: str) -> set[str]:
    """Return the names of the options of a command."""
    return {name for parameter in command_named(name).params for name in parameter.opts}


def test_a_value_that_looks_like_a_former_option_stays(call: Call) -> None:
    """What comes behind ``--`` are arguments, and a command without the new option has no alias."""
    assert "is now" not in call("list", "--", "--log").stderr
    assert "is now" not in call("list", "--log", "x").stderr


@pytest.mark.parametrize(
    ("words", "is_renamed"),
    [
        (["sim", "lecture"], False),
        (["sim", "--trace", "x.trace", "lecture"], False),
        (["sim", "--rewrite", "no/such.run"], False),
        (["sim", "lectur"], False),
        (["sim", "--help"], False),
        (["sim", "--seeds", "3"], True),
        (["sim", "--json", "--seeds", "3..3"], True),
        (["sim", "--seeds", "3", "--trace", "lecture"], True),
        (["sim", "--seeds", "3", "--schedule", "failing.run"], True),
    ],
)
def test_a_script_needs_no_subcommand_and_seeds_do(
    words: list[str],
    is_renamed: bool,
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``sim SCRIPT`` stays; ``sim --seeds`` is now ``sim run --seeds``."""
    monkeypatch.chdir(tmp_path)
    result = call(*words)
    assert ("'sim' is now 'sim run'" in result.stderr) == is_renamed
    assert "Usage:" not in result.stderr


def test_the_group_that_was_split_names_its_parts(call: Call) -> None:
    """``spark`` alone, or with a word that it never had."""
    for words in (["spark"], ["spark", "--help"], ["spark", "lst"]):
        result = call(*words)
        assert result.exit_code == 2
        assert "'spark' is now 'pipeline', 'store' and 'log'" in result.stderr


def test_the_changelog_has_every_former_name() -> None:
    """Its table of old and new names is the one that the program uses."""
    text = CHANGELOG.read_text(encoding="utf-8")
    rows = [f"| `{old}` | `{new}` |" for old, new in {**COMMANDS, **OPTIONS}.items()]
    assert [row for row in rows if row not in text] == []
