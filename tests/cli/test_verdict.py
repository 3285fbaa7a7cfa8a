"""How commands end: which error becomes which exit code, and what it says."""

import pytest
import typer
from typer.testing import CliRunner, Result

from stillframe.cli.verdict import Command
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


def test_what_nobody_expected_is_our_bug() -> None:
    """Any other exception ends with 101, says that it is our bug, and keeps the traceback."""
    result = outcome_of(KeyError("balance"))
    assert result.exit_code == 101
    assert "this is a bug in stillframe (KeyError)" in result.stderr
    assert "Traceback (most recent call last)" in result.stderr


def test_a_chosen_exit_code_stays() -> None:
    """A command that says no with 1 is not rewritten."""
    assert outcome_of(typer.Exit(1)).exit_code == 1
