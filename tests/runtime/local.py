"""A whole system in one event loop: real coordinator, members, hosts and TCP, no new processes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Self

from stillframe.errors import StillframeError
from stillframe.model import Abandoned, ProcessId, Snapshot, SnapshotId
from stillframe.process import Process, attach
from stillframe.protocol.policy import Policy
from stillframe.restore import Start
from stillframe.runtime import control, events
from stillframe.runtime.control import NO_OUTPUT, OutputDirs
from stillframe.runtime.coordinator.coordinator import Coordinator
from stillframe.runtime.coordinator.membership import CoordinatorConfig, EpochStart
from stillframe.runtime.network.addresses import ANY_PORT, LOOPBACK, Address
from stillframe.runtime.network.connection import Credentials
from stillframe.runtime.process.handlers import HandlerHost
from stillframe.runtime.process.host import Host
from stillframe.runtime.process.loop_host import AsyncHandlerHost, has_async_handlers
from stillframe.runtime.process.pipeline_logs import PipelineLogs
from stillframe.runtime.process.process_runtime import ProcessRuntime
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.topology import Topology
from tests.runtime.links import SECRET, hang_up, until

Detour = Callable[[int], int]
"""Takes the port on which a process listens, returns the one that is made known instead."""


class LocalMember(ProcessRuntime):
    """A member whose port can be made known as that of a proxy."""

    def __init__(self, me: Credentials, coordinator: Address, detour: Detour) -> None:
        super().__init__(me, coordinator, ANY_PORT)
        self._detour = detour
        self.port = 0

    def report(self, message: control.FromProcess) -> None:
        """Tell the coordinator, which never learns of the detour."""
        if isinstance(message, control.ListeningOn):
            self.port = message.address.port
            message = control.ListeningOn(Address(LOOPBACK, self._detour(self.port)))
        super().report(message)


class LocalSystem:
    """One epoch of a system, for the tests to look inside.

    Args:
        topology: fresh, since its processes run here.
        directory: where the store is made; or the store of an earlier epoch.
        detour: where connections to a process go instead.
        starts: where each process begins; None for a fresh start.
        timeout_s: how long a snapshot may take.
        marker_wait_s: how long a marker may wait for messages to ride on.
        policy: what to do with one for which a part is missing.
        survives: whether processes are known to run though a connection of theirs has ended.
        may_fail: whether ``until`` goes on when a process has failed.
        certificates: of everybody; None for no TLS.
        traces: what they write of themselves.
    """

    is_bound = False
    """Whether it takes its snapshots for a pipeline."""
    restored_from: SnapshotId | None = None

    def __init__(
        self,
        topology: Topology,
        directory: Path | Store,
        *,
        detour: Detour = lambda port: port,
        starts: dict[ProcessId, Start] | None = None,
        timeout_s: float = 30.0,
        marker_wait_s: float = 0.0,
        policy: Policy = Policy.ABANDON,
        survives: bool = False,
        may_fail: bool = False,
        certificates: Path | None = None,
        traces: OutputDirs = NO_OUTPUT,
    ) -> None:
        self.topology = topology
        if isinstance(directory, Path):
            directory = Store.create(directory / "store", description=topology.description)
        self.store = directory
        self.events: list[events.Event] = []
        self.failures: list[StillframeError] = []
        self.departed: list[tuple[ProcessId, control.Failure | None]] = []
        self.hosts: dict[ProcessId, Host] = {}
        self.members: dict[ProcessId, LocalMember] = {}
        self._detour = detour
        self._starts = starts
        self._config = CoordinatorConfig(
            timeout_s=timeout_s, marker_wait_s=marker_wait_s, policy=policy
        )
        self._survives = survives
        self._may_fail = may_fail
        self._traces = traces
        self._certificates = None if certificates is None else str(certificates)

    async def __aenter__(self) -> Self:
        """Start all; returns when every channel is connected, or a process has failed."""
        self.store.raise_epoch(self.restored_from)
        self.history = self.store.history
        self.coordinator = Coordinator(
            self.store,
            self._config,
            EpochStart(
                emit=self.events.append,
                departed=lambda process, failure: self.departed.append((process, failure)),
                runs=lambda process: self._survives,
                epoch=self.store.epoch,
                secret=SECRET if self._certificates is None else b"",
                starts=self._starts,
                first_number=self.store.next_number(),
            ),
            check=self.topology.check_state,
            is_bound=self.is_bound,
        )
        self.address = await self.coordinator.membership.listen(ANY_PORT, self._certificates)
        self.port = self.address.port
        async with asyncio.TaskGroup() as group:
            for name in self.topology.processes:
                group.create_task(self._start(name))
        await self.until(
            lambda: self.coordinator.membership.running.is_set() or bool(self.failures)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all, and hang up at both ends of every connection."""
        await self.coordinator.close()
        # Nobody may connect when the listeners close: asyncio loses what it has just accepted.
        for member in self.members.values():
            member._is_closing = True
            for task in member._tasks:
                task.cancel()
        await hang_up()
        for member in self.members.values():
            await member.close()
        await hang_up()
        self.store.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop go round until `condition` holds; raise if a process has failed."""

        def holds() -> bool:
            if self.failures and not self._may_fail:
                raise self.failures[0]
            return condition()

        await until(holds)

    async def take(self, initiator: ProcessId = "") -> Snapshot:
        """Take a snapshot that must be published, and read it from the store."""
        outcome = await self.try_to_take(initiator)
        assert isinstance(outcome, SnapshotEntry), str(outcome)
        return self.store.load(outcome.id)

    async def try_to_take(self, initiator: ProcessId = "") -> SnapshotEntry | Abandoned:
        """Take a snapshot, and return what became of it."""
        result = self.coordinator.begin(initiator or next(iter(self.topology.processes)))
        await self.until(result.done)
        return result.result()

    def troubles(self) -> list[str]:
        """Return what the coordinator said of connections."""
        return [e.detail for e in self.events if isinstance(e, events.ConnectionWarning)]

    def credentials(self, process: ProcessId) -> Credentials:
        """Return what `process` shows on its connections."""
        hash_, certificates = self.topology.description.hash, self._certificates
        secret = SECRET if certificates is None else b""
        return Credentials(process, self.store.epoch, hash_, secret, certificates)

    def logs_of(self, _: ProcessId) -> PipelineLogs | None:
        """Return the logs of a process that is a service of a pipeline."""
        return None

    async def _start(self, name: ProcessId) -> None:
        """As ``child.py`` does."""
        member = self.members[name] = LocalMember(
            self.credentials(name), self.address, self._detour
        )
        start = await member.connect()
        process = self.topology.processes[name]
        assert isinstance(process, Process)
        kind: type[HandlerHost | AsyncHandlerHost]
        kind = AsyncHandlerHost if has_async_handlers(process) else HandlerHost
        host = member.host(kind, self.topology, process, start, outputs=self._traces)
        if isinstance(host, AsyncHandlerHost):
            await host.action.acquire()
        self.hosts[name] = host
        attach(
            process,
            process_id=name,
            incoming=tuple(host.incoming),
            outgoing=tuple(host.outgoing),
            send=host.send,
            snapshot=lambda: member.report(control.SnapshotRequested()),
            append=None if (logs := self.logs_of(name)) is None else logs.append,
        )

        def begin() -> None:
            host.begin(is_fresh=start is None)
            if logs is not None:
                assert isinstance(host, HandlerHost)
                host.read_logs(logs)

        member.failed.add_done_callback(lambda done: self.failures.append(done.result()))
        await member.run(host, begin)
