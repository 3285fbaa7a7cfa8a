"""Logs in the form that ShiViz reads: a regular expression finds the events in any text.

Its groups ``host``, ``clock`` (a JSON object) and ``event`` are needed, other named groups become
fields of the event, and ``date``, ``time`` or ``timestamp`` is its physical time. Groups are
written as in JavaScript or Python: ``(?<host>...)`` or ``(?P<host>...)``; ``^`` and ``$`` stand for
the ends of lines. What lies between matches is passed over, as ShiViz does, but counted.

A file for ShiViz begins with two lines that are no part of the log: the expression, and the
delimiter of executions or an empty line. As in ShiViz, each must match whole lines, but for blanks
at their ends. A search by one can take exponential time, so a child process with limits does it
first. Without these lines and without an expression from the caller, an event takes two lines, in
one of two layouts.
"""

import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from stillframe.errors import UsageError, text_of
from stillframe.importer.clocks import (
    PROGRESS_STEP,
    ClockedEvent,
    Progress,
    decode_clock,
    show_host,
)
from stillframe.importer.execution import Imported, build, no_progress
from stillframe.importer.jsonlines import to_lines
from stillframe.importer.log_files import check_form, name_files

EVENT_FIRST = r"^(?<event>.*)\n(?<host>\S*) (?<clock>{.*})[ \t]*$"
"""An event, and on the next line its host and clock: the expression that ShiViz shows at first.

Both layouts begin at the beginning of a line: else a line without an event would be searched from
each of its characters on, in time that grows with the square of its length.
"""
HOST_FIRST = r"^(?:(?<timestamp>\d+) )?(?<host>\S*) (?<clock>{.*})[ \t]*\n(?<event>.*)"
"""Host and clock, and on the next line the event: what GoVector writes, with or without times."""

TEXT_BYTES_MAX = 2**30
_EXPRESSION_LENGTH_MAX = 4096
_TRIAL_S, _TRIAL_BYTES = 10, 2**28
"""Limits of CPU time and memory for an expression that a log contains. Each MB of the log adds one
second, each byte 16."""
_TRIAL = """
import json, re, resource, sys
regex, flags, spans, limits = json.loads(sys.stdin.buffer.readline())
for name, limit in limits.items():
    hard = resource.getrlimit(getattr(resource, name))[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(getattr(resource, name), (limit, limit))
text = sys.stdin.buffer.read().decode()
for begin, end in spans:
    for match in re.compile(regex, flags).finditer(text, begin, end):
        pass
"""
_LINE_END = r"[ \t]*$"
EXECUTIONS = f"^=== (?<trace>.*?) +==={_LINE_END}"
"""What separates executions in the logs of GoVector and in the examples of ShiViz."""
_EXECUTION_LINE = re.compile(EXECUTIONS.replace("?<", "?P<"), re.MULTILINE)
_SEPARATION = "give what separates them with --delimiter"
_LABELS_SHOWN_MAX = 5
_NEEDED = ("host", "clock", "event")
_TIMES = ("date", "time", "timestamp")
"""Groups of a physical time; of several the texts together are one."""
_Span = tuple[str, int, int]
"""The label of an execution, and where in the text it begins and ends."""
_IS_ARRAY = re.compile(r"\[\s*\{")
_IS_EXPRESSION = re.compile(r"\(\?P?<clock>")
_GROUP_OPENINGS = re.compile(
    r"\\k<(\w+)>|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(\(\?<)(?![=!])", re.DOTALL
)


