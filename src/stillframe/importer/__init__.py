"""Executions of other systems: logs with vector clocks become traces.

``clocks`` checks that the clocks of a log do not contradict each other, ``execution`` finds the
messages and makes the trace, ``shiviz`` and ``jsonlines`` read the two forms of such logs, whose
files ``log_files`` finds.
"""

import tempfile
from pathlib import Path
from typing import BinaryIO

from stillframe.errors import UsageError, check_assertions
from stillframe.importer.clocks import Progress
from stillframe.importer.execution import Execution, Imported, no_progress
from stillframe.importer.jsonlines import JsonPaths, read_json_lines
from stillframe.importer.log_files import are_json_lines, name_files, to_file
from stillframe.importer.shiviz import read_shiviz

__all__ = ["Execution", "Imported", "JsonPaths", "read_log"]

check_assertions()


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
        found = [to_file(log, Path(directory), number) for number, log in enumerate(logs, 1)]
        files, names = [path for path, _ in found], name_files([name for _, name in found])
        are_json = {are_json_lines(path) for path in files}
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
