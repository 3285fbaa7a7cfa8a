"""Operating-system processes that this one started, watched over by the event loop.

They begin without a copy of our memory (``vfork``, which ``subprocess`` uses). The event loop's own
way is to fork: the child then waits for ever for a lock that another thread of ours held at that
moment, and we wait for the child.

The processes of a system are started by way of one of them, the fork server (``forking.py``).
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence


class Started:
    """One process that was started here, or by the fork server for us.

    Its end is noticed while the event loop runs in which it was started.

    Args:
        pid: its number.
        descriptor: a pidfd of it; closed here when it has ended.
        stdin: the end of a pipe that is written to; closed here then, too.
        code: how it ended, once that is known: its exit code, or minus the signal that ended it;
            None if nobody can tell.
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
        self._loop.add_reader(descriptor, self._ended)

    @classmethod
    def start(cls, command: Sequence[str], *, keeps: Sequence[int] = ()) -> "Started":
        """Start `command` in a session of its own, so that no key pressed here reaches it.

        Args:
            command: the program and its arguments.
            keeps: the descriptors that it has under the same numbers.

        Raises:
            OSError: it could not be started.
        """
        # It takes a few milliseconds; from a thread it could not be called back.
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, pass_fds=keeps
        )
        assert child.stdin is not None
        code: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        try:
            with child.stdin as pipe:
                stdin = os.dup(pipe.fileno())
            try:
                started = cls(child.pid, os.pidfd_open(child.pid), stdin, code)
            except BaseException:
                os.close(stdin)
                raise
        except BaseException:
            child.kill()
            child.wait()
            raise
        started.when_ended(lambda: code.set_result(child.wait()))
        return started

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._end.done()

    @property
    def returncode(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while that is not known."""
        return self._code.result() if self._code.done() else None

    def tell(self, line: bytes) -> None:
        """Write `line` to its standard input; lost if it has ended, or reads no more."""
        if not self.has_ended:
            self._unwritten += line + b"\n"
            self._write()

    async def wait(self) -> int | None:
        """Wait until it has ended and its `returncode` is known; return that, None if nobody can
        tell."""
        await self.gone()
        return await asyncio.shield(self._code)

    async def gone(self) -> None:
        """Wait until it has ended."""
        await asyncio.shield(self._end)

    def when_ended(self, act: Callable[[], None]) -> None:
        """Call `act` in the event loop once it has ended."""
        self._end.add_done_callback(lambda _: act())

    def terminate(self) -> None:
        """Ask it to end (SIGTERM); nothing if it has ended."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it (SIGKILL); nothing if it has ended. Wait for its end next."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if not self.has_ended:
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

    def _ended(self) -> None:
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._stdin)
        os.close(self._descriptor)
        os.close(self._stdin)
        self._end.set_result(None)
