"""Writes the segments of an event log into an object store, where nothing can be appended.

The open segment is in memory, and its bytes so far are put again and again. So it is completed
while it is small: no row is put more often than `SEGMENT_S` / `PUT_S` times, and once more. A
complete segment is put once, and never replaced, so a reader may read ranges of it.
"""

import contextlib
import io
import threading
import time
from collections import deque
from collections.abc import Callable

import pyarrow as pa

from stillframe.eventlog.reader import SegmentHeader, schema_with, segment_path
from stillframe.eventlog.segments import ROW_GROUP_COUNT, write_packed
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of

PUT_S = 2.0
"""Minimum interval between two writes of small segments, in seconds: a process that is killed loses
little more than this."""
SEGMENT_BYTES = 2**23
SEGMENT_S = 60.0
"""Size and age of a complete segment."""
SEGMENT_COUNT_MAX = 4096
"""Maximum segments of a process in an epoch; the oldest are removed."""
RETRY_S = 2.0
"""Pause after a write that failed although it was repeated, in seconds."""


class ObjectSegments:
    """The segments of one process in the event log `log`.

    A write that fails is repeated until it succeeds, and when `is_closing` once more; `report` is
    called each time. Meanwhile rows wait in memory, as many as the caller allows.
    """

    def __init__(
        self, log: ObjectPath, *, is_closing: threading.Event, report: Callable[[Exception], None]
    ) -> None:
        self.log = log
        self._is_closing = is_closing
        self._report = report
        self._complete: deque[ObjectPath] = deque()
        self._unneeded: list[ObjectPath] = []
        self._has_reported_deletion = False

    def begin(self, header: SegmentHeader) -> "ObjectSegment":
        """Return a new segment."""
        return ObjectSegment(self, header)

    def put(self, path: ObjectPath, content: bytes, *, is_new: bool) -> None:
        """Write an object. One that `is_new` replaces none: another program may write this log."""
        is_tried = is_last = False
        while True:
            try:
                storage = storage_of(path)
                if not is_new:
                    storage.put(path, content)
                elif not (is_tried and self._has(path, content)):
                    storage.put_if_absent(path, content)
            except Exception as error:
                self._report(error)
                if is_last:
                    raise
                is_tried, is_last = True, self._is_closing.wait(RETRY_S)
            else:
                return

    def _has(self, path: ObjectPath, content: bytes) -> bool:
        """Return whether an earlier attempt took effect although it failed."""
        with contextlib.suppress(FileNotFoundError):
            return storage_of(path).read(path, bytes_max=len(content))[0] == content
        return False

    def pause(self) -> None:
        """Wait before the next write, so that there are few a second."""
        self._is_closing.wait(PUT_S)

    def replace(self, stream: ObjectPath | None, path: ObjectPath) -> None:
        """Delete the stream that the complete segment at `path` replaces, and old segments."""
        self._complete.append(path)
        if len(self._complete) > SEGMENT_COUNT_MAX:
            self._unneeded.append(self._complete.popleft())
        if stream is not None:
            self._unneeded.append(stream)
        if not self._unneeded:
            return
        try:
            storage_of(path).delete(self._unneeded)
        except OSError as error:
            # Tried again with the next ones. A stream counts no more.
            if not self._has_reported_deletion:
                self._has_reported_deletion = True
                self._report(error)
            del self._unneeded[:-SEGMENT_COUNT_MAX]
        else:
            self._unneeded.clear()


class ObjectSegment:
    """One of the `segments`, while it is written: like ``writer.SegmentWriter``."""

    def __init__(self, segments: ObjectSegments, header: SegmentHeader) -> None:
        self._segments = segments
        self._header = header
        self._row_count = 0
        self._until_s = time.monotonic() + SEGMENT_S
        self._bytes = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._bytes, schema_with(header))
        self._sent_length = 0
        self._is_whole = True

    @property
    def is_full(self) -> bool:
        """Whether the next rows belong into another segment."""
        return self._is_large or time.monotonic() >= self._until_s

    @property
    def _is_large(self) -> bool:
        return self._bytes.tell() >= SEGMENT_BYTES

    def append(self, batch: pa.RecordBatch) -> None:
        """Take rows; ``flush`` or ``complete`` sends them."""
        for start in range(0, batch.num_rows, ROW_GROUP_COUNT):
            self._writer.write_batch(batch.slice(start, ROW_GROUP_COUNT))
        self._row_count += batch.num_rows

    def flush(self) -> None:
        """Send all rows so far. After an error, which comes only at the end of the process, this
        segment takes no more."""
        if not self._row_count or self._bytes.tell() == self._sent_length:
            return
        self._put(is_complete=False)
        self._sent_length = self._bytes.tell()
        self._segments.pause()

    def complete(self) -> None:
        """Send the complete segment; one without rows only if it says that rows were lost."""
        if not self._is_whole or not (self._row_count or self._header.lost_count):
            return
        self._writer.close()
        self._put(is_complete=True)
        stream = segment_path(self._segments.log, self._header, is_complete=False)
        complete = segment_path(self._segments.log, self._header, is_complete=True)
        self._segments.replace(stream if self._sent_length else None, complete)
        if not self._is_large:
            self._segments.pause()

    def _put(self, *, is_complete: bool) -> None:
        path = segment_path(self._segments.log, self._header, is_complete=is_complete)
        content = self._bytes.getvalue()
        try:
            if is_complete:
                packed = io.BytesIO()
                write_packed(pa.BufferReader(content), path, packed)
                content = packed.getvalue()
            self._segments.put(path, content, is_new=is_complete or not self._sent_length)
        except BaseException:
            self._is_whole = False
            raise
