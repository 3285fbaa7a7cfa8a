"""The links that ``check_link`` is run on: queues in memory, and TCP in one event loop."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from stillframe.errors import StillframeError
from stillframe.process import Process
from stillframe.runtime.network.acceptor import Acceptor
from stillframe.runtime.network.addresses import ANY_PORT
from stillframe.runtime.network.connection import Credentials, Transport
from stillframe.runtime.process.endpoints import IncomingEndpoint, OutgoingEndpoint
from stillframe.runtime.process.handlers import HandlerHost
from stillframe.runtime.process.host import Host
from stillframe.runtime.process.link import ListeningLink, keep_connected
from stillframe.topology import Topology
from tests.runtime.memory import MemoryNetwork, hosted

SECRET = bytes(range(32))
STEP_COUNT_MAX = 2_000_000


async def turn() -> None:
    """Let the event loop go round once."""
    await asyncio.sleep(0)


def children() -> set[int]:
    """Return the processes that this one has started and not waited for, dead or alive."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for path in tasks for pid in path.read_text(encoding="ascii").split()}


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop go round until `condition` holds; the caller has the time limit."""
    while not condition():
        await turn()


async def hang_up() -> None:
    """Close every connection of this event loop, as the end of a process would: also those that
    others have opened to it and that it has not noticed yet."""
    loop = asyncio.get_running_loop()
    for _ in range(5):
        await turn()
        for transport in list(loop._transports.values()):  # type: ignore[attr-defined]
            transport.abort()
    await turn()


class MemoryPair:
    """Two hosts in one memory; chance decides what goes on next."""

    def __init__(
        self, topology: Topology, chance: random.Random, marker_wait_s: float = 0.0
    ) -> None:
        self._network = MemoryNetwork(
            topology, lambda process, message: None, marker_wait_s=marker_wait_s
        )
        self._chance = chance
        self.hosts: Mapping[str, HandlerHost] = self._network.hosts
        self.begin = self._network.begin

    async def cut(self, end: str) -> None:
        """Break the connections, in the middle of a frame, and connect anew."""
        await self.disconnect()
        await self.reconnect()

    async def disconnect(self) -> None:
        """Lose what is on its way."""
        for link in self._network.links.values():
            link.disconnect(torn_bytes=self._chance.randrange(30))

    async def reconnect(self) -> None:
        """Connect anew."""
        for link in self._network.links.values():
            link.connect()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Take steps until `condition` holds."""
        for _ in range(STEP_COUNT_MAX):
            if condition():
                return
            self._step()
        raise AssertionError(f"it does not hold after {STEP_COUNT_MAX} steps")

    def _step(self) -> None:
        links = [link for link in self._network.links.values() if link.forth.queue]
        choice = self._chance.randrange(4)
        if choice == 0 and links:
            self._chance.choice(links).deliver()
        elif choice == 1:
            for link in self._network.links.values():
                link.deliver_acknowledgements()
        elif not self._network.scheduler.run_one() and not links:
            self._network.scheduler.advance()


@contextlib.asynccontextmanager
async def memory_pair(topology: Topology, marker_wait_s: float = 0.0) -> AsyncIterator[MemoryPair]:
    """Link two hosts in memory."""
    yield MemoryPair(topology, random.Random(864), marker_wait_s)


def carrier(end: IncomingEndpoint | OutgoingEndpoint) -> Transport | None:
    """Return what carries one end of a channel now."""
    return end.transport


def ends(host: Host) -> list[IncomingEndpoint | OutgoingEndpoint]:
    """Return the ends of all channels of `host`."""
    return [*host.incoming.values(), *host.outgoing.values()]


class TcpPair:
    """Two hosts in one event loop, linked over TCP, or over TLS with `certificates`."""

    def __init__(
        self, topology: Topology, marker_wait_s: float = 0.0, certificates: str | None = None
    ) -> None:
        self._marker_wait_s = marker_wait_s
        self._certificates = certificates
        self.troubles: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._errors: list[StillframeError] = []
        self._me = {
            name: Credentials(name, 1, topology.description.hash, SECRET, certificates)
            for name in topology.processes
        }
        self.hosts = {name: self._host(topology, name) for name in topology.processes}

    async def listen(self) -> None:
        """Begin to listen, and connect."""
        self._acceptors = {
            name: Acceptor(self._answer(name), self.troubles.append) for name in self.hosts
        }
        self._addresses = {
            n: await d.open(ANY_PORT, self._certificates) for n, d in self._acceptors.items()
        }
        await self.reconnect()

    def begin(self, *processes: str) -> None:
        """Let `processes` begin."""
        for name in processes:
            self.hosts[name].begin(is_fresh=True)

    async def cut(self, end: str) -> None:
        """Reset every connection of `end`, as a process that dies would; wait until every channel
        has another one."""
        lost = {each: carrier(each) for host in self.hosts.values() for each in ends(host)}
        for each in ends(self.hosts[end]):
            transport = carrier(each)
            assert transport is not None
            transport.abort()
        await self.until(lambda: all(carrier(each) is not lost[each] for each in lost))
        await self.until(self._is_connected)

    async def disconnect(self) -> None:
        """Cancel what connects, and wait until both ends have noticed."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        for host in self.hosts.values():
            for incoming in host.incoming.values():
                if incoming.transport is not None:
                    incoming.transport.abort()
        await self.until(self._is_disconnected)

    async def reconnect(self) -> None:
        """Keep every channel connected, and wait until it is."""
        loop = asyncio.get_running_loop()
        for name, host in self.hosts.items():
            for target, outgoing in host.outgoing.items():
                keeping = keep_connected(
                    host,
                    outgoing,
                    self._me[name],
                    address=self._addresses[target],
                    warn=self.troubles.append,
                    connected=lambda channel: None,
                )
                self._tasks.append(loop.create_task(keeping))
        await self.until(self._is_connected)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop go round until `condition` holds."""

        def has_ended() -> bool:
            if self._errors:
                raise self._errors[0]
            return condition()

        await until(has_ended)

    async def close(self) -> None:
        """Stop listening and hang up."""
        await self.disconnect()
        for acceptor in self._acceptors.values():
            acceptor.close()

    def _answer(self, name: str) -> Callable[[], ListeningLink]:
        host, me, say = self.hosts[name], self._me[name], self.troubles.append
        return lambda: ListeningLink(host, me, warn=say, refused=say)

    def _is_connected(self) -> bool:
        return all(carrier(end) is not None for host in self.hosts.values() for end in ends(host))

    def _is_disconnected(self) -> bool:
        return all(carrier(end) is None for host in self.hosts.values() for end in ends(host))

    def _host(self, topology: Topology, name: str) -> HandlerHost:
        process = topology.processes[name]
        assert isinstance(process, Process)
        return hosted(
            topology,
            name,
            process,
            fail=self._errors.append,
            scheduler=asyncio.get_running_loop(),
            marker_wait_s=self._marker_wait_s,
        )


@contextlib.asynccontextmanager
async def tcp_pair(
    topology: Topology, marker_wait_s: float = 0.0, certificates: str | None = None
) -> AsyncIterator[TcpPair]:
    """Link two hosts over TCP, or over TLS with `certificates`."""
    pair = TcpPair(topology, marker_wait_s, certificates)
    await pair.listen()
    try:
        yield pair
    finally:
        await pair.close()
