"""How a command ends: exit codes, and errors as one sentence on stderr.

0    yes, or done
1    a true no: damaged, not consistent, different, abandoned
2    wrong usage, wrong input, or something that is needed is not there
101  a bug in stillframe
141  whoever read stdout is gone (``| head``)
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand

from stillframe.cli import output
from stillframe.durable_files import local_path
from stillframe.errors import StillframeError

EXIT_NO = 1
EXIT_WRONG = 2
EXIT_BUG = 101
EXIT_CLOSED_PIPE = 141
"""What a shell shows of a program that SIGPIPE ended: neither a yes nor a no."""


class Command(TyperCommand):
    """A command whose errors become a sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; see ``TyperCommand``."""
        try:
            self._check_paths(ctx)
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except BrokenPipeError:
            # What is still buffered has nowhere to go when the program ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(EXIT_CLOSED_PIPE) from None
        except StillframeError as error:
            _end(str(error), EXIT_WRONG)
        except OSError as error:
            _end(f"{error.filename or 'input or output'}: {error.strerror or error}", EXIT_WRONG)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is ours
            typer.echo(traceback.format_exc(), err=True)
            _end(
                f"this is a bug in stillframe ({type(error).__name__}): please report it with the "
                "lines above",
                EXIT_BUG,
            )

    @staticmethod
    def _check_paths(ctx: Any) -> None:
        """Refuse addresses of other storage, wherever this command takes a path.

        Raises:
            UsageError: one is given.
        """
        for value in ctx.params.values():
            if isinstance(value, Path):
                local_path(value)


def _end(sentence: str, code: int) -> NoReturn:
    output.say(f"Error: {sentence}")
    raise typer.Exit(code)
