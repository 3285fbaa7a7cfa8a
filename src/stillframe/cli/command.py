"""The shared part of all commands: options, exit codes, and errors as one sentence on stderr.

The modules of commands import heavy modules (pyarrow, the event loop). They are imported themselves
only when one of their commands is called: ``--help`` needs only their names and short helps.

0    yes, or done
1    a failure or a no: damaged, not consistent, different, abandoned
2    usage error, wrong input, or a missing dependency
3    neither a yes nor a no: not decided
101  a bug in stillframe
141  the reader of stdout has closed it (``| head``)
"""

import contextlib
import dataclasses
import errno
import functools
import importlib
import inspect
import itertools
import os
import re
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from stillframe.cli import output, renamed
from stillframe.durable_files import disk_advice
from stillframe.errors import StillframeError, check_assertions, describe, text_of
from stillframe.storage.location import Location, local_path, locate
from stillframe.storage.remote import noticing

Function = TypeVar("Function", bound=Callable[..., None])
EXIT_NO = 1
EXIT_WRONG = 2
EXIT_UNDECIDED = 3
EXIT_BUG = 101
_OURS = str(Path(__file__).parents[1])
_LIBRARIES = re.compile(rf"<|{re.escape(sysconfig.get_path('stdlib'))}|.*/(site|dist)-packages/")
EXIT_CLOSED_PIPE = 141
"""What a shell shows of a program that SIGPIPE ended: neither a yes nor a no."""
_ParserError: Any = typer.BadParameter.__base__
"""What the parser of arguments raises: ``UsageError`` of Click, which Typer does not export."""


