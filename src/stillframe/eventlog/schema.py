"""One row for each thing that a process did, in the order in which it did them.

    LOG/e1/P1/events-000001.parquet     the first rows of process P1 in epoch 1
    LOG/e1/P1/events-000002.arrows      what came after them: still being written

An atomic action (``trace.Event``) is a row for each message that it accepted or sent, all with its
number among the actions of the process; or one row of kind `INTERNAL` if there are none. A step of
a snapshot is rows, too: they bear the number of the last action before it.

A file that is being written is a stream of Arrow record batches, which a crash can only cut short;
one that is complete is Parquet. The schema of each carries a `Span`: whose it is, and what came
before it, so that a file says something by itself.
"""

import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from stillframe.decoding import DECODING_ERRORS
from stillframe.errors import Damaged
from stillframe.model import ProcessId

ACCEPTED = "accepted"
SENT = "sent"
INTERNAL = "internal"
MARKER_ACCEPTED = "marker accepted"
RECORDED = "recorded"
MARKER_SENT = "marker sent"
KINDS = (ACCEPTED, SENT, INTERNAL, MARKER_ACCEPTED, RECORDED, MARKER_SENT)
"""What a row can be. Those of one step of a snapshot are in this order: the marker that came, if
one did; that the state was recorded, if it was; and the markers that were sent for that."""

SCHEMA = pa.schema(
    [
        pa.field("event", pa.int64()),  # which action of this process, from 1
        pa.field("kind", pa.dictionary(pa.int32(), pa.string())),  # one of KINDS
        pa.field("channel", pa.dictionary(pa.int32(), pa.string())),  # P1->P2; null: on none
        pa.field("number", pa.int64()),  # of the message on its channel; null: no message
        pa.field("snapshot", pa.dictionary(pa.int32(), pa.string())),  # P1-17; null: no step of one
        pa.field("at", pa.timestamp("us", tz="UTC")),  # when; null: no step of a snapshot
        # Of a marker that was accepted: the numbers of the messages that were recorded on its
        # channel; null if the process took no part in the snapshot any more.
        pa.field(
            "recorded",
            pa.list_(pa.struct([pa.field("first", pa.int64()), pa.field("count", pa.int64())])),
        ),
    ]
)

VERSION = 1
SPAN_KEY = b"stillframe"
"""Under which key the schema of a file carries its `Span`, as JSON."""
ROW_GROUP_COUNT = 2**20
"""So many rows at most are in a row group: who reads a file holds one of them at a time."""

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
