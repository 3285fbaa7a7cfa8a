"""A trace as a file of newline-delimited JSON, which other tools can read.

The first line is ``{"stillframe_trace": 1, "processes": [...], "channels": [...],
"are_messages_implied": false}``; true if messages were found from clocks alone. 0.1.0 did not write
the last key: without it, they may be implied if there is no marker and no event names a handler.
Every other line is one step, in the order of the trace: ``{"type": "event", ...}`` or ``{"type":
"marker", ...}`` with the attributes of ``Event`` and ``MarkerStep``, without empty ones.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar

import msgspec

from stillframe.durable_files import write_atomically
from stillframe.errors import NotConsistent, UsageError, check_assertions, text_of
from stillframe.model import DECODING_ERRORS, Channel, ProcessId, SnapshotId, check_process_id
from stillframe.storage.location import local_path
from stillframe.trace import MarkerStep, Step, Trace, clean_label

__all__ = ["read", "write"]

check_assertions()

VERSION = 1
LINE_BYTES_MAX = 2**24
PROCESS_COUNT_MAX = 4096


class _Header(msgspec.Struct):
    stillframe_trace: int
    processes: list[ProcessId]
    channels: list[Channel]
    are_messages_implied: bool | None = None


_Line = TypeVar("_Line")
_header_decoder = msgspec.json.Decoder(_Header)
_step_decoder: msgspec.json.Decoder[Step] = msgspec.json.Decoder(Step)


def write(path: str | Path, trace: Trace, *, inputs: Iterable[Path] = ()) -> None:
    """Write `trace` to a file; an existing one is replaced completely or not at all.

    Args:
        path: the file.
        trace: the execution.
        inputs: files that must not be replaced, because the trace is made from them.

    Raises:
        UsageError: a step is too long for a line, its fields cannot be JSON, or `path` is one of
            the `inputs`.
    """
    write_atomically(local_path(path), (line + b"\n" for line in _encode(trace)), inputs=inputs)


def read(path: str | Path) -> Trace:
    """Read a file that ``write`` wrote, and check it and its snapshots.

    Labels are shortened to 500 characters, and characters that cannot be printed are escaped.

    Raises:
        UsageError: it is not a trace file, or a line of it is wrong.
        NotConsistent: the steps contradict each other, so no execution has them.
        OSError: the file cannot be opened or read.
    """
    path = local_path(path)
    with path.open("rb") as file:
        header = _read_header(path, file)
        try:
            steps = [*_read_steps(path, file, header.processes)]
            are_implied = header.are_messages_implied
            if are_implied is None:
                are_implied = not any(
                    isinstance(step, MarkerStep) or step.handler for step in steps
                )
            return Trace(header.processes, steps, header.channels, are_messages_implied=are_implied)
        except NotConsistent as error:
            raise NotConsistent(f"{path}: {error}") from error


def _encode(trace: Trace) -> Iterator[bytes]:
    processes, channels = list(trace.processes), list(trace.channels)
    header = _Header(VERSION, processes, channels, trace.are_messages_implied)
    yield _encode_line(header, "the list of processes and channels")
    for number, step in enumerate(trace.steps, 1):
        yield _encode_line(step, f"step {number} of the trace, of process {step.process},")


def _encode_line(document: msgspec.Struct, what: str) -> bytes:
    try:
        line = msgspec.json.encode(document)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{what} cannot be written as JSON: {text_of(error)}; use plain values in its fields"
        ) from error
    if len(line) >= LINE_BYTES_MAX:
        raise UsageError(
            f"{what} takes {len(line):,} bytes, and a line may have {LINE_BYTES_MAX:,}: a trace "
            "file holds no more"
        )
    return line


def _read_header(path: Path, file: BinaryIO) -> _Header:
    header = _decode(path, 1, _header_decoder, _read_line(path, 1, file))
    if header.stillframe_trace != VERSION:
        raise UsageError(
            f"{path} has format version {header.stillframe_trace}, and this release reads version "
            f"{VERSION}: use a newer release"
        )
    if len(header.processes) > PROCESS_COUNT_MAX:
        _refuse(path, 1, f"it names more than {PROCESS_COUNT_MAX} processes")
    known: set[ProcessId] = set()
    for process in header.processes:
        try:
            check_process_id(process)
        except UsageError as error:
            _refuse(path, 1, str(error))
        if process in known:
            _refuse(path, 1, f"it names two processes {process}")
        known.add(process)
    for channel in header.channels:
        if not {channel.source, channel.target} <= known:
            _refuse(path, 1, f"channel {channel} has an end that is not a process of this trace")
    return header


def _read_steps(path: Path, file: BinaryIO, processes: list[ProcessId]) -> Iterator[Step]:
    recorded: set[tuple[SnapshotId, ProcessId]] = set()
    under_way: set[tuple[SnapshotId, ProcessId, ProcessId]] = set()
    known = {*processes}
    number = 2
    while line := _read_line(path, number, file):
        step = _decode(path, number, _step_decoder, line)
        if strangers := _named_in(step) - known:
            names = ", ".join(sorted(strangers))
            _refuse(path, number, f"it names processes that are not in this trace: {names}")
        if isinstance(step, MarkerStep):
            if problem := _problem_with(step, recorded, under_way):
                _refuse(path, number, problem)
            yield step
        else:
            if any(message.number < 1 for message in (*step.accepted, *step.sent)):
                _refuse(path, number, "it has a message with a number below 1")
            yield msgspec.structs.replace(step, label=clean_label(step.label))
        number += 1


def _problem_with(
    step: MarkerStep,
    recorded: set[tuple[SnapshotId, ProcessId]],
    under_way: set[tuple[SnapshotId, ProcessId, ProcessId]],
) -> str:
    """Return a sentence about what is wrong with the next step of a snapshot, empty if nothing is,
    and note it: who has `recorded`, and the markers that are `under_way`. Only files are checked: a
    study of wrong rules needs traces with such steps."""
    snapshot, process = step.snapshot, step.process
    try:
        SnapshotId.parse(str(snapshot))
    except UsageError as error:
        return str(error)
    if step.source is not None:
        marker = (snapshot, step.source, process)
        if marker not in under_way:
            where = f"from {step.source} to {process}"
            return f"a marker of {snapshot} arrives {where}, but none is in transit there"
        under_way.remove(marker)
    if step.is_cut:
        if (snapshot, process) in recorded:
            return f"{process} records its state for {snapshot}, for the second time"
        recorded.add((snapshot, process))
    under_way |= {(snapshot, process, target) for target in step.targets}
    return ""


def _named_in(step: Step) -> set[ProcessId]:
    if isinstance(step, MarkerStep):
        source = step.process if step.source is None else step.source
        return {step.process, step.snapshot.initiator, source, *step.targets}
    channels = [message.channel for message in (*step.accepted, *step.sent)]
    return {step.process, *(c.source for c in channels), *(c.target for c in channels)}


def _read_line(path: Path, number: int, file: BinaryIO) -> bytes:
    line = file.readline(LINE_BYTES_MAX + 1)
    if len(line) > LINE_BYTES_MAX:
        _refuse(path, number, f"it has more than {LINE_BYTES_MAX:,} bytes")
    return line


def _decode(path: Path, number: int, decoder: msgspec.json.Decoder[_Line], line: bytes) -> _Line:
    try:
        return decoder.decode(line)
    except DECODING_ERRORS as error:
        _refuse(path, number, text_of(error))


def _refuse(path: Path, number: int, sentence: str) -> NoReturn:
    advice = "write the file again from its source"
    if number == 1:
        advice = (
            "this is not a trace file: create one with 'stillframe trace import LOG --out FILE'"
        )
    raise UsageError(f"{path}, line {number}: {clean_label(sentence)}; {advice}")
