"""Results to stdout, progress and warnings to stderr; colour and moving lines only on a terminal.

What a command was asked for is its result: tables, ids, and the sentences of ``report``, such as a
headline or a verdict. These go to stderr if stdout has what programs read: JSON, or by ``put_file``
a file for another command. Everything else, by ``say``, is on stderr. All of stdout but help is
written by ``_put``.
"""

import contextlib
import datetime
import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stillframe.cli import quantities
from stillframe.json_values import json_text, plain, plain_text
from stillframe.pages.values import printable, same_count
from stillframe.storage.location import Location
from stillframe.storage.opened import requests_to

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

_IS_JSON = ContextVar("_IS_JSON", default=False)
_IS_FILE = ContextVar("_IS_FILE", default=False)
"""Whether stdout has a file for another command."""
JSON_VERSION = 2
"""Version of ``docs/json.md``, which says when it is raised."""
VALUE_LENGTH_MAX = 60
"""Maximum characters of a value in a table; JSON has the full value."""
_UNLIMITED_COLUMNS = 100_000
_GAP = 3
"""Characters between two columns."""
_FOLDED_LENGTH = 20
"""Characters that a column of a narrow terminal keeps on one line."""
Item = TypeVar("Item")
Columns = Mapping[str, Callable[[Item], object]]
"""What each column of a table shows of an item."""


class _Unfailing:
    """Text for stderr, whose reader may have ended: a terminal was closed, or Ctrl-C also ended ``|
    tee``. That must not end a command that has a last snapshot to take."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


def words() -> Console:
    """Return the console for words: stderr. Printing to it raises no OSError."""
    if sys.stderr is None:  # it was closed before the start
        return Console(stderr=True, highlight=False)
    return Console(file=cast(IO[str], _Unfailing(sys.stderr)), highlight=False)


def is_lively(console: Console) -> bool:
    """Return whether lines can be written over, as bars and tables that change are."""
    return console.is_terminal and not console.is_dumb_terminal


def status(sentence: str) -> contextlib.AbstractContextManager[object]:
    """Show on a terminal what the body does, and wipe that away at its end."""
    console = words()
    return console.status(sentence) if is_lively(console) else contextlib.nullcontext()


def say(*lines: str, console: Console | None = None) -> None:
    """Write lines to stderr as they are, without markup; what cannot be printed is escaped."""
    console = console or words()
    for line in lines:
        console.print(Text(printable(line, kept="\n\t")), soft_wrap=True)


def report(*sentences: str) -> None:
    """Write sentences of the result to stdout, or to stderr if stdout has the result as JSON or as
    a file; what cannot be printed is escaped."""
    if wants_json() or _IS_FILE.get():
        say(*sentences)
    else:
        _put(*(printable(sentence, kept="\n\t") for sentence in sentences))


def put_lines(lines: Iterable[str]) -> None:
    """Write lines to stdout; what cannot be printed is escaped, and so are further line ends."""
    _put(*(printable(line, kept="\t") for line in lines))


def put_file(lines: Iterable[str]) -> None:
    """Write lines to stdout as ``put_lines`` does, which another command reads: a schedule, for
    instance. From then on ``report`` writes to stderr."""
    put_lines(lines)
    _IS_FILE.set(True)


def _put(*lines: str) -> None:
    """Write lines to stdout. If its reader has closed it, the BrokenPipeError ends the command."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def put_json(document: Any) -> None:
    """Write one JSON object to stdout, on one line, with the version of what JSON says."""
    _put(plain_text({"version": JSON_VERSION} | plain(document)))


def say_error(kind: str, sentence: str, code: int, more: str = "") -> None:
    """Write why a command ends to stderr: one sentence below `more`, or one JSON object.

    Args:
        kind: the class of the error.
        sentence: what was wrong, where, and what to do.
        code: the exit code.
        more: such as a traceback.
    """
    if wants_json():
        document = {"version": JSON_VERSION, "error": kind, "detail": sentence, "exit_code": code}
        say(json.dumps(document | ({"traceback": more} if more else {})))  # ASCII, whatever it is
    else:
        say(*([more] if more else ()), f"Error: {sentence}")


