"""How commands end: which error becomes which exit code, and what it says."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from stillframe.cli.command import Command
from stillframe.cli.output import say
from stillframe.errors import Damaged, StoreError, Unavailable, UsageError


def outcome_of(error: BaseException) -> Result:
    """Run a command that raises `error`."""
    app = typer.Typer()

    @app.command(cls=Command)
    def fail() -> None:
        raise error

    return CliRunner().invoke(app, [])


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
    app = typer.Typer()
    lines: Any = [None]
    app.command(cls=Command)(lambda: say(*lines))
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 101
    assert "this is a bug in stillframe (AttributeError)" in result.stderr
    assert "Traceback (most recent call last)" in result.stderr


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


def test_a_chosen_exit_code_stays() -> None:
    """A command that says no with 1 is not rewritten."""
    assert outcome_of(typer.Exit(1)).exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize("where", [">&-", ">/dev/full"])
@pytest.mark.parametrize("command", ["list {money}", "list {money} --json", "--version", "--help"])
def test_a_result_that_cannot_be_written_is_an_error(money: Path, command: str, where: str) -> None:
    """Stdout is closed, or its disk is full: exit 2 and one sentence, whatever the result was."""
    words = f"exec {sys.executable} -m stillframe {command.format(money=money)} {where}"
    result = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False)
    assert result.returncode == 2, result
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, result.stderr
    assert "stdout: it is closed" in lines[0] or "No space left on device" in lines[0]
    assert "Traceback" not in result.stderr
