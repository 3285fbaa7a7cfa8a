"""Writes the log of one process in one epoch while it runs.

The process records a code (``row_encoder``) for each thing that it does: that is all that an event
costs it. Between two actions it hands its codes over, and a thread encodes them as rows and writes
these. The process never waits for the thread or for the disk: what cannot be written is lost, and
the log says how many actions that were.

A file starts as a stream of Arrow record batches, and written again as Parquet when it is
complete: it is a quarter of the size then, or less. A crash at any moment leaves what a reader can
read; where both are there, the one in Parquet is whole. ``object_segments`` does the same in an
object store.
"""

import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from stillframe.errors import Damaged
from stillframe.eventlog.object_segments import ObjectSegment, ObjectSegments
from stillframe.eventlog.reader import SegmentHeader, schema_with, segment_of, segment_path
from stillframe.eventlog.row_encoder import STEP_ROW, ChannelCounts, RowEncoder, StepRow
from stillframe.eventlog.segments import ROW_GROUP_COUNT, write_packed
from stillframe.model import ProcessId
from stillframe.storage.location import Location, ObjectPath, io_advice

STREAM_ROW_COUNT = 2**22
STREAM_BYTES = 2**28
"""Size of a complete segment. Many small batches take more bytes than their rows."""
SEGMENT_COUNT_MAX = 64
"""Maximum segments of a process in an epoch; the oldest are removed."""


class SegmentWriter:
    """Writes one segment of the event log `log`, as a stream of record batches."""

    def __init__(self, log: Path, header: SegmentHeader) -> None:
        self.path = segment_path(log, header, is_complete=False)
        self.header = header
        self.row_count = 0
        self._is_whole = True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch(exist_ok=False)
        try:
            self._file = pa.OSFile(str(self.path), "wb")
            self._writer = pa.ipc.new_stream(self._file, schema_with(header))
        except OSError:
            self.path.unlink(missing_ok=True)
            raise

    @property
    def is_full(self) -> bool:
        """Whether the next rows belong into another segment."""
        return self.row_count >= STREAM_ROW_COUNT or self._file.tell() >= STREAM_BYTES

    def append(self, batch: pa.RecordBatch) -> None:
        """Write rows; the operating system has them then, whatever happens to this process. After
        an OSError, this segment takes no more."""
        try:
            for start in range(0, batch.num_rows, ROW_GROUP_COUNT):
                self._writer.write_batch(batch.slice(start, ROW_GROUP_COUNT))
        except OSError:
            self._is_whole = False
            raise
        self.row_count += batch.num_rows

    def flush(self) -> None:
        """Do nothing: ``append`` has written."""

    def end(self) -> None:
        """Close the file. One without rows is removed, unless it says that rows were lost."""
        try:
            if self._is_whole:
                self._writer.close()
        finally:
            self._file.close()
            if not self.row_count and not (self._is_whole and self.header.lost_count):
                self.path.unlink()

    def complete(self) -> None:
        """Close the file, remove old ones and pack the others."""
        self.end()
        remove_oldest(self.path.parent)  # also if a damaged one cannot be packed
        pack_segments(self.path.parent)


