"""What is written in a log: items of records, and barriers between them."""

import re

import msgspec

from stillframe.model import SnapshotId
from stillframe.pipeline.dataflow import Log
from stillframe.protocol.aligner import Mode
from stillframe.store.seal import FORMAT

_DATA_FILE = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/part-[\w.=-]+)?", re.ASCII)
"""A file of a service, or one in the directory of a micro-batch. It leads nowhere else."""


class DataFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Parquet file of one item; `name` is its path below the epoch's data directory, `checksum`
    what ``store.checksum`` says of it."""

    name: str
    partition: int
    record_count: int
    checksum: int


class Rows(msgspec.Struct, frozen=True, tag="rows", forbid_unknown_fields=True):
    """Records. `batch` is the micro-batch of the query that wrote them, None from a service."""

    files: tuple[DataFile, ...]
    batch: int | None = None


class Barrier(msgspec.Struct, frozen=True, tag="barrier", forbid_unknown_fields=True):
    """Everything before it belongs before the cut of `snapshot`, everything after it behind.

    `batch` is the newest micro-batch whose records come before it in the same epoch.
    """

    snapshot: SnapshotId
    mode: Mode
    batch: int | None = None


class Item(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One item of a log.

    `offsets` says for each partition how many records of it come before this item.
    """

    format: int = FORMAT
    number: int
    epoch: int
    offsets: tuple[int, ...]
    content: Rows | Barrier

    @property
    def record_count(self) -> int:
        """How many records it holds."""
        return sum(file.record_count for file in self.files)

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Its data files; a barrier has none."""
        return self.content.files if isinstance(self.content, Rows) else ()

    @property
    def next_offsets(self) -> tuple[int, ...]:
        """How many records of each partition come before the next item."""
        counts = list(self.offsets)
        for file in self.files:
            counts[file.partition] += file.record_count
        return tuple(counts)


def may_be_of(item: Item, log: Log) -> bool:
    """Return whether a writer of `log` may have written an item."""
    return (
        len(item.offsets) == log.partition_count
        and min(item.offsets) >= 0
        and all(
            0 <= file.partition < log.partition_count
            and file.record_count >= 0
            and _DATA_FILE.fullmatch(file.name) is not None
            for file in item.files
        )
    )
