"""The recorded state of one process, in transit from the cut to the coordinator.

At a cut a process pauses only for what cannot be deferred: the sets of changed keys are put aside,
and the fields that are not keyed are encoded, or a process is forked that encodes them. The rest is
encoded in slices between messages, and sent chunk by chunk. When all of that is done and the
recorder has its part too, the fragment goes to the coordinator.
"""

import contextlib
import gc
import math
import os
import signal
import struct
import sys
import time
import warnings
from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stillframe.errors import UsageError, describe, text_of
from stillframe.keyed import KeySet
from stillframe.keyed_changes import KeyedChanges, KeyedChangesCut
from stillframe.model import Fragment, MarkerTimes, ProcessId, ProcessState, SnapshotId
from stillframe.runtime import control
from stillframe.runtime.control import FRAGMENT_BYTES_MAX
from stillframe.state_codec import StateCodec

if TYPE_CHECKING:  # loaded only by a process that writes fragments
    from stillframe.runtime.process.fragment_recorder import FragmentRecorder

READ_BYTES = 2**18
_HEADER = struct.Struct("<?dQ")  # whether it is the state, seconds, bytes that follow
_FD_MAX = 2**20
CHUNK_BYTES = 2**18
SLICE_S = 0.0005
"""The target duration of a slice; the number of its keys adapts, within the bounds below."""
SLICE_COUNT_MIN, SLICE_COUNT_FIRST = 16, 256
SLICE_COUNT_MAX = 2**17
RELEASED_COUNT = 4096
"""How many keys that are no longer needed are released in a slice."""
SPEEDUP_AFTER_S = 0.5
"""The age after which the slices of a capture grow: it must meet its deadline although the process
is always busy."""
IN_PLACE_S = 0.005
"""A state whose encoding takes longer than this is encoded in a forked process, if that pays."""
LARGE_BYTES = 2**28
"""A process with more memory and no keyed field may have a large state: before its first capture
that is unknown."""


