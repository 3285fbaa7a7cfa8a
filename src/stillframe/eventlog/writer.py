"""Writes the log of one process in one epoch while it runs.

The process notes a code (``rows``) for each thing that it does: that is all that it spends on an
event. Between two actions it hands over what it noted, and a thread makes rows of that and writes
them. The process never waits for the thread or for the disk: what cannot be written is lost, and
the log says how many actions that were.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from stillframe.eventlog.parts import Span
from stillframe.eventlog.rows import (
    STEP_ROW,
    Codes,
    StepRow,
    Tally,
    accepting,
    joined,
    packed,
    sending,
)
from stillframe.eventlog.scribe import Buffer, Scribe
from stillframe.model import ProcessId

PACKED_COUNT = 2**13
"""So many codes are packed as soon as an action is over: they stay in a processor's cache."""
HAND_OVER_COUNT = 2**17
"""So many codes are handed over before it is time."""
HAND_OVER_S = 0.5
"""So often what was noted is handed over, in seconds: a process that is killed loses no more."""
BEHIND_COUNT_MAX = 32 * HAND_OVER_COUNT
"""So many codes may wait for the thread; what comes then is lost."""
CLOSE_S_MAX = 5.0
"""So long the end of a process waits for its log."""


class Writer:
    """The log of one process, from now on.

    Args:
        log: the directory of the event log.
        process: whose log it is.
        epoch: of the system.
        received: source -> how many messages were received from there before.
        sent: target -> how many messages were sent there before.
        trouble: called by the thread with a sentence for people, once for each time that something
            keeps it from writing.

    Attributes:
        note: takes the next code.
        accepting: source -> the code of an action that begins with a message from there.
        sending: target -> the code of a message that is sent there.
    """

    def __init__(
        self,
        log: Path,
        process: ProcessId,
        epoch: int,
        received: Mapping[ProcessId, int],
        sent: Mapping[ProcessId, int],
        *,
        trouble: Callable[[str], None],
    ) -> None:
        self._codes: list[int] = []
        self._packed: list[Codes] = []
        self._packed_count = 0
        self._steps: list[StepRow] = []
        self.note = self._codes.append
        self.accepting = {source: accepting(index) for index, source in enumerate(received)}
        self.sending = {target: sending(index) for index, target in enumerate(sent)}
        self._code_max = max((*self.accepting.values(), *self.sending.values()), default=STEP_ROW)
        self._tally = Tally(0, tuple(received.values()), tuple(sent.values()))
        self._handed_count = 0
        self._queue: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()
        span = Span(
            process=process,
            epoch=epoch,
            part=1,
            event_count=0,
            sent={**sent},
            received={**received},
        )
        self._scribe = Scribe(log, span, trouble)
        self._thread = threading.Thread(
            target=self._scribe.work, args=(self._queue,), name="event log", daemon=True
        )
        self._thread.start()

    def is_much(self) -> bool:
        """Return whether to hand over what was noted, before it is time. It is packed meanwhile."""
        if len(self._codes) >= PACKED_COUNT:
            self._pack()
        return self._packed_count >= HAND_OVER_COUNT

    def note_step(self, row: StepRow) -> None:
        """Note one row of a step of a snapshot."""
        self._steps.append(row)
        self.note(STEP_ROW)

    def hand_over(self, received: Mapping[ProcessId, int], sent: Mapping[ProcessId, int]) -> None:
        """Let the thread write what was noted. No action may be going on.

        Args:
            received: source -> how many messages were received from there up to now.
            sent: target -> how many messages were sent there up to now.
        """
        self._pack()
        if not self._packed:
            return
        before = self._tally
        now_received = tuple(received[source] for source in self.accepting)
        now_sent = tuple(sent[target] for target in self.sending)
        new_received = sum(now_received) - sum(before.received)
        new_sent = sum(now_sent) - sum(before.sent)
        by_itself_count = self._packed_count - len(self._steps) - new_received - new_sent
        self._tally = Tally(
            before.event_count + new_received + by_itself_count, now_received, now_sent
        )
        if self._handed_count - self._scribe.done_count + self._packed_count <= BEHIND_COUNT_MAX:
            self._put(before, self._tally)
        self._forget()

    def close(self) -> None:
        """Write what was noted and not handed over, and end; wait for that, but not for long.

        What the process did last may be an action that failed or that was cut short.
        """
        if not self._thread.is_alive():
            return
        self._pack()
        self._put(self._tally, None)
        self._forget()
        self._queue.put(None)
        self._thread.join(CLOSE_S_MAX)

    def _put(self, before: Tally, after: Tally | None) -> None:
        self._handed_count += self._packed_count
        self._queue.put(Buffer(joined(self._packed), self._steps, before, after))

    def _pack(self) -> None:
        if self._codes:
            self._packed.append(packed(self._codes, self._code_max))
            self._packed_count += len(self._codes)
            self._codes.clear()  # `note` goes on with this very list

    def _forget(self) -> None:
        self._packed, self._packed_count, self._steps = [], 0, []
