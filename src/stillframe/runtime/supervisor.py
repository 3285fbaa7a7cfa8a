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
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from stillframe.errors import StillframeError, StoreError, Unavailable, UsageError
from stillframe.model import Abandoned, ProcessId, SnapshotId
from stillframe.protocol.policy import Policy
from stillframe.runtime import control, events
from stillframe.runtime.addresses import Address
from stillframe.runtime.attachment import Attachment
from stillframe.runtime.beginning import Beginning, beginning, changed_code
from stillframe.runtime.child import Launch
from stillframe.runtime.children import Children
from stillframe.runtime.coordinator import Coordinator
from stillframe.runtime.death import Death, describe_death
from stillframe.runtime.ending import Cause, Stop, Wish
from stillframe.runtime.link import Credentials
from stillframe.runtime.loading import load_topology
from stillframe.runtime.patience import Patience
from stillframe.runtime.running import RunningSystem, announce, identity, withdraw
from stillframe.runtime.site import ALL_HERE, Site
from stillframe.runtime.telling import Telling
from stillframe.store.manifest import Entry
from stillframe.store.store import Store

SECRET_BYTES = 32
TIMEOUT_S = 10.0
TMPDIR_LENGTH_MAX = 70
DISK_RETRY_S = 1.0
START_TIMEOUT_S = 60.0
"""A process that does not come to listen within so long after its start is taken for dead."""


