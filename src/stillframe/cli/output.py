"""Data to stdout, words to stderr; colour and moving lines only on a terminal."""

import contextlib
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any, cast

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stillframe.pages.values import plain, printable

_UNLIMITED_COLUMNS = 100_000


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
