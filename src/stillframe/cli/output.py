"""Data to stdout, words to stderr; colour and moving lines only on a terminal."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stillframe.pages.values import plain, printable

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

VALUE_LENGTH_MAX = 60
"""So many characters of a value are shown in a table; JSON has it whole."""
_UNLIMITED_COLUMNS = 100_000
Item = TypeVar("Item")


class _Unfailing:
    """Words for people, who may be gone: a terminal was closed, or Ctrl-C also ended ``| tee``.
    That ends no command: it may have a last snapshot to take."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Write, if that is possible."""
        with contextlib.suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, if that is possible."""
        with contextlib.suppress(OSError):
            self._file.flush()


def words() -> Console:
    """Return the console for words: stderr. Printing to it raises no OSError."""
    if sys.stderr is None:  # it was closed before the start
        return Console(stderr=True, highlight=False)
    return Console(file=cast(IO[str], _Unfailing(sys.stderr)), highlight=False)


def say(*lines: str, console: Console | None = None) -> None:
    """Write lines to stderr as they are, without markup; what cannot be printed is escaped."""
    console = console or words()
    for line in lines:
        console.print(Text(printable(line, kept="\n\t")), soft_wrap=True)


def put_lines(lines: Iterable[str]) -> None:
    """Write lines to stdout; what cannot be printed is escaped, and so are further line ends."""
    for line in lines:
        sys.stdout.write(printable(line, kept="\t") + "\n")
    sys.stdout.flush()


def put_json(document: Any) -> None:
    """Write one JSON document to stdout, on one line."""
    sys.stdout.write(f"{msgspec.json.encode(plain(document)).decode()}\n")
    sys.stdout.flush()


def cell(value: Any) -> str:
    """Return a value as a table shows it, shortened if it is long."""
    match value:
        case str():
            text = value
        case bool() | None | dict() | list() | tuple() | bytes():
            text = msgspec.json.encode(plain(value)).decode()
        case _:
            text = str(value)
    return shortened(text)


def shortened(text: str) -> str:
    """Return a text that is short enough for a table."""
    return text if len(text) <= VALUE_LENGTH_MAX else f"{text[: VALUE_LENGTH_MAX - 3]}..."


def put_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1
) -> None:
    """Write a table to stdout; the first `texts` columns are words, the others figures."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_UNLIMITED_COLUMNS)
    table = Table(
        title=Text(title) if title else None,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for index, column in enumerate(columns):
        table.add_column(
            Text(column), justify="left" if index < texts else "right", overflow="fold"
        )
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def put_records(
    columns: Mapping[str, Callable[[Item], str | int | None]],
    items: Iterable[Item],
    *,
    title: str = "",
    texts: int = 1,
    limit: int | None = None,
    more: str = "more rows",
) -> None:
    """Write a table to stdout with a row for each item.

    Args:
        columns: what each column shows of an item; a number with separators, None as nothing.
        items: what the table is about.
        title: what stands above it.
        texts: how many columns are words; the others are figures.
        limit: how many items are shown.
        more: what the items are called that are not shown.
    """
    listed = list(items)
    rows = [[_figure(of(item)) for of in columns.values()] for item in listed[:limit]]
    put_table(title, tuple(columns), rows, texts=texts)
    if limit is not None and len(listed) > limit:
        say(f"and {len(listed) - limit:,} {more} (--json has all)")


def _figure(value: str | int | None) -> str:
    return f"{value:,}" if isinstance(value, int) else value or ""


@contextlib.contextmanager
def progress_bar(
    description: str, *columns: "ProgressColumn", total: float | None = None
) -> Iterator[Callable[..., None]]:
    """Show on a terminal how far the body is, and wipe that away at its end.

    Args:
        description: what is done.
        columns: what is shown beside it; by default how many are done and the time left.
        total: how many there are to do; None if that is not known yet.

    Returns:
        what takes ``advance``, ``completed``, ``total`` or ``description``.
    """
    from rich.progress import (  # noqa: PLC0415 - help does without it
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = words()
    bar = Progress(
        TextColumn("{task.description}"),
        *(columns or (MofNCompleteColumn(), TimeRemainingColumn())),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        yield functools.partial(bar.update, bar.add_task(description, total=total))


def tracked(items: Iterable[Item], description: str, total: int) -> Iterator[Item]:
    """Yield the items, and show on a terminal how many of them are done."""
    with progress_bar(description, total=total) as update:
        for item in items:
            yield item
            update(advance=1)
