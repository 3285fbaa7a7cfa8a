"""One epoch of a running system: its settings, its processes, how they start, and what ends it."""

import asyncio
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from stillframe.errors import StoreError, Unavailable
from stillframe.model import ProcessId, Reason, SnapshotId
from stillframe.protocol import wire
from stillframe.restore import Start
from stillframe.runtime import control, events
from stillframe.runtime.control import NO_OUTPUT, ORPHANED_S, LaunchSpec, OutputDirs
from stillframe.runtime.coordinator.coordinator import Coordinator
from stillframe.runtime.coordinator.membership import CoordinatorConfig, EpochStart
from stillframe.runtime.coordinator.snapshot_monitor import SnapshotTimelines
from stillframe.runtime.network.addresses import ANY_PORT, Address
from stillframe.runtime.network.certificates import check_own
from stillframe.runtime.network.connection import Credentials
from stillframe.runtime.os_process import current_process
from stillframe.runtime.run_file import RunFile, identity, write_run_file
from stillframe.runtime.supervisor.child_processes import (
    LOG_END_S,
    ChildProcesses,
    first_completed,
)
from stillframe.runtime.supervisor.fork_client import ForkServer
from stillframe.runtime.supervisor.pipeline_binding import PipelineBinding
from stillframe.store.store import Store
from stillframe.topology import Joined, Topology

SECRET_BYTES = 32
START_TIMEOUT_S = 60.0
"""A process that does not listen this long after its start is taken for dead."""


class Placement(msgspec.Struct, frozen=True):
    """What of a system is on the machine of the coordinator. The coordinator listens at `listen`,
    and so do, on other ports, the processes started here. `certificates` is the directory of
    theirs, None for no TLS: on a loopback address only. The processes `elsewhere` are not started
    here but wait to join, besides those that the topology has as ``Joined``."""

    listen: Address = ANY_PORT
    certificates: str | None = None
    elsewhere: tuple[ProcessId, ...] = ()

    def local_processes(self, topology: Topology) -> tuple[ProcessId, ...]:
        """Return the processes of `topology` that are started on this machine. Raises a UsageError
        if one that is `elsewhere` does not exist, or our certificate cannot speak for the
        coordinator and for all that are here."""
        for process in self.elsewhere:
            topology.description.check_process(process)
        here = tuple(
            name
            for name, process in topology.processes.items()
            if not isinstance(process, Joined) and name not in self.elsewhere
        )
        if self.certificates is not None:
            for speaker in (None, *here):
                check_own(Path(self.certificates), speaker)
        return here


LOCAL = Placement()
"""A system on one machine that no other machine can reach."""


class SupervisorConfig(CoordinatorConfig, frozen=True, kw_only=True):
    """How to run a system.

    `restore` is the snapshot to start from, None for the store's current one or a fresh start; with
    `may_migrate` one that was taken with other code. The `pipeline` is the directory of that in
    which some processes are services, and then determines the snapshot. `tolerated_count` is how
    many abandoned snapshots in a row are tolerated: one more stops the system; None for any number.
    If it `takes_over`, it continues with what an earlier supervisor left running if that is
    possible; otherwise that is killed. `orphaned_s` is how many seconds processes keep running
    without a supervisor.
    """

    restore: SnapshotId | None = None
    may_migrate: bool = False
    pipeline: Path | None = None
    outputs: OutputDirs = NO_OUTPUT
    tolerated_count: int | None = None
    placement: Placement = LOCAL
    takes_over: bool = False
    orphaned_s: float = ORPHANED_S


DEFAULT_CONFIG = SupervisorConfig()


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


class EpochConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same in every epoch that one supervisor sees. `reference` is ``module:attribute``
    of the topology, and `socket` the path of the admin socket; the `local_processes` are started on
    this machine."""

    reference: str
    topology: Topology
    server: ForkServer
    store: Store
    config: SupervisorConfig
    local_processes: tuple[ProcessId, ...]
    binding: PipelineBinding | None
    socket: Path
    emit: Callable[[events.Event], None]
    timelines: SnapshotTimelines = msgspec.field(default_factory=SnapshotTimelines)


class Epoch:
    """The processes of one epoch, with their coordinator once it has started. It listens where the
    epoch before did, if there was one. `on_end` is called as soon as something has `ended` it,
    which has the cause; call ``close`` then. `forked_at` is when all processes of this machine had
    been forked, by ``time.monotonic``."""

    def __init__(
        self, always: EpochConfig, *, first_number: int, listen: Address, on_end: Callable[[], None]
    ) -> None:
        grace_s = LOG_END_S if always.config.outputs.any else 0.0
        self.children = ChildProcesses(always.server, self._child_exited, grace_s=grace_s)
        self.ended: asyncio.Future[Cause] = asyncio.get_running_loop().create_future()
        self.coordinator: Coordinator | None = None
        self.next_number = first_number
        self.listen = listen
        self._always = always
        self._on_end = on_end
        self.local_processes = always.local_processes
        self.forked_at = 0.0
        self._joining = tuple(n for n in always.topology.processes if n not in self.local_processes)

    @property
    def is_running(self) -> bool:
        """Whether every process runs and every channel is connected."""
        if self.coordinator is None or self.ended.done():
            return False
        return self.coordinator.membership.running.is_set()

    async def begin(
        self, starts: dict[ProcessId, Start] | None, restored_from: SnapshotId | None
    ) -> None:
        """Start every process from `starts`, the states of the snapshot `restored_from`, or afresh;
        returns when all run, or something has ended the epoch."""
        always = self._always
        # With TLS a certificate proves who a process is, even one that cannot be given a secret.
        has_tls = always.config.placement.certificates is not None
        secret = b"" if has_tls else secrets.token_bytes(SECRET_BYTES)
        self.coordinator = coordinator = self._coordinate(secret, starts, is_taken_over=False)
        await self._listen(coordinator)
        await first_completed(self.children.spawn_all(self.local_processes), self.ended)
        self.forked_at = time.monotonic()
        if self.ended.done():
            return
        if (detail := always.server.newly_unshared()) is not None:
            always.emit(events.NotShared(detail))
        always.emit(events.EpochBegan(always.store.epoch, restored_from))
        # Nobody begins before it is written down who must be ended if we die.
        self._write_run_file(secret)
        for process in self.local_processes:
            self.children.launch(self._launch(process, secret))
        if self._joining:
            always.emit(events.AwaitingProcesses(self._joining))
        began = time.monotonic()
        running, timeout_s = coordinator.membership.running, always.config.timeout_s
        while not await first_completed(running.wait(), self.ended, timeout_s=timeout_s):
            self._name_late(coordinator, time.monotonic() - began)

    async def take_over(self, stale: RunFile) -> None:
        """Take over the processes of an earlier supervisor; returns when every process has come
        back, or something (such as that one did not) has ended the epoch. Raises Unavailable if the
        port to which they come back is taken, StoreError if the run file cannot be written; nothing
        has changed then."""
        coordinator = self._coordinate(stale.secret, None, is_taken_over=True)
        try:
            self.listen = await coordinator.membership.listen(
                stale.coordinator, self._always.config.placement.certificates
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
            return "what is left of an earlier run to end"
        missing = self.coordinator.membership.missing
        if missing:
            return f"{', '.join(missing)} to come"
        return "the processes to connect to each other"

    def end(self, cause: Cause) -> bool:
        """End the epoch; return False if something else had."""
        if self.ended.done():
            return False
        self._on_end()
        self.ended.set_result(cause)
        return True

    async def close(self) -> None:
        """Stop every process, finish what is being written, and close the connections."""
        await self.children.stop()
        if self.coordinator is not None:
            await self.coordinator.close()
            self.next_number = self.coordinator.next_number

    async def describe(self, death: ProcessFailed) -> events.ProcessDied:
        """Return the event for a process that has terminated."""
        if death.failure is not None:
            return events.ProcessDied(death.process, death.failure.detail, death.failure.story)
        cause = await self.children.describe_end(death.process)
        return events.ProcessDied(death.process, cause)

    def _coordinate(
        self, secret: bytes, starts: dict[ProcessId, Start] | None, *, is_taken_over: bool
    ) -> Coordinator:
        always = self._always
        start = EpochStart(
            emit=always.emit,
            departed=self._departed,
            runs=self.children.runs,
            epoch=always.store.epoch,
            secret=secret,
            starts=starts,
            first_number=self.next_number,
            is_taken_over=is_taken_over,
        )
        check, timelines = always.topology.check_state, always.timelines
        return Coordinator(always.store, always.config, start, check=check, timelines=timelines)

    async def _listen(self, coordinator: Coordinator) -> None:
        """Listen where the epoch before did: processes left over from it, on any machine, connect
        there again, and are dismissed."""
        placement, listen = self._always.config.placement, coordinator.membership.listen
        try:
            self.listen = await listen(self.listen, placement.certificates)
        except Unavailable:
            if self.listen == placement.listen:
                raise
            # The port was never announced, and another program has it now.
            self.listen = await listen(placement.listen, placement.certificates)

    def _write_run_file(self, secret: bytes) -> None:
        always = self._always
        system = RunFile(
            supervisor=current_process(),
            directory=identity(always.store.path),
            epoch=always.store.epoch,
            topology_hash=always.store.description.hash,
            coordinator=self.listen,
            has_tls=always.config.placement.certificates is not None,
            secret=secret,
            commands=str(always.socket),
            children=self.children.identities(),
            pipeline=None if always.binding is None else str(always.binding.root),
            snapshot_s=always.config.timeout_s,
            protocol_version=wire.VERSION,
        )
        write_run_file(always.store.path, system)

    def _launch(self, process: ProcessId, secret: bytes) -> LaunchSpec:
        always = self._always
        store, binding = always.store, always.binding
        certificates = always.config.placement.certificates
        me = Credentials(process, store.epoch, store.description.hash, secret, certificates)
        launch = LaunchSpec(
            me=me,
            reference=always.reference,
            search_path=sys.path,
            coordinator=self.listen,
            listen=Address(self.listen.host, 0),
            supervisor=current_process(),
            orphaned_s=always.config.orphaned_s,
            outputs=always.config.outputs,
        )
        if binding is None or process not in binding.services:
            return launch
        root, system = str(binding.root), binding.name
        return msgspec.structs.replace(launch, pipeline=root, system=system)

    def _name_late(self, coordinator: Coordinator, waited_s: float) -> None:
        """Report which processes are awaited; a child that is too late is taken for dead."""
        waiting = coordinator.membership.not_listening
        self._always.emit(events.AwaitingProcesses(waiting))
        stuck = [process for process in waiting if process in self.local_processes]
        if stuck and waited_s > START_TIMEOUT_S:
            detail = f"it did not come to listen within {START_TIMEOUT_S:.0f} s of its start"
            self._departed(stuck[0], control.Failure(f"process {stuck[0]}: {detail}", ""))

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
