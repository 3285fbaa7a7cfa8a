"""Reads on in the history of a store from where it was read before, while it is being written.

A place outlives the program that was there: it names a file by its first line, because files of the
history change their names, and have first lines that are never written twice.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from stillframe.errors import Damaged
from stillframe.store.history import NEWER, OLDER, READ_BYTES_MAX, Line, parse_lines
from stillframe.store.opening import explained

_PASSAGE_BYTES = 2**16


class Place(msgspec.Struct, frozen=True):
    """How far a history was read: `file` is the SHA-256 of the first line of a file, `length` how
    many bytes of that file are behind."""

    file: str
    length: int


Step = tuple[Line | Damaged, Place]
"""A line, or what is wrong with it, and the place behind it."""


def beginning(store: Path) -> Step | None:
    """Return the first line that is still there; None if there is none.

    Raises:
        StoreError: it cannot be read.
    """
    for name in (OLDER, NEWER):
        path = store / name
        with _opened(path) as file:
            first = b"" if file is None else file.readline(READ_BYTES_MAX)
        if first.endswith(b"\n"):
            (line,) = parse_lines(path, first.splitlines())
            return line, Place(_name_of(first), len(first))
    return None


def read_on(store: Path, place: Place) -> list[Step] | None:
    """Return some of the lines behind a place, the oldest first.

    Returns:
        nothing if there are no more for now; None if the file is gone: what was in it is not known.

    Raises:
        StoreError: something cannot be read.
    """
    newer, older = store / NEWER, store / OLDER
    # The newer one first: if it becomes the older meanwhile, it is still what follows that.
    with _opened(newer) as new, _opened(older) as old:
        if _is_of(new, place):
            return _steps(newer, new, place)
        if not _is_of(old, place):
            return None
        steps = _steps(older, old, place)
        if steps or new is None:
            return steps
        new.seek(0)
        first = new.readline(READ_BYTES_MAX)
        return _steps(newer, new, Place(_name_of(first), 0)) if first.endswith(b"\n") else []


def _name_of(first: bytes) -> str:
    return hashlib.sha256(first).hexdigest()


def _is_of(file: IO[bytes] | None, place: Place) -> bool:
    """Return whether a place is in this file: not in another one, and not in what was never there
    because the disk had no room for it."""
    if file is None or _name_of(file.readline(READ_BYTES_MAX)) != place.file:
        return False
    file.seek(place.length - 1)
    return file.read(1) == b"\n"


def _steps(path: Path, file: IO[bytes] | None, place: Place) -> list[Step]:
    assert file is not None, "its first line was read"
    size = _PASSAGE_BYTES
    while True:
        file.seek(place.length)
        content = file.read(size)
        whole = content.rfind(b"\n") + 1
        # A line that is longer than what was read, or one that is being written.
        if whole or len(content) < size or size > READ_BYTES_MAX:
            break
        size *= 2
    steps, length = [], place.length
    encoded = content[:whole].splitlines(keepends=True)
    stripped = [text.rstrip() for text in encoded]
    lines = list(parse_lines(path, stripped))
    if any(isinstance(line, Damaged) for line in lines):
        # Its number is that in the file: what is behind is counted for that alone.
        file.seek(0)
        lines = list(parse_lines(path, stripped, first=1 + file.read(length).count(b"\n")))
    for line, text in zip(lines, encoded, strict=True):
        length += len(text)
        steps.append((line, Place(place.file, length)))
    return steps


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | None]:
    """Open the file at `path` for the body; None if it is not there."""
    with explained(path, "read"), contextlib.ExitStack() as stack:
        file = None
        with contextlib.suppress(FileNotFoundError):
            file = stack.enter_context(path.open("rb"))
        yield file
