"""Executions of other systems: logs with vector clocks become traces.

``clocks`` checks that the clocks of a log do not contradict each other, ``execution`` finds the
messages and makes the trace, ``shiviz`` and ``jsonlines`` read the two forms of such logs.
"""

import io
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from stillframe.errors import UsageError, repr_of
from stillframe.importer.clocks import Progress
from stillframe.importer.execution import Execution, Imported, name_files, no_progress
from stillframe.importer.jsonlines import JsonPaths, read_json_lines
from stillframe.importer.shiviz import read_shiviz
from stillframe.storage.location import local_path

__all__ = ["Execution", "Imported", "JsonPaths", "read_log"]

LOG_BYTES_MAX = 2**30
_NAME_CHARS_MAX = 255
JSON_LINES_SUFFIXES = frozenset({".ndjson", ".jsonl", ".json"})


def read_log(
    *logs: str | Path | bytes | bytearray | BinaryIO,
    regex: str | None = None,
    delimiter: str | None = None,
    json_paths: JsonPaths | None = None,
    fill_gaps: bool = False,
    progress: Progress = no_progress,
) -> Imported:
    """Import a log of another system, and check that its vector clocks do not contradict
    themselves.

    Args:
        logs: the log: a path, its bytes, or a file that is open for reading bytes, from where it is
            and up to 1 GiB. It is newline-delimited JSON if its name ends in ``.ndjson``,
            ``.jsonl`` or ``.json``, else text as ShiViz reads it. Several files, such as one of
            each host, have the events of each execution together.
        regex: finds one event in text, with groups ``host``, ``clock`` and ``event``; others become
            its fields. By default the first line of a file for ShiViz; else an event and its host
            with the clock take two lines, in the order that fits.
        delimiter: finds what separates executions in text; its group ``trace`` names the next one.
            By default the second line of a file for ShiViz.
        json_paths: where objects have what is needed; the log is then JSON, whatever its name.
        fill_gaps: fill in events that the log leaves out: counts of a host that no event of it
            has. What such an event sent, received and learned is unknown, so it is ordered by its
            host alone, and the messages are those that the clocks imply. By default it is an error.
        progress: called with what is done, how much of it, and how much there is.

    Returns:
        The executions, each with its trace. ``tracefile.write`` keeps one for the command line.

    Raises:
        UsageError: a file cannot be read as such a log.
        NotConsistent: the clocks contradict themselves; file, line and host are named.
        OSError: a file cannot be opened or read.
    """
    with tempfile.TemporaryDirectory(prefix="stillframe-") as directory:
        found = [_file(log, Path(directory), number) for number, log in enumerate(logs, 1)]
        files, names = [path for path, _ in found], name_files([name for _, name in found])
        are_json = {path.suffix.lower() in JSON_LINES_SUFFIXES for path in files}
        if json_paths is None and (regex is not None or are_json != {True}):
            if regex is None and len(are_json) > 1:
                raise UsageError(
                    "some of these files are JSON lines by their names, and others are not: import "
                    "files of one format together"
                )
            return read_shiviz(
                *files,
                names=names,
                regex=regex,
                delimiter=delimiter,
                fill_gaps=fill_gaps,
                progress=progress,
            )
        if regex is not None or delimiter is not None:
            raise UsageError(
                "--regex and --delimiter are for text, and these are JSON lines (--json-paths, or "
                "a name that ends in .ndjson, .jsonl or .json): leave out one or the other"
            )
        return read_json_lines(
            *files, names=names, paths=json_paths, fill_gaps=fill_gaps, progress=progress
        )


def _file(
    log: str | Path | bytes | bytearray | BinaryIO, directory: Path, number: int
) -> tuple[Path, Path]:
    """Return the file of a log, and what errors call it. What is no path is copied to `directory`,
    since both formats are read twice; `number` names it if it has no name that can be shown."""
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
    suffix = Path(shown.name.removesuffix(".gz")).suffix.lower()
    path = directory / f"{number}{suffix if suffix in JSON_LINES_SUFFIXES else ''}"
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