def pack_segment(path: Path) -> None:
    """Replace the stream at `path` by a Parquet file with its whole batches. After an error, the
    stream stays, and nothing else does: a Damaged, if it is not what was written."""
    target = path.with_suffix(".parquet")
    partial = path.with_name(f".{target.name}.partial")
    try:
        with pa.memory_map(str(path)) as source, partial.open("wb") as file:
            write_packed(source, path, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    path.unlink()


def pack_segments(directory: Path) -> None:
    """Pack every stream in `directory`; none may be open. A damaged one stops no other."""
    damaged = None
    for path in sorted(directory.glob("*.arrows")):
        try:
            pack_segment(path)
        except Damaged as error:
            damaged = error
    if damaged is not None:
        raise damaged


def remove_oldest(directory: Path) -> None:
    """Remove the oldest segments in `directory`, down to `SEGMENT_COUNT_MAX`."""
    found: dict[int, list[Path]] = {}
    for path in directory.iterdir():
        if (named := segment_of(path)) is not None:
            found.setdefault(named[1], []).append(path)
    for segment in sorted(found)[:-SEGMENT_COUNT_MAX]:
        for path in found[segment]:
            path.unlink(missing_ok=True)


JOINED_COUNT_MAX = 8
"""Maximum buffers written at once. A busy process lets this thread run every 5 ms only, so that
fewer and larger writes keep up better."""
RETRY_S = 1.0
"""After an error, rows are lost without another attempt for this time, in seconds."""


class Buffer(NamedTuple):
    """The packed codes between two points in time.

    `after` is None if the process cannot say what it had done by then, because it failed or was
    stopped in the middle of an action.
    """

    codes: bytes
    code_count: int
    steps: list[StepRow]
    before: ChannelCounts
    after: ChannelCounts | None


class WriterThread(threading.Thread):
    """Writes `buffers` up to None into segments, the first of them with `header`.

    An error of the disk, or a bug in Stillframe, costs the rows, never the process: it is reported
    once, the lost actions are counted, and the header of the next segment has the number.
    `done_count` is how many codes have been processed.
    """

    def __init__(
        self,
        log: Location,
        header: SegmentHeader,
        rows: RowEncoder,
        on_error: Callable[[str], None],
    ) -> None:
        super().__init__(name="event log", daemon=True)
        self.buffers: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()
        self.done_count = 0
        self.is_closing = threading.Event()
        self._log = log
        self._begin_segment: Callable[[SegmentHeader], SegmentWriter | ObjectSegment]
        if isinstance(log, ObjectPath):
            segments = ObjectSegments(log, is_closing=self.is_closing, report=self._report)
            self._begin_segment = segments.begin
        else:
            self._begin_segment = functools.partial(SegmentWriter, log)
        self._header = header
        self._on_error = on_error
        self._rows = rows
        self._counts = ChannelCounts(0, header.received, header.sent)
        self._number = header.number
        self._stream: SegmentWriter | ObjectSegment | None = None
        self._lost_count = 0
        self._retry_at = 0.0
        self._is_reported = False

    def run(self) -> None:
        """Write all buffers."""
        for buffer in self._joined():
            self._take(buffer)
            if self.buffers.empty():
                self._flush()
            self.done_count += buffer.code_count
        try:
            if self._lost_count:
                self._begin()  # a segment without rows, which says so
        except Exception as error:
            self._report(error)
        self._end()

    def _joined(self) -> Iterator[Buffer]:
        """Yield the buffers, each joined with those that follow it and wait already. One that
        cannot be checked stays alone."""
        held: list[Buffer] = []
        while True:
            buffer = self.buffers.get()
            follows = buffer and held and buffer.after and buffer.before == held[-1].after
            if held and not (follows and len(held) < JOINED_COUNT_MAX):
                yield _join(held)
                held = []
            if buffer is None:
                return
            held.append(buffer)
            if self.buffers.empty():
                yield _join(held)
                held = []

    def _take(self, buffer: Buffer) -> None:
        """Write one buffer, or count it as lost."""
        if buffer.before != self._counts:  # buffers in between were dropped
            self._lose(buffer.before)
        after = buffer.after
        try:
            batch, done = self._rows.batch(buffer.codes, buffer.steps, self._counts)
            if after is not None and done != after:
                raise AssertionError(
                    f"a bug in stillframe: the rows end with {done}, and not with {after}"
                )
            after = done
            if batch.num_rows and time.monotonic() >= self._retry_at:
                self._append(batch)
            elif batch.num_rows:
                self._lose(after)
        except Exception as error:
            self._report(error)
            self._retry_at = time.monotonic() + RETRY_S
            self._lose(after or self._counts)
        self._counts = after or self._counts

    def _append(self, batch: pa.RecordBatch) -> None:
        if self._stream is None:
            self._begin()
        assert self._stream is not None
        self._stream.append(batch)
        self._lost_count, self._is_reported = 0, False
        if self._stream.is_full:
            self._end()

    def _flush(self) -> None:
        """Let readers have all rows so far."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except Exception as error:
                self._report(error)

    def _begin(self) -> None:
        """Start the next segment."""
        self._stream = self._begin_segment(
            msgspec.structs.replace(
                self._header,
                number=self._number,
                lost_count=self._lost_count,
                **self._counts._asdict(),
            )
        )
        self._number += 1

    def _lose(self, counts: ChannelCounts) -> None:
        """Count all actions up to `counts` as lost; the next row starts a new segment."""
        self._lost_count += counts.event_count - self._counts.event_count
        self._counts = counts
        self._end()

    def _end(self) -> None:
        """Close the segment that is being written, if any."""
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                stream.complete()
            except Exception as error:
                self._report(error)

    def _report(self, error: Exception) -> None:
        if not self._is_reported:
            self._is_reported = True
            why, process = str(error), self._header.process
            if isinstance(error, OSError):
                place = error.filename or self._log / f"e{self._header.epoch}" / process
                why = f"{place}: {error.strerror or error}: {io_advice(self._log, error)}"
            self._on_error(
                f"the event log of process {process} in {self._log} cannot be "
                f"written: {why}; the process continues, and the log counts the lost actions"
            )


def _join(held: list[Buffer]) -> Buffer:
    return Buffer(
        b"".join(buffer.codes for buffer in held),
        sum(buffer.code_count for buffer in held),
        [step for buffer in held for step in buffer.steps],
        held[0].before,
        held[-1].after,
    )


PACKED_COUNT = 2**13
"""Codes packed at a time: they fit into a processor's cache."""
HAND_OVER_COUNT = 2**17
"""With this many codes, they are handed over ahead of time."""
HAND_OVER_S = 0.5
"""Interval for handing codes over, in seconds: a process that is killed loses no more."""
BEHIND_COUNT_MAX = 32 * HAND_OVER_COUNT
"""Maximum codes that wait for the thread; later ones are lost."""
CLOSE_S_MAX = 5.0
"""How long the end of a process waits for its log, in seconds."""


class Writer:
    """The log of one process in one epoch, from now on, in the directory or object store `log`.

    Before, `received` messages had come from each source, and `sent` ones gone to each target. The
    thread calls `on_error` with a sentence for the user once for each time that writing fails.

    `record` takes the next code; `accepting` has, for each source, that of an action that starts
    with a message from there, and `sending`, for each target, that of a message sent there.
    """

    def __init__(
        self,
        log: Location,
        process: ProcessId,
        epoch: int,
        received: Mapping[ProcessId, int],
        sent: Mapping[ProcessId, int],
        *,
        on_error: Callable[[str], None],
    ) -> None:
        self._codes: list[int] = []
        self._packed: list[bytes] = []
        self._packed_count = 0
        self._steps: list[StepRow] = []
        self.record = self._codes.append
        self._rows = RowEncoder(process, received, sent)
        self.accepting, self.sending = self._rows.accepting, self._rows.sending
        self._counts = ChannelCounts(0, {**received}, {**sent})
        self._handed_count = 0
        header = SegmentHeader(process=process, epoch=epoch, number=1, **self._counts._asdict())
        self._thread = WriterThread(log, header, self._rows, on_error)
        self._thread.start()

    def is_much(self) -> bool:
        """Return whether to hand over ahead of time. The codes are packed meanwhile."""
        if len(self._codes) >= PACKED_COUNT:
            self._pack()
        return self._packed_count >= HAND_OVER_COUNT

    def record_step(self, row: StepRow) -> None:
        """Record one row of a step of a snapshot."""
        self._steps.append(row)
        self.record(STEP_ROW)

    def hand_over(self, received: Mapping[ProcessId, int], sent: Mapping[ProcessId, int]) -> None:
        """Let the thread write the codes so far, between two actions, with the numbers of messages
        received from each source and sent to each target so far."""
        self._pack()
        if not self._packed:
            return
        before = self._counts
        now_sent = {target: sent[target] for target in self.sending}
        sent_count = sum(now_sent.values()) - sum(before.sent.values())
        # Each code starts an action but those of steps and of messages that are sent.
        self._counts = ChannelCounts(
            before.event_count + self._packed_count - len(self._steps) - sent_count,
            {source: received[source] for source in self.accepting},
            now_sent,
        )
        waiting_count = self._handed_count - self._thread.done_count
        if waiting_count + self._packed_count <= BEHIND_COUNT_MAX:
            self._put(before, self._counts)
        self._forget()

    def close(self) -> None:
        """Write the remaining codes, end the thread and wait for it, `CLOSE_S_MAX` seconds at most.

        The last action may be one that failed or was cut short.
        """
        if not self._thread.is_alive():
            return
        self._thread.is_closing.set()
        self._pack()
        self._put(self._counts, None)
        self._forget()
        self._thread.buffers.put(None)
        self._thread.join(CLOSE_S_MAX)

    def _put(self, before: ChannelCounts, after: ChannelCounts | None) -> None:
        self._handed_count += self._packed_count
        codes = b"".join(self._packed)
        self._thread.buffers.put(Buffer(codes, self._packed_count, self._steps, before, after))

    def _pack(self) -> None:
        if self._codes:
            self._packed.append(self._rows.pack(self._codes))
            self._packed_count += len(self._codes)
            self._codes.clear()  # `record` keeps this very list

    def _forget(self) -> None:
        self._packed, self._packed_count, self._steps = [], 0, []
