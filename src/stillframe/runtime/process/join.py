"""``join``: take the place of a process from a program that has its own loop."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillframe.errors import Refused, Unavailable, UsageError, check_kind, text_of
from stillframe.model import Channel, ProcessId
from stillframe.process import Message
from stillframe.public_names import public_attribute
from stillframe.restore import Start
from stillframe.runtime.control import OutputDirs
from stillframe.runtime.network.addresses import ANY_PORT, COORDINATOR_PORT, Address
from stillframe.runtime.network.connection import Credentials
from stillframe.runtime.os_process import require_channel_files
from stillframe.runtime.process.link import RETRY_S_MAX
from stillframe.runtime.process.loop_host import LoopHost
from stillframe.runtime.process.process_runtime import NoAnswer, ProcessRuntime
from stillframe.runtime.run_file import find_running
from stillframe.storage.location import Location, local_path, locate
from stillframe.topology import ExternalProcess, Topology


class JoinedProcess:
    """A joined program's view of its process: ``async for`` to receive, ``send`` to send.

    One turn of the loop is one atomic action. Between actions, and only there, a snapshot may
    record the state; a program that sends without receiving calls ``boundary`` between its actions.
    """

    def __init__(self, host: LoopHost) -> None:
        self._host = host
        self.id: ProcessId = host.process
        self.incoming = tuple(host.incoming)
        self.outgoing = tuple(host.outgoing)

    async def send(self, target: ProcessId, message: Message) -> None:
        """Send `message` on the channel to `target`. It is part of the current action.

        Raises:
            UsageError: there is no such channel, or the message does not fit it.
        """
        self._host.send(target, message)
        self._host.schedule_flush()

    async def boundary(self) -> None:
        """End the current action and begin another: here the state may be recorded.

        Waits until the outgoing channels have room. Call it between actions in your own loop.

        Raises:
            StillframeError: the process cannot continue: the system was stopped or restored.
        """
        self._host.end()
        try:
            await asyncio.sleep(0)
            await self._host.begin_action()
        except BaseException:
            await self._reenter_action()
            raise

    async def __aiter__(self) -> AsyncIterator[tuple[Channel, Any]]:
        """Yield channel and message, one atomic action a turn."""
        while True:
            self._host.end()
            try:
                channel, message = await self._host.begin_with_message()
            except BaseException:
                await self._reenter_action()
                raise
            yield channel, message

    async def until_safe(self) -> None:
        """Wait until no death can undo what this program has done so far.

        That is when a restore point is published whose cut of this process is after the call. Call
        it in a task alongside the loop, for example before you answer a client.

        Raises:
            UsageError: the task is the one that runs the loop: it is inside an action.
            StillframeError: the process cannot continue: the system was stopped or restored. Then
                it is unknown whether the work is undone. Join again: the restored state shows it.
        """
        await self._host.until_safe()

    async def _reenter_action(self) -> None:
        """Return into the action after a wait that failed or was cut short."""
        if not self._host.action.locked():
            await self._host.enter()
            if self._host.error is None:
                self._host.log_spontaneous_action()


@contextlib.asynccontextmanager
async def join(
    process: ProcessId,
    *,
    topology: Topology,
    state: object,
    store: str | Location | None = None,
    coordinator: str | None = None,
    listen: str | None = None,
    tls: str | Path | None = None,
    log: str | Path | None = None,
    fragments: str | Path | None = None,
) -> AsyncIterator[JoinedProcess]:
    """Join a system as `process`: the one that is running on `store`, or on another machine the one
    of `coordinator`. The coordinator of `store` may be busy with other processes: this waits for it
    as long as its supervisor runs.

    ``async with join("P1", topology=bank, store="bank.store", state=books) as me`` gives a
    `JoinedProcess`: send with ``await me.send(...)``, receive with ``async for channel, message in
    me``. The body is one atomic action up to the first turn of that loop.

    Args:
        process: its name; the topology has ``ExternalProcess(...)`` in its place.
        topology: the same topology that the system was started with.
        state: the object whose fields are recorded, of the class that ``ExternalProcess`` names:
            a new one each time. After a restore its fields are set before the body begins; without
            a snapshot the system starts from the initial states: the object stays as it is.
        store: the directory of its store, if that is on this machine.
        coordinator: where the system's coordinator listens, such as ``10.0.0.1:8640``; `listen`
            and `tls` are needed too then.
        listen: the address of this machine at which the other processes reach it, such as
            ``10.0.0.2``; with a port, or on any that is free.
        tls: the directory of the certificates to use: ``ca.pem``, ``cert.pem``, ``key.pem``.
        log: the directory of the event log in which to write what this program does, one action a
            turn, or its address in an object store. It is that of the system, if this program can
            reach it.
        fragments: the same for what this program records of each snapshot.

    Raises:
        UsageError: the topology has no such process to join, `state` is of another class, a
            store is an address such as ``s3://bucket/x``, the certificates are not valid, or
            the limit of open files is too low.
        Unavailable: no system is running there, it is being restored, or the coordinator of
            another machine does not answer in time; or, inside the body, this epoch has ended
            because the system was stopped or restored: join again.
        Refused: the system runs another topology, the process has already joined, or a
            certificate was refused.
    """
    check_kind("topology", topology, Topology, "the Topology that the system was started with")
    topology.description.check_process(process)
    place = topology.processes[process]
    if not isinstance(place, ExternalProcess):
        raise UsageError(
            f"process {process!r} is started by the system: its place in the topology is "
            f"{type(place).__name__}(...), not ExternalProcess(...)"
        )
    if type(state) is not place.state:
        raise UsageError(
            f"process {process!r} has a state of type {place.state.__name__}, not "
            f"{type(state).__name__}"
        )
    require_channel_files(topology.description, process)
    outputs = OutputDirs(
        log=None if log is None else str(locate(log)),
        fragments=None if fragments is None else str(locate(fragments)),
    )
    hash_ = topology.description.hash
    take_place: Callable[[], ProcessRuntime]
    if store is not None and (coordinator, listen, tls) == (None, None, None):
        take_place = functools.partial(_local_runtime, process, hash_, locate(store))
    elif store is None and coordinator is not None and listen is not None and tls is not None:
        me = Credentials(process, 0, hash_, b"", str(local_path(tls).absolute()))
        there = Address.parse(coordinator, port=COORDINATOR_PORT)
        here = Address.parse(listen, port=0)
        take_place = functools.partial(ProcessRuntime, me, there, here)
    else:
        raise UsageError(
            "the address of the system is missing: give store=... if it runs on this machine, "
            "or coordinator=..., listen=... and tls=..."
        )
    try:
        runtime, start = await _connect(take_place, is_patient=store is not None)
        try:
            host = runtime.host(LoopHost, topology, state, start, outputs=outputs)
            await host.enter()
            host.log_spontaneous_action()
            await runtime.run(host, begin=host.begin_commits)
            try:
                yield JoinedProcess(host)
                host.end()
            finally:
                await host.close()
        finally:
            await runtime.close()
    except (Refused, Unavailable) as error:
        error.locate(process=process, path=store)
        raise


async def _connect(
    take_place: Callable[[], ProcessRuntime], *, is_patient: bool
) -> tuple[ProcessRuntime, Start | None]:
    """Return a process's place that has joined, and its initial state; an error names the process.
    A coordinator that does not answer is busy with others: one that `is_patient` takes a new place,
    and asks again, as long as `take_place` finds a system."""
    while True:
        runtime = take_place()
        try:
            return runtime, await runtime.connect()
        except BaseException as error:
            await runtime.close()
            if not (is_patient and isinstance(error, NoAnswer)):
                if isinstance(error, Unavailable):
                    who = runtime.me.process
                    raise type(error)(f"process {who} cannot join: {text_of(error)}") from error
                raise
        await asyncio.sleep(RETRY_S_MAX)


def _local_runtime(process: ProcessId, topology_hash: str, store: Location) -> ProcessRuntime:
    system = find_running(store)
    if system.has_tls:
        raise UsageError(
            f"the system of {store} uses TLS: join it with coordinator='{system.coordinator}', "
            "listen=... and tls=... instead of store=..."
        )
    me = Credentials(process, system.epoch, topology_hash, system.secret)
    return ProcessRuntime(me, system.coordinator, ANY_PORT)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return what had this name in the last release."""
        return public_attribute(__name__, name)
