"""Our own contender: a ``Process`` that forwards what it receives, through the public API."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bench.measure import IN_FLIGHT_COUNT, PROCESS_COUNT, Running, my_counts, shared_counts
from stillframe import Channel, Message, Process, Topology, every
from stillframe.imports import load_topology
from stillframe.runtime.control import OutputDirs
from stillframe.runtime.coordinator.membership import TIMEOUT_S
from stillframe.runtime.events import Event
from stillframe.runtime.network.certificate_authority import issue_certificates
from stillframe.runtime.supervisor.config import LOCAL, Placement, SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.store import Store


class Transfer(Message):
    """The message."""

    amount: int


class Idle(Process):
    """Receives, and does nothing by itself."""

    received_count: int = 0

    def receive(self, channel: Channel, message: Transfer) -> None:
        """Count it."""
        self.received_count += 1


class Forward(Process):
    """Sends every message on, to its targets in turn."""

    slot: int = 0
    received_count: int = 0

    def start(self) -> None:
        """Put the messages under way."""
        for number in range(IN_FLIGHT_COUNT):
            self.send(self.outgoing[number % len(self.outgoing)], Transfer(7))

    def receive(self, channel: Channel, message: Transfer) -> None:
        """Send it on."""
        self.received_count = count = self.received_count + 1
        outgoing = self.outgoing
        self.send(outgoing[count % len(outgoing)], Transfer(message.amount))

    @every(ms=5)
    def tell(self) -> None:
        """Write the count where the bench reads it."""
        if "_counts" not in vars(self):
            self._counts = my_counts()
        self._counts.write(self.slot, self.received_count)


def _processes(count: int) -> dict[str, Process]:
    return {f"P{slot}": Forward(slot=slot) for slot in range(count)}


ring = Topology.ring(_processes(PROCESS_COUNT))
mesh = Topology.mesh(_processes(PROCESS_COUNT))
mesh_of_5 = Topology.mesh(_processes(5))
mesh_of_20 = Topology.mesh(_processes(20))
mesh_of_50 = Topology.mesh(_processes(50))
idle_of_5 = Topology.mesh({f"P{slot}": Idle() for slot in range(5)})


@asynccontextmanager
async def system(
    reference: str,
    *,
    emit: Callable[[Event], None] = lambda event: None,
    marker_wait_s: float = 0.0,
    has_tls: bool = False,
    timeout_s: float = TIMEOUT_S,
    has_log: bool = False,
    has_fragments: bool = False,
) -> AsyncIterator[Supervisor]:
    """Start a topology on a store of its own, which goes away with it."""
    directory = Path(tempfile.mkdtemp(prefix="stillframe-bench-"))
    description = load_topology(reference).description
    store = Store.create(directory / "store", description=description, reference=reference)
    site = (
        Placement(certificates=str(issue_certificates(directory, (), days=1)[0]))
        if has_tls
        else LOCAL
    )
    traces = OutputDirs(
        log=str(directory / "log") if has_log else None,
        fragments=str(directory / "fragments") if has_fragments else None,
    )
    try:
        async with Supervisor(
            reference,
            store,
            SupervisorConfig(
                timeout_s=timeout_s, marker_wait_s=marker_wait_s, placement=site, outputs=traces
            ),
            emit=emit,
        ) as running:
            yield running
    finally:
        store.close()
        shutil.rmtree(directory)


@asynccontextmanager
async def stillframe(
    shape: str, *, has_tls: bool = False, has_log: bool = False
) -> AsyncIterator[Running]:
    """Start the contender."""
    async with (
        shared_counts(PROCESS_COUNT) as counts,
        system(f"bench.forward:{shape}", has_tls=has_tls, has_log=has_log) as running,
    ):
        yield Running([child.pid for child in running.children.values()], counts)
