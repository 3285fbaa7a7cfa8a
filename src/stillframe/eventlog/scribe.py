"""The thread that writes the log of one process: from buffers to files.

Trouble with the disk, or a bug of ours, costs what was noted, never the process: it is told once,
what is lost is counted, and the next file says how much that was.
"""

import queue
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from stillframe.eventlog.files import Stream, pack_all, remove_oldest
from stillframe.eventlog.parts import Span
from stillframe.eventlog.rows import Codes, Rows, StepRow, Tally, joined

JOINED_COUNT_MAX = 8
"""So many buffers are written at once if they wait. The more there are, the fewer turns it takes to
write them, and a process that is always busy gives a turn to this thread every 5 ms only."""
RETRY_S = 1.0
"""After trouble with the disk, what comes in so many seconds is lost, too."""


class Buffer(NamedTuple):
    """What was noted between two times; `after` is None if the process cannot say what it had done
    by then, because it failed or was stopped in the midst of an action."""

    codes: Codes
    steps: list[StepRow]
    before: Tally
    after: Tally | None


class Scribe:
    """Writes buffers into files.

    Args:
        log: the directory of the event log.
        span: of the first file.
        trouble: called with a sentence for people, once for each time that something keeps it from
            writing.

    Attributes:
        done_count: with how many codes it is done.
    """

    def __init__(self, log: Path, span: Span, trouble: Callable[[str], None]) -> None:
        self.done_count = 0
        self._log = log
        self._directory = log / f"e{span.epoch}" / span.process
        self._span = span
        self._trouble = trouble
        self._rows = Rows(span.process, tuple(span.received), tuple(span.sent))
        self._tally = Tally(0, tuple(span.received.values()), tuple(span.sent.values()))
        self._part = span.part
        self._stream: Stream | None = None
        self._lost_count = 0
        self._retry_at = 0.0
        self._is_told = False

    def work(self, buffers: "queue.SimpleQueue[Buffer | None]") -> None:
        """Write what is handed over, until there is no more."""
        waiting = deque([buffers.get()])
        while (buffer := _taken(waiting)) is not None:
            self._take(buffer)
            self.done_count += len(buffer.codes)
            if not waiting:
                waiting.append(buffers.get())
            while not buffers.empty():
                waiting.append(buffers.get())
        try:
            if self._lost_count:
                self._begin()  # a file without rows, which says so
        except Exception as error:
            self._tell(error)
        self._end()

    def _take(self, buffer: Buffer) -> None:
        """Write one buffer, or count it as lost."""
        if buffer.before != self._tally:  # more was noted in between than may wait
            self._lose(buffer.before)
        after = buffer.after
        try:
            batch, noted = self._rows.batch(buffer.codes, buffer.steps, self._tally)
            if after is not None and noted != after:
                raise AssertionError(
                    f"a bug in stillframe: {noted} was noted after what is {after}"
                )
            after = noted
            if batch.num_rows and time.monotonic() >= self._retry_at:
                self._append(batch)
            elif batch.num_rows:
                self._lose(after)
        except Exception as error:
            self._tell(error)
            self._retry_at = time.monotonic() + RETRY_S
            self._lose(after or self._tally)
        self._tally = after or self._tally

    def _append(self, batch: pa.RecordBatch) -> None:
        if self._stream is None:
            self._begin()
        assert self._stream is not None
        self._stream.append(batch)
        self._lost_count, self._is_told = 0, False
        if self._stream.is_full:
            self._end()

    def _begin(self) -> None:
        """Begin the next file."""
        self._stream = Stream(
            self._log,
            msgspec.structs.replace(
                self._span,
                part=self._part,
                event_count=self._tally.event_count,
                sent=dict(zip(self._span.sent, self._tally.sent, strict=True)),
                received=dict(zip(self._span.received, self._tally.received, strict=True)),
                lost_count=self._lost_count,
            ),
        )
        self._part += 1

    def _lose(self, tally: Tally) -> None:
        """What was done from the last row up to `tally` is in no file: the next row is in a new
        one, which says so."""
        self._lost_count += tally.event_count - self._tally.event_count
        self._tally = tally
        self._end()

    def _end(self) -> None:
        """End the file that is being written, if there is one, and write it as Parquet."""
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                stream.end()
                remove_oldest(self._directory)  # also if a damaged one cannot be packed
                pack_all(self._directory)
            except Exception as error:
                self._tell(error)

    def _tell(self, error: Exception) -> None:
        if not self._is_told:
            self._is_told = True
            self._trouble(
                f"the event log of process {self._span.process} in {self._log} cannot be written: "
                f"{error}; the process goes on, and the log says how much of it is lost"
            )


def _taken(waiting: deque[Buffer | None]) -> Buffer | None:
    """Take out the first of what waits, in one with what goes on from there; None if that is the
    end."""
    first = waiting.popleft()
    if first is None:
        return None
    gathered = [first]
    while waiting and len(gathered) < JOINED_COUNT_MAX:
        following = waiting[0]
        if following is None or following.before != gathered[-1].after:
            break
        gathered.append(following)
        waiting.popleft()
    if len(gathered) == 1:
        return first
    steps = [step for buffer in gathered for step in buffer.steps]
    codes = joined([buffer.codes for buffer in gathered])
    return Buffer(codes, steps, first.before, gathered[-1].after)