def read_shiviz(
    *paths: Path,
    names: Sequence[str] = (),
    regex: str | None = None,
    delimiter: str | None = None,
    fill_gaps: bool = False,
    progress: Progress = no_progress,
) -> Imported:
    """Read a log with vector clocks, and check that it does not contradict itself.

    Args:
        paths: the log, of at most 1 GiB; or several, such as one of each host. They have the same
            executions in the same order, and the events of each together.
        names: what errors call these files; by default as ``name_files``.
        regex: finds one event, which may go over several lines. By default the first line, if that
            is such an expression; else the layout that fits the log.
        delimiter: finds what separates executions; its group ``trace``, if it has one, labels the
            execution that follows. By default the second line, if the first is an expression.
        fill_gaps: whether to fill in events that the log leaves out.
        progress: called with how far it is.

    Raises:
        UsageError: an expression does not do, both layouts fit a log equally well, or several files
            have other executions; and as ``execution.build``.
        NotConsistent: as ``execution.build``.
    """
    names = names or name_files(paths)
    logs = [
        _open(path, name, regex, delimiter, progress)
        for path, name in zip(paths, names, strict=True)
    ]
    for log, name in zip(logs, names, strict=True):
        if log.labels != logs[0].labels:
            raise UsageError(
                f"{name} has other executions than {names[0]}: {_list_labels(log)}, and "
                f"{_list_labels(logs[0])}. Several files need the same ones in the same order: "
                "import this file alone, or split it. If only their names differ, give a "
                "--delimiter without (?<trace>...)"
            )
    executions = tuple(
        build(
            chain.from_iterable(log.events(*log.spans[number][1:]) for log in logs),
            where=", ".join(names),
            label=label,
            separation=next(filter(None, (log.separation for log in logs)), _SEPARATION),
            fill_gaps=fill_gaps,
            progress=progress,
        )
        for number, label in enumerate(logs[0].labels)
    )
    return Imported(executions, sum(log.ignored_line_count for log in logs))


def _list_labels(log: "_Reading") -> str:
    labels = log.labels[:_LABELS_SHOWN_MAX]
    shown = ", ".join(show_host(label) if label else "one without a name" for label in labels)
    return f"{shown}, and {more} more" if (more := len(log.labels) - len(labels)) else shown


def _open(
    path: Path, name: str, regex: str | None, delimiter: str | None, progress: Progress
) -> "_Reading":
    """Return a file that errors call `name`, to be read once."""
    text = _read_text(path, name)
    first, second, log_begin = _split_header(text)
    if max(len(first), len(second)) > _EXPRESSION_LENGTH_MAX:
        raise UsageError(
            f"the regular expression in line 1 of {name}, or the delimiter in line 2, has more "
            f"than {_EXPRESSION_LENGTH_MAX:,} characters: remove both lines, and give shorter ones "
            "with --regex and --delimiter"
        )
    separator = None
    if delimiter is not None:
        separator = _compile(delimiter, "delimiter")
    elif second:
        what = f"delimiter in line 2 of {name}"
        separator = _compile(f"^{second}{_LINE_END}", what)
        _try(separator, what, "--delimiter", text, [("", log_begin, len(text))])
    spans = [*_spans(text, separator, log_begin)]
    if regex is not None:
        pattern = _compile_events(regex, "regular expression")
    elif first:
        what = f"regular expression in line 1 of {name}"
        pattern = _compile_events(f"^{first}{_LINE_END}", what)
        _try(pattern, what, "--regex", text, spans)
    else:
        likely = separator or _EXECUTION_LINE
        pattern = _choose_layout(name, text, [*_spans(text, likely, log_begin)])
    reading = _Reading(name, text, spans, pattern, progress)
    if separator is not None:
        reading.separation = "give a --delimiter that matches whatever separates them"
    elif found := _EXECUTION_LINE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        reading.separation = f"--delimiter '{EXECUTIONS}' separates them, as in line {line}"
    return reading


def _split_header(text: str) -> tuple[str, str, int]:
    """Return the expression, the delimiter, and the start of the log in a file for ShiViz. If it
    does not begin with an expression, these are empty, empty and 0."""
    first, _, rest = text.partition("\n")
    if not _IS_EXPRESSION.search(first):
        return "", "", 0
    second = rest.partition("\n")[0]
    return first.strip(), second.strip(), min(len(text), len(first) + len(second) + 2)


def _compile_events(regex: str, what: str) -> re.Pattern[str]:
    pattern = _compile(regex, what)
    if missing := [name for name in _NEEDED if name not in pattern.groupindex]:
        raise UsageError(
            f"the {what} {regex!r} has no group (?<{missing[0]}>...): it needs "
            "(?<host>...), (?<clock>...) and (?<event>...)"
        )
    return pattern