class ForkedEncoder:
    """Encodes a state in a forked process, while this one continues.

    The child has a copy of the memory as it was at the fork. It encodes, writes into a pipe and
    exits. It first closes all else that it inherited, so that a connection of the parent ends with
    the parent, and it runs no other code: locks that threads of the parent held do not matter.

    `encode` raises a UsageError if the state cannot be encoded. `take` receives what was encoded,
    in chunks: a pipe, unlike a file in memory, holds no second copy of a large state. `done` is
    called once, with None and the processor time of `encode` in seconds when all was taken, or with
    the cause when there will be no more. An OSError says that no process can be forked, a
    NotImplementedError that `loop` cannot watch it, or that it would run other code.
    """

    def __init__(
        self,
        encode: Callable[[], bytes],
        *,
        loop: AbstractEventLoop,
        take: Callable[[bytes], None],
        done: Callable[[str | None, float], None],
    ) -> None:
        if _grpc_starts_threads():
            raise NotImplementedError("gRPC would start threads in the forked process")
        self._loop = loop
        self._take = take
        self._done: Callable[[str | None, float], None] | None = done
        self._header = b""
        self._is_state = False
        self._took_s = 0.0
        self._missing_bytes = 0
        self._refusal = b""
        self._pipe, inlet = os.pipe()
        try:
            loop.add_reader(self._pipe, self._read)
            with warnings.catch_warnings():
                # Of threads in a process that forks: the child uses nothing that they may hold.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pid = os.fork()
            if self._pid == 0:
                _encode_and_exit(encode, inlet)
            self._pidfd = self._open_pidfd()
        except BaseException:
            self._close_pipe()
            raise
        finally:
            os.close(inlet)
        loop.add_reader(self._pidfd, self._reap)

    def _open_pidfd(self) -> int:
        try:
            return os.pidfd_open(self._pid)
        except OSError:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            raise

    def cancel(self) -> None:
        """Kill it; nothing is called afterwards."""
        self._done = None
        self._close_pipe()
        if self._pidfd >= 0:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for the end of a cancelled one, when the event loop will not run again."""
        if self._pidfd >= 0:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._close_pidfd()

    def _read(self) -> None:
        chunk = os.read(self._pipe, READ_BYTES)
        if not chunk:
            self._close_pipe()
            return
        if len(self._header) < _HEADER.size:
            missing = _HEADER.size - len(self._header)
            self._header, chunk = self._header + chunk[:missing], chunk[missing:]
            if len(self._header) < _HEADER.size:
                return
            self._is_state, self._took_s, self._missing_bytes = _HEADER.unpack(self._header)
        self._missing_bytes -= len(chunk)
        if not self._is_state:
            self._refusal += chunk
        elif chunk:
            self._take(chunk)

    def _reap(self) -> None:
        """Read the rest of the pipe of the terminated child, and report the result."""
        status = 0
        with contextlib.suppress(ChildProcessError):  # the program itself has waited for it
            _, status = os.waitpid(self._pid, 0)
        self._close_pidfd()
        while self._pipe >= 0:
            self._read()
        if self._done is None:
            return
        if len(self._header) < _HEADER.size or self._missing_bytes:
            how = os.waitstatus_to_exitcode(status)
            self._done(
                "the forked process that encoded the state "
                + (f"was killed by signal {-how}" if how < 0 else f"exited with {how}")
                + (" (is there enough memory?)" if how == -signal.SIGKILL else ""),
                self._took_s,
            )
        elif self._is_state:
            self._done(None, self._took_s)
        else:
            self._done(self._refusal.decode(), self._took_s)

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = -1

    def _close_pidfd(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if unknown."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _grpc_starts_threads() -> bool:
    """Return whether gRPC may start its threads again in a child of this process, where they abort
    because their descriptors are closed, or crash. gRPC reads the variable when it is imported."""
    is_off = os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in ("0", "false")
    return "grpc" in sys.modules and not is_off


def _encode_and_exit(encode: Callable[[], bytes], inlet: int) -> None:
    """Run the child. Never returns, whatever happens."""
    status = 1
    try:
        gc.disable()
        os.closerange(0, inlet)
        os.closerange(inlet + 1, _FD_MAX)
        began = time.thread_time()
        is_state = True
        try:
            encoded = encode()
        except UsageError as error:
            is_state, encoded = False, text_of(error).encode()
        except BaseException as error:  # of a value, whose class may be the application's
            is_state, encoded = False, describe(error).encode()
        header = _HEADER.pack(is_state, time.thread_time() - began, len(encoded))
        for part in (header, encoded):
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(inlet, rest) :]
        status = 0
    finally:
        os._exit(status)


class _Capture:
    """One pending capture.

    `state` is what was recorded; its `encoded` is empty if that is sent in chunks. Until they are
    encoded, `cut` holds the keyed fields and `forked` the others; `rest` is what is still to be
    sent of these, `byte_count` how much was sent ahead of the fragment. The next slice has
    `slice_count` keys. `fragment` is the recorder's part, `capture_s` the time from the cut until
    all was encoded, each None before it is there.
    """

    def __init__(
        self, snapshot: SnapshotId, state: ProcessState, cut: KeyedChangesCut | None
    ) -> None:
        self.snapshot = snapshot
        self.state = state
        self.cut = cut
        self.rest = memoryview(b"")
        self.forked: ForkedEncoder | None = None
        self.fragment: Fragment | None = None
        self.byte_count = 0
        self.slice_count = SLICE_COUNT_FIRST
        self.began = time.perf_counter()
        self.cut_at = time.time()
        self.pause_s = 0.0
        self.marked_by: ProcessId | None = None
        self.came_s: dict[ProcessId, float] = {}
        self.capture_s: float | None = None

    @property
    def has_work(self) -> bool:
        """Whether something is left to be done in slices."""
        return self.cut is not None or bool(self.rest)


class StateCapture:
    """The captures of one process, which become fragments.

    `subject` is the object whose fields are the recorded state; `base` is the published snapshot
    that it was restored from just now, None if none. `report` receives the messages to the
    coordinator, and so does `sink`, if there is one.
    """

    def __init__(
        self,
        process: ProcessId,
        *,
        codec: StateCodec,
        subject: object,
        base: SnapshotId | None,
        loop: AbstractEventLoop,
        report: Callable[[control.FromProcess], None],
    ) -> None:
        self.sink: FragmentRecorder | None = None
        self._process = process
        self._codec = codec
        self._subject = subject
        self._loop = loop
        self.report = report
        self._changes = KeyedChanges(codec, subject, base)
        self._open: dict[SnapshotId, _Capture] = {}
        self._released: list[KeySet[Any]] = []
        self._is_scheduled = False
        self._in_place_s: float | None = None
        self._fork_s = 0.0

    def begin(self, snapshot: SnapshotId, *, is_immediate: bool) -> ProcessState:
        """Record the state as it is now, in one step, all of it encoded if `is_immediate`, as a
        pipeline needs it; return what is known of it so far. Raises a UsageError if a value cannot
        be encoded."""
        kind = self._codec.kind.__name__
        if is_immediate:
            state = ProcessState(self._process, kind, self._codec.capture(self._subject))
            self._open[snapshot] = _Capture(snapshot, state, None)
            self._finish(self._open[snapshot])
            return state
        base = self._changes.base
        if self.sink is not None and base is not None and not self.sink.takes_changes(base):
            self.on_durable(None)
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
        self._schedule()
        return capture.state

    def _encode(self, capture: _Capture, others: dict[str, Any]) -> None:
        """Encode the fields that are not keyed, here and now."""
        began = time.thread_time()
        encoded = self._codec.encode(others)
        self._in_place_s = time.thread_time() - began
        self._fork_s /= 2  # what was slow once is tried again some time
        if len(encoded) <= CHUNK_BYTES:
            capture.state = msgspec.structs.replace(capture.state, encoded=encoded)
        else:
            capture.rest = memoryview(encoded)

    def _fork(self, capture: _Capture, others: dict[str, Any]) -> bool:
        """Let a forked process encode them, if that pays and is possible."""
        in_place_s = self._in_place_s
        if in_place_s is None:
            is_large = not self._codec.keyed and resident_bytes() > LARGE_BYTES
            in_place_s = math.inf if is_large else 0.0
        if in_place_s < IN_PLACE_S or self._fork_s > in_place_s / 2:
            return False

        def done(error: str | None, took_s: float) -> None:
            # What it took there it would take here. Of one that died nothing is known, and the
            # next state is encoded in place: that needs less memory.
            self._in_place_s = took_s
            capture.forked = None
            if error is None:
                self._finish(capture)
            else:
                self._refuse(capture, error)

        def take(chunk: bytes) -> None:
            try:
                self._send(capture, control.FragmentChunk(capture.snapshot, chunk))
            except UsageError as error:
                self._refuse(capture, str(error))

        began = time.thread_time()
        try:
            capture.forked = ForkedEncoder(
                lambda: self._codec.encode(others), loop=self._loop, take=take, done=done
            )
        except (OSError, NotImplementedError):
            return False
        self._fork_s = time.thread_time() - began
        return True

    def record_cut(self, snapshot: SnapshotId, marked_by: ProcessId | None, pause_s: float) -> None:
        """Record whose marker made this process record its state, None if it initiated, and how
        long that step took in seconds."""
        if (capture := self._open.get(snapshot)) is not None:
            capture.pause_s = pause_s
            capture.marked_by = marked_by
            capture.came_s = {} if marked_by is None else {marked_by: 0.0}

    def record_marker(self, snapshot: SnapshotId, source: ProcessId) -> None:
        """Record when another marker came, from `source`."""
        if (capture := self._open.get(snapshot)) is not None:
            capture.came_s[source] = time.perf_counter() - capture.began

    def age_s(self, snapshot: SnapshotId) -> float:
        """Return the age of a capture in seconds; 0 if it is not pending."""
        capture = self._open.get(snapshot)
        return 0.0 if capture is None else time.perf_counter() - capture.began

    def recorded(self, fragment: Fragment) -> None:
        """Take the recorder's part; the fragment is sent when the state is encoded too."""
        capture = self._open.get(fragment.snapshot)
        if capture is not None:
            capture.fragment = fragment
            self._finish(capture)

    def abandon(self, snapshot: SnapshotId) -> None:
        """Stop the capture for `snapshot`, if it is pending."""
        capture = self._open.pop(snapshot, None)
        if capture is not None:
            self._close(capture)
            if self.sink is not None:
                self.sink.forget(snapshot)

    def abandon_all(self) -> None:
        """Stop all captures."""
        for snapshot in tuple(self._open):
            self.abandon(snapshot)

    def forget_through(self, last_number: int) -> None:
        """Stop the captures up to `last_number`. Which of them were published is unknown, so the
        next one records everything."""
        for snapshot in tuple(self._open):
            if snapshot.number <= last_number:
                self.abandon(snapshot)
        self.on_durable(None)

    def on_durable(self, snapshot: SnapshotId | None) -> None:
        """Use the published `snapshot` as the base of the next ones. None: one that was taken for
        published is missing, so the next one records everything."""
        released = self._changes.in_store(snapshot)
        if all(capture.cut is None for capture in self._open.values()):
            self._released += released
            self._schedule()

    def close(self) -> None:
        """Stop everything, and wait for forked processes. Closing twice does nothing."""
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

    def _schedule(self) -> None:
        is_more = self._released or any(c.has_work for c in self._open.values())
        if is_more and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run_slice)

    def _run_slice(self) -> None:
        """Run one slice of the oldest capture that has work left, or release keys."""
        self._is_scheduled = False
        capture = next((c for c in self._open.values() if c.has_work), None)
        if capture is None:
            self._release()
            self._schedule()
            return
        try:
            if capture.cut is not None:
                self._take_rows(capture)
            else:
                chunk = bytes(capture.rest[:CHUNK_BYTES])
                self._send(capture, control.FragmentChunk(capture.snapshot, chunk))
                capture.rest = capture.rest[CHUNK_BYTES:]
        except UsageError as error:
            self._refuse(capture, str(error))
        else:
            self._finish(capture)
        self._schedule()

    def _release(self) -> None:
        """Release some keys that are no longer needed."""
        if self._released:
            keys = self._released[-1]
            for _ in range(min(len(keys), RELEASED_COUNT)):
                keys.popitem()
            if not keys:
                self._released.pop()

    def _take_rows(self, capture: _Capture) -> None:
        assert capture.cut is not None
        began = time.thread_time()  # what others keep us from must not make slices smaller
        taken = capture.cut.take(capture.slice_count)
        if taken is None:
            capture.state = msgspec.structs.replace(capture.state, keyed=capture.cut.removals())
            capture.cut = None
            return
        field, rows = taken
        self._send(capture, control.FragmentRows(capture.snapshot, field, rows))
        took_s = time.thread_time() - began
        age_s = time.perf_counter() - capture.began
        wanted_s = 0.8 * SLICE_S * max(1.0, age_s / SPEEDUP_AFTER_S)
        factor = min(max(wanted_s / max(took_s, 1e-6), 0.5), 2.0)
        if factor < 1 or rows.count * 2 > capture.slice_count:
            wanted_count = int(capture.slice_count * factor)
            capture.slice_count = min(max(wanted_count, SLICE_COUNT_MIN), SLICE_COUNT_MAX)

    def _send(
        self, capture: _Capture, message: control.FragmentRows | control.FragmentChunk
    ) -> None:
        """Send rows or a chunk, unless the fragment becomes too large."""
        capture.byte_count += control.size_of(message)
        _check_size(capture.byte_count)
        self.report(message)
        if self.sink is not None:
            self.sink.add_chunk(message)

    def _finish(self, capture: _Capture) -> None:
        """Send the fragment, if it is complete."""
        if capture.has_work or capture.forked is not None:
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
            marker_times=MarkerTimes(capture.cut_at, capture.marked_by, capture.came_s),
        )
        size = (
            capture.byte_count
            + len(capture.state.encoded)
            + sum(len(b.encoded) for record in fragment.incoming for b in record.batches)
        )
        try:
            _check_size(size)
        except UsageError as error:
            self._refuse(capture, str(error))
            return
        del self._open[capture.snapshot]
        self.report(control.FragmentComplete(fragment))
        if self.sink is not None:
            self.sink.complete(fragment, capture.began)

    def _refuse(self, capture: _Capture, detail: str) -> None:
        self.abandon(capture.snapshot)
        self.report(control.SnapshotDeclined(capture.snapshot, detail))


def _check_size(size: int) -> None:
    if size > FRAGMENT_BYTES_MAX:
        raise UsageError(
            f"its state and channels have {size:,} bytes or more; a fragment of a snapshot may "
            f"have {FRAGMENT_BYTES_MAX:,}"
        )
