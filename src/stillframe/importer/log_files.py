"""The files of a log: what a caller may give for one, what errors call them, and their forms.

A file that is no text in UTF-8 is recognized by its first bytes, and refused with the command that
converts it.
"""

import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from stillframe.errors import UsageError, repr_of
from stillframe.storage.location import local_path

LOG_BYTES_MAX = 2**30
_NAME_CHARS_MAX = 255
_JSON_LINES = frozenset({".ndjson", ".jsonl", ".json"})

BOM = b"\xef\xbb\xbf"
"""Begins some files in UTF-8; it is no part of their text."""
_CONVERT = "not UTF-8: convert it with iconv -t UTF-8 -f"
_FORMS = (
    (rb"\x1f\x8b", "is compressed: uncompress it first, with gunzip"),
    (rb"\x28\xb5\x2f\xfd", "is compressed: uncompress it first, with unzstd"),
    (rb"\xfd7zXZ\0", "is compressed: uncompress it first, with unxz"),
    (rb"BZh[1-9]1AY&SY", "is compressed: uncompress it first, with bunzip2"),
    (rb"PK\x03\x04", "is a zip file: extract its files first, with unzip"),
    (rb"\xff\xfe\0\0|\0\0\xfe\xff", f"is UTF-32, {_CONVERT} UTF-32"),
    (rb"\xff\xfe|\xfe\xff", f"is UTF-16, {_CONVERT} UTF-16"),
    (rb"[^\0]\0", f"is UTF-16, {_CONVERT} UTF-16LE"),
    (rb"\0[^\0]", f"is UTF-16, {_CONVERT} UTF-16BE"),
)
_COMPILED = [(re.compile(begin, re.DOTALL), what) for begin, what in _FORMS]


def check_form(name: str, begin: bytes) -> None:
    """Raise a UsageError if a file, which errors call `name`, begins like a known form that is no
    text in UTF-8."""
    for pattern, what in _COMPILED:
        if pattern.match(begin):
            raise UsageError(f"{name} {what}")


def name_files(paths: Sequence[Path]) -> list[str]:
    """Return what errors call these files: by their names, or in full if two have the same;
    UsageError if there is none."""
    if not paths:
        raise UsageError("there is no log to import: name at least one file")
    names = [path.name for path in paths]
    return names if len({*names}) == len(names) else [str(path) for path in paths]


def are_json_lines(path: Path) -> bool:
    """Return whether a file is newline-delimited JSON by its name."""
    return path.suffix.lower() in _JSON_LINES


def to_file(
    log: str | Path | bytes | bytearray | BinaryIO, directory: Path, number: int
) -> tuple[Path, Path]:
    """Return the file of a log, and its path for errors. Bytes and open files are copied to
    `directory`, since both formats are read twice; `number` names one without a printable name."""
    if isinstance(log, str | os.PathLike):
        path = local_path(log)
        return path, path
    source = io.BytesIO(log) if isinstance(log, bytes | bytearray) else log
    if not callable(getattr(source, "read", None)):
        raise UsageError(f"the log is {repr_of(log)}: give a path, bytes, or an open file")
    name = getattr(source, "name", None)
    shown = Path(name if isinstance(name, str) and name.isprintable() else "")
    if not 0 < len(shown.name) <= _NAME_CHARS_MAX:
        shown = Path(f"log {number}")
    # A GzipFile has the name of the compressed file, but is read uncompressed.
    uncompressed = Path(shown.name.removesuffix(".gz"))
    path = directory / f"{number}{uncompressed.suffix if are_json_lines(uncompressed) else ''}"
    size = 0
    with path.open("wb") as copy:
        while chunk := source.read(2**20):
            if not isinstance(chunk, bytes | bytearray):
                raise UsageError(f"{shown.name} is open for text: open it with mode 'rb'")
            size += len(chunk)
            if size > LOG_BYTES_MAX:
                raise UsageError(f"{shown.name} has more than 1 GiB: give its path, or split it")
            copy.write(chunk)
    return path, shown
