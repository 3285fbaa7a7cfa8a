"""The client of the fork server (``fork_server.py``): requests processes, and watches them.

What a process must know goes past the fork server: the process reads it from its own pipe, and the
fork server has seen only the other end.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from stillframe.errors import Unavailable
from stillframe.imports import search_path
from stillframe.runtime.process.fork_server import (
    PROGRAM,
    Answer,
    Forked,
    NotForked,
    ProcessTerminated,
    Setup,
)

END_S = 5.0
"""How long a fork server has to exit when it is no longer needed."""
_PACKET_BYTES = 2**15
"""An answer has room for a path of 4096 characters, and JSON may write each as six."""
_REQUEST = b"fork"
_FIRST_OTHER = 3


class WatchedProcess:
    """A process that was started here, or by the fork server for us; the event loop watches it.

    Its pidfd `descriptor` and `stdin`, the writing end of a pipe to it, are closed here when it has
    terminated. `code` is its exit code, or minus the signal that killed it, once known; None if
    unknown.
    """

    def __init__(
        self, pid: int, descriptor: int, stdin: int, code: "asyncio.Future[int | None]"
    ) -> None:
        self.pid = pid
        self._descriptor = descriptor
        self._stdin = stdin
        self._unwritten = b""
        self._code = code
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(stdin, False)
        self._loop.add_reader(descriptor, self._on_terminated)

    @classmethod
    def start(cls, command: Sequence[str], *, keeps: Sequence[int] = ()) -> "WatchedProcess":
        """Start `command` in a new session, so that no key pressed here reaches it; it
        inherits the descriptors `keeps` under the same numbers. OSError if it cannot be started.

        ``subprocess`` uses ``vfork``, which copies none of our memory. The event loop's own way is
        to fork: the child then waits forever for a lock that another thread of this program held.
        """
        # It takes a few milliseconds; from a thread it could not be called back.
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, pass_fds=keeps
        )
        assert child.stdin is not None
        code: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        # It is killed before its input ends: it would act on that.
        with child.stdin as pipe, contextlib.ExitStack() as close, contextlib.ExitStack() as undo:
            undo.callback(child.wait)
            undo.callback(child.kill)
            stdin = os.dup(pipe.fileno())
            close.callback(os.close, stdin)
            started = cls(child.pid, os.pidfd_open(child.pid), stdin, code)
            undo.pop_all()
            close.pop_all()
        started.on_terminated(lambda: code.set_result(child.wait()))
        return started

    @property
    def has_terminated(self) -> bool:
        """Whether it has terminated."""
        return self._end.done()

    @property
    def returncode(self) -> int | None:
        """Its exit code, or minus the signal that killed it; None while unknown."""
        return self._code.result() if self._code.done() else None

    def write_line(self, line: bytes) -> None:
        """Write a line to its standard input; lost if it has terminated, or reads no more."""
        if not self.has_terminated:
            self._unwritten += line + b"\n"
            self._write()

    async def wait(self) -> int | None:
        """Wait until it has terminated; return its `returncode`, None if that is unknown."""
        await self.terminated()
        return await asyncio.shield(self._code)

    async def terminated(self) -> None:
        """Wait until it has terminated."""
        await asyncio.shield(self._end)

    def on_terminated(self, act: Callable[[], None]) -> None:
        """Call `act` in the event loop once it has terminated."""
        self._end.add_done_callback(lambda _: act())

    def terminate(self) -> None:
        """Send SIGTERM, if it has not terminated."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, if it has not terminated; wait for its end next."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if not self.has_terminated:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def _write(self) -> None:
        """Write as much as fits into the pipe, and the rest when there is room."""
        try:
            self._unwritten = self._unwritten[os.write(self._stdin, self._unwritten) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._unwritten = b""
        self._loop.remove_writer(self._stdin)
        if self._unwritten:
            self._loop.add_writer(self._stdin, self._write)

    def _on_terminated(self) -> None:
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._stdin)
        os.close(self._descriptor)
        os.close(self._stdin)
        self._end.set_result(None)


_decode = msgspec.json.Decoder(Answer).decode


class _ServerTerminated(Exception):
    """The fork server terminated before it replied."""


class _Request(NamedTuple):
    answering: "asyncio.Future[WatchedProcess]"
    stdin_writer: int


