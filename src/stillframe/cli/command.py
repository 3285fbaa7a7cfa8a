"""What every command has: options in bundles, exit codes, and errors as one sentence on stderr.

The modules of commands import what is heavy (pyarrow, the event loop), and are imported themselves
only when one of their commands is called: ``--help`` needs their names and short helps alone.

0    yes, or done
1    a true no: damaged, not consistent, different, abandoned
2    wrong usage, wrong input, or something that is needed is not there
101  a bug in stillframe
141  whoever read stdout is gone (``| head``)
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import typer
import typer.main
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
        with _errors_as_sentences():
            # Addresses of other storage are refused wherever a command takes a path.
            for value in ctx.params.values():
                if isinstance(value, Path):
                    local_path(value)
            return super().invoke(ctx)


class DeferredCommand(TyperCommand):
    """Stands for a command of the same name whose module is not imported before it is called.

    Args:
        module: name of the module; its ``app`` has the command.
        attributes: as ``TyperCommand`` takes them.
    """

    def __init__(self, module: str, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._module = module

    def load(self) -> Any:
        """Import the module and return the command."""
        app = importlib.import_module(self._module).app
        return typer.main.get_group(app).commands[self.name or ""]

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        """Return the context of the command itself; see ``TyperCommand``."""
        with _errors_as_sentences():
            command = self.load()
        return command.make_context(info_name, args, *more, **extra)


def defer(app: typer.Typer, module: str, short_helps: Mapping[str, str]) -> None:
    """Give `app` the commands of a module of this package, which is imported when one is called.

    Args:
        app: what gets the commands.
        module: name of the module, without that of the package.
        short_helps: for each command, what the list of commands says of it.
    """
    for name, short_help in short_helps.items():
        made_by: Any = functools.partial(DeferredCommand, f"{__package__}.{module}")
        app.command(name, cls=made_by, short_help=short_help)(_deferred)


def _deferred() -> None:
    raise AssertionError("the context is that of the command which this one stands for")


def with_bundles(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has an option for each field of the dataclasses it takes.

    Several commands can so share options that are declared once. The options of a bundle stand in
    the help where the parameter stands; each has the default of its field.
    """
    parameters: list[inspect.Parameter] = []
    bundles: dict[str, type[Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        if not dataclasses.is_dataclass(bundle := parameter.annotation):
            parameters.append(parameter)
            continue
        assert isinstance(bundle, type)
        bundles[parameter.name] = bundle
        hints = get_type_hints(bundle, include_extras=True)
        parameters += (
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in dataclasses.fields(bundle)
        )

    @functools.wraps(function)
    def command(**values: Any) -> None:
        for name, bundle in bundles.items():
            names = [field.name for field in dataclasses.fields(bundle)]
            values[name] = bundle(**{field: values.pop(field) for field in names})
        function(**values)

    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def end_with_no(*sentences: str) -> NoReturn:
    """Say why the answer is no, and end the command.

    Raises:
        typer.Exit: with 1.
    """
    output.say(*(f"no: {sentence}" for sentence in sentences))
    raise typer.Exit(EXIT_NO)


@contextlib.contextmanager
def _errors_as_sentences() -> Iterator[None]:
    try:
        yield
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


def _end(sentence: str, code: int) -> NoReturn:
    output.say(f"Error: {sentence}")
    raise typer.Exit(code)
