"""How commands end: which error becomes which exit code, and what it says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from stillframe.cli import command
from stillframe.cli.command import Root
from stillframe.cli.output import JSON_VERSION, say
from stillframe.errors import Damaged, StoreError, Unavailable, UsageError
from tests.cli.conftest import Call


def outcome_of(error: BaseException, *options: str) -> Result:
    """Run a command that raises `error`."""
    app = typer.Typer(cls=Root)
    app.callback()(lambda: None)

    @app.command()
    def fail(*, json: bool = False) -> None:
        raise error

    return CliRunner().invoke(app, ["fail", *options])


@pytest.mark.parametrize("kind", [UsageError, StoreError, Damaged, Unavailable])
def test_errors_raised_on_purpose_are_one_sentence(kind: type[Exception]) -> None:
    """They end with 2, and stderr holds the sentence alone."""
    result = outcome_of(kind("the disk is full: make room"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: the disk is full: make room\n"


def test_input_and_output_errors_name_the_file() -> None:
    """An error of the operating system ends with 2 and names the path."""
    result = outcome_of(PermissionError(13, "Permission denied", "/a/store"))
    assert (result.exit_code, result.stderr) == (2, "Error: /a/store: Permission denied\n")


def test_what_nobody_expected_in_our_code_is_our_bug() -> None:
    """Any other exception ends with 101, says that it is our bug, and keeps the traceback."""
    app = typer.Typer(cls=Root)
    app.callback()(lambda: None)
    lines: Any = [None]
    app.command("fail")(lambda *, json=False: say(*lines))
    result = CliRunner().invoke(app, ["fail"])
    assert result.exit_code == 101
    assert "this is a bug in stillframe (AttributeError)" in result.stderr
    assert "Traceback (most recent call last)" in result.stderr
    document = json.loads(CliRunner().invoke(app, ["fail", "--json"]).stderr)
    assert (document["error"], document["exit_code"]) == ("AttributeError", 101)
    assert "Traceback (most recent call last)" in document["traceback"]


class NoText(BaseException):
    """Like many an exception of an application."""

    def __str__(self) -> str:
        raise AttributeError("code")


def test_what_nobody_expected_in_code_of_the_user_is_not() -> None:
    """Such as that of a `__post_init__` in a recorded state: the sentence says where it is."""
    result = outcome_of(NoText())
    assert result.exit_code == 2
    found = re.fullmatch(r"Error: your code raised NoText \(.*\), in (.*)\n", result.stderr)
    assert found is not None, result.stderr
    assert found[1].startswith("outcome_of.<locals>.fail(), line ")
    assert found[1].endswith(f" of {__file__}")


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (UsageError("a\x85b\u2028: mend it"), "a\x85b\u2028: mend it"),
        (PermissionError(13, "Permission denied", "/a/store"), "/a/store: Permission denied"),
    ],
)
def test_an_error_with_json_is_one_object_on_stderr(error: Exception, detail: str) -> None:
    """With the class of the error, the sentence and the exit code, which are as without."""
    result = outcome_of(error, "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert json.loads(result.stderr) == {
        "version": JSON_VERSION,
        "error": type(error).__name__,
        "detail": detail,
        "exit_code": 2,
    }


@pytest.mark.parametrize(
    "words", ["list --json", "list money --jsno --json", "lst --json", "run x --json --keep 0"]
)
def test_a_refused_argument_with_json_is_one_object_on_stderr(call: Call, words: str) -> None:
    """What the parser of arguments refuses, too; no usage text is beside it."""
    result = call(*words.split())
    assert (result.exit_code, result.stdout) == (2, "")
    document = json.loads(result.stderr)
    assert document.keys() == {"version", "error", "detail", "exit_code"}


def test_a_chosen_exit_code_stays() -> None:
    """A command that says no with 1 is not rewritten."""
    assert outcome_of(typer.Exit(1)).exit_code == 1


@pytest.mark.parametrize(
    ("words", "headline"),
    [
        ("list {}", "3 snapshots; a restore starts from A-3"),
        ("show {} A-1", "snapshot A-1: epoch 1, initiated "),
        ("show {} A-1 --books", "snapshot A-1: epoch 1, initiated "),
        ("verify {}", "PASS: 3 snapshots, "),
        ("verify {} A-1", "PASS: snapshot A-1 is consistent"),
        ("diff {} A-1 A-2", "A-1 and A-2 differ in 1 field"),
        ("detect {} loss --topology tests.cli.conftest:purses", "loss "),
        ("events {}", " event"),
        ("delete {} A-1", "snapshot A-1 was deleted"),
        ("store copy {0} {0}.copy", "copied 3 snapshots, "),
        ("view {0} --out {0}.html", "done: "),
        ("sim script lecture --prove P1-1", "PASS: snapshot P1-1: "),
    ],
)
def test_a_result_has_its_headline_on_stdout(
    call: Call, money: Path, words: str, headline: str
) -> None:
    """A file with the output of a command names its subject; stderr is empty."""
    result = call(*words.format(money).split())
    assert (headline in result.stdout, result.stderr) == (True, "")


@pytest.mark.slow
@pytest.mark.parametrize("where", [">&-", ">/dev/full"])
@pytest.mark.parametrize("command", ["list {money}", "list {money} --json", "--version", "--help"])
def test_a_result_that_cannot_be_written_is_an_error(money: Path, command: str, where: str) -> None:
    """Stdout is closed, or its disk is full: exit 2 and one sentence, whatever the result was."""
    words = f"exec {sys.executable} -m stillframe {command.format(money=money)} {where}"
    result = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False)
    assert result.returncode == 2, result
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    if "--json" in command:
        lines = [json.loads(result.stderr)["detail"]]
    assert len(lines) == 1, result.stderr
    assert "stdout: it is closed" in lines[0] or "No space left on device" in lines[0]
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show {money}", "diff {money} A-1 A-2", "--help"])
def test_a_reader_that_stops_gives_141(money: Path, command: str) -> None:
    """Codes 1 and 2 mean a negative verdict and an error; the command reports no error."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "stillframe", *command.format(money=money).split()]
    with open(writer, "wb") as closed:  # noqa: PTH123 - a descriptor
        result = subprocess.run(words, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (result.returncode, b"rror" in result.stderr) == (141, False)


def test_one_function_writes_to_stdout() -> None:
    """So an error of writing, or a reader that stops, is handled once: no other line of the command
    line names stdout, and no console of Rich but that of tables is made for it."""
    folder = Path(command.__file__).parent
    lines = [line for path in folder.glob("*.py") for line in path.read_text().splitlines()]
    writing = [line.strip() for line in lines if re.search(r"stdout\.(write|buffer)|print\(", line)]
    assert sorted(writing) == sorted(
        (
            'sys.stdout.write("".join(f"{line}\\n" for line in lines))',
            "console.print(_table(cells, texts, widths))",
            'console.print(Text(printable(line, kept="\\n\\t")), soft_wrap=True)',
            'print(reference(), end="")',
        )
    )
