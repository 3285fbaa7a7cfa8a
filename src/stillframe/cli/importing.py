"""``stillframe import``: does a log of another system contradict itself? If not, it is a trace."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from stillframe import tracefile
from stillframe.cli import output, quantities
from stillframe.cli.command import EXIT_NO
from stillframe.durable_files import check_target
from stillframe.errors import NotConsistent, UsageError
from stillframe.importer.execution import Execution, Imported
from stillframe.importer.jsonlines import JsonPaths, read_json_lines
from stillframe.importer.names import show_host
from stillframe.importer.shiviz import EVENT_PATTERN, read_shiviz

JSON_LINES_SUFFIXES = frozenset({".ndjson", ".jsonl"})
_RENAMED_SHOWN_MAX = 5


class Form(msgspec.Struct, frozen=True):
    """How the log is written, as far as the options say it."""

    regex: str | None
    delimiter: str | None
    json_paths: str | None


def import_log(
    path: Path, form: Form, *, number: int | None, out: Path | None, is_json: bool
) -> None:
    """Import the log at `path`, say what is in it, and write its executions to `out`.

    Raises:
        typer.Exit: with 1; the log contradicts itself.
        UsageError: it cannot be read in this form, or has no execution `number`.
    """
    if out is not None:
        check_target(out, inputs=[path])
    try:
        with _progress() as progress:
            imported = _read(path, form, progress)
    except NotConsistent as error:
        if is_json:
            output.put_json({"is_consistent": False, "detail": str(error)})
        output.say(f"no: {error}")
        raise typer.Exit(EXIT_NO) from None
    chosen = _choose(path, imported, number)
    files = _write(path, out, chosen)
    rows = [_describe(index, execution, files.get(index)) for index, execution in chosen.items()]
    if is_json:
        output.put_json(
            {
                "is_consistent": True,
                "executions": rows,
                "ignored_line_count": imported.ignored_line_count,
            }
        )
    else:
        _put_table(rows)
    _say(chosen, imported, files)


def _read(path: Path, form: Form, progress: Callable[[str, int, int], None]) -> Imported:
    if form.json_paths is not None or (
        form.regex is None and path.suffix.lower() in JSON_LINES_SUFFIXES
    ):
        if form.regex is not None or form.delimiter is not None:
            raise UsageError(
                "--regex and --delimiter are for text, and this is JSON in lines "
                "(--json-paths, or a name that ends in .ndjson or .jsonl): leave out one or other"
            )
        paths = JsonPaths.parse(form.json_paths) if form.json_paths else JsonPaths()
        return read_json_lines(path, paths=paths, progress=progress)
    regex = EVENT_PATTERN if form.regex is None else form.regex
    return read_shiviz(path, regex=regex, delimiter=form.delimiter, progress=progress)


def _choose(path: Path, imported: Imported, number: int | None) -> dict[int, Execution]:
    executions = dict(enumerate(imported.executions, 1))
    if number is None:
        return executions
    if number not in executions:
        raise UsageError(
            f"{path} has no execution {number}: it has {len(executions)}, counted from 1"
        )
    return {number: executions[number]}


def _write(log: Path, out: Path | None, chosen: dict[int, Execution]) -> dict[int, Path]:
    """Write each execution to a file, several to files with numbers, and return these files."""
    if out is None:
        return {}
    files = {
        number: out if len(chosen) == 1 else out.with_name(f"{out.stem}-{number}{out.suffix}")
        for number in chosen
    }
    for number, file in files.items():
        tracefile.write(file, chosen[number].trace, inputs=[log])
    return files


def _describe(number: int, execution: Execution, file: Path | None) -> dict[str, Any]:
    trace = execution.trace
    in_transit = None
    if execution.are_messages_stated:
        in_transit = sum(map(len, trace.in_transit(trace.end).values()))
    return {
        "number": number,
        "label": execution.label,
        "process_count": len(trace.processes),
        "event_count": trace.event_count,
        "message_count": trace.message_count,
        "in_transit_count": in_transit,
        "repeat_count": execution.repeat_count,
        "hosts": execution.hosts,
        "file": file,
    }


def _put_table(rows: list[dict[str, Any]]) -> None:
    columns = ("EXECUTION", "PROCESSES", "EVENTS", "MESSAGES", "IN TRANSIT AT THE END")
    counted = ("process_count", "event_count", "message_count", "in_transit_count")
    output.put_table(
        "",
        columns,
        [
            (
                f"{row['number']} {row['label']}".rstrip(),
                *("unknown" if row[name] is None else f"{row[name]:,}" for name in counted),
            )
            for row in rows
        ],
    )


def _say(chosen: dict[int, Execution], imported: Imported, files: dict[int, Path]) -> None:
    if imported.ignored_line_count:
        lines = quantities.count(imported.ignored_line_count, "line")
        output.say(f"{lines} passed over: no event there")
    if repeat_count := sum(execution.repeat_count for execution in chosen.values()):
        receives = quantities.count(repeat_count, "receive")
        output.say(
            f"{receives} of a message that, by the clocks, had come before: nothing accepted"
        )
    renamed = {
        host: process
        for execution in chosen.values()
        for process, host in execution.hosts.items()
        if process != host
    }
    for host, process in list(renamed.items())[:_RENAMED_SHOWN_MAX]:
        output.say(f"host {show_host(host)} is process {process}")
    if len(renamed) > _RENAMED_SHOWN_MAX:
        output.say(f"and {len(renamed) - _RENAMED_SHOWN_MAX} other hosts renamed: see --json")
    for file in files.values():
        output.say(f"written: {file}")
    output.say(
        f"yes: the clocks of {quantities.count(len(chosen), 'execution')} contradict themselves "
        "nowhere"
    )


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Give what shows on a terminal how far an import is."""
    console = output.words()
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("reading", total=None)

        def progress(phase: str, done: int, total: int) -> None:
            bar.update(task, description=phase, completed=done, total=total)

        yield progress
