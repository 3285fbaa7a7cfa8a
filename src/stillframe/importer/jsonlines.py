"""Logs in newline-delimited JSON: one object for each event, with its vector clock, and with what
it sent or received."""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from stillframe.errors import UsageError, check_kind
from stillframe.importer.clocks import (
    PROGRESS_STEP,
    ClockedEvent,
    Progress,
    decode_clock,
    show_host,
)
from stillframe.importer.execution import Imported, build, no_progress
from stillframe.importer.log_files import BOM, check_form, name_files

LINE_BYTES_MAX = 2**24
_SEND = frozenset({">", "send", "sent"})
_RECEIVE = frozenset({"<", "receive", "received", "recv"})
_FIELDS_SHOWN_MAX = 8
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


class JsonPaths(msgspec.Struct, frozen=True):
    """The places of the values of an event in its object: keys, with dots between them.

    Attributes:
        host: a string or a number.
        clock: the vector clock, an object from host to count, or a string with such an object.
        kind: ``>``, ``send`` or ``sent`` for an event that sends to the target; ``<``, ``receive``,
            ``received`` or ``recv`` for one that receives from the source; others do neither.
        source: the host from which it receives.
        target: the host to which it sends.
        content: what distinguishes the messages of a channel.
        time: a number or a text, by the physical clock of the host.
    """

    host: str = "node"
    clock: str = "pkt.vc"
    kind: str = "event"
    source: str = "pkt.snd"
    target: str = "pkt.rcv"
    content: str = "pkt.msg"
    time: str = "time"

    @classmethod
    def parse(cls, text: str) -> "JsonPaths":
        """Read ``host=a.b,clock=c``; what is not named stays as it is."""
        check_kind("text", text, str, "a string")
        named: dict[str, str] = {}
        for part in text.split(","):
            name, equals, path = part.strip().partition("=")
            if name not in cls.__struct_fields__ or not equals or not path or name in named:
                raise UsageError(
                    f"{part!r} is not NAME=PATH: write NAME=PATH,... once for each name "
                    f"({', '.join(cls.__struct_fields__)}), such as host=who,clock=meta.clock"
                )
            named[name] = path
        return cls(**named)


def read_json_lines(
    *logs: Path,
    names: Sequence[str] = (),
    paths: JsonPaths | None = None,
    fill_gaps: bool = False,
    progress: Progress = no_progress,
) -> Imported:
    """Read a log of one execution, and check that it does not contradict itself.

    A line has at most 16 MiB. One that has neither host nor clock is no event: it is passed over,
    but counted. The fields of an event are its whole object but for the clock.

    Args:
        logs: the log; or several, such as one of each host.
        names: what errors call these files; by default as ``name_files``.
        paths: where the objects have what is needed.
        fill_gaps: whether to fill in events that the log leaves out.
        progress: called with how far it is.

    Raises:
        UsageError: a line cannot be read; and as ``execution.build``.
        NotConsistent: as ``execution.build``.
    """
    names = names or name_files(logs)
    ignored_line_count = 0

    def events() -> Iterator[ClockedEvent]:
        nonlocal ignored_line_count
        for path, name in zip(logs, names, strict=True):
            with path.open("rb") as file:
                reading = _Reading(name, file, paths or JsonPaths(), progress)
                yield from reading.events()
            ignored_line_count += reading.ignored_line_count

    execution = build(events(), where=", ".join(names), fill_gaps=fill_gaps, progress=progress)
    return Imported((execution,), ignored_line_count)