class Supervisor:
    """A running system. Use it as an asynchronous context manager.

    Args:
        reference: ``module:attribute`` of the topology, importable here and by the processes.
        store: where snapshots go; open for writing. The caller closes it.
        timeout_s: how long a snapshot may take until it is abandoned, in seconds.
        marker_wait_s: how long a marker may wait for messages to ride on; 0 sends it at once.
        restore: the snapshot to begin with; None for the store's current one, or afresh.
        migrate: whether it may begin with a snapshot that was taken of other code.
        pipeline: the directory of the pipeline in which some processes are services; it then says
            with which snapshot to begin.
        policy: what to do with a snapshot for which a part is missing.
        tolerated_count: how many abandoned snapshots in a row are tolerated; one more ends the
            system. None for any number.
        site: what of the system is on this machine.
        emit: takes what happens.

    Raises:
        UsageError: on entering; the topology cannot be loaded, or is not the one of the store; in
            a pipeline, which takes the snapshots, a policy of the system's own; the certificates
            are not what they must be.
    """

    def __init__(
        self,
        reference: str,
        store: Store,
        *,
        timeout_s: float = TIMEOUT_S,
        marker_wait_s: float = 0.0,
        restore: SnapshotId | None = None,
        migrate: bool = False,
        pipeline: Path | None = None,
        policy: Policy = Policy.ABANDON,
        tolerated_count: int | None = None,
        site: Site = ALL_HERE,
        emit: Callable[[events.Event], None] = lambda event: None,
    ) -> None:
        self.reference = reference
        self.store = store
        self.coordinator: Coordinator | None = None
        self._children = Children(self._child_exited)
        self._timeout_s = timeout_s
        self._marker_wait_s = marker_wait_s
        self._restore = restore
        self._may_migrate = migrate
        self._site = site
        self._listen = site.listen
        self._attachment = None if pipeline is None else Attachment(pipeline, store)
        self._following: asyncio.Task[None] | None = None
        self._policy = policy
        self._telling = Telling(emit, tolerated_count=tolerated_count, end=self._end_in_order)
        self._emit = self._telling.emit
        self._patience = Patience()
        self._restoring = asyncio.Lock()
        self._is_stopping = False
        self._has_run = False
        self._stop_wanted = asyncio.Event()
        self._commands = ""
        self._next_number = store.next_number()
        self._running = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Start the system; returns when it runs."""
        self._topology = topology = load_topology(self.reference)
        is_other = topology.description.hash != self.store.description.hash
        if is_other and not self._may_migrate:
            raise changed_code(self.store.path, self._restore, self.store.description, topology)
        self._own = self._site.started_here(topology)
        if self._attachment is not None:
            if self._policy is not Policy.ABANDON:
                raise self._attachment.refusal(f"the policy '{self._policy.value}'")
            self._restore = self._attachment.begins_with()
        if self._restore is not None:
            self.store.entry(self._restore)
        # The path of a socket may have about a hundred bytes, wherever TMPDIR leads.
        is_long = len(tempfile.gettempdir()) > TMPDIR_LENGTH_MAX
        short = "/tmp" if is_long else None  # noqa: S108 - a directory of our own is made in it
        self._directory = tempfile.TemporaryDirectory(prefix="stillframe-", dir=short)
        self._commands = f"{self._directory.name}/commands"
        self._ended: asyncio.Future[Cause] = asyncio.get_running_loop().create_future()
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
    def children(self) -> dict[ProcessId, asyncio.subprocess.Process]:
        """The operating-system processes of this epoch that we started."""
        return self._children.running

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
        if self._attachment is not None:
            raise self._attachment.refusal("a snapshot")
        await self.until_running()
        assert self.coordinator is not None
        return self.coordinator.begin(initiator or next(iter(self.store.description.processes)))

    async def restore(self, snapshot: SnapshotId | None = None) -> None:
        """Take the running system back to `snapshot`; None for the last one published.

        Returns when the system runs again.

        Raises:
            UsageError: there is no such snapshot.
        """
        if self._attachment is not None:
            raise self._attachment.refusal("a restore")
        async with self._restoring:
            await self.until_running()
            # Read it first: one that is damaged must not cost the running system.
            if await asyncio.to_thread(self._load, snapshot) is None:
                raise UsageError("no snapshot has been published yet: there is nothing to restore")
            is_done = False
            while not is_done:
                epoch = self.store.epoch
                # A death that came first has ended this epoch already: then in the next.
                is_first = not self._ended.done()
                if is_first:
                    self._running.clear()
                    self._ended.set_result(Wish(snapshot))
                await self.until_running()
                is_done = is_first and self.store.epoch > epoch

    async def until_running(self) -> None:
        """Wait until every process runs and every channel is connected.

        Raises:
            StillframeError: the system has ended.
        """
        await _first(self._running, self.finished)
        if self.finished.done():
            self.finished.result()
            raise Unavailable("the system was stopped")

    def _end_in_order(self) -> None:
        """Somebody wants the system to end."""
        if not self._ended.done():
            self._ended.set_result(Stop())

    async def _live(self) -> None:
        """Live through epochs until the system is stopped or cannot go on."""
        ended = time.monotonic()
        cause: Cause = Wish(self._restore)
        while not self._is_stopping and self._telling.error is None:
            self._ended = asyncio.get_running_loop().create_future()
            began = time.monotonic()
            try:
                await self._begin_epoch(cause.snapshot if isinstance(cause, Wish) else None, ended)
                cause = await self._ended
                ended = time.monotonic()
                if isinstance(cause, Death):
                    died = await describe_death(cause, self.children.get(cause.process))
                    if self._attachment is not None:
                        raise self._attachment.died(died)
                    self._emit(died)
            finally:
                self._running.clear()
                await self._end_epoch()
            if isinstance(cause, Death):
                await self._wait_before_going_back(cause, ended - began)
        if self._telling.error is not None:
            raise self._telling.error

    async def _begin_epoch(self, wish: SnapshotId | None, began: float) -> None:
        begins = await asyncio.to_thread(self._load, wish)
        restored_from = None if begins is None else begins.snapshot
        await self._raise_epoch(restored_from)
        self._may_migrate = False
        if begins is not None and begins.changes:
            self._emit(events.CodeChanged(begins.snapshot, begins.changes))
        # With TLS a certificate says who somebody is, also of those whom we cannot hand a secret.
        has_tls = self._site.certificates is not None
        secret = b"" if has_tls else secrets.token_bytes(SECRET_BYTES)
        self.coordinator = Coordinator(
            self.store,
            check=self._topology.check_state,
            secret=secret,
            starts=None if begins is None else begins.starts,
            first_number=self._next_number,
            timeout_s=self._timeout_s,
            marker_wait_s=self._marker_wait_s,
            policy=self._policy,
            emit=self._emit,
            departed=self._departed,
        )
        # The port stays the same for all epochs: processes elsewhere know no other way back.
        self._listen = await self.coordinator.roster.listen(self._listen, self._site.certificates)
        await asyncio.gather(*(self._children.spawn(self._launch(p, secret)) for p in self._own))
        self._emit(events.EpochBegan(self.store.epoch, restored_from))
        announce(
            self.store.path,
            RunningSystem(
                pid=os.getpid(),
                directory=identity(self.store.path),
                epoch=self.store.epoch,
                topology_hash=self.store.description.hash,
                coordinator=self._listen,
                has_tls=has_tls,
                secret=secret,
                commands=self._commands,
            ),
        )
        joining = tuple(p for p in self.store.description.processes if p not in self._own)
        if joining:
            self._emit(events.Waiting(joining))
        await self._until_connected(self.coordinator)
        if self.coordinator.roster.running.is_set() and not self._ended.done():
            seconds = time.monotonic() - began
            self._has_run = True
            if self._attachment is not None:
                following = self._attachment.follow(self.coordinator, self._emit)
                self._following = asyncio.get_running_loop().create_task(following)
            self._emit(events.SystemRunning(self.store.epoch, seconds, restored_from))
            self._running.set()

    async def _raise_epoch(self, restored_from: SnapshotId | None) -> None:
        """Raise the epoch; a system that ran before waits for a disk that is full meanwhile."""
        while True:
            try:
                self.store.raise_epoch(restored_from, self._topology.description)
            except StoreError as error:
                if not self._has_run or self._is_stopping:
                    raise
                detail = f"the system waits to go back to its last snapshot: {error}"
                self._emit(events.StoreTrouble(detail))
                await self._pause(DISK_RETRY_S)
            else:
                return

    async def _until_connected(self, coordinator: Coordinator) -> None:
        """Wait until all processes run, or the epoch ends; say who is waited for."""
        began = time.monotonic()
        while not await _first(coordinator.roster.running, self._ended, timeout_s=self._timeout_s):
            waiting = coordinator.roster.not_listening
            self._emit(events.Waiting(waiting))
            stuck = [process for process in waiting if process in self._own]
            if stuck and time.monotonic() - began > START_TIMEOUT_S and not self._ended.done():
                detail = f"it did not come to listen within {START_TIMEOUT_S:.0f} s of its start"
                self._departed(stuck[0], control.Failure(f"process {stuck[0]}: {detail}", ""))

    def _load(self, wish: SnapshotId | None) -> Beginning | None:
        is_alone = self._attachment is None
        entry = self.store.entry(wish) if wish else self.store.current() if is_alone else None
        if entry is None:
            return None
        return beginning(self.store, entry.id, self._topology, may_migrate=self._may_migrate)

    def _launch(self, process: ProcessId, secret: bytes) -> Launch:
        topology_hash = self.store.description.hash
        me = Credentials(process, self.store.epoch, topology_hash, secret, self._site.certificates)
        listen = Address(self._listen.host, 0)
        launch = Launch(me, self.reference, sys.path, self._listen, listen)
        if self._attachment is None or process not in self._attachment.services:
            return launch
        root, system = str(self._attachment.root), self._attachment.name
        return msgspec.structs.replace(launch, pipeline=root, system=system)

    def _child_exited(self, process: ProcessId) -> None:
        # A child that never reached the coordinator has no connection whose end would tell; that
        # of any other may still hold its last words.
        if self.coordinator is not None and not self.coordinator.roster.has_met(process):
            self._departed(process, None)

    def _departed(self, process: ProcessId, failure: control.Failure | None) -> None:
        if not self._ended.done():
            assert self.coordinator is not None
            self._running.clear()
            self.coordinator.process_died()
            self._ended.set_result(Death(process, failure))

    async def _wait_before_going_back(self, death: Death, ran_s: float) -> None:
        current = self.store.current()
        pause_s = self._patience.note(
            sequence=current.sequence if current else 0,
            where=f"snapshot {current.id}" if current else "the start",
            ran_s=ran_s,
            failure=death.failure.detail if death.failure else None,
        )
        await self._pause(pause_s)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop_wanted.wait()

    async def _end_epoch(self) -> None:
        if self._following is not None:
            self._following.cancel()
        await self._children.end()
        if self.coordinator is not None:
            await self.coordinator.close()
            self._next_number = self.coordinator.next_number
            self.coordinator = None

    async def _stop(self) -> None:
        """End the epoch in order: what is being written is written."""
        self._is_stopping = True
        self._stop_wanted.set()
        self._end_in_order()
        try:
            with contextlib.suppress(StillframeError):
                await asyncio.shield(self.finished)
        finally:
            withdraw(self.store.path)
            self._directory.cleanup()


async def _first(
    event: asyncio.Event, other: asyncio.Future[Any], timeout_s: float | None = None
) -> bool:
    """Wait until `event` is set or `other` is done; return False if neither came in time."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        done, _ = await asyncio.wait(
            {waiting, other}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        return bool(done)
    finally:
        waiting.cancel()
