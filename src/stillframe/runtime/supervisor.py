"""Starts the processes of a system, notices death, and takes all back to a published snapshot.

A system lives through epochs. Each begins with every process at one cut (or afresh) and ends when a
process dies, when somebody wants another snapshot restored, or when it is stopped. Between two
epochs nothing of the old one is left: its processes are dead, its secret is void, and what it was
still writing is written or abandoned. So a restore is a start, and there is one way to start.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from stillframe.errors import ApplicationError, StillframeError, UsageError
from stillframe.model import Abandoned, ProcessId, SnapshotId
from stillframe.restore import Start, start_states
from stillframe.runtime import control, events
from stillframe.runtime.child import Launch
from stillframe.runtime.coordinator import Coordinator
from stillframe.runtime.link import Credentials
from stillframe.runtime.loading import load_topology
from stillframe.runtime.running import RunningSystem, announce, withdraw
from stillframe.store.manifest import Entry
from stillframe.store.store import Store
from stillframe.topology import Joined

SECRET_BYTES = 32
TIMEOUT_S = 10.0
FAILURE_COUNT_MAX = 3
"""So many failures of the application in a row, with no new snapshot, are too many."""
START_FAILURE_COUNT_MAX = 10
"""So many epochs in a row in which the system never came to run are too many."""


class Death(msgspec.Struct, frozen=True):
    """A process whose connection ended; `failure` is what it said last, if it said why."""

    process: ProcessId
    failure: control.Failure | None


class Wish(msgspec.Struct, frozen=True):
    """Somebody wants the system at `snapshot`."""

    snapshot: SnapshotId


class Supervisor:
    """A running system. Use it as an asynchronous context manager.

    Args:
        reference: ``module:attribute`` of the topology, importable here and by the processes.
        store: where snapshots go; open for writing. The caller closes it.
        timeout_s: how long a snapshot may take until it is abandoned, in seconds.
        restore: the snapshot to begin with; None for the store's current one, or afresh.
        emit: takes what happens.

    Raises:
        UsageError: on entering; the topology cannot be loaded, or is not the one of the store.
    """

    def __init__(
        self,
        reference: str,
        store: Store,
        *,
        timeout_s: float = TIMEOUT_S,
        restore: SnapshotId | None = None,
        emit: Callable[[events.Event], None] = lambda event: None,
    ) -> None:
        self.reference = reference
        self.store = store
        self.coordinator: Coordinator | None = None
        self.children: dict[ProcessId, asyncio.subprocess.Process] = {}
        self._timeout_s = timeout_s
        self._restore = restore
        self._emit = emit
        self._commands = ""
        self._next_number = store.next_number()
        self._running = asyncio.Event()
        self._application_failure_count = 0
        self._start_failure_count = 0
        self._last_failure_sequence = 0

    async def __aenter__(self) -> Self:
        """Start the system; returns when it runs."""
        topology = load_topology(self.reference)
        if topology.description.hash != self.store.description.hash:
            raise UsageError(
                f"the store {self.store.path} was made by another topology "
                f"({self.store.description.hash[:12]}) than {self.reference} is now "
                f"({topology.description.hash[:12]}): use a new directory, or the old code"
            )
        self._own = tuple(n for n, p in topology.processes.items() if not isinstance(p, Joined))
        if self._restore is not None:
            self.store.entry(self._restore)
        self._directory = tempfile.TemporaryDirectory(prefix="stillframe-")
        self._commands = f"{self._directory.name}/commands"
        self._ended: asyncio.Future[Death | Wish] = asyncio.get_running_loop().create_future()
        self.finished = asyncio.get_running_loop().create_task(self._live())
        try:
            await self.until_running()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the system; what was not recorded in a snapshot is gone."""
        await self._stop()

    @property
    def commands_path(self) -> Path:
        """Where the socket for commands belongs (``commands.py``)."""
        return Path(self._commands)

    async def snapshot(self, initiator: ProcessId | None = None) -> Entry | Abandoned:
        """Take a snapshot; return its entry in the store, or why it was abandoned.

        Args:
            initiator: who begins; None for the first process.

        Raises:
            UsageError: there is no such process, or too many snapshots are under way.
            StillframeError: the system has ended.
        """
        return await (await self.begin_snapshot(initiator))

    async def begin_snapshot(
        self, initiator: ProcessId | None = None
    ) -> "asyncio.Future[Entry | Abandoned]":
        """Begin a snapshot once the system runs; see ``snapshot``."""
        await self.until_running()
        assert self.coordinator is not None
        return self.coordinator.begin(initiator or next(iter(self.store.description.processes)))

    async def restore(self, snapshot: SnapshotId | None = None) -> None:
        """Take the running system back to `snapshot`; None for the last one published.

        Returns when the system runs again.

        Raises:
            UsageError: there is no such snapshot.
        """
        await self.until_running()
        entry = self.store.entry(snapshot) if snapshot else self.store.current()
        if entry is None:
            raise UsageError("no snapshot has been published yet: there is nothing to restore")
        if not self._ended.done():
            self._running.clear()
            self._ended.set_result(Wish(entry.id))
        await self.until_running()

    async def until_running(self) -> None:
        """Wait until every process runs and every channel is connected.

        Raises:
            StillframeError: the system has ended.
        """
        await _first(self._running, self.finished)
        if self.finished.done():
            self.finished.result()

    async def _live(self) -> None:
        """Live through epochs until the system cannot go on."""
        began = time.monotonic()
        wish = self._restore
        while True:
            self._ended = asyncio.get_running_loop().create_future()
            try:
                await self._begin_epoch(wish, began)
                cause = await self._ended
                began = time.monotonic()
                if isinstance(cause, Death):
                    self._emit(await self._describe(cause))
            finally:
                self._running.clear()
                await self._end_epoch()
            wish = cause.snapshot if isinstance(cause, Wish) else None
            if isinstance(cause, Death):
                self._check_patience(cause)

    async def _begin_epoch(self, wish: SnapshotId | None, began: float) -> None:
        starts, restored_from = await asyncio.to_thread(self._load, wish)
        self.store.raise_epoch(restored_from)
        secret = secrets.token_bytes(SECRET_BYTES)
        self.coordinator = Coordinator(
            self.store,
            secret=secret,
            starts=starts,
            first_number=self._next_number,
            timeout_s=self._timeout_s,
            emit=self._emit,
            departed=self._departed,
        )
        port = await self.coordinator.listen()
        await asyncio.gather(*(self._spawn(process, port, secret) for process in self._own))
        self._emit(events.EpochBegan(self.store.epoch, restored_from))
        topology_hash = self.store.description.hash
        announce(
            self.store.path,
            RunningSystem(
                os.getpid(), self.store.epoch, topology_hash, port, secret, self._commands
            ),
        )
        joining = tuple(p for p in self.store.description.processes if p not in self._own)
        if joining:
            self._emit(events.Waiting(joining))
        await _first(self.coordinator.running, self._ended)
        if self.coordinator.running.is_set() and not self._ended.done():
            self._start_failure_count = 0
            seconds = time.monotonic() - began
            self._emit(events.SystemRunning(self.store.epoch, seconds, restored_from))
            self._running.set()

    def _load(
        self, wish: SnapshotId | None
    ) -> tuple[dict[ProcessId, Start] | None, SnapshotId | None]:
        entry = self.store.entry(wish) if wish else self.store.current()
        if entry is None:
            return None, None
        return start_states(self.store.load(entry.id), self.store.description), entry.id

    async def _spawn(self, process: ProcessId, port: int, secret: bytes) -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "stillframe.runtime.child",
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self.children[process] = child
        me = Credentials(process, self.store.epoch, self.store.description.hash, secret)
        launch = Launch(me, self.reference, sys.path, port)
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(launch) + b"\n")
        exited = asyncio.get_running_loop().create_task(child.wait())
        exited.add_done_callback(lambda _: self._child_exited(process, child))

    def _child_exited(self, process: ProcessId, child: asyncio.subprocess.Process) -> None:
        # A child that never reached the coordinator has no connection whose end would tell.
        if self.children.get(process) is child:
            self._departed(process, None)

    def _departed(self, process: ProcessId, failure: control.Failure | None) -> None:
        if not self._ended.done():
            assert self.coordinator is not None
            self._running.clear()
            self.coordinator.process_died()
            self._ended.set_result(Death(process, failure))

    async def _describe(self, death: Death) -> events.ProcessDied:
        if death.failure is not None:
            return events.ProcessDied(death.process, death.failure.detail, death.failure.story)
        child = self.children.get(death.process)
        if child is None:
            return events.ProcessDied(death.process, "its connection to the coordinator ended")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await child.wait()
        code = child.returncode
        if code is None:
            cause = "its connection to the coordinator ended"
        elif code < 0:
            cause = f"it was ended by {signal.Signals(-code).name}"
        else:
            cause = f"it exited with code {code}"
        return events.ProcessDied(death.process, cause)

    def _check_patience(self, death: Death) -> None:
        """Raise if going back to the same snapshot once more has little hope."""
        current = self.store.current()
        sequence = current.sequence if current else 0
        self._start_failure_count += 1
        if sequence != self._last_failure_sequence or death.failure is None:
            self._application_failure_count = 0
        self._last_failure_sequence = sequence
        where = f"snapshot {current.id}" if current else "the start"
        if death.failure is not None:
            self._application_failure_count += 1
            if self._application_failure_count >= FAILURE_COUNT_MAX:
                raise ApplicationError(
                    f"{death.failure.detail}\nIt failed {FAILURE_COUNT_MAX} times in a row after "
                    f"going back to {where}. Mend the program, then go on with "
                    "'stillframe restore'."
                )
        if self._start_failure_count >= START_FAILURE_COUNT_MAX:
            raise StillframeError(
                f"{START_FAILURE_COUNT_MAX} times in a row a process died before the system ran, "
                f"the last time {death.process}; nothing is lost: {where} is in the store"
            )

    async def _end_epoch(self) -> None:
        children, self.children = self.children, {}
        for child in children.values():
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        await asyncio.gather(*(child.wait() for child in children.values()))
        if self.coordinator is not None:
            await self.coordinator.close()
            self._next_number = self.coordinator.next_number
            self.coordinator = None

    async def _stop(self) -> None:
        self.finished.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError, StillframeError):
                await self.finished
        finally:
            withdraw(self.store.path)
            self._directory.cleanup()


async def _first(event: asyncio.Event, other: asyncio.Future[Any]) -> None:
    """Wait until `event` is set or `other` is done."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting, other}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
