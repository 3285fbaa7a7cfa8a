"""A reader of event logs that was written from ``docs/event-log-format.md`` alone.

It imports nothing of Stillframe: Python, and pyarrow.
"""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

VERSION = 1
HEADER = {"version", "process", "epoch", "part", "event_count", "sent", "received", "lost_count"}
PATH = re.compile(r"e([1-9]\d*)/([^/]+)/events-(\d{6})\.(parquet|arrows)")
TEXTS = ["kind", "channel", "snapshot"]
_TEXT, _RUN = pa.dictionary(pa.int32(), pa.string()), {"first": pa.int64(), "count": pa.int64()}
COLUMNS = pa.schema(
    {
        "event": pa.int64(),
        "kind": _TEXT,
        "channel": _TEXT,
        "number": pa.int64(),
        "snapshot": _TEXT,
        "at": pa.timestamp("us", tz="UTC"),
        "recorded": pa.list_(pa.struct(_RUN)),
    }
)
KINDS = {"accepted", "sent", "internal", "marker accepted", "recorded", "marker sent"}
CONTINUATION, ALIGNMENT = b"\xff\xff\xff\xff", 8
_ERRORS = (pa.ArrowException, OSError, EOFError, KeyError, TypeError, ValueError)
Segment = tuple[dict[str, Any] | None, list[dict[str, Any]]]


class NotReadable(Exception):
    """A file is not what the document says."""


def require(holds: object, what: str) -> None:
    """Raise NotReadable unless something holds."""
    if not holds:
        raise NotReadable(what)


def segments(log: Path) -> dict[tuple[int, str, int], Path]:
    """Return the path of each segment, by epoch, process and number."""
    found: dict[tuple[int, str, int], Path] = {}
    for path in sorted(log.glob("*/*/[!.]*")):  # Parquet comes after Arrow
        match = PATH.fullmatch(path.relative_to(log).as_posix())
        if match is None:
            raise NotReadable(f"{path} is no part of an event log")
        found[int(match[1]), match[2], int(match[3])] = path
    return found


def read(path: Path) -> Segment:
    """Return the header and the rows of a segment; no header of a stream without a schema."""
    try:
        return _of_parquet(path) if path.suffix == ".parquet" else _of_stream(path)
    except _ERRORS as error:
        raise NotReadable(f"{path} is damaged: {error}") from error


def _of_parquet(path: Path) -> Segment:
    rows: list[dict[str, Any]] = []
    with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=TEXTS) as file:
        header = header_of(path, file.metadata.metadata)
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            fits = 0 <= group.total_byte_size <= 2**28 + 64 * path.stat().st_size
            require(fits and group.num_rows <= 2**20, f"{path} is too large")
            rows += checked(file.read_row_group(number))
    return header, rows


def _of_stream(path: Path) -> Segment:
    content = path.read_bytes()
    end = end_of_last_batch(content)
    if end == 0:
        return None, []
    rows: list[dict[str, Any]] = []
    with pa.ipc.open_stream(pa.py_buffer(content)[:end]) as stream:
        header = header_of(path, stream.schema.metadata)
        for batch in stream:
            rows += checked(pa.Table.from_batches([batch]))
    return header, rows


def end_of_last_batch(content: bytes) -> int:
    """Return how many bytes of a stream count: to the end of its last complete batch, or of its
    schema; NotReadable if what follows is neither the beginning of a message, nor zeros."""
    end = place = 0
    while (found := message_at(content, place)) is not None:
        kind, place = found
        require(place % ALIGNMENT == 0, f"a message ends after {place} bytes")
        if kind != "dictionary":  # one without a batch after it is of no use
            end = place
    rest = content[place:]
    if not CONTINUATION.startswith(rest.rstrip(b"\0")):
        follow = any(message_at(rest, at) for at in range(ALIGNMENT, len(rest), ALIGNMENT))
        require(is_beginning(rest) and not follow, f"what follows after {place} bytes is damaged")
    return end


def message_at(content: bytes, place: int) -> tuple[str, int] | None:
    """Return the kind of the complete message at a place, and its end; None: there is none."""
    if not content.startswith(CONTINUATION, place):
        return None
    source = pa.BufferReader(pa.py_buffer(content)[place:])
    try:
        return pa.ipc.read_message(source).type, place + source.tell()
    except (pa.ArrowException, OSError, EOFError):
        return None


def is_beginning(rest: bytes) -> bool:
    """Return whether bytes are a message that ends too early: Arrow asks for more of them."""
    if not rest.startswith(CONTINUATION) or len(rest) < 8:
        return CONTINUATION.startswith(rest[:4])
    try:
        pa.ipc.read_message(rest)
    except (pa.ArrowException, OSError) as error:
        return str(error).startswith("Expected to ")
    return False


def checked(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table whose columns and values are those of an event log."""
    require(table.schema.equals(COLUMNS), f"its columns are {table.schema.to_string()}")
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        require(row["event"] is not None and row["kind"] in KINDS, f"row {row}")
        numbers = [
            number for run in row["recorded"] or [] for number in (run or {0: None}).values()
        ]
        require(None not in numbers, f"row {row}")
    return rows


def header_of(path: Path, metadata: dict[bytes, bytes]) -> dict[str, Any]:
    """Return the header of a segment."""
    header: dict[str, Any] = json.loads(metadata[b"stillframe"])
    if header["version"] != VERSION:
        raise NotReadable(
            f"{path} has format version {header['version']}, and this release reads version "
            f"{VERSION}: use a newer release"
        )
    require(header.keys() <= HEADER, f"{path} has an unknown member")
    named = f"e{header['epoch']}/{header['process']}/events-{header['part']:06}"
    if not path.with_suffix("").as_posix().endswith(f"/{named}"):
        raise NotReadable(f"{path} is of another place")
    counts = [header["event_count"], header["lost_count"]]
    counts += [*header["sent"].values(), *header["received"].values()]
    fits = all(type(count) is int and 0 <= count <= 2**62 for count in counts)
    require(fits and header["lost_count"] <= header["event_count"], f"{path} has wrong counts")
    return header