class _Reading:
    """Reads a file once, from start to end."""

    def __init__(
        self, name: str, file: BufferedReader, paths: JsonPaths, progress: Progress
    ) -> None:
        self.ignored_line_count = 0
        self._event_count = 0
        self._hint = ""
        self._where = name
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._paths = {
            name: tuple(where.split(".")) for name, where in msgspec.structs.asdict(paths).items()
        }
        self._progress = progress

    def events(self) -> Iterator[ClockedEvent]:
        """Yield the events of the file."""
        # Before a line is read: a line of UTF-16 may end in the middle of a character.
        check_form(self._where, self._file.peek())
        lines = iter(lambda: self._file.readline(LINE_BYTES_MAX + 1), b"")
        for line, text in enumerate(lines, 1):
            if line == 1:
                text = text.removeprefix(BOM)  # noqa: PLW2901 - it is no part of the line
            if len(text) > LINE_BYTES_MAX:
                self._refuse(line, f"it has more than {LINE_BYTES_MAX:,} bytes")
            if not text.strip():
                continue
            event = self._event(line, text)
            if event is None:
                self.ignored_line_count += 1
            else:
                self._event_count += 1
                yield event
            if not line % PROGRESS_STEP:
                self._progress("reading", self._file.tell(), self._size)
        if not self._event_count:
            if not self.ignored_line_count:
                raise UsageError(f"{self._where} is empty: there is no event in it")
            raise UsageError(
                f"{self._where} has no event: no line has host at {self._place('host')} and "
                f"clock at {self._place('clock')}; give their paths with --json-paths{self._hint}"
            )

    def _event(self, line: int, text: bytes) -> ClockedEvent | None:
        try:
            document = _decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._refuse_line(line, text.strip(), error)
        host = self._host(line, document, "host")
        clock = self._take_clock(line, document, text)
        if host is None and clock is None:
            arrays = [name for name, value in document.items() if isinstance(value, list)]
            if arrays and not self._hint:
                advice = to_lines(self._where, f".[{msgspec.json.encode(arrays[0]).decode()}][]")
                self._hint = f". If the array {show_host(arrays[0])} has the events, {advice}"
            return None
        if host is None or clock is None:
            missing = "host" if host is None else "clock"
            fields = ", ".join(map(show_host, islice(document, _FIELDS_SHOWN_MAX)))
            self._refuse(
                line,
                f"it has no {missing} at {self._place(missing)}, which every event needs; it has "
                f"{fields}: give its path with --json-paths {missing}=PATH",
            )
        kind = _find(document, self._paths["kind"])
        label = "" if kind is None else str(kind)[:200]
        event = ClockedEvent(line, host, clock, label, document, file=self._where)
        if (time := _find(document, self._paths["time"])) is not None:
            event.time = str(time)
        if isinstance(kind, str) and kind in _SEND:
            event.sent_to = self._needed_host(line, document, "target")
        elif isinstance(kind, str) and kind in _RECEIVE:
            event.received_from = self._needed_host(line, document, "source")
        else:
            return event
        event.content = _find(document, self._paths["content"])
        return event

    def _refuse_line(self, line: int, text: bytes, error: Exception) -> NoReturn:
        if isinstance(error, msgspec.ValidationError):
            what = f"it is no JSON object ({str(error)[:200]})"
        else:
            what = f"it is malformed JSON ({str(error)[:200]})"
        if not self._event_count and text.startswith(b"["):
            what = (
                "it begins a JSON array, but JSON lines have an object in each line: "
                f"{to_lines(self._where, '.[]')}"
            )
        elif text in {b"{", b"}"} or (not self._event_count and text.startswith(b"{")):
            what += (
                ". JSON lines have one whole object in each line. If objects of this file take "
                f"several lines, or share one, {to_lines(self._where, '.')}"
            )
        self._refuse(line, what)

    def _take_clock(
        self, line: int, document: dict[str, Any], text: bytes
    ) -> dict[str, int] | None:
        *parents, last = self._paths["clock"]
        holder = _find(document, parents)
        if not isinstance(holder, dict) or last not in holder:
            return None
        is_text = isinstance(holder.pop(last), str)
        raw = memoryview(text)
        for key in (*parents, last):
            raw = memoryview(_decode_raw(raw)[key])
        try:
            return decode_clock(_decode_text(raw) if is_text else str(raw, "utf-8"))
        except msgspec.DecodeError as error:
            self._refuse(
                line,
                f'at {self._place("clock")} it has no vector clock ({error}), such as {{"a": '
                '1, "b": 2}',
            )

    def _host(self, line: int, document: dict[str, Any], name: str) -> str | None:
        host = _find(document, self._paths[name])
        if host is not None and (not isinstance(host, str | int) or isinstance(host, bool)):
            self._refuse(
                line,
                f"its {name} at {self._place(name)} is neither a string nor a number: if it is "
                f"elsewhere, give its path with --json-paths {name}=PATH",
            )
        return None if host is None else str(host)

    def _needed_host(self, line: int, document: dict[str, Any], name: str) -> str:
        host = self._host(line, document, name)
        if host is None:
            self._refuse(
                line,
                f"it sends or receives, but has no {name} at {self._place(name)}: give its path "
                f"with --json-paths {name}=PATH",
            )
        return host

    def _place(self, name: str) -> str:
        return repr(".".join(self._paths[name]))

    def _refuse(self, line: int, sentence: str) -> NoReturn:
        raise UsageError(f"{self._where}, line {line}: {sentence}")


def to_lines(name: str, selected: str) -> str:
    """Return how to write what is `selected` of a JSON document in file `name` as JSON lines."""
    out = f"{name.partition('.')[0] or 'log'}-lines.ndjson"
    command = shlex.join(["jq", "-c", selected, name])
    return f"write them with: {command} > {shlex.quote(out)}"


def _find(document: Any, path: Iterable[str]) -> Any:
    for key in path:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document