class Command(TyperCommand):
    """A command whose options have former names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with former names of options too; see ``TyperCommand``."""
        known = {name for parameter in self.params for name in parameter.opts}
        return super().parse_args(ctx, renamed.rename_options(args, known))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; see ``TyperCommand``."""
        check_assertions()
        return super().invoke(ctx)


class Commands(typer.Typer):
    """The commands of a module."""

    def __init__(self) -> None:
        super().__init__(rich_markup_mode=None)

    def add(self, *examples: str, name: str | None = None) -> Callable[[Function], Function]:
        """Return a decorator that makes a command of a function, with examples for its help.

        A parameter whose type is a dataclass becomes an option for each of its fields, so that
        several commands can share options that are declared once. Every command has ``--json``:
        see ``output.wants_json``.
        """
        heading = "Example" if len(examples) == 1 else "Examples"
        # After \b lines are not wrapped: each can be pasted into a shell.
        epilog = "\n".join(("\b", f"{heading}:", *(f"  stillframe {one}" for one in examples)))

        def register(function: Function) -> Function:
            self.command(name, cls=Command, epilog=epilog)(_with_options(function))
            return function

        return register


class DeferredCommand(TyperCommand):
    """Stands for a command of the same name; `module`, whose ``app`` has it, is imported when it is
    called."""

    def __init__(self, module: str, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._module = module

    def load(self) -> Any:
        """Return the command itself."""
        app = importlib.import_module(self._module).app
        return typer.main.get_group(app).commands[self.name or ""]

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        """Return the context of the command itself; see ``TyperCommand``."""
        return self.load().make_context(info_name, args, *more, **extra)


def defer(app: typer.Typer, module: str, name: str, short_help: str) -> None:
    """Give `app` a command of a module of this package, which is imported when it is called."""
    made_by: Any = functools.partial(DeferredCommand, f"{__package__}.{module}")
    app.command(name, cls=made_by, short_help=short_help)(_deferred)


def _deferred() -> None:
    raise AssertionError("the context is that of the command which this one stands for")


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    parameters: list[inspect.Parameter] = []
    bundles: dict[str, type[Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        if not dataclasses.is_dataclass(bundle := parameter.annotation):
            parameters.append(parameter)
            continue
        assert isinstance(bundle, type)
        bundles[parameter.name] = bundle
        parameters += (
            _option(field.name, field.type, field.default) for field in dataclasses.fields(bundle)
        )
    parameters.append(_option("is_json", bool, flag("--json", "Write JSON to stdout.")))

    # Typer knows no unions: it reads a path, which becomes a location below.
    located = {one.name for one in parameters if _takes_location(one.annotation)}
    parameters = [
        one.replace(annotation=_as_path(one.annotation)) if one.name in located else one
        for one in parameters
    ]

    @functools.wraps(function)
    def command(*, is_json: bool, **values: Any) -> None:
        for name, value in values.items():
            values[name] = _located(value, locate if name in located else local_path)
        for name, bundle in bundles.items():
            names = [field.name for field in dataclasses.fields(bundle)]
            values[name] = bundle(**{field: values.pop(field) for field in names})
        with output.answering(is_json=is_json), noticing(output.say):
            function(**values)

    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _takes_location(annotation: Any) -> bool:
    plain = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return plain is Location or Location in get_args(plain)


def _as_path(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        plain, *more = get_args(annotation)
        return Annotated[(_as_path(plain), *more)]
    return Path | None if type(None) in get_args(annotation) else Path


def _located(value: Any, find: Callable[[Path], Location]) -> Any:
    """Return a value with each path in it replaced by its location."""
    if isinstance(value, list):
        return [_located(one, find) for one in value]
    return find(value) if isinstance(value, Path) else value


def _option(name: str, kind: Any, default: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=kind)


def argument(metavar: str, words: str, *, default: Any = ...) -> Any:
    """Return an argument with its help, required if it has no default."""
    return typer.Argument(default, metavar=metavar, help=words)


def option(metavar: str, words: str, *names: str, default: Any = None, **more: Any) -> Any:
    """Return an option with its help, required if the default is ``...``."""
    return typer.Option(default, *names, metavar=metavar, help=words, **more)


def flag(name: str, words: str) -> Any:
    """Return an option without a value."""
    return typer.Option(False, name, help=words)


def conclude(is_yes: bool | None, sentence: str, *, yes: str = "PASS", no: str = "FAIL") -> None:
    """Print the verdict of a check, or the answer to a question. End the command with 1 if it is
    no, and with 3 if it is None: not decided."""
    if is_yes is None:
        end_undecided(sentence)
    if not is_yes:
        end_with_failure(sentence, no=no)
    output.report(f"{yes}: {sentence}")


def end_with_failure(*sentences: str, no: str = "FAIL") -> NoReturn:
    """Print what failed, unless that was printed before, and end the command with 1."""
    output.report(*(f"{no}: {sentence}" for sentence in sentences))
    raise typer.Exit(EXIT_NO)


def end_undecided(*sentences: str) -> NoReturn:
    """Print why something is not decided, unless that was printed before, and end the command with
    3."""
    output.report(*(f"not decided: {sentence}" for sentence in sentences))
    raise typer.Exit(EXIT_UNDECIDED)


@contextlib.contextmanager
def signals(handler: Callable[..., object], *numbers: signal.Signals) -> Iterator[None]:
    """Let `handler` take signals while the body runs."""
    before = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, old in before:
            signal.signal(number, old)


class Root(TyperGroup):
    """All commands. An error ends them with an exit code and a sentence; former names of commands
    are replaced before they are looked up."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **extra: Any) -> Any:
        """Run the command that the arguments name; see ``TyperGroup``."""
        words = sys.argv[1:] if args is None else [*args]
        options = itertools.takewhile(lambda word: word != "--", words)
        with output.answering(is_json="--json" in options):
            return super().main(words, *more, **extra)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        """Make the context of all commands; see ``TyperGroup``."""
        with _errors_as_sentences("stdout"):
            return super().make_context(info_name, args, *more, **extra)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments before the command; see ``TyperGroup``."""
        if args[:1] == [renamed.SPLIT] and " ".join(args[:2]) not in renamed.COMMANDS:
            ctx.fail(f"'{renamed.SPLIT}' is now 'pipeline', 'store' and 'log'.")
        return super().parse_args(ctx, renamed.rename_command(args))

    def invoke(self, ctx: Any) -> Any:
        """Parse the arguments of the command and run it; see ``TyperGroup``."""
        with _errors_as_sentences():
            return super().invoke(ctx)


@contextlib.contextmanager
def _errors_as_sentences(place: str = "input or output") -> Iterator[None]:
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except _ParserError as error:
        if not output.wants_json():
            raise
        _end(error, error.format_message(), EXIT_WRONG)
    except BrokenPipeError:
        # What is still buffered has nowhere to go when the program ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_CLOSED_PIPE) from None
    except StillframeError as error:
        _end(error, text_of(error), EXIT_WRONG)
    except OSError as error:
        advice = f"; {disk_advice(error)}" if error.errno == errno.EMFILE else ""
        _end(error, f"{error.filename or place}: {error.strerror or error}{advice}", EXIT_WRONG)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is ours or the user's
        if (where := _place_of_user(error)) is not None:
            _end(error, f"your code raised {describe(error)}, in {where}", EXIT_WRONG)
        sentence = (
            f"this is a bug in stillframe ({type(error).__name__}): please report it with the "
            f"{'traceback' if output.wants_json() else 'lines above'}"
        )
        _end(error, sentence, EXIT_BUG, traceback.format_exc())


def _place_of_user(error: BaseException) -> str | None:
    """Return where in the user's code an error was raised; None if that is in ours."""
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_filename.startswith(_OURS):
            place = None
        elif _LIBRARIES.match(code.co_filename) is None:
            place = f"{code.co_qualname}(), line {line} of {code.co_filename}"
    return place


def _end(error: BaseException, sentence: str, code: int, more: str = "") -> NoReturn:
    output.say_error(type(error).__name__, sentence, code, more)
    raise typer.Exit(code)
