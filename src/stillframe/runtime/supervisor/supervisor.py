"""Starts the processes of a system, and restores all of them when one dies.

A system runs in epochs. Each starts with every process at one cut, or at its initial state, and
ends when a process dies, when a client requests a restore, or when the system is stopped. Nothing
remains of an epoch that has ended: its processes are dead, its secret is void, and what it was
still writing is written or abandoned. So a restore is a start, and there is one way to start.

The processes outlive their supervisor for a while. Another one can take them over in the same epoch
(``recovery.py``), if all of them reconnect to it.
"""

import asyncio
import contextlib
import functools
import secrets
import socket
import time
from collections.abc import Callable, Collection, Sequence
from itertools import cycle
from typing import Any, Self, TypeVar

import msgspec

from stillframe.errors import (
    Damaged,
    Fenced,
    StillframeError,
    StoreError,
    Unavailable,
    UsageError,
)
from stillframe.imports import load_topology, search_path
from stillframe.migration import listed
from stillframe.model import Abandoned, ProcessId, Reason, SnapshotId, natural_order
from stillframe.protocol import wire
from stillframe.protocol.policy import AbandonmentLimit, Policy
from stillframe.restore import Start
from stillframe.runtime import control, events, run_file
from stillframe.runtime.coordinator.coordinator import PENDING_COUNT_MAX, Coordinator
from stillframe.runtime.coordinator.membership import EpochStart
from stillframe.runtime.coordinator.snapshot_monitor import SnapshotTimelines
from stillframe.runtime.network.acceptor import require_route
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.network.connection import Credentials
from stillframe.runtime.os_process import (
    PROGRAM_FILE_COUNT,
    current_process,
    require_channel_files,
    require_open_files,
)
from stillframe.runtime.process.event_logging import check_epoch_unused
from stillframe.runtime.supervisor import recovery
from stillframe.runtime.supervisor.child_processes import LOG_END_S, ChildProcesses, first_completed
from stillframe.runtime.supervisor.config import DEFAULT_CONFIG, SupervisorConfig
from stillframe.runtime.supervisor.fork_client import ForkServer, WatchedProcess
from stillframe.runtime.supervisor.pipeline_binding import PipelineBinding
from stillframe.storage.location import locate
from stillframe.store import history
from stillframe.store.fragments import check_fragments_unused
from stillframe.store.history import HistoryEvent, read_history, shortened
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store

Answer = TypeVar("Answer")
DISK_RETRY_S = 1.0
SECRET_BYTES = 32


class ProcessFailed(msgspec.Struct, frozen=True):
    """A process has terminated; `failure` is the reason, if it reported one."""

    process: ProcessId
    failure: control.Failure | None


class RestoreRequested(msgspec.Struct, frozen=True):
    """A client requested to restore `snapshot`; None is the latest."""

    snapshot: SnapshotId | None


class ShutdownRequested(msgspec.Struct, frozen=True):
    """The system is to stop."""


Cause = ProcessFailed | RestoreRequested | ShutdownRequested
"""What ends an epoch of a system."""