@contextlib.contextmanager
def answering(*, is_json: bool) -> Iterator[None]:
    """Let the answer of the body be JSON or text, as ``--json`` says."""
    tokens = _IS_JSON.set(is_json), _IS_FILE.set(False)
    try:
        yield
    finally:
        _IS_JSON.reset(tokens[0])
        _IS_FILE.reset(tokens[1])


def wants_json() -> bool:
    """Return whether the command's answer is JSON. In other threads, such as those in which Spark
    calls back, this is False: pass them the value."""
    return _IS_JSON.get()


def answer(
    document: dict[str, Any] | msgspec.Struct | Callable[[], Any],
    show: Callable[[], object] | None = None,
) -> None:
    """Write the answer to stdout: `document`, or what it returns, as JSON if that is wanted, else
    what `show` writes."""
    if wants_json():
        put_json(document() if callable(document) else document)
    elif show is not None:
        show()


def cell(value: Any) -> str:
    """Return a value as a table shows it, shortened if it is long."""
    return shortened(_full_text(value))


def pair_of_cells(one: Any, other: Any) -> tuple[str, str]:
    """Return two values that differ as ``cell`` does, long ones from before they begin to."""
    texts = _full_text(one), _full_text(other)
    start = max(0, same_count(*texts) - VALUE_LENGTH_MAX // 3)
    if max(map(len, texts)) <= VALUE_LENGTH_MAX or not start:
        return shortened(texts[0]), shortened(texts[1])
    return shortened(f"...{texts[0][start:]}"), shortened(f"...{texts[1][start:]}")


def _full_text(value: Any) -> str:
    match value:
        case str() if _is_own_text(value):
            return value
        case float() | int() | datetime.datetime() if not isinstance(value, bool):
            return str(value)
        case _:
            return json_text(value)


def _is_own_text(text: str) -> bool:
    """Return whether a table shows a text as it is: if no other value is shown so."""
    if len(text) > VALUE_LENGTH_MAX:  # longer than numbers and times
        return text[0] not in '[{"' and text.isprintable()
    for reads in (float, msgspec.json.decode, datetime.datetime.fromisoformat):
        with contextlib.suppress(ValueError, msgspec.MsgspecError, RecursionError):
            # A time without a zone is recorded as text.
            return getattr(reads(text), "tzinfo", True) is None
    return text.isprintable()


def shortened(text: str) -> str:
    """Return a text that is short enough for a table."""
    return text if len(text) <= VALUE_LENGTH_MAX else f"{text[: VALUE_LENGTH_MAX - 3]}..."


def put_table(
    title: str,
    columns: Sequence[str] | Columns[Any],
    rows: Iterable[Any],
    *,
    texts: int = 1,
    limit: int | None = None,
    more: str = "more rows",
) -> None:
    """Write a table to stdout; the first `texts` columns are words, the others figures. At most
    `limit` rows are written, and how many `more` there are. stderr has the columns that a terminal
    is too narrow for."""
    # Rich exits with 1 if the reader of stdout has closed it, so `_put` writes the table.
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_UNLIMITED_COLUMNS)
    listed = list(rows)
    cells = _cells(columns, listed[:limit])
    widths = _widths(cells, console.width, texts)
    with console.capture() as captured:
        console.print(_table(cells, texts, widths))
    _put(*([printable(title)] if title else ()), captured.get().removesuffix("\n"))
    if left_out := [column[0] for index, column in enumerate(cells) if index not in widths]:
        say(f"columns left out: {', '.join(left_out)} (widen the terminal, or use --json)")
    if limit is not None and len(listed) > limit:
        report(f"and {len(listed) - limit:,} {more} (--json has all)")


def table(columns: Sequence[str] | Columns[Any], rows: Iterable[Any], *, texts: int = 1) -> Table:
    """Return a table as ``put_table`` writes it, of rows of cells or, with ``Columns``, of items:
    numbers have separators, and None is nothing."""
    return _table(_cells(columns, rows), texts, {})


def _cells(columns: Sequence[str] | Columns[Any], rows: Iterable[Any]) -> list[list[str]]:
    """Return each column: its heading and its cells."""
    if isinstance(columns, Mapping):
        rows = [[of(row) for of in columns.values()] for row in rows]
    listed = [*map(printable, columns)], *([_figure(cell) for cell in row] for row in rows)
    return [list(column) for column in zip(*listed, strict=True)]


