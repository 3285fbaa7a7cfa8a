"""The files of an event log: what each is a part of, and what came before it."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from stillframe.decoding import DECODING_ERRORS
from stillframe.errors import Damaged
from stillframe.eventlog.schema import SCHEMA
from stillframe.model import ProcessId

VERSION = 1
SPAN_KEY = b"stillframe"
"""Under which key the schema of a file carries its `Span`, as JSON."""
_NAME = re.compile(r"events-(\d{6})\.(parquet|arrows)")
_EPOCH = re.compile(r"e([1-9]\d{0,8})")


class Span(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file is a part of, and what came before it.

    Attributes:
        version: of this form.
        process: whose log it is.
        epoch: of the system.
        part: which file of the process in that epoch, from 1.
        event_count: how many actions there were before its first row, with those that were lost.
        sent: target -> how many messages were sent there before its first row.
        received: source -> how many were received from there before its first row.
        lost_count: how many of those actions, the last before its first row, are in no file: there
            was no time or no room to write them.
    """

    version: int = VERSION
    process: ProcessId
    epoch: int
    part: int
    event_count: int
    sent: dict[ProcessId, int]
    received: dict[ProcessId, int]
    lost_count: int = 0


def with_span(span: Span) -> pa.Schema:
    """Return the schema of a file that begins after `span`."""
    return SCHEMA.with_metadata({SPAN_KEY: msgspec.json.encode(span)})


def span_of(metadata: dict[bytes, bytes] | None, path: Any) -> Span:
    """Return the span that the schema of the file at `path` carries.

    Raises:
        Damaged: it carries none, or one of another version.
    """
    encoded = (metadata or {}).get(SPAN_KEY)
    if encoded is None:
        raise Damaged(f"{path} is no part of an event log: move it out of the directory")
    try:
        span = msgspec.json.decode(encoded, type=Span)
    except DECODING_ERRORS as error:
        raise Damaged(f"{path} does not say what it is a part of: {error}") from error
    if span.version != VERSION:
        raise Damaged(
            f"{path} is of version {span.version}, and this program reads version {VERSION}: use "
            "a newer one"
        )
    return span


def part_path(log: Path, span: Span, *, is_complete: bool) -> Path:
    """Return where the file with `span` is, in the event log `log`."""
    ending = "parquet" if is_complete else "arrows"
    return log / f"e{span.epoch}" / span.process / f"events-{span.part:06}.{ending}"


def part_of(path: Path) -> tuple[int, int] | None:
    """Return epoch and part of the file at `path`, by its name; None if it is none of ours."""
    name, epoch = _NAME.fullmatch(path.name), _EPOCH.fullmatch(path.parent.parent.name)
    return None if name is None or epoch is None else (int(epoch[1]), int(name[1]))
