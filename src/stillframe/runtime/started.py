"""Operating-system processes that this one started, watched over by the event loop.

They begin without a copy of our memory (``vfork``, which ``subprocess`` uses). The event loop's own
way is to fork: the child then waits for ever for a lock that another thread of ours held at that
moment, and we wait for the child.
"""

import asyncio
import os
import subprocess
from collections.abc import Callable, Sequence
from typing import Any


class Started:
    """One process that was started here.

    Use `start`. Its end is noticed while the event loop runs in which it was started.
    """

    def __init__(self, child: subprocess.Popen[bytes], stdin: asyncio.WriteTransport) -> None:
        self._child = child
        self._stdin = stdin
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[int] = loop.create_future()
        self._descriptor = os.pidfd_open(child.pid)
        loop.add_reader(self._descriptor, self._ended)

    @classmethod
    async def start(cls, command: Sequence[str]) -> "Started":
        """Start `command` in a session of its own, so that no key pressed here reaches it.

        Raises:
            OSError: it could not be started.
        """
        # It takes a few milliseconds; from a thread it could not be called back.
        child = subprocess.Popen(  # noqa: ASYNC220
            command, stdin=subprocess.PIPE, start_new_session=True
        )
        loop = asyncio.get_running_loop()
        connecting = asyncio.ensure_future(
            loop.connect_write_pipe(asyncio.BaseProtocol, child.stdin)
        )
        try:
            # Shielded: uvloop leaves a pipe half closed if it is stopped on the way.
            stdin, _ = await asyncio.shield(connecting)
            return cls(child, stdin)
        except BaseException:
            child.kill()
            child.wait()
            connecting.add_done_callback(_let_go)
            raise

    @property
    def pid(self) -> int:
        """Its number."""
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        return self._child.returncode

    def tell(self, line: bytes) -> None:
        """Write `line` to its standard input; lost if it has ended, or reads no more."""
        if not self._stdin.is_closing():
            self._stdin.write(line + b"\n")

    async def wait(self) -> int:
        """Wait until it has ended; return its `returncode`."""
        return await asyncio.shield(self._end)

    def when_ended(self, act: Callable[[], None]) -> None:
        """Call `act` in the event loop once it has ended."""
        self._end.add_done_callback(lambda _: act())

    def terminate(self) -> None:
        """Ask it to end (SIGTERM); nothing if it has ended."""
        self._child.terminate()

    def kill(self) -> None:
        """End it (SIGKILL); nothing if it has ended. Wait for its end next."""
        self._child.kill()

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._stdin.close()
        self._end.set_result(self._child.wait())


def _let_go(connecting: asyncio.Future[tuple[asyncio.WriteTransport, Any]]) -> None:
    """Close a pipe that nobody wants any more."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[0].abort()