def _try(
    pattern: re.Pattern[str], what: str, option: str, text: str, spans: Sequence[_Span]
) -> None:
    """Search `spans` with a pattern from the log itself in a child process with limits; UsageError
    if it exceeds them."""
    cpu_s = _TRIAL_S + len(text) // 10**6
    size = _TRIAL_BYTES + 16 * len(text)
    limits = {"RLIMIT_CPU": cpu_s, "RLIMIT_AS": size, "RLIMIT_CORE": 0}
    ranges = [span[1:] for span in spans]
    header = json.dumps([pattern.pattern, pattern.flags, ranges, limits])
    with tempfile.TemporaryFile() as file:
        file.write(header.encode() + b"\n")
        file.write(text.encode())
        file.seek(0)
        command = [sys.executable, "-I", "-S", "-c", _TRIAL]
        done = subprocess.run(command, stdin=file, capture_output=True, check=False)
    if done.returncode:
        raise UsageError(
            f"the {what} takes more than {cpu_s} s of CPU time or {size >> 20:,} MiB to search "
            f"this log: give a simpler one with {option}"
        )


def _choose_layout(where: str, text: str, spans: Sequence[_Span]) -> re.Pattern[str]:
    """Return the layout that finds more events; of two that find equally many, the one that leaves
    fewer lines and fewer events without the other. UsageError if both do so equally well."""
    layouts = [_compile(regex, "layout") for regex in (HOST_FIRST, EVENT_FIRST)]
    misfits = []
    for layout in layouts:
        reading = _Reading(where, text, spans, layout, no_progress)
        labels = [
            match["event"] for _, begin, end in spans for match in reading.matches(begin, end)
        ]
        blank_count = sum(not label.strip() for label in labels)
        misfits.append((-len(labels), reading.ignored_line_count + blank_count))
    if misfits[0] != misfits[1]:
        return layouts[misfits.index(min(misfits))]
    for _, begin, end in spans:
        for one, other in zip(
            *(layout.finditer(text, begin, end) for layout in layouts), strict=False
        ):
            if one.group(*_NEEDED) != other.group(*_NEEDED):
                line = text.count("\n", 0, one.start("event")) + 1
                raise UsageError(
                    f"{where} can be read in two ways: line {line} may be the event of the clock "
                    "above it, as GoVector writes it, or of the clock below it. Choose one: "
                    f"--regex '{HOST_FIRST}' or --regex '{EVENT_FIRST}'"
                )
    return layouts[0]


