"""Logs in the form that ShiViz reads: a regular expression finds the events in any text.

Its groups ``host``, ``clock`` (a JSON object) and ``event`` are needed, other named groups become
fields of the event. Groups are written as in JavaScript or Python: ``(?<host>...)`` or
``(?P<host>...)``; ``^`` and ``$`` stand for the ends of lines. What lies between matches is passed
over, as ShiViz does, but counted.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stillframe.errors import UsageError
from stillframe.importer.clocks import PROGRESS_STEP, ClockedEvent, Progress, show_host
from stillframe.importer.execution import Imported, build, no_progress

EVENT_PATTERN = r"^(?<event>.*)\n(?<host>\S*) (?<clock>{.*})"
"""The default form of ShiViz, which GoVector and others write.

It begins at the beginning of a line: else a line without an event would be searched from each of
its characters on, in time that grows with the square of its length.
"""

TEXT_BYTES_MAX = 2**30
_GZIP_BEGIN = b"\x1f\x8b"
_NEEDED = ("host", "clock", "event")
_GROUP_OPENINGS = re.compile(
    r"\\k<(\w+)>|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(\(\?<)(?![=!])", re.DOTALL
)
_decode_clock = msgspec.json.Decoder(dict[str, int]).decode


def read_shiviz(
    path: Path,
    *,
    regex: str = EVENT_PATTERN,
    delimiter: str | None = None,
    progress: Progress = no_progress,
) -> Imported:
    """Read a log with vector clocks, of at most 1 GiB, and check that it does not contradict
    itself; raises as ``execution.build``, and a UsageError if this `regex` does not do.

    It finds one event, which may go over several lines, and `delimiter` what separates executions;
    its group ``trace``, if it has one, labels the execution that follows. `progress` is called with
    how far it is.
    """
    pattern = _compile(regex, "regular expression")
    if missing := [name for name in _NEEDED if name not in pattern.groupindex]:
        raise UsageError(
            f"the regular expression {regex!r} has no group (?<{missing[0]}>...): it needs "
            "(?<host>...), (?<clock>...) and (?<event>...)"
        )
    separator = None if delimiter is None else _compile(delimiter, "delimiter")
    reading = _Reading(path.name, _read_text(path), pattern, progress)
    executions = tuple(
        build(reading.events(begin, end), where=path.name, label=label, progress=progress)
        for label, begin, end in _spans(reading.text, separator)
    )
    return Imported(executions, reading.ignored_line_count)


class _Reading:
    """Reads a text once, from start to end."""

    def __init__(self, where: str, text: str, pattern: re.Pattern[str], progress: Progress) -> None:
        self.text = text
        self.ignored_line_count = 0
        self._where = where
        self._pattern = pattern
        self._progress = progress
        self._field_names = [name for name in pattern.groupindex if name not in _NEEDED]
        self._line = 1
        self._counted_to = 0

    def events(self, begin: int, end: int) -> Iterator[ClockedEvent]:
        """Yield the events between two positions of the text."""
        matched_to = begin
        count = 0
        for match in self._pattern.finditer(self.text, begin, end):
            if match.start() - matched_to > 1:
                self._count_ignored(matched_to, match.start())
            matched_to = match.end()
            yield self._event(match)
            count += 1
            if not count % PROGRESS_STEP:
                self._progress("reading", matched_to, len(self.text))
        self._count_ignored(matched_to, end)
        if not count:
            raise UsageError(self._explain_no_event(begin, self.text[begin:end].strip()))

    def _explain_no_event(self, begin: int, text: str) -> str:
        if not text:
            return f"{self._where} is empty: there is no event in it"
        hint = ""
        if text.startswith(("{", "[")):
            hint = "; for JSON in lines let its name end in .ndjson, or give --json-paths"
        return (
            f"{self._where}: the regular expression finds no event from line "
            f"{self._line_at(begin)} on; the text there begins with {text[:200]!r}: say with "
            f"--regex how events look{hint}"
        )

    def _event(self, match: re.Match[str]) -> ClockedEvent:
        host, clock, label = match.group(*_NEEDED)
        line = self._line_at(match.start("clock"))
        if host is None or clock is None:
            raise UsageError(
                f"{self._where}, line {self._line_at(match.start())}: the regular expression "
                "finds an event without a host or without a clock: make these groups obligatory"
            )
        try:
            decoded = _decode_clock(clock)
        except msgspec.DecodeError as error:
            raise UsageError(
                f"{self._where}, line {line}, host {show_host(host)}: {clock[:200]!r} is no vector "
                f'clock ({error}): it should be JSON such as {{"a": 1, "b": 2}}'
            ) from None
        fields = {name: match[name] for name in self._field_names} if self._field_names else None
        return ClockedEvent(line, host, decoded, label or "", fields)

    def _line_at(self, place: int) -> int:
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


def _spans(text: str, separator: re.Pattern[str] | None) -> Iterator[tuple[str, int, int]]:
    """Yield label, beginning and end of each execution."""
    label, begin = "", 0
    for match in separator.finditer(text) if separator else ():
        if text[begin : match.start()].strip():
            yield label, begin, match.start()
        label, begin = match.groupdict().get("trace") or "", match.end()
    if not begin or text[begin:].strip():
        yield label, begin, len(text)


def _compile(regex: str, what: str) -> re.Pattern[str]:
    def translate(found: re.Match[str]) -> str:
        if found[1]:
            return f"(?P={found[1]})"
        return "(?P<" if found[2] else found[0]

    try:
        return re.compile(_GROUP_OPENINGS.sub(translate, regex), re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"the {what} {regex!r} cannot be understood: {error}") from None


def _read_text(path: Path) -> str:
    size = path.stat().st_size
    if size > TEXT_BYTES_MAX:
        raise UsageError(
            f"{path} has {size:,} bytes, and at most {TEXT_BYTES_MAX:,} can be searched with a "
            "regular expression: split it, or write it as newline-delimited JSON"
        )
    with path.open("rb") as file:
        if file.read(2) == _GZIP_BEGIN:
            raise UsageError(f"{path} is compressed: uncompress it first, with gunzip")
    # A log from elsewhere may hold any bytes: what is no UTF-8 is no reason to refuse its clocks.
    return path.read_text(encoding="utf-8", errors="replace")
