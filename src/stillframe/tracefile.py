"""A trace as a file: newline-delimited JSON, so that other tools read it, too.

The first line is ``{"stillframe_trace": 1, "processes": [...], "channels": [...]}``, every other
line is one step, in the order of the trace: ``{"type": "event", ...}`` or ``{"type": "marker",
...}`` with the attributes of ``Event`` and ``MarkerStep``; what is empty is left out.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar

import msgspec

from stillframe.errors import NotConsistent, UsageError
from stillframe.model import Channel, ProcessId, check_process_id
from stillframe.trace import MarkerStep, Step, Trace

VERSION = 1
LINE_BYTES_MAX = 2**24
PROCESS_COUNT_MAX = 4096


class _Header(msgspec.Struct):
    stillframe_trace: int
    processes: list[ProcessId]
    channels: list[Channel]


_Line = TypeVar("_Line")
_header_decoder = msgspec.json.Decoder(_Header)
_step_decoder: msgspec.json.Decoder[Step] = msgspec.json.Decoder(Step)


def write(path: Path, trace: Trace) -> None:
    """Write `trace`; a file of that name is replaced, whole or not at all.

    Raises:
        OSError: the disk is full or failed; what was at `path` is still there.
        UsageError: a step is too long for a line, or its fields hold what JSON cannot.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            for line in _encode(trace):
                file.write(line)
                file.write(b"\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read(path: Path) -> Trace:
    """Read what ``write`` wrote, and check it as every trace is checked.

    Raises:
        UsageError: it is no trace file, or a line of it is wrong; file and line are named.
        NotConsistent: no execution is like that.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        header = _read_header(path, file)
        try:
            return Trace(
                header.processes, _read_steps(path, file, header.processes), header.channels
            )
        except NotConsistent as error:
            raise NotConsistent(f"{path}: {error}") from error


def is_trace_file(path: Path) -> bool:
    """Return whether the file begins as a trace file does.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return b'"stillframe_trace"' in file.read(64)


def _encode(trace: Trace) -> Iterator[bytes]:
    header = _Header(VERSION, list(trace.processes), list(trace.channels))
    yield _encode_line(header, "the list of processes and channels")
    for number, step in enumerate(trace.steps, 1):
        yield _encode_line(step, f"step {number} of the trace, of process {step.process},")


def _encode_line(document: msgspec.Struct, what: str) -> bytes:
    try:
        line = msgspec.json.encode(document)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{what} cannot be written as JSON: {error}; let its fields be plain values"
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
            f"{path} is of version {header.stillframe_trace}, and this program reads version "
            f"{VERSION}: use a newer one"
        )
    if len(header.processes) > PROCESS_COUNT_MAX:
        _refuse(path, 1, f"it names more than {PROCESS_COUNT_MAX} processes")
    for process in header.processes:
        try:
            check_process_id(process)
        except UsageError as error:
            _refuse(path, 1, str(error))
    for channel in header.channels:
        if not {channel.source, channel.target} <= {*header.processes}:
            _refuse(path, 1, f"channel {channel} has an end that is no process of this trace")
    return header


def _read_steps(path: Path, file: BinaryIO, processes: list[ProcessId]) -> Iterator[Step]:
    known = {*processes}
    number = 2
    while line := _read_line(path, number, file):
        step = _decode(path, number, _step_decoder, line)
        if isinstance(step, MarkerStep):
            named = {step.snapshot.initiator, *step.targets, step.source or step.process}
            if not named <= known:
                strangers = ", ".join(sorted(named - known))
                _refuse(path, number, f"it names what is no process of this trace: {strangers}")
        yield step
        number += 1


def _read_line(path: Path, number: int, file: BinaryIO) -> bytes:
    line = file.readline(LINE_BYTES_MAX + 1)
    if len(line) > LINE_BYTES_MAX:
        _refuse(path, number, f"it has more than {LINE_BYTES_MAX:,} bytes")
    return line


def _decode(path: Path, number: int, decoder: msgspec.json.Decoder[_Line], line: bytes) -> _Line:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse(path, number, str(error))


def _refuse(path: Path, number: int, sentence: str) -> NoReturn:
    raise UsageError(
        f"{path}, line {number}: {sentence}; "
        + (
            "this is no trace file: make one with 'stillframe import LOG --out FILE'"
            if number == 1
            else "write the file again from its source"
        )
    )
