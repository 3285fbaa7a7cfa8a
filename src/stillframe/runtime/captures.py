"""The recorded state of one process, on its way from the cut to the coordinator.

At a cut a process stands still only for what cannot be put off: the sets of changed keys are put
aside, and the fields that are not keyed are encoded, or a process is forked that does so. What is
left is encoded in slices, in turns with the messages, and sent piece by piece. When all of that is
done and the recorder has its part too, the part goes to the coordinator.
"""

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from stillframe.errors import UsageError
from stillframe.keyed import KeySet
from stillframe.keyed_changes import KeyedChanges, KeyedChangesCut
from stillframe.model import Fragment, ProcessId, ProcessState, SnapshotId
from stillframe.protocol import wire
from stillframe.runtime import control
from stillframe.runtime.forked import Forked, Watcher, resident_bytes
from stillframe.state_codec import StateCodec

PART_BYTES_MAX = wire.CONTROL_BYTES_MAX - 2**20
MESSAGE_EXTRA_BYTES = 256
"""What a message ahead of a part is taken to cost beyond its bytes: those of small ones count."""
PIECE_BYTES = 2**18
SLICE_S = 0.0005
"""A slice may take so long; the number of keys in one is felt for, within these bounds."""
SLICE_COUNT_MIN, SLICE_COUNT_FIRST = 16, 256
SLICE_COUNT_MAX = 2**17
SPENT_COUNT = 4096
"""So many keys are let go in a slice."""
PATIENCE_S = 0.5
"""After so long a capture's slices grow with its age: a process that is always busy must not keep
it from ending before the deadline."""
IN_PLACE_S = 0.005
"""A state whose encoding takes longer than this is encoded in a forked process, if that pays."""


LARGE_BYTES = 2**28
"""A process with more memory than this may have a large state, if it has no keyed field: the first
time nobody knows."""


class Scheduler(Watcher, Protocol):
    """The part of an event loop that captures use."""

    def call_soon(self, callback: Callable[..., Any], /, *args: Any) -> Any:
        """Call later in this turn, or in the next."""


class Aside(Protocol):
    """Where a process puts aside what it reports of its state (``fragments.py``)."""

    def takes_changes(self, base: SnapshotId) -> bool:
        """Whether a capture may be put aside that is based on `base`."""

    def ahead(self, message: control.PartRows | control.PartPiece) -> None:
        """Take what belongs to a part to come."""

    def complete(self, fragment: Fragment, moment_s: float) -> None:
        """Take a part, whose state was recorded at `moment_s` of ``time.perf_counter``."""

    def forget(self, snapshot: SnapshotId) -> None:
        """There will be no part of `snapshot`."""

    def close(self) -> None:
        """Finish: nothing more will come."""


class _Capture:
    """One capture that is under way.

    Attributes:
        state: what was recorded; its `encoded` is empty if that goes in pieces.
        cut: the keyed fields, until they are encoded.
        rest: what has still to go in pieces.
        forked: the process that encodes the fields that are not keyed, while there is one.
        fragment: the recorder's part, when it is complete.
        byte_count: how much went before the part itself.
        slice_count: how many keys the next slice has.
        pause_s: how long the process stood still for it.
        capture_s: how long it took from the cut until all was encoded, if it is.
    """

    def __init__(
        self, snapshot: SnapshotId, state: ProcessState, cut: KeyedChangesCut | None
    ) -> None:
        self.snapshot = snapshot
        self.state = state
        self.cut = cut
        self.rest = memoryview(b"")
        self.forked: Forked | None = None
        self.fragment: Fragment | None = None
        self.byte_count = 0
        self.slice_count = SLICE_COUNT_FIRST
        self.began = time.perf_counter()
        self.pause_s = 0.0
        self.capture_s: float | None = None

    @property
    def is_to_go_on(self) -> bool:
        """Whether there is something to do in slices."""
        return self.cut is not None or bool(self.rest)


