"""The operating-system processes of one epoch that run on this machine for its supervisor.

Most were started by it. Those that an earlier supervisor had started, and that went on without it,
are adopted: they are no children for the kernel, so how they end is not told, only that they do.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from stillframe.model import ProcessId
from stillframe.runtime.control import CLOSE_S_MAX, EXIT_JOIN_REJECTED, LaunchSpec
from stillframe.runtime.os_process import OsProcess, identify, kill, open_process
from stillframe.runtime.supervisor.fork_client import ForkServer, WatchedProcess

LOG_END_S = 2 * CLOSE_S_MAX + 2.0
"""How long a process has to end an action and to write its event log and fragments to their end.
One that is killed before it gives up itself would lose what it has recorded."""
_EXIT_WAIT_S = 1.0
UNKNOWN_END = (
    "it ended, and how is not known, because it was started by a supervisor that is gone; if it "
    "could, it said why where it writes its errors"
)
UNTOLD_END = (
    "it ended, and how is not known, because the program that it was forked from has ended too"
)


class ChildProcesses:
    """The children of one epoch.

    Args:
        server: forks them.
        exited: called with a process whose child has ended by itself.
        grace_s: how long each has to end by itself when all are ended, in seconds; 0 if it has
            nothing to do then.
    """

    def __init__(
        self, server: ForkServer, exited: Callable[[ProcessId], None], *, grace_s: float = 0.0
    ) -> None:
        self._server = server
        self._grace_s = grace_s
        self.running: dict[ProcessId, WatchedProcess] = {}
        self._exited = exited
        self._adopted: dict[ProcessId, OsProcess] = {}
        self._descriptors: dict[ProcessId, int] = {}

    async def spawn(self, process: ProcessId) -> None:
        """Start a child; it waits until it is told what it must know."""
        self.running[process] = child = await self._server.fork()
        child.when_ended(lambda: self._ended(process, child))

    def launch(self, launch: LaunchSpec) -> None:
        """Tell a child what it must know: with this it begins."""
        self.running[launch.me.process].tell(msgspec.json.encode(launch))

    def adopt(self, orphans: Mapping[ProcessId, OsProcess]) -> None:
        """Watch over processes that an earlier supervisor started; `exited` is called in the next
        turn of the loop for those that have ended."""
        loop = asyncio.get_running_loop()
        for process, orphan in orphans.items():
            self._adopted[process] = orphan
            descriptor = open_process(orphan)
            if descriptor is None:
                loop.call_soon(self._orphan_ended, process)
            else:
                self._descriptors[process] = descriptor
                loop.add_reader(descriptor, self._orphan_ended, process)

    def release(self) -> None:
        """Let those that were adopted go on by themselves."""
        for process in tuple(self._descriptors):
            self._forget(process)
        self._adopted.clear()

    def identities(self) -> dict[ProcessId, OsProcess]:
        """Return by what each is known that runs."""
        started = {process: identify(child.pid) for process, child in self.running.items()}
        found = {process: known for process, known in started.items() if known is not None}
        return found | {process: self._adopted[process] for process in self._descriptors}

    def runs(self, process: ProcessId) -> bool:
        """Return whether `process` runs here."""
        child = self.running.get(process)
        return process in self._descriptors or (child is not None and not child.has_ended)

    async def end(self) -> None:
        """End all children, and wait until they are gone.

        Raises:
            Unavailable: one that was adopted does not end.
        """
        ending, self.running = self.running, {}
        try:
            if self._grace_s:
                await self._ask(tuple(ending.values()))
        finally:
            for child in ending.values():
                child.kill()
        for process in tuple(self._descriptors):
            self._forget(process)
        adopted, self._adopted = self._adopted, {}
        await asyncio.gather(
            *(asyncio.to_thread(kill, o, grace_s=self._grace_s) for o in adopted.values())
        )
        await asyncio.gather(*(child.gone() for child in ending.values()))

    async def _ask(self, ending: tuple[WatchedProcess, ...]) -> None:
        """Let children end by themselves; returns when all have, or have had the time."""
        for child in ending:
            child.terminate()
        if ending:
            waiting = [asyncio.ensure_future(child.gone()) for child in ending]
            await asyncio.wait(waiting, timeout=self._grace_s)

    async def describe_end(self, process: ProcessId) -> str:
        """Return how `process` ended, as far as that is known."""
        if process in self._adopted and not self.runs(process):
            return UNKNOWN_END
        code = None
        if (child := self.running.get(process)) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_WAIT_S):
                    code = await child.wait()
                    if code is None:
                        return UNTOLD_END
        if code is None:
            return "its connection to the coordinator ended"
        if code < 0:
            return f"it was ended by {_signal_name(-code)}"
        return f"it exited with code {code}"

    def _ended(self, process: ProcessId, child: WatchedProcess) -> None:
        if self.running.get(process) is child:
            self._exited(process)

    def _orphan_ended(self, process: ProcessId) -> None:
        self._forget(process)
        if process in self._adopted:
            self._exited(process)

    def _forget(self, process: ProcessId) -> None:
        if (descriptor := self._descriptors.pop(process, None)) is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0
STEADY_S = 10.0
"""A process that ran for so long did not fail in a row."""


async def run_until_stopped(
    launch: LaunchSpec, stop: asyncio.Future[None], emit: Callable[[str, str], None]
) -> int:
    """Run the process of `launch` until `stop` is done; return the code to exit with.

    Args:
        launch: what it must know; it is elsewhere than the coordinator.
        stop: done when somebody wants it to end.
        emit: takes what happens (``Started``, ``NotShared``, ``Ended``, ``Stopped``), and the same
            in words.
    """
    loop, process = asyncio.get_running_loop(), launch.me.process
    server = ForkServer(launch.reference)
    grace_s = LOG_END_S if launch.traces.any else 0.0
    children = ChildProcesses(server, lambda _: None, grace_s=grace_s)
    pause_s, was_in = PAUSE_S_MIN, False
    try:
        while True:
            began = loop.time()
            emit("Started", f"looking for the coordinator at {launch.coordinator}")
            await _first(children.spawn(process), stop)
            if (detail := server.newly_unshared()) is not None:
                emit("NotShared", detail)
            if not stop.done():
                children.launch(launch)
                await _first(children.running[process].wait(), stop)
            if stop.done():
                emit("Stopped", "stopped; the system waits until it joins again")
                return 0
            was_in = was_in or children.running[process].returncode != EXIT_JOIN_REJECTED
            if not was_in:
                return EXIT_JOIN_REJECTED
            pause_s = PAUSE_S_MIN if loop.time() - began > STEADY_S else pause_s
            emit("Ended", f"this epoch is over for it; joining again in {pause_s:.1f} s")
            await _first(asyncio.sleep(pause_s), stop)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)
    finally:
        await children.end()
        await server.close()


async def _first(wait: Coroutine[Any, Any, Any], stop: asyncio.Future[None]) -> None:
    waiting = asyncio.ensure_future(wait)
    try:
        await asyncio.wait({waiting, stop}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if waiting.done():
        waiting.result()