class Epoch:
    """The processes of one epoch, with their coordinator once it has started. It listens where the
    epoch before did, if there was one. `ended` has the cause of its end; call ``close`` then.
    `forked_at` is when all processes of this machine had been forked, by ``time.monotonic``."""

    def __init__(self, system: "Supervisor", *, first_number: int, listen: Address) -> None:
        grace_s = LOG_END_S if system.config.outputs.any else 0.0
        self.children = ChildProcesses(system.server, self._child_exited, grace_s=grace_s)
        self.ended: asyncio.Future[Cause] = asyncio.get_running_loop().create_future()
        self.coordinator: Coordinator | None = None
        self.next_number = first_number
        self.listen = listen
        self._system = system
        self._named: events.AwaitingProcesses | None = None
        self.forked_at = 0.0

    @property
    def is_running(self) -> bool:
        """Whether every process runs and every channel is connected."""
        if self.coordinator is None or self.ended.done():
            return False
        return self.coordinator.membership.running.is_set()

    async def begin(
        self, starts: dict[ProcessId, Start] | None, restored_from: SnapshotId | None
    ) -> None:
        """Start every process from `starts`, the states of `restored_from`, or its initial state;
        returns when all run, or something has ended the epoch."""
        system = self._system
        # With TLS a certificate proves who a process is, even one that cannot be given a secret.
        has_tls = system.config.placement.certificates is not None
        secret = b"" if has_tls else secrets.token_bytes(SECRET_BYTES)
        self.coordinator = coordinator = self._coordinate(secret, starts, is_taken_over=False)
        await self._listen(coordinator)
        naming = asyncio.create_task(self._name_awaited(coordinator))
        try:
            await self._start_all(coordinator, secret, restored_from)
        finally:
            naming.cancel()

    async def _start_all(
        self, coordinator: Coordinator, secret: bytes, restored_from: SnapshotId | None
    ) -> None:
        """Start every process, and wait until all run, or something has ended the epoch.

        There is no time limit: a process that is slow to start would be slow again, one that exits
        is noticed, and one that hangs is named to the user.
        """
        system = self._system
        await first_completed(self.children.spawn_all(system.local_processes), self.ended)
        self.forked_at = time.monotonic()
        if self.ended.done():
            return
        if (detail := system.server.newly_unshared()) is not None:
            system.emit(events.NotShared(detail))
        system.emit(events.EpochBegan(system.store.epoch, restored_from))
        # Nobody begins before it is written down who must be ended if we die.
        self._write_run_file(secret)
        for process in system.local_processes:
            self.children.launch(self._launch(process, secret))
        joining = system.topology.processes.keys() - set(system.local_processes)
        if joining:
            self._name(joining)
        await first_completed(coordinator.membership.running.wait(), self.ended)

    async def _name_awaited(self, coordinator: Coordinator) -> None:
        """Report which processes are awaited, until cancelled."""
        while True:
            await asyncio.sleep(self._system.config.timeout_s)
            self._name(coordinator.membership.not_listening)

    def _name(self, missing: Collection[ProcessId]) -> None:
        """Report that processes are awaited, unless that was the last report."""
        if (awaiting := self._awaiting(missing)) != self._named:
            self._named = awaiting
            self._system.emit(awaiting)

    async def take_over(self, stale: run_file.RunFile) -> None:
        """Take over the processes of an earlier supervisor; returns when every process has
        reconnected, or something (such as that one did not) has ended the epoch. Raises Unavailable
        if the port to which they reconnect is taken, StoreError if the run file cannot be written;
        nothing has changed then."""
        coordinator = self._coordinate(stale.secret, None, is_taken_over=True)
        try:
            self.listen = await coordinator.membership.listen(
                stale.coordinator, self._system.config.placement.certificates
            )
            self.children.adopt(stale.children)
            self._write_run_file(stale.secret)
        except (Unavailable, StoreError):
            self.children.release()
            await coordinator.close()
            raise
        self.coordinator = coordinator
        await first_completed(coordinator.membership.running.wait(), self.ended)

    @property
    def waiting_for(self) -> str:
        """What is awaited until all processes run, in words."""
        if self.coordinator is None:
            return "the remaining processes of an earlier run to terminate"
        missing = sorted(self.coordinator.membership.missing, key=natural_order)
        if missing and self._system.is_taking_over:
            return f"{listed(missing)} to reconnect"
        return str(self._awaiting(missing))

    def _awaiting(self, missing: Collection[ProcessId]) -> events.AwaitingProcesses:
        local, missing = self._system.local_processes, sorted(missing, key=natural_order)
        return events.AwaitingProcesses(
            processes=tuple(process for process in missing if process not in local),
            starting=tuple(process for process in missing if process in local),
        )

    def end(self, cause: Cause) -> bool:
        """End the epoch; return False if something else had."""
        if self.ended.done():
            return False
        self._system.running.clear()
        self.ended.set_result(cause)
        return True

    async def close(self) -> None:
        """Stop every process, finish what is being written, and close the connections."""
        await self.children.stop()
        run_file.remove_last_words(self._system.socket.parent)
        if self.coordinator is not None:
            await self.coordinator.close()
            self.next_number = self.coordinator.next_number

    async def describe(self, death: ProcessFailed) -> events.ProcessDied:
        """Return the event for a process that has terminated."""
        if death.failure is not None:
            return events.ProcessDied(death.process, death.failure.detail, death.failure.story)
        cause = await self.children.describe_end(death.process)
        words = self.children.last_words_of(death.process, self._system.socket.parent)
        if words is not None:
            return events.ProcessDied(death.process, words.detail, words.story)
        return events.ProcessDied(death.process, cause)

    def _coordinate(
        self, secret: bytes, starts: dict[ProcessId, Start] | None, *, is_taken_over: bool
    ) -> Coordinator:
        system = self._system
        start = EpochStart(
            emit=system.emit,
            departed=self._departed,
            runs=self.children.runs,
            epoch=system.store.epoch,
            secret=secret,
            starts=starts,
            first_number=self.next_number,
            is_taken_over=is_taken_over,
        )
        return Coordinator(
            system.store,
            system.config,
            start,
            check=system.topology.check_state,
            timelines=system.timelines,
            is_bound=system.binding is not None,
        )

    async def _listen(self, coordinator: Coordinator) -> None:
        """Listen where the epoch before did: processes left over from it, on any machine, connect
        there again, and are dismissed."""
        placement, listen = self._system.config.placement, coordinator.membership.listen
        try:
            self.listen = await listen(self.listen, placement.certificates)
        except Unavailable:
            if self.listen == placement.listen:
                raise
            # The port was never announced, and another program has it now.
            self.listen = await listen(placement.listen, placement.certificates)
        if self._system.local_processes:
            await require_route(self.listen)

    def _write_run_file(self, secret: bytes) -> None:
        system = self._system
        running = run_file.RunFile(
            supervisor=current_process(),
            directory=run_file.identity(system.store.path),
            epoch=system.store.epoch,
            topology_hash=system.store.description.hash,
            coordinator=self.listen,
            has_tls=system.config.placement.certificates is not None,
            secret=secret,
            commands=str(system.socket),
            children=self.children.identities(),
            pipeline=None if system.binding is None else str(system.binding.root),
            snapshot_s=system.config.timeout_s,
            protocol_version=wire.VERSION,
        )
        run_file.write_run_file(system.store.path, running)

    def _launch(self, process: ProcessId, secret: bytes) -> control.LaunchSpec:
        system = self._system
        store, binding = system.store, system.binding
        certificates = system.config.placement.certificates
        me = Credentials(process, store.epoch, store.description.hash, secret, certificates)
        launch = control.LaunchSpec(
            me=me,
            reference=system.reference,
            search_path=search_path(),
            coordinator=self.listen,
            listen=Address(self.listen.host, 0),
            supervisor=current_process(),
            orphaned_s=system.config.orphaned_s,
            outputs=system.config.outputs,
            last_words=str(system.socket.parent),
        )
        if binding is None or process not in binding.services:
            return launch
        root, name = str(binding.root), binding.name
        return msgspec.structs.replace(
            launch, pipeline=root, pipeline_epoch=binding.epoch, system=name
        )

    def _child_exited(self, process: ProcessId) -> None:
        # A child without a connection has nothing whose end would tell; the connection of any
        # other may still hold its last words.
        if self.coordinator is not None and not self.coordinator.membership.is_there(process):
            self._departed(process, None)

    def _departed(self, process: ProcessId, failure: control.Failure | None) -> None:
        assert self.coordinator is not None
        # First: a listener that raises when it is told what is abandoned ends the epoch as well.
        if self.end(ProcessFailed(process, failure)):
            self.coordinator.abandon_all(Reason.PROCESS_DIED)


