"""The operating-system processes of one epoch on this machine, and how one joins from another.

Most are children. Orphans of an earlier supervisor are adopted: for the kernel they are no
children, so their exit codes are unknown.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stillframe.model import DECODING_ERRORS, ProcessId
from stillframe.runtime.control import CLOSE_S_MAX, EXIT_JOIN_REJECTED, Failure, LaunchSpec
from stillframe.runtime.os_process import OsProcess, identify, kill, open_process
from stillframe.runtime.supervisor.fork_client import ForkServer, WatchedProcess

LOG_END_S = 2 * CLOSE_S_MAX + 2.0
"""How long a process has to finish its action, event log and fragments. One that is killed before
that would lose what it has recorded."""
_EXIT_WAIT_S = 1.0
_WORDS_BYTES_MAX = 2**20
UNKNOWN_END = (
    "it ended for an unknown reason, because a previous supervisor started it; see its "
    "standard error"
)
UNTOLD_END = (
    "it ended for an unknown reason, because the program from which it was forked has ended, too"
)
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0
STEADY_S = 10.0
"""A process that ran for this long before it ended is not failing repeatedly."""


class ChildProcesses:
    """The children of one epoch, which `server` forks. `exited` is called with a process whose
    child has terminated on its own. When all are stopped, each has `grace_s` seconds to finish; 0
    if it has nothing to do then."""

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
        """Start a child; it waits for its launch specification."""
        self.running[process] = child = await self._server.fork()
        child.on_terminated(lambda: self._on_terminated(process, child))

    async def spawn_all(self, processes: Iterable[ProcessId]) -> None:
        """Start a child of each, one by one: if one cannot be started, those before it are
        known."""
        for process in processes:
            await self.spawn(process)

    def launch(self, launch: LaunchSpec) -> None:
        """Write its launch specification to a child, which then starts."""
        self.running[launch.me.process].write_line(msgspec.json.encode(launch))

    def adopt(self, orphans: Mapping[ProcessId, OsProcess]) -> None:
        """Watch processes of an earlier supervisor; `exited` is called in the next turn of the
        event loop for those that have terminated."""
        loop = asyncio.get_running_loop()
        for process, orphan in orphans.items():
            self._adopted[process] = orphan
            descriptor = open_process(orphan)
            if descriptor is None:
                loop.call_soon(self._on_orphan_terminated, process)
            else:
                self._descriptors[process] = descriptor
                loop.add_reader(descriptor, self._on_orphan_terminated, process)

    def release(self) -> None:
        """Stop watching the adopted processes."""
        for process in tuple(self._descriptors):
            self._forget(process)
        self._adopted.clear()

    def identities(self) -> dict[ProcessId, OsProcess]:
        """Return the identity of each process that runs."""
        started = {process: identify(child.pid) for process, child in self.running.items()}
        found = {process: known for process, known in started.items() if known is not None}
        return found | {process: self._adopted[process] for process in self._descriptors}

    def runs(self, process: ProcessId) -> bool:
        """Return whether `process` runs here."""
        child = self.running.get(process)
        return process in self._descriptors or (child is not None and not child.has_terminated)

    async def stop(self) -> None:
        """Stop all processes, and wait until they have terminated; raises Unavailable if an adopted
        one does not."""
        stopping, self.running = self.running, {}
        try:
            if self._grace_s and stopping:
                for child in stopping.values():
                    child.terminate()
                waiting = [asyncio.ensure_future(child.terminated()) for child in stopping.values()]
                await asyncio.wait(waiting, timeout=self._grace_s)
        finally:
            for child in stopping.values():
                child.kill()
        for process in tuple(self._descriptors):
            self._forget(process)
        adopted, self._adopted = self._adopted, {}
        await asyncio.gather(
            *(asyncio.to_thread(kill, o, grace_s=self._grace_s) for o in adopted.values())
        )
        await asyncio.gather(*(child.terminated() for child in stopping.values()))

    async def describe_end(self, process: ProcessId) -> str:
        """Return how `process` terminated, as far as that is known."""
        if process in self._adopted and not self.runs(process):
            return UNKNOWN_END
        if (child := self.running.get(process)) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_WAIT_S):
                    return _exit_text(await child.wait())
        return "its connection to the coordinator was lost"

    def last_words_of(self, process: ProcessId, directory: Path) -> Failure | None:
        """Return why `process`, which has terminated, failed; None if it did not write that into
        `directory`."""
        if (child := self.running.get(process)) is None:
            return None
        try:
            with Path(directory, str(child.pid)).open("rb") as file:
                return msgspec.json.decode(file.read(_WORDS_BYTES_MAX), type=Failure)
        except (OSError, *DECODING_ERRORS):
            return None

    def _on_terminated(self, process: ProcessId, child: WatchedProcess) -> None:
        if self.running.get(process) is child:
            self._exited(process)

    def _on_orphan_terminated(self, process: ProcessId) -> None:
        self._forget(process)
        if process in self._adopted:
            self._exited(process)

    def _forget(self, process: ProcessId) -> None:
        if (descriptor := self._descriptors.pop(process, None)) is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)


def _exit_text(code: int | None) -> str:
    if code is None:
        return UNTOLD_END
    if code >= 0:
        return f"it exited with code {code} and did not say why; see its standard error"
    try:
        return f"it was killed by {signal.Signals(-code).name}"
    except ValueError:  # most real-time signals have no name
        return f"it was killed by signal {-code}"


async def run_until_stopped(
    launch: LaunchSpec, stop: asyncio.Future[None], emit: Callable[[str, str], None]
) -> int:
    """Run a process whose coordinator is on another machine, until `stop` is done; return the code
    to exit with. `emit` receives events (``Started``, ``NotShared``, ``Ended``, ``Stopped``), each
    with a sentence.

    Each epoch has a separate operating-system process, as on the coordinator's machine: what an
    epoch leaves in memory ends with it.
    """
    loop, process = asyncio.get_running_loop(), launch.me.process
    server = ForkServer(launch.reference)
    grace_s = LOG_END_S if launch.outputs.any else 0.0
    children = ChildProcesses(server, lambda _: None, grace_s=grace_s)
    pause_s, was_in = PAUSE_S_MIN, False
    try:
        while True:
            began = loop.time()
            emit("Started", f"looking for the coordinator at {launch.coordinator}")
            await first_completed(children.spawn(process), stop)
            if (detail := server.newly_unshared()) is not None:
                emit("NotShared", detail)
            if not stop.done():
                children.launch(launch)
                await first_completed(children.running[process].wait(), stop)
            if stop.done():
                emit("Stopped", "stopped; the system waits until it joins again")
                return 0
            was_in = was_in or children.running[process].returncode != EXIT_JOIN_REJECTED
            if not was_in:
                return EXIT_JOIN_REJECTED
            pause_s = PAUSE_S_MIN if loop.time() - began > STEADY_S else pause_s
            emit("Ended", f"this epoch has ended for it; joining again in {pause_s:.1f} s")
            await first_completed(asyncio.sleep(pause_s), stop)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)
    finally:
        await children.stop()
        await server.close()


async def first_completed(wait: Coroutine[Any, Any, Any], other: asyncio.Future[Any]) -> None:
    """Wait for `wait` or `other`. Then `wait` is cancelled; if it failed, its error is raised."""
    waiting = asyncio.ensure_future(wait)
    try:
        await asyncio.wait({waiting, other}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if waiting.done():
        waiting.result()