class Captures:
    """The captures of one process. It is told what happens and reports parts.

    Args:
        process: whose state this is.
        codec: captures the state of `subject`.
        subject: the object whose fields are the recorded state.
        base: the published snapshot that `subject` was restored from just now; None if none.
        scheduler: the event loop.
        report: takes what the coordinator must hear.
        aside: takes the same, if anything does.
    """

    def __init__(
        self,
        process: ProcessId,
        *,
        codec: StateCodec,
        subject: object,
        base: SnapshotId | None,
        scheduler: Scheduler,
        report: Callable[[control.FromProcess], None],
        aside: Aside | None = None,
    ) -> None:
        self._process = process
        self._codec = codec
        self._subject = subject
        self._scheduler = scheduler
        self.report = report
        self._aside = aside
        self._changes = KeyedChanges(codec, subject, base)
        self._open: dict[SnapshotId, _Capture] = {}
        self._spent: list[KeySet[Any]] = []
        self._is_scheduled = False
        self._in_place_s: float | None = None
        self._fork_s = 0.0

    def begin(self, snapshot: SnapshotId, *, is_whole: bool) -> ProcessState:
        """Record the state as it is now. Nothing else happens in the process meanwhile.

        Args:
            snapshot: which it is for.
            is_whole: encode all of it here and now: a log wants it so.

        Returns:
            what is known of it by now.

        Raises:
            UsageError: a field holds what cannot be encoded.
        """
        kind = self._codec.kind.__name__
        if is_whole:
            state = ProcessState(self._process, kind, self._codec.capture(self._subject))
            self._open[snapshot] = _Capture(snapshot, state, None)
            self._finish(self._open[snapshot])
            return state
        base = self._changes.base
        if self._aside is not None and base is not None and not self._aside.takes_changes(base):
            self.in_store(None)
        others = self._codec.others(self._subject)
        cut = self._changes.cut(snapshot)
        capture = _Capture(snapshot, ProcessState(self._process, kind, b"", cut.base), cut)
        self._open[snapshot] = capture
        try:
            if not self._fork(capture, others):
                self._encode(capture, others)
            while capture.cut is not None and cut.total_count <= SLICE_COUNT_FIRST:
                self._take_rows(capture)
        except UsageError:
            self.abandon(snapshot)
            raise
        self._finish(capture)
        self._go_on_later()
        return capture.state

    def _encode(self, capture: _Capture, others: dict[str, Any]) -> None:
        """Encode the fields that are not keyed, here and now."""
        began = time.thread_time()
        encoded = self._codec.encode(others)
        self._in_place_s = time.thread_time() - began
        self._fork_s /= 2  # what was slow once is tried again some time
        if len(encoded) <= PIECE_BYTES:
            capture.state = msgspec.structs.replace(capture.state, encoded=encoded)
        else:
            capture.rest = memoryview(encoded)

    def _fork(self, capture: _Capture, others: dict[str, Any]) -> bool:
        """Let a forked process encode them, if that pays and can be done."""
        in_place_s = self._in_place_s
        if in_place_s is None:
            is_large = not self._codec.keyed and resident_bytes() > LARGE_BYTES
            in_place_s = math.inf if is_large else 0.0
        if in_place_s < IN_PLACE_S or self._fork_s > in_place_s / 2:
            return False

        def ended(error: str | None, took_s: float) -> None:
            # What it took there it would take here. Of one that died nothing is known, and the
            # next state is encoded in place: that needs less memory.
            self._in_place_s = took_s
            capture.forked = None
            if error is None:
                self._finish(capture)
            else:
                self._refuse(capture, error)

        def take(piece: bytes) -> None:
            try:
                self._send_piece(capture, piece)
            except UsageError as error:
                self._refuse(capture, str(error))

        began = time.thread_time()
        try:
            capture.forked = Forked(
                lambda: self._codec.encode(others),
                watcher=self._scheduler,
                take=take,
                ended=ended,
            )
        except (OSError, NotImplementedError):
            return False
        self._fork_s = time.thread_time() - began
        return True

    def stood_still(self, snapshot: SnapshotId, pause_s: float) -> None:
        """Note how long the step took in which the state was recorded, in seconds."""
        if snapshot in self._open:
            self._open[snapshot].pause_s = pause_s

    def age_s(self, snapshot: SnapshotId) -> float:
        """Return how many seconds ago the state was recorded; 0 if nothing of it is under way."""
        capture = self._open.get(snapshot)
        return 0.0 if capture is None else time.perf_counter() - capture.began

    def recorded(self, fragment: Fragment) -> None:
        """Take what the recorder has; report it when the state is encoded too."""
        capture = self._open.get(fragment.snapshot)
        if capture is not None:
            capture.fragment = fragment
            self._finish(capture)

    def abandon(self, snapshot: SnapshotId) -> None:
        """Stop capturing for `snapshot`, if that is under way."""
        capture = self._open.pop(snapshot, None)
        if capture is not None:
            self._close(capture)
            if self._aside is not None:
                self._aside.forget(snapshot)

    def abandon_all(self) -> None:
        """Stop capturing for every snapshot that is under way."""
        for snapshot in tuple(self._open):
            self.abandon(snapshot)

    def settle(self, last_number: int) -> None:
        """Stop capturing for every snapshot up to `last_number`. What was published of them is not
        known: so the next one records everything."""
        for snapshot in tuple(self._open):
            if snapshot.number <= last_number:
                self.abandon(snapshot)
        self.in_store(None)

    def in_store(self, snapshot: SnapshotId | None) -> None:
        """Note that `snapshot` was published: only what changes since need be recorded. None: what
        we took for published is not there, so the next snapshot records everything."""
        spent = self._changes.in_store(snapshot)
        if all(capture.cut is None for capture in self._open.values()):
            self._spent += spent
            self._go_on_later()

    def close(self) -> None:
        """End everything that is under way. Closing twice does nothing."""
        forks = [c.forked for c in self._open.values() if c.forked is not None]
        self.abandon_all()
        for forked in forks:
            forked.wait()

    def _close(self, capture: _Capture) -> None:
        if capture.cut is not None:
            capture.cut.close()
            capture.cut = None
        if capture.forked is not None:
            capture.forked.cancel()

    def _go_on_later(self) -> None:
        is_more = self._spent or any(c.is_to_go_on for c in self._open.values())
        if is_more and not self._is_scheduled:
            self._is_scheduled = True
            self._scheduler.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Encode or send one slice of the oldest capture that has some left, or clear up."""
        self._is_scheduled = False
        capture = next((c for c in self._open.values() if c.is_to_go_on), None)
        if capture is None:
            self._let_go()
            self._go_on_later()
            return
        try:
            if capture.cut is not None:
                self._take_rows(capture)
            else:
                self._send_piece(capture, bytes(capture.rest[:PIECE_BYTES]))
                capture.rest = capture.rest[PIECE_BYTES:]
        except UsageError as error:
            self._refuse(capture, str(error))
        else:
            self._finish(capture)
        self._go_on_later()

    def _let_go(self) -> None:
        """Let some keys go that nobody needs any more."""
        if self._spent:
            keys = self._spent[-1]
            for _ in range(min(len(keys), SPENT_COUNT)):
                keys.popitem()
            if not keys:
                self._spent.pop()

    def _take_rows(self, capture: _Capture) -> None:
        assert capture.cut is not None
        began = time.thread_time()  # what others keep us from must not make slices smaller
        taken = capture.cut.take(capture.slice_count)
        if taken is None:
            capture.state = msgspec.structs.replace(capture.state, keyed=capture.cut.removals())
            capture.cut = None
            return
        field, rows = taken
        size = len(field) + len(rows.keys) + len(rows.values)
        self._send(capture, control.PartRows(capture.snapshot, field, rows), size)
        took_s = time.thread_time() - began
        age_s = time.perf_counter() - capture.began
        wanted_s = 0.8 * SLICE_S * max(1.0, age_s / PATIENCE_S)
        factor = min(max(wanted_s / max(took_s, 1e-6), 0.5), 2.0)
        if factor < 1 or rows.count * 2 > capture.slice_count:
            wanted_count = int(capture.slice_count * factor)
            capture.slice_count = min(max(wanted_count, SLICE_COUNT_MIN), SLICE_COUNT_MAX)

    def _send_piece(self, capture: _Capture, piece: bytes) -> None:
        self._send(capture, control.PartPiece(capture.snapshot, piece), len(piece))

    def _send(
        self, capture: _Capture, message: control.PartRows | control.PartPiece, size: int
    ) -> None:
        """Send something ahead of a part, unless that has too much then."""
        capture.byte_count += size + MESSAGE_EXTRA_BYTES
        _check_size(capture.byte_count)
        self.report(message)
        if self._aside is not None:
            self._aside.ahead(message)

    def _finish(self, capture: _Capture) -> None:
        """Report the part, if nothing of it is missing any more."""
        if capture.is_to_go_on or capture.forked is not None:
            return
        if capture.capture_s is None:
            capture.capture_s = time.perf_counter() - capture.began
        if capture.fragment is None:
            return
        fragment = msgspec.structs.replace(
            capture.fragment,
            state=capture.state,
            pause_s=capture.pause_s,
            capture_s=capture.capture_s,
        )
        del self._open[capture.snapshot]
        size = (
            capture.byte_count
            + len(capture.state.encoded)
            + sum(len(b.encoded) for record in fragment.incoming for b in record.batches)
        )
        try:
            _check_size(size)
        except UsageError as error:
            self.report(control.CouldNotRecord(fragment.snapshot, str(error)))
            if self._aside is not None:
                self._aside.forget(fragment.snapshot)
        else:
            self.report(control.Part(fragment))
            if self._aside is not None:
                self._aside.complete(fragment, capture.began)

    def _refuse(self, capture: _Capture, detail: str) -> None:
        self.abandon(capture.snapshot)
        self.report(control.CouldNotRecord(capture.snapshot, detail))


def _check_size(size: int) -> None:
    if size > PART_BYTES_MAX:
        raise UsageError(
            f"its state and channels have {size:,} bytes or more; a part of a snapshot may have "
            f"{PART_BYTES_MAX:,}"
        )