class _Channel:
    """A fork server that was started, and the socket that connects it to us. `unshared` is why the
    last process that it forked loads the topology separately; None if it need not."""

    def __init__(self, reference: str) -> None:
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Not a number of standard input, output or error, which may be free here.
            number = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, _FIRST_OTHER)
        # Without -P, files of the current directory would come before Python's own modules.
        command = (sys.executable, "-P", "-m", PROGRAM)
        try:
            self.program = WatchedProcess.start(command, keeps=(number,))
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(number)
        os.set_blocking(ours.fileno(), False)
        self._socket = ours
        self.unshared: str | None = None
        self._waiting: deque[_Request] = deque()
        self._codes: dict[int, asyncio.Future[int | None]] = {}
        self._loop.add_reader(ours.fileno(), self._read)
        self.program.on_terminated(self._read_the_rest)
        self.program.write_line(
            msgspec.json.encode(Setup(number, reference, search_path(), os.getpid()))
        )

    @property
    def is_open(self) -> bool:
        """Whether it can be asked for processes."""
        return self._socket.fileno() >= 0

    async def fork(self) -> WatchedProcess:
        """Fork a process; raises an OSError if the machine has no room for one, or
        _ServerTerminated."""
        stdin, stdin_writer = os.pipe()
        try:
            socket.send_fds(self._socket, [_REQUEST], [stdin])
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has ended: `_read` reads the answers from before, and then the end
        except BaseException:
            os.close(stdin_writer)
            raise
        finally:
            os.close(stdin)
        answering: asyncio.Future[WatchedProcess] = self._loop.create_future()
        self._waiting.append(_Request(answering, stdin_writer))
        try:
            return await answering
        except asyncio.CancelledError:
            if answering.done() and not answering.cancelled() and not answering.exception():
                answering.result().kill()
            raise

    def close(self) -> None:
        """Close the channel: the fork server exits, and no longer reports how its processes end."""
        if not self.is_open:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for request in self._waiting:
            os.close(request.stdin_writer)
            if not request.answering.done():
                request.answering.set_exception(_ServerTerminated())
        for code in self._codes.values():
            code.set_result(None)
        self._waiting.clear()
        self._codes.clear()

    def _read_the_rest(self) -> None:
        """Read the last replies, and close. The socket alone does not show the end: a process that
        the topology's import forked can hold it open."""
        while self.is_open:
            self._read()

    def _read(self) -> None:
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._socket, _PACKET_BYTES, 1)
        except BlockingIOError:
            if self.program.has_terminated:
                self.close()
            return
        except ConnectionError:
            packet, descriptors = b"", []
        if not packet:
            self.close()
            return
        answer = _decode(packet)
        if isinstance(answer, ProcessTerminated):
            if (code := self._codes.pop(answer.pid, None)) is not None:
                code.set_result(answer.code)
            return
        answering, stdin_writer = self._waiting.popleft()
        if isinstance(answer, Forked) and descriptors and not answering.done():
            self.unshared = answer.unshared
            code = self._codes[answer.pid] = self._loop.create_future()
            answering.set_result(WatchedProcess(answer.pid, descriptors[0], stdin_writer, code))
            return
        os.close(stdin_writer)  # a process that is told nothing ends
        for descriptor in descriptors:
            os.close(descriptor)
        if not answering.done():
            # Without a descriptor there was no room for one here.
            number = answer.number if isinstance(answer, NotForked) else errno.EMFILE
            answering.set_exception(OSError(number, os.strerror(number)))


class ForkServer:
    """Forks the processes of one topology, given as ``module:attribute``; starts the fork server
    when it does not run."""

    def __init__(self, reference: str) -> None:
        self._reference = reference
        self._channel: _Channel | None = None
        self._last_reported: str | None = None

    def warm(self) -> _Channel:
        """Start the fork server if it does not run, so that it is ready sooner."""
        if self._channel is None or not self._channel.is_open:
            self._channel = _Channel(self._reference)
        return self._channel

    async def fork(self) -> WatchedProcess:
        """Fork a process, which waits for its launch specification. Raises an OSError if the
        machine has no room for one, Unavailable if the fork server terminates at once."""
        with contextlib.suppress(_ServerTerminated):  # it may have ended long ago
            return await self.warm().fork()
        channel = self.warm()
        try:
            return await channel.fork()
        except _ServerTerminated as error:
            code = await channel.program.wait()
            raise Unavailable(
                f"no process can be started: the fork server (python -m {PROGRAM}) exited at "
                f"once with {code}; see its standard error"
            ) from error

    def newly_unshared(self) -> str | None:
        """Return a sentence why each process loads the topology separately; None if none does, or
        if the reason is the same as at the last call."""
        reason = None if self._channel is None else self._channel.unshared
        is_repeated, self._last_reported = reason == self._last_reported, reason
        if reason is None or is_repeated:
            return None
        return f"every process imports the topology separately, which is slower: {reason}"

    async def close(self) -> None:
        """Stop it, and wait until it has terminated. The processes that it forked keep running."""
        if self._channel is None:
            return
        self._channel.close()
        program = self._channel.program
        try:
            async with asyncio.timeout(END_S):
                await program.wait()
        except TimeoutError:
            program.kill()
            await program.wait()