class _Reading:
    """Reads a text once, from start to end: the executions that `spans` name. `separation` is how
    to separate those that it may have within one of them."""

    def __init__(
        self,
        where: str,
        text: str,
        spans: Sequence[_Span],
        pattern: re.Pattern[str],
        progress: Progress,
    ) -> None:
        self.text = text
        self.spans = spans
        self.ignored_line_count = 0
        self.separation = ""
        self._where = where
        self._pattern = pattern
        self._progress = progress
        self._field_names = [name for name in pattern.groupindex if name not in _NEEDED]
        self._line = 1
        self._counted_to = 0

    @property
    def labels(self) -> list[str]:
        """The labels of the executions."""
        return [label for label, _, _ in self.spans]

    def matches(self, begin: int, end: int) -> Iterator[re.Match[str]]:
        """Yield the matches between two positions of the text, and count the lines without."""
        matched_to = begin
        for match in self._pattern.finditer(self.text, begin, end):
            if match.start() - matched_to > 1:
                self._count_ignored(matched_to, match.start())
            matched_to = match.end()
            yield match
        self._count_ignored(matched_to, end)

    def events(self, begin: int, end: int) -> Iterator[ClockedEvent]:
        """Yield the events between two positions of the text."""
        count = 0
        for count, match in enumerate(self.matches(begin, end), 1):
            yield self._event(match)
            if not count % PROGRESS_STEP:
                self._progress("reading", match.end(), len(self.text))
        if not count:
            raise UsageError(self._explain_no_event(begin, self.text[begin:end].strip()))

    def _explain_no_event(self, begin: int, text: str) -> str:
        if not text:
            return f"{self._where} is empty: there is no event in it"
        hint = ""
        if _IS_ARRAY.match(text):
            hint = f"; if it is a JSON array of events, {to_lines(self._where, '.[]')}"
        elif text.startswith(("{", "[")):
            hint = (
                "; for JSON lines use a name that ends in .ndjson, or give --json-paths (in "
                "Python, json_paths=JsonPaths())"
            )
        return (
            f"{self._where}: the regular expression finds no event from line "
            f"{self.line_at(begin)} on; the text there begins with {text[:200]!r}: describe "
            f"events with --regex{hint}"
        )

    def _event(self, match: re.Match[str]) -> ClockedEvent:
        host, clock, label = match.group(*_NEEDED)
        line = self.line_at(match.start("clock"))
        if host is None or clock is None:
            raise UsageError(
                f"{self._where}, line {self.line_at(match.start())}: the regular expression "
                "finds an event without a host or without a clock: make these groups mandatory"
            )
        # TLC prints an object of JSON as a string, with backslashes before the quotes in it.
        plain = clock.replace('\\"', '"') if '{\\"' in clock else clock
        try:
            decoded = decode_clock(plain)
        except msgspec.DecodeError as error:
            raise UsageError(
                f"{self._where}, line {line}, host {show_host(host)}: {clock[:200]!r} is not a "
                f'vector clock ({error}), which is JSON such as {{"a": 1, "b": 2}}'
            ) from None
        fields = {name: text for name in self._field_names if (text := match[name]) is not None}
        event = ClockedEvent(line, host, decoded, label or "", fields or None, file=self._where)
        if written := [fields[name] for name in _TIMES if name in fields]:
            event.time = " ".join(written)
        return event

    def line_at(self, place: int) -> int:
        """Return the number of the line at `place`, at most one match before the last one."""
        if place < self._counted_to:
            return self._line - self.text.count("\n", place, self._counted_to)
        self._line += self.text.count("\n", self._counted_to, place)
        self._counted_to = place
        return self._line

    def _count_ignored(self, begin: int, end: int) -> None:
        """Count the lines without any match, except blank ones."""
        lines = self.text[begin:end].split("\n")
        if begin and self.text[begin - 1] != "\n":
            lines = lines[1:]
        if end < len(self.text):
            lines = lines[:-1]
        self.ignored_line_count += sum(1 for line in lines if line.strip())


def _spans(text: str, separator: re.Pattern[str] | None, begin: int) -> Iterator[_Span]:
    """Yield label, beginning and end of each execution of a log that begins at `begin`."""
    label, is_first = "", True
    for match in separator.finditer(text, begin) if separator else ():
        if text[begin : match.start()].strip():
            yield label, begin, match.start()
        label, begin, is_first = match.groupdict().get("trace") or "", match.end(), False
    if is_first or text[begin:].strip():
        yield label, begin, len(text)


def _compile(regex: str, what: str) -> re.Pattern[str]:
    def translate(found: re.Match[str]) -> str:
        if found[1]:
            return f"(?P={found[1]})"
        return "(?P<" if found[2] else found[0]

    try:
        return re.compile(_GROUP_OPENINGS.sub(translate, regex), re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"the {what} {regex!r} is invalid: {text_of(error)}") from None


def _read_text(path: Path, name: str) -> str:
    with path.open("rb") as file:
        # Read once, from start to end: it may be a pipe.
        log = file.read(TEXT_BYTES_MAX + 1)
    if len(log) > TEXT_BYTES_MAX:
        raise UsageError(
            f"{name} is too large: at most {TEXT_BYTES_MAX:,} bytes can be searched with a regular "
            "expression; split it, or write it as newline-delimited JSON"
        )
    check_form(name, log)
    # A log from elsewhere may hold any bytes: what is no UTF-8 is no reason to refuse its clocks.
    return io.TextIOWrapper(io.BytesIO(log), encoding="utf-8-sig", errors="replace").read()
