"""The operating-system processes that a supervisor starts for one epoch, and ends with it."""

import asyncio
import contextlib
import sys
from collections.abc import Callable

import msgspec

from stillframe.model import ProcessId
from stillframe.runtime.child import Launch


class Children:
    """The children of one epoch.

    Args:
        exited: called with a process whose child has ended by itself.
    """

    def __init__(self, exited: Callable[[ProcessId], None]) -> None:
        self.running: dict[ProcessId, asyncio.subprocess.Process] = {}
        self._exited = exited

    async def spawn(self, launch: Launch) -> None:
        """Start a child and tell it what it must know."""
        process = launch.me.process
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "stillframe.runtime.child",
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self.running[process] = child
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(launch) + b"\n")
        waiting = asyncio.get_running_loop().create_task(child.wait())
        waiting.add_done_callback(lambda _: self._ended(process, child))

    async def end(self) -> None:
        """End all children, and wait until they are gone."""
        ending, self.running = self.running, {}
        for child in ending.values():
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        await asyncio.gather(*(child.wait() for child in ending.values()))

    def _ended(self, process: ProcessId, child: asyncio.subprocess.Process) -> None:
        if self.running.get(process) is child:
            self._exited(process)
