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


class NotReadable(Exception):
    """A file is not what the document says."""


def segments(log: Path) -> dict[tuple[int, str, int], Path]:
    """Return the path of each segment, by epoch, process and number."""
    found: dict[tuple[int, str, int], Path] = {}
    for path in sorted(log.glob("*/*/[!.]*")):  # Parquet comes after Arrow
        match = PATH.fullmatch(path.relative_to(log).as_posix())
        if match is None:
            raise NotReadable(f"{path} is no part of an event log")
        found[int(match[1]), match[2], int(match[3])] = path
    return found


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header and the rows of a segment."""
    if path.suffix == ".parquet":
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return header_of(path, file.metadata.metadata), file.read().to_pylist()
    rows: list[dict[str, Any]] = []
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        header = header_of(path, stream.schema.metadata)
        while True:
            try:
                rows += stream.read_next_batch().to_pylist()
            except (StopIteration, OSError, pa.ArrowInvalid):
                return header, rows  # its end, or a message that was cut short


def header_of(path: Path, metadata: dict[bytes, bytes]) -> dict[str, Any]:
    """Return the header of a segment."""
    header: dict[str, Any] = json.loads(metadata[b"stillframe"])
    if header["version"] != VERSION:
        raise NotReadable(
            f"{path} has format version {header['version']}, and this release reads version "
            f"{VERSION}: use a newer release"
        )
    if not header.keys() <= HEADER:
        raise NotReadable(f"{path} has an unknown member")
    named = f"e{header['epoch']}/{header['process']}/events-{header['part']:06}"
    if not path.with_suffix("").as_posix().endswith(named):
        raise NotReadable(f"{path} is of another place")
    return header
