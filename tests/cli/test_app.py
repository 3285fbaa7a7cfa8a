"""The commands as a whole: quick to load, explained, and clear about what is wrong."""

import contextlib
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from stillframe.__main__ import main
from stillframe.cli.app import app
from tests.cli.conftest import Call

ROOT = Path(__file__).parent.parent.parent
BANK = "stillframe.examples.bank:bank"
COMMANDS = "run restore resume join snapshot savepoint delete list show".split()
COMMANDS += "verify diff detect events observe baseline calls watch view certs".split()
GROUPS = {
    "pipeline": "snapshot savepoint list show filter detect delete restore fork status".split(),
    "store": "audit stats diff detect compact assemble follow copy".split(),
    "log": "verify clock".split(),
    "trace": "import cuts".split(),
    "sim": "run script explore".split(),
}
ALL = [*COMMANDS, *(f"{group} {name}" for group, names in GROUPS.items() for name in names)]


def test_the_version_is_told(call: Call) -> None:
    """For whoever reports something."""
    result = call("--version")
    assert result.exit_code == 0
    assert result.stdout == f"stillframe {importlib.metadata.version('stillframe')}\n"


@pytest.mark.parametrize(
    ("argument", "stdout", "code", "said"),
    [
        ("--version", "/dev/null", 0, ""),
        ("list", "/dev/null", 2, "Missing argument"),
        ("--version", "/dev/full", 2, "stdout: No space left on device"),
        ("--version", "", 2, "stdout: it is closed"),
    ],
)
def test_the_program_ends_with_the_code_of_its_command_unless_stdout_failed(
    argument: str,
    stdout: str,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also if stdout is full, or was closed before the program began."""
    monkeypatch.setattr(sys, "argv", ["stillframe", argument])
    with contextlib.ExitStack() as files:
        output = files.enter_context(Path(stdout).open("w")) if stdout else None
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == code
    assert said in capsys.readouterr().err


def test_ctrl_c_while_commands_are_loaded_ends_quietly() -> None:
    """However early it comes; no traceback."""
    program = (
        "import sys, importlib.abc\n"
        "class Interrupted(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'stillframe.cli.command': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from stillframe.__main__ import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_help_loads_nothing_heavy() -> None:
    """``stillframe --help`` needs neither pyarrow, Spark nor an event loop."""
    program = (
        "import sys\n"
        "from stillframe.__main__ import main\n"
        "sys.argv = ['stillframe', '--help']\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "print(*sorted({'asyncio', 'pyarrow', 'pyspark'} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert done.stderr.strip() == ""
    assert "Take a snapshot now." in done.stdout


@pytest.mark.parametrize("command", ALL)
def test_every_command_has_an_example_and_json(call: Call, command: str) -> None:
    """The help of each command shows how it is called, and each can write JSON."""
    result = call(*command.split(), "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples?:\n    stillframe {command}\b", result.stdout)
    assert "--json" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["list", "nowhere"], "nowhere does not exist: give the directory"),
        (["show", "nowhere", "A-1"], "nowhere does not exist"),
        (["verify", "nowhere"], "nowhere does not exist"),
        (["diff", "nowhere", "A-1", "A-2"], "nowhere does not exist"),
        (["snapshot", "nowhere"], "nowhere does not exist"),
        (["restore", "nowhere"], "nowhere does not exist"),
        (["run", "no_such_module:x", "--store", "new"], "no module 'no_such_module'"),
        (
            ["run", "stillframe.examples.bank:safe", "--store", "new"],
            "has no topology 'safe'; it has bank",
        ),
        (["run", "stillframe.examples.bank", "--store", "new"], "write MODULE:TOPOLOGY"),
        (["run", BANK, "--store", "new", "--initiator", "Q"], "there is no process 'Q'; there are"),
        (["run", BANK, "--store", "new", "--every", "5"], "--interval '5' is not a duration"),
        (
            ["run", BANK, "--store", "new", "--timeout", "never"],
            "--timeout 'never' is not a duration",
        ),
        (["run", BANK, "--store", "new", "--marker-linger", "2s"], "at most 1.00 s is possible"),
        (
            ["run", BANK, "--store", "new", "--marker-linger", "5"],
            "--marker-linger '5' is not a duration",
        ),
        (["run", BANK, "--store", "new", "--duration", "0s"], "--duration '0s' is not a duration"),
        (["run", BANK], "Missing option '--store'"),
        (["lst"], "No such command 'lst'"),
    ],
)
def test_wrong_input_is_named_and_nothing_is_made(
    call: Call, arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot work ends with 2, says what is wrong in a sentence, and leaves no store."""
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "A-9"], "there is no snapshot A-9 in the store"),
        (["show", "9"], "'9' is not a snapshot id, which looks like P1-17"),
        (["verify", "A-9"], "there is no snapshot A-9"),
        (["diff", "A-1", "A-9"], "there is no snapshot A-9"),
        (["restore", "A-9"], "there is no snapshot A-9"),
        (["restore", "--initiator", "Q"], "there is no process 'Q'; there are A, B"),
        (["restore"], "does not say where its topology is defined"),
        (["snapshot"], "no system is running on the store"),
    ],
)
def test_a_wrong_argument_for_a_good_store_is_named(
    call: Call, money: Path, arguments: list[str], says: str
) -> None:
    """An unknown snapshot or process, or a system that does not run, ends with 2."""
    command, *rest = arguments
    result = call(command, money, *rest)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_run_refuses_a_store_that_has_snapshots(call: Call, money: Path) -> None:
    """A fresh start never goes into an old store; the error names the command to go on with, as a
    shell reads it."""
    spaced = money.rename(money.with_name("my money"))
    result = call("run", BANK, "--store", spaced)
    assert result.exit_code == 2
    assert f"use 'stillframe restore '{spaced}''" in result.stderr


def test_a_file_in_the_place_of_a_new_store_is_named(call: Call, tmp_path: Path) -> None:
    """Its disk may be healthy."""
    path = tmp_path / "money"
    path.touch()
    for store in (path, path / "store"):
        result = call("run", BANK, "--store", store)
        assert result.exit_code == 2
        assert "a file has that name, or that of a directory above it" in result.stderr


def test_restore_needs_a_snapshot(call: Call, empty: Path) -> None:
    """A store without a snapshot is nothing to go on from; the error says how to start."""
    result = call("restore", empty)
    assert result.exit_code == 2
    assert "holds no snapshot yet: start the system with 'stillframe run'" in result.stderr


def test_output_into_a_closed_pipe_is_no_bug(money: Path) -> None:
    """``stillframe list | head -0`` ends without a traceback, and with neither a yes nor a no."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "stillframe", "list", str(money), "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_commands_are_those_of_the_design() -> None:
    """The names are words of the field, and none is missing."""
    root: Any = typer.main.get_command(app)
    assert [*root.commands] == [*COMMANDS, *GROUPS]
    assert {name: [*root.commands[name].commands] for name in GROUPS} == GROUPS


def test_the_help_of_a_narrow_terminal_is_whole() -> None:
    """No description of a command or group ends in dots, however little room there is."""
    root: Any = typer.main.get_command(app)
    for command in root.commands.values():
        assert command.get_short_help_str(10) == command.get_short_help_str(200)


@pytest.mark.parametrize("group", GROUPS)
def test_the_help_of_a_group_says_what_it_needs(group: str, call: Call) -> None:
    """Spark and Java for stores and logs, and nothing for the others."""
    shown = " ".join(call(group, "--help").stdout.split())
    needs_spark = "Needs stillframe[spark] and Java 17, 21 or 25." in shown
    assert needs_spark == (group in ("store", "log"))