class Supervisor:
    """A running system. Use it as an asynchronous context manager.

    `reference` is ``module:attribute`` of the topology, importable here and by the processes, and
    the store is open for writing; the caller closes it. `emit` receives events; one that raises
    stops the system, which would run unobserved. `admin_socket` takes commands since before the
    system was announced (``admin_socket.serve_commands``); None until then. `is_taking_over` says
    that it started with processes of an earlier supervisor: they hold work that no snapshot has.

    Entering raises a UsageError if what was asked for does not fit the store, the pipeline, the
    certificates or what is to be taken over, Refused if that speaks another version of the
    protocol, and Unavailable if it cannot be seen whether processes of an earlier one still run.
    """

    def __init__(
        self,
        reference: str,
        store: Store,
        config: SupervisorConfig = DEFAULT_CONFIG,
        *,
        emit: Callable[[events.Event], None] = lambda event: None,
    ) -> None:
        self.reference = reference
        self.store = store
        self.binding: PipelineBinding | None = None
        if config.pipeline is not None:
            self.binding = PipelineBinding(config.pipeline, store)
            # It is rolled back with the pipeline only: no other supervisor can take over.
            config = msgspec.structs.replace(config, orphaned_s=0.0)
        self.config = config
        self._restore = config.restore
        self._may_migrate = config.may_migrate
        self._following: asyncio.Task[None] | None = None
        self._listener = emit
        self.timelines = SnapshotTimelines()
        self._error: Exception | None = None
        self._tolerance = AbandonmentLimit(config.tolerated_count)
        self._restart_strategy = recovery.RestartStrategy()
        self._restoring = asyncio.Lock()
        self._has_run = False
        self.is_taking_over = False
        self._stop_requested = asyncio.Event()
        self._epoch: Epoch | None = None
        self.running = asyncio.Event()
        self.admin_socket: socket.socket | None = None

    async def __aenter__(self) -> Self:
        """Start the system; returns when it runs."""
        self._load_topology()
        self.server = ForkServer(self.reference)
        # Before all else: it gets ready while we do.
        self.server.warm()
        try:
            stale = self._prepare()
            if not self.local_processes:
                await self.server.close()
        except BaseException:
            await self.server.close()
            raise
        loop = asyncio.get_running_loop()
        self.store.lost = functools.partial(_call_in, loop, self._on_fenced)
        self.finished = loop.create_task(self._live(stale))
        try:
            await self.until_running()
        except BaseException:
            await self._stop()
            raise
        return self

    def _load_topology(self) -> None:
        """Load and check the topology, and let what it needs inherit a limit of open files that is
        high enough."""
        self.topology = topology = load_topology(self.reference)
        is_other = topology.description.hash != self.store.description.hash
        if is_other and not self._may_migrate:
            raise recovery.changed_code(
                self.store.path, self._restore, self.store.description, topology
            )
        self.local_processes = self.config.placement.local_processes(topology)
        # Of each process its connection, and of those started here a descriptor and a pipe.
        process_count = len(topology.processes)
        count = PROGRAM_FILE_COUNT + process_count + 2 * len(self.local_processes)
        require_open_files(count, f"the supervisor of {process_count:,} processes")
        if self.local_processes:
            busiest = max(self.local_processes, key=topology.description.channel_count)
            require_channel_files(topology.description, busiest)

    def _prepare(self) -> run_file.RunFile | None:
        """Check all that can be checked before anything begins; return what an earlier supervisor
        left running."""
        local_processes = self.local_processes
        placement, outputs = self.config.placement, self.config.outputs
        if self.binding is not None:
            if self.config.policy is not Policy.ABANDON:
                raise self.binding.refusal(f"the policy '{self.config.policy.value}'")
            self._restore = self.binding.initial_snapshot()
        if self._restore is not None:
            self.store.entry(self._restore)
        if outputs.log is not None:
            check_epoch_unused(locate(outputs.log), self.store.epoch + 1)
        if outputs.fragments is not None:
            check_fragments_unused(locate(outputs.fragments), self.store.epoch + 1)
        stale = run_file.read_run_file(self.store.path)
        if stale is not None:
            recovery.check_visible(stale, self.store)
        if stale is not None and self.config.takes_over:
            recovery.check_placement(stale, placement, local_processes)
            if recovery.takeover_obstacle(stale, self.store, placement, local_processes) is None:
                # Which snapshots are in progress in the processes is known from it alone.
                read_history(self.store.path)
                self.is_taking_over = True
        _ = self.store.history  # one that cannot be read is an error now, not later
        self._directory = run_file.make_socket_dir()
        self.socket = run_file.socket_path(self._directory.name)
        return stale

    async def __aexit__(self, *_: object) -> None:
        """Stop the system; what was not recorded in a snapshot is lost."""
        await self._stop()

    @property
    def children(self) -> dict[ProcessId, WatchedProcess]:
        """The operating-system processes of this epoch that were started here."""
        return {} if self._epoch is None else self._epoch.children.running

    @property
    def coordinator(self) -> Coordinator | None:
        """The coordinator of this epoch."""
        return None if self._epoch is None else self._epoch.coordinator

    async def snapshot(self, initiator: ProcessId | None = None) -> SnapshotEntry | Abandoned:
        """Take a snapshot, which `initiator` begins (None: the first process); return its entry in
        the store, or why it was abandoned. UsageError if there is no such process, or too many are
        pending; StillframeError if the system has ended."""
        return await (await self.begin_snapshot(initiator))

    async def begin_snapshot(
        self, initiator: ProcessId | None = None
    ) -> "asyncio.Future[SnapshotEntry | Abandoned]":
        """Begin a snapshot once the system runs; see ``snapshot``."""
        if self.binding is not None:
            raise self.binding.refusal("a snapshot")
        coordinator = await self.until_running()
        return coordinator.begin(initiator or self.first_process)

    async def last_snapshot(self, initiator: ProcessId) -> SnapshotEntry | Abandoned:
        """Take the snapshot from which the system continues after it is stopped. Those in progress
        are awaited, and abandoned when they take too long, and no other begins in this epoch: so it
        is a restore point. StillframeError if the system has ended, or a process died meanwhile."""
        coordinator = await self.until_running()
        return await coordinator.begin_last(initiator)

    async def restore(self, snapshot: SnapshotId | None = None) -> None:
        """Restore the running system to `snapshot`; None for the latest published one. Returns when
        it runs again. UsageError if there is no such snapshot."""
        if self.binding is not None:
            raise self.binding.refusal("a restore")
        async with self._restoring:
            await self.until_running()
            # Read it first: one that is damaged must not cost the running system.
            if await asyncio.to_thread(self._load, snapshot) is None:
                raise UsageError("no snapshot has been published yet: there is nothing to restore")
            is_done = False
            while not is_done:
                epoch = self.store.epoch
                assert self._epoch is not None
                # A death that came first has ended this epoch already: then in the next.
                is_first = self._epoch.end(RestoreRequested(snapshot))
                await self.until_running()
                is_done = is_first and self.store.epoch > epoch

    @property
    def first_process(self) -> ProcessId:
        """The process that initiates a snapshot if the user names none: the first one declared."""
        return self.topology.first

    @property
    def is_running(self) -> bool:
        """Whether every process runs and every channel is connected."""
        return self.running.is_set()

    @property
    def waiting_for(self) -> str:
        """What a system that does not run yet waits for, in words."""
        return "its start" if self._epoch is None else self._epoch.waiting_for

    async def until_running(self) -> Coordinator:
        """Wait until every process runs and every channel is connected; return the coordinator of
        the epoch. StillframeError if the system has ended."""
        await first_completed(self.running.wait(), self.finished)
        if self.finished.done():
            self.finished.result()
            raise Unavailable("the system was stopped")
        assert self.coordinator is not None
        return self.coordinator

    def emit(self, event: events.Event) -> None:
        """Record an event in the history, and pass it on to the listener."""
        record = _to_history_event(event)
        if record is not None:
            try:
                self.store.history.append(record)
            except StoreError as error:
                self._notify(events.StoreUnavailable(str(error)))
        self._notify(event)

    def _notify(self, event: events.Event) -> None:
        try:
            self._listener(event)
            match event:
                case events.SnapshotPublished():
                    self._tolerance.published()
                case events.SnapshotAbandoned(abandoned, None):
                    if (words := self._tolerance.abandoned(abandoned)) is not None:
                        raise StillframeError(f"{words}, then continue with 'stillframe restore'")
        except Exception as error:
            self._error = self._error or error
            self._request_shutdown()

    def _on_fenced(self) -> None:
        """Stop at once: another supervisor continues the system from its last snapshot."""
        self._error = self._error or Fenced(
            f"another program has taken over the store {self.store.path}: this supervisor and its "
            "processes stop",
            path=self.store.path,
        )
        self._stop_requested.set()
        self._request_shutdown()

    def _request_shutdown(self) -> None:
        """End the epoch, and with it the system."""
        if self._epoch is not None:
            self._epoch.end(ShutdownRequested())

    async def _live(self, stale: run_file.RunFile | None) -> None:
        """Run epochs until the system is stopped or cannot continue; the first may be one that is
        taken over from an earlier supervisor."""
        ended, stop_s = time.monotonic(), 0.0
        cause: Cause = RestoreRequested(self._restore)
        for abandoned in recovery.abandon_unfinished(self.store):
            self.emit(events.SnapshotAbandoned(abandoned))
        # Above all that were ever given.
        number = max(self.store.next_number(), self.store.history.last_number + 1)
        listen = self.config.placement.listen
        if stale is not None and not listen.port and stale.coordinator.host == listen.host:
            listen = stale.coordinator
        while not self._stop_requested.is_set() and self._error is None:
            self._epoch = epoch = Epoch(self, first_number=number, listen=listen)
            began = time.monotonic()
            try:
                if stale is None or not await self._take_over(epoch, stale, ended):
                    requested = cause.snapshot if isinstance(cause, RestoreRequested) else None
                    await self._begin(epoch, requested, ended, stop_s)
                stale = None
                cause = await epoch.ended
                ended = time.monotonic()
                if isinstance(cause, ProcessFailed):
                    died = await epoch.describe(cause)
                    if self.binding is not None and self._error is None:
                        raise self.binding.died(died)
                    self.emit(died)
            finally:
                self.running.clear()
                if self._following is not None:
                    self._following.cancel()
                await epoch.close()
                stop_s = time.monotonic() - ended
                number, listen = epoch.next_number, epoch.listen
            if isinstance(cause, ProcessFailed) and self._error is None:
                await self._wait_before_restart(cause, ended - began)
        if self._error is not None:
            raise self._error

    async def _begin(
        self, epoch: Epoch, requested: SnapshotId | None, began: float, stop_s: float
    ) -> None:
        """Begin an epoch with the snapshot `requested`, None for the current one or the
        initial states. The
        last epoch ended at `began`, and its processes within `stop_s` seconds."""
        state_from = time.monotonic()
        plan = await self._patiently(self._load, requested)
        restored_from = None if plan is None else plan.snapshot
        await self._raise_epoch(restored_from)
        self._may_migrate = False
        if plan is not None and plan.changes:
            self.emit(events.CodeChanged(plan.snapshot, plan.changes))
        state_until = time.monotonic()
        await epoch.begin(None if plan is None else plan.starts, restored_from)
        if epoch.is_running:
            self._has_run = True
            if self.binding is not None:
                assert epoch.coordinator is not None
                following = self.binding.follow(epoch.coordinator, self.emit)
                self._following = asyncio.get_running_loop().create_task(following)
            now = time.monotonic()
            running = events.SystemRunning(
                self.store.epoch,
                now - began,
                restored_from,
                processes_s=stop_s + epoch.forked_at - state_until,
                state_s=state_until - state_from,
                connections_s=now - epoch.forked_at,
            )
            self._announce_running(running)

    async def _take_over(self, epoch: Epoch, stale: run_file.RunFile, began: float) -> bool:
        """Take over the system of `stale` if that is requested and possible; otherwise kill it.
        Return whether its epoch continued, if only to end when a process did not reconnect."""
        reason = recovery.REQUESTED
        if self.config.takes_over:
            reason = recovery.takeover_obstacle(
                stale, self.store, self.config.placement, self.local_processes
            )
        if reason is None:
            try:
                await epoch.take_over(stale)
            except Unavailable as error:
                reason = f"they reconnect to a port that is not available: {error}"
        if reason is not None:
            if ended := await recovery.kill_all(stale):
                self.emit(events.OrphansKilled(ended, reason))
            return False
        run_file.remove_socket(stale)
        if epoch.is_running:
            self._has_run = True
            took_s = time.monotonic() - began
            self._announce_running(events.TakenOver(self.store.epoch, took_s))
        return True

    def _announce_running(self, event: events.SystemRunning | events.TakenOver) -> None:
        if self.admin_socket is None:
            # Whoever reads that the system runs may send a command at once.
            self.admin_socket = run_file.listen_for_commands(self._directory.name)
        self.emit(event)
        self.running.set()

    async def _raise_epoch(self, restored_from: SnapshotId | None) -> None:
        """Raise the epoch; a system that ran before waits for a disk that is full meanwhile."""
        while True:
            try:
                await asyncio.to_thread(
                    self.store.raise_epoch, restored_from, self.topology.description
                )
            except StoreError as error:
                await self._wait_for_store(error)
            else:
                return

    async def _patiently(self, act: Callable[..., Answer], *arguments: Any) -> Answer:
        """Return what `act` returns, which reads the store; a system that ran before waits for an
        object store that is away."""
        while True:
            try:
                return await asyncio.to_thread(act, *arguments)
            except StoreError as error:
                if isinstance(error, Damaged) or not self.store.is_remote:
                    raise
                await self._wait_for_store(error)

    async def _wait_for_store(self, error: StoreError) -> None:
        """Wait a little before the store is tried again, unless that is hopeless: raise `error`."""
        if isinstance(error, Fenced) or not self._has_run or self._stop_requested.is_set():
            raise error
        detail = f"the system waits to restore its last snapshot: {error}"
        self.emit(events.StoreUnavailable(detail))
        await self._pause(DISK_RETRY_S)

    def _load(self, requested: SnapshotId | None) -> recovery.RecoveryPlan | None:
        entry = None
        if requested is not None:
            entry = self.store.entry(requested)
        elif self.binding is None:
            entry = self.store.current()
        if entry is None:
            return None
        return recovery.plan_recovery(
            self.store, entry.id, self.topology, may_migrate=self._may_migrate
        )

    async def _wait_before_restart(self, death: ProcessFailed, ran_s: float) -> None:
        try:
            pause_s = await self._patiently(self._next_delay_s, death, ran_s)
        except StillframeError as error:
            error.locate(process=death.process, path=self.store.path)
            raise
        await self._pause(pause_s)

    def _next_delay_s(self, death: ProcessFailed, ran_s: float) -> float:
        current, began_from = self.store.current(), self.store.restored_from
        return self._restart_strategy.next_delay_s(
            sequence=current.sequence if current else 0,
            where=f"snapshot {began_from}" if began_from else "the initial states",
            ran_s=ran_s,
            failure=death.failure.detail if death.failure else None,
        )

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop_requested.wait()

    async def _stop(self) -> None:
        """End the epoch in order: what is being written is written."""
        self._stop_requested.set()
        self._request_shutdown()
        try:
            with contextlib.suppress(StillframeError):
                await asyncio.shield(self.finished)
        finally:
            self.store.lost = lambda: None
            run_file.remove_run_file(self.store.path)
            if self.admin_socket is not None:
                self.admin_socket.close()
            self._directory.cleanup()
            await self.server.close()


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Call a function in a loop, from any thread, unless the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


