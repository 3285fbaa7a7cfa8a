"""Encodes a state in a forked process, while this one goes on.

The child has a copy of the memory as it was at the fork. It encodes, writes what it has encoded
into a pipe and ends; it closes everything else that it inherited first, so that a connection of the
parent's ends with the parent. It runs no other code: what other threads of the parent held at the
fork is of no concern to it.
"""

import contextlib
import gc
import os
import signal
import struct
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from stillframe.errors import UsageError

READ_BYTES = 2**18
_HEADER = struct.Struct("<?dQ")  # whether it is the state, seconds, bytes that follow
_FD_MAX = 2**20


class Watcher(Protocol):
    """The part of an event loop that waits for descriptors."""

    def add_reader(self, fd: int, callback: Callable[..., Any], /, *args: Any) -> Any:
        """Call whenever `fd` can be read."""

    def remove_reader(self, fd: int, /) -> Any:
        """Call no more."""


class Forked:
    """One forked process.

    Args:
        encode: what to do there; raises a UsageError if it cannot be done.
        watcher: the event loop.
        take: takes what was encoded, in pieces.
        ended: called once: with None and the seconds of processor time that `encode` took, when all
            of it was taken; or with the cause, when there will be no more.

    Raises:
        OSError: no process can be forked.
        NotImplementedError: `watcher` cannot wait for descriptors.
    """

    def __init__(
        self,
        encode: Callable[[], bytes],
        *,
        watcher: Watcher,
        take: Callable[[bytes], None],
        ended: Callable[[str | None, float], None],
    ) -> None:
        self._watcher = watcher
        self._take = take
        self._ended: Callable[[str | None, float], None] | None = ended
        self._header = b""
        self._is_state = False
        self._took_s = 0.0
        self._missing_bytes = 0
        self._refusal = b""
        self._pipe, inlet = os.pipe()
        try:
            watcher.add_reader(self._pipe, self._read)
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
        watcher.add_reader(self._pidfd, self._reap)

    def _open_pidfd(self) -> int:
        try:
            return os.pidfd_open(self._pid)
        except OSError:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            raise

    def cancel(self) -> None:
        """End it; nothing is called any more."""
        self._ended = None
        self._close_pipe()
        if self._pidfd >= 0:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self) -> None:
        """Return when a cancelled one is gone: for those who will not run the loop any more."""
        if self._pidfd >= 0:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._close_pidfd()

    def _read(self) -> None:
        piece = os.read(self._pipe, READ_BYTES)
        if not piece:
            self._close_pipe()
            return
        if len(self._header) < _HEADER.size:
            missing = _HEADER.size - len(self._header)
            self._header, piece = self._header + piece[:missing], piece[missing:]
            if len(self._header) < _HEADER.size:
                return
            self._is_state, self._took_s, self._missing_bytes = _HEADER.unpack(self._header)
        self._missing_bytes -= len(piece)
        if not self._is_state:
            self._refusal += piece
        elif piece:
            self._take(piece)

    def _reap(self) -> None:
        """It has ended: take what is left in the pipe, and tell."""
        status = 0
        with contextlib.suppress(ChildProcessError):  # the program itself has waited for it
            _, status = os.waitpid(self._pid, 0)
        self._close_pidfd()
        while self._pipe >= 0:
            self._read()
        if self._ended is None:
            return
        if len(self._header) < _HEADER.size or self._missing_bytes:
            how = os.waitstatus_to_exitcode(status)
            self._ended(
                "the forked process that encoded the state ended before it was done, "
                + (f"by signal {-how} (9: is there memory enough?)" if how < 0 else f"with {how}"),
                self._took_s,
            )
        elif self._is_state:
            self._ended(None, self._took_s)
        else:
            self._ended(self._refusal.decode(), self._took_s)

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            self._watcher.remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = -1

    def _close_pidfd(self) -> None:
        self._watcher.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1


def resident_bytes() -> int:
    """Return how much memory this process has; 0 where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _encode_and_exit(encode: Callable[[], bytes], inlet: int) -> None:
    """Do the child's part. Never returns, whatever happens."""
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
            is_state, encoded = False, str(error).encode()
        header = _HEADER.pack(is_state, time.thread_time() - began, len(encoded))
        for part in (header, encoded):
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(inlet, rest) :]
        status = 0
    finally:
        os._exit(status)