def _widths(cells: list[list[str]], width: int, texts: int) -> dict[int, int]:
    """Return how wide the columns are in `width`: empty columns and then the last ones are left
    out, and texts and headings are broken between words."""
    full = [max(map(cell_len, "\n".join(column).split("\n"))) for column in cells]
    least = []
    for index, (name, *lines) in enumerate(cells):
        parts = name.split() + (" ".join(lines).split() if index < texts else lines)
        least.append(min(max(map(cell_len, parts), default=1), _FOLDED_LENGTH))
    shown = [*range(len(cells))]

    def free(widths: list[int]) -> int:
        taken: int = sum(widths[index] + _GAP for index in shown) - _GAP
        return width - taken

    if free(full) >= 0:
        return dict(enumerate(full))
    while free(least) < 0 and len(shown) > 1:
        shown.remove(([index for index in shown if not any(cells[index][1:])] or shown)[-1])
    spare = max(free(least), 0)
    found = {}
    for index in shown:
        found[index] = min(full[index], least[index] + spare)
        spare -= found[index] - least[index]
    return found


def _table(cells: list[list[str]], texts: int, widths: Mapping[int, int]) -> Table:
    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    shown = [*(widths or range(len(cells)))]
    for index in shown:
        made.add_column(
            Text(cells[index][0]),
            justify="left" if index < texts else "right",
            overflow="fold",
            width=widths.get(index),
        )
    for row in zip(*(cells[index][1:] for index in shown), strict=True):
        made.add_row(*map(Text, row))
    return made


def _figure(value: object) -> str:
    if isinstance(value, int | float | Decimal):
        return f"{value:,}"
    return "" if value is None else printable(str(value), kept="\n")


def say_requests(path: Location) -> None:
    """Write how many requests the list of a store has taken, if that is in an object store."""
    if (sent := requests_to(path)) is not None:
        say(
            f"the list took {quantities.count(sent.requests, 'request')} to the object store, "
            f"{quantities.size(sent.received_bytes)} and {quantities.duration(sent.seconds)}"
        )


def verify_all(
    path: Location,
    noun: str,
    verify: Callable[[Callable[[Any, int], None]], int],
    bytes_of: Callable[[Any], int],
) -> None:
    """Verify everything in a store with a bar, and write that it is consistent.

    Args:
        path: the store.
        noun: what it holds: ``snapshot``.
        verify: verifies all, calls its argument after each one with that and the number of all, and
            returns how many there were.
        bytes_of: returns the size of one.
    """
    byte_count = 0
    with progress_bar(f"verifying {noun}s") as update:

        def progress(one: Any, total: int) -> None:
            nonlocal byte_count
            byte_count += bytes_of(one)
            update(total=total, advance=1)

        verified = verify(progress)
    answer({"is_consistent": True, f"{noun}_count": verified, "byte_count": byte_count})
    report(
        f"PASS: {quantities.count(verified, noun)}, {quantities.size(byte_count)}: all consistent, "
        "and every byte is what was written"
        if verified
        else f"the store {path} holds no {noun} yet: there is nothing to verify"
    )


@contextlib.contextmanager
def progress_bar(
    description: str, *columns: "ProgressColumn", total: float | None = None
) -> Iterator[Callable[..., None]]:
    """Show on a terminal how far the body is, and wipe that away at its end; by default how many
    are done and the time left.

    Yields what takes ``advance``, ``completed``, ``total`` or ``description``.
    """
    from rich import progress  # noqa: PLC0415 - help does without it

    console = words()
    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        *(columns or (progress.MofNCompleteColumn(), progress.TimeRemainingColumn())),
        console=console,
        transient=True,
        disable=not is_lively(console),
    )
    with bar:
        yield functools.partial(bar.update, bar.add_task(description, total=total))


def tracked(items: Iterable[Item], description: str, total: int) -> Iterator[Item]:
    """Yield the items, and show on a terminal how many of them are done."""
    with progress_bar(description, total=total) as update:
        for item in items:
            yield item
            update(advance=1)
