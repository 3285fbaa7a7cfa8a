"""``join``: take the place of a process from a program that has its own loop."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from stillframe.durable_files import local_path
from stillframe.errors import UsageError
from stillframe.model import ProcessId
from stillframe.runtime.addresses import ANY_PORT, COORDINATOR_PORT, Address
from stillframe.runtime.link import Credentials
from stillframe.runtime.member import Member
from stillframe.runtime.running import find
from stillframe.runtime.traces import Traces
from stillframe.runtime.turns import Participant, TurnHost
from stillframe.topology import Joined, Topology


@contextlib.asynccontextmanager
async def join(
    process: ProcessId,
    *,
    topology: Topology,
    state: object,
    store: str | Path | None = None,
    coordinator: str | None = None,
    listen: str | None = None,
    tls: str | Path | None = None,
    log: str | Path | None = None,
    fragments: str | Path | None = None,
) -> AsyncIterator[Participant]:
    """Join a system as `process`: the one that is running on `store`, or on another machine the one
    of `coordinator`.

    ``async with join("P1", topology=bank, store="bank.store", state=books) as me`` gives a
    `Participant`: send with ``await me.send(...)``, receive with ``async for channel, message in
    me``. The body is one atomic action up to the first turn of that loop.

    Args:
        process: its name; the topology has ``Joined(...)`` in its place.
        topology: the same topology that the system was started with.
        state: the object whose fields are recorded, of the class that ``Joined`` names. After a
            restore its fields are set before the body begins.
        store: the directory of its store, if that is on this machine.
        coordinator: where the system's coordinator listens, such as ``10.0.0.1:8640``; `listen`
            and `tls` are needed too then.
        listen: the address of this machine at which the other processes reach it, such as
            ``10.0.0.2``; with a port, or on any that is free.
        tls: the directory of our certificates: ``ca.pem``, ``cert.pem``, ``key.pem``.
        log: the directory of the event log in which to write what this program does, one action a
            turn; the same as the system's, if that is on this machine.
        fragments: the directory in which to write what this program records of each snapshot; the
            same as the system's, if that is on this machine.

    Raises:
        UsageError: the topology has no such process to join, `state` is of another class, a
            directory is an address such as ``s3://bucket/x``, or the certificates are not what
            they must be.
        Unavailable: no system is running there; or, inside the body, this epoch is over because
            the system was stopped or restored: join again.
        Refused: the system runs another topology, the process has already joined, or a
            certificate was refused.
    """
    topology.description.check_process(process)
    place = topology.processes[process]
    if not isinstance(place, Joined):
        raise UsageError(
            f"process {process!r} is started by the system itself: its place in the topology is "
            f"{type(place).__name__}(...), not Joined(...)"
        )
    if type(state) is not place.state:
        raise UsageError(
            f"process {process!r} records a {place.state.__name__}, not a {type(state).__name__}"
        )
    traces = Traces(
        log=None if log is None else str(local_path(log)),
        fragments=None if fragments is None else str(local_path(fragments)),
    )
    hash_ = topology.description.hash
    if store is not None and (coordinator, listen, tls) == (None, None, None):
        member = _member_here(process, hash_, local_path(store))
    elif store is None and coordinator is not None and listen is not None and tls is not None:
        member = _member_elsewhere(process, hash_, coordinator, listen, local_path(tls))
    else:
        raise UsageError(
            "say where the system is: store=... if it runs on this machine, else coordinator=..., "
            "listen=... and tls=..."
        )
    try:
        start = await member.connect()
        host = member.host(TurnHost, topology, state, start, traces=traces)
        await host.action.acquire()
        host.acts_by_itself()
        await member.run(host, begin=lambda: None, published=lambda snapshot: None)
        yield Participant(host)
        host.end()
    finally:
        await member.close()


def _member_here(process: ProcessId, topology_hash: str, store: Path) -> Member:
    system = find(store)
    if system.has_tls:
        raise UsageError(
            f"the system of {store} uses TLS: join it with coordinator='{system.coordinator}', "
            "listen=... and tls=... instead of store=..."
        )
    me = Credentials(process, system.epoch, topology_hash, system.secret)
    return Member(me, system.coordinator, ANY_PORT)


def _member_elsewhere(
    process: ProcessId, topology_hash: str, coordinator: str, listen: str, tls: Path
) -> Member:
    me = Credentials(process, 0, topology_hash, b"", str(tls.absolute()))
    there = Address.parse(coordinator, port=COORDINATOR_PORT)
    return Member(me, there, Address.parse(listen, port=0))