def _to_history_event(event: events.Event) -> HistoryEvent | None:
    """Return the record of `event` in the history; None if it has none."""
    match event:
        case events.EpochBegan(epoch, restored_from):
            return history.EpochBegan(epoch, restored_from)
        case events.TakenOver(epoch):
            return history.TakenOver(epoch)
        case events.ProcessDied(process, cause):
            return history.ProcessDied(process, shortened(cause))
        case events.SnapshotPublished(entry):
            return history.SnapshotPublished(entry.id, is_removal_noted=True)
        case events.SnapshotAbandoned(given_up):
            reason, detail = given_up.reason.name, shortened(given_up.detail)
            return history.SnapshotAbandoned(given_up.snapshot, reason, given_up.missing, detail)
        case _:
            return None


async def trigger_periodically(
    system: Supervisor,
    *,
    every_s: float,
    initiators: Sequence[ProcessId],
    emit: Callable[[events.Event], None],
) -> None:
    """Take a snapshot every `every_s` seconds until cancelled or until the system ends, which
    raises a StillframeError. The `initiators` are used round-robin. One that is due while the one
    before is pending is skipped, and `emit` is notified: if snapshots take longer than the
    interval, they must not pile up. None is due while the system is being restored."""
    loop = asyncio.get_running_loop()
    turns = cycle(initiators)
    due = loop.time()
    while True:
        coordinator = await system.until_running()
        result: asyncio.Future[SnapshotEntry | Abandoned] | None = None
        under_way = coordinator.under_way
        if len(under_way) < PENDING_COUNT_MAX:
            result = coordinator.begin(next(turns))
            under_way = coordinator.under_way
        else:
            emit(events.SnapshotSkipped(under_way[0]))
        while True:
            due = max(due + every_s, loop.time())
            await asyncio.sleep(due - loop.time())
            if result is None or result.done():
                break
            emit(events.SnapshotSkipped(under_way[-1]))
