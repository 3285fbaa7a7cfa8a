"""``join``: take the place of a process from a program that has its own loop."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from stillframe.errors import UsageError
from stillframe.model import ProcessId
from stillframe.runtime.link import Credentials
from stillframe.runtime.member import Member
from stillframe.runtime.running import find
from stillframe.runtime.turns import Participant, TurnHost
from stillframe.topology import Joined, Topology


@contextlib.asynccontextmanager
async def join(
    process: ProcessId, *, topology: Topology, store: str | Path, state: object
) -> AsyncIterator[Participant]:
    """Join the system that is running on `store` as `process`.

    ``async with join("P1", topology=bank, store="bank.store", state=books) as me`` gives a
    `Participant`: send with ``await me.send(...)``, receive with ``async for channel, message in
    me``. The body is one atomic action up to the first turn of that loop.

    Args:
        process: its name; the topology has ``Joined(...)`` in its place.
        topology: the same topology that the system was started with.
        store: the directory of its store.
        state: the object whose fields are recorded, of the class that ``Joined`` names. After a
            restore its fields are set before the body begins.

    Raises:
        UsageError: the topology has no such process to join, or `state` is of another class.
        Unavailable: no system is running there; or, inside the body, this epoch is over because
            the system was stopped or restored: join again.
        Refused: the system runs another topology, or the process has already joined.
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
    system = find(Path(store))
    me = Credentials(process, system.epoch, topology.description.hash, system.secret)
    member = Member(me, system.port)
    try:
        start = await member.connect()
        host = member.host(TurnHost, topology, state, start)
        await host.action.acquire()
        await member.run(host, begin=lambda: None, published=lambda snapshot: None)
        yield Participant(host)
        host.end()
    finally:
        await member.close()
