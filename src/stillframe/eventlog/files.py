"""The files of one process's log in one epoch, as it writes them.

A file is begun as a stream of Arrow record batches, and written again as Parquet when it is
complete: it is a quarter of the size then, or less. A crash at any moment leaves what a reader can
read; where both are there, the one in Parquet is whole.
"""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stillframe.errors import Damaged
from stillframe.eventlog.groups import (
    DICTIONARIES,
    as_written,
    row_groups,
    whole_batches,
    whole_stream,
)
from stillframe.eventlog.parts import Span, part_of, part_path, with_span
from stillframe.eventlog.schema import ROW_GROUP_COUNT

STREAM_ROW_COUNT = 2**22
STREAM_BYTES = 2**28
"""A file with so many rows or bytes is complete: many small batches take more than their rows."""
PART_COUNT_MAX = 64
"""So many files of a process and epoch stay; the oldest go."""
_COUNTING_UP = {"event": "DELTA_BINARY_PACKED", "number": "DELTA_BINARY_PACKED"}

_WITH_STATISTICS = ["event", "number", "at"]
"""Where a row is in a file says nothing of the other columns, and to find their least and greatest
values takes longer than to write them."""
_WRITE_BATCH_COUNT = 2**16


class Stream:
    """A file that is being written.

    Args:
        log: the directory of the event log.
        span: what it is a part of; there must be no such file yet.

    Raises:
        OSError: it cannot be begun; nothing of it stays.
    """

    def __init__(self, log: Path, span: Span) -> None:
        self.path = part_path(log, span, is_complete=False)
        self.span = span
        self.row_count = 0
        self._is_whole = True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch(exist_ok=False)
        try:
            self._file = pa.OSFile(str(self.path), "wb")
            self._writer = pa.ipc.new_stream(self._file, with_span(span))
        except OSError:
            self.path.unlink(missing_ok=True)
            raise

    @property
    def is_full(self) -> bool:
        """Whether the next rows belong into another file."""
        return self.row_count >= STREAM_ROW_COUNT or self._file.tell() >= STREAM_BYTES

    def append(self, batch: pa.RecordBatch) -> None:
        """Write rows; the operating system has them then, whatever becomes of this process.

        Raises:
            OSError: they are not there, or in part; this file takes no more.
        """
        try:
            for start in range(0, batch.num_rows, ROW_GROUP_COUNT):
                self._writer.write_batch(batch.slice(start, ROW_GROUP_COUNT))
        except OSError:
            self._is_whole = False
            raise
        self.row_count += batch.num_rows

    def end(self) -> None:
        """Write no more. A file without rows goes, unless it says that some were lost.

        Raises:
            OSError: the end cannot be written; what was appended is there.
        """
        try:
            if self._is_whole:
                self._writer.close()
        finally:
            self._file.close()
            if not self.row_count and not (self._is_whole and self.span.lost_count):
                self.path.unlink()


def pack(path: Path) -> None:
    """Write the stream at `path`, as far as it is whole, as Parquet in its place.

    Raises:
        Damaged: it is not what was written; it is still there, and nothing else.
        OSError: there is no room; the same.
    """
    target = path.with_suffix(".parquet")
    partial = path.with_name(f".{target.name}.partial")
    try:
        with pa.memory_map(str(path)) as source, partial.open("wb") as file:
            with as_written(path):
                stream = whole_stream(source)
                if stream is None:
                    raise ValueError("not even its schema is whole")
            with pq.ParquetWriter(
                file,
                stream.schema,
                compression="zstd",
                use_dictionary=DICTIONARIES,
                write_page_checksum=True,
                column_encoding=_COUNTING_UP,
                store_schema=False,
                write_statistics=_WITH_STATISTICS,
                write_batch_size=_WRITE_BATCH_COUNT,
            ) as writer:
                writer.add_key_value_metadata(stream.schema.metadata)
                for table in row_groups(whole_batches(stream, path)):
                    writer.write_table(table, row_group_size=ROW_GROUP_COUNT)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    path.unlink()


def pack_all(directory: Path) -> None:
    """Write every stream in `directory` as Parquet that can be; none may be open.

    Raises:
        Damaged: one is not what was written; what is not in Parquet is there as it was.
        OSError: there is no room; the same.
    """
    damaged = None
    for path in sorted(directory.glob("*.arrows")):
        try:
            pack(path)
        except Damaged as error:
            damaged = error
    if damaged is not None:
        raise damaged


def remove_oldest(directory: Path) -> None:
    """Remove the oldest files in `directory`, down to `PART_COUNT_MAX` parts.

    Raises:
        OSError: one cannot be removed.
    """
    found: dict[int, list[Path]] = {}
    for path in directory.iterdir():
        if (named := part_of(path)) is not None:
            found.setdefault(named[1], []).append(path)
    for part in sorted(found)[:-PART_COUNT_MAX]:
        for path in found[part]:
            path.unlink(missing_ok=True)
