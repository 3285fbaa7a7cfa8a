"""The processes of ``bench/run markers``: they count the markers that leave in frames of their own.

Importing this module makes the process count, so only the processes that are measured use it.
"""

from bench.forward import Forward, Transfer
from bench.measure import ALONE_VARIABLE, PROCESS_COUNT, my_counts
from stillframe import Channel, Process, Topology, every
from stillframe.model import Marker
from stillframe.protocol import wire

_alone_count = 0
_encode_marker = wire.encode_marker


def _counted(sequence: int, marker: Marker) -> bytes:
    global _alone_count  # noqa: PLW0603 - one number for all channels of this process
    _alone_count += 1
    return _encode_marker(sequence, marker)


wire.encode_marker = _counted


class Busy(Forward):
    """Has 64 messages under way, and tells how many markers left alone."""

    @every(ms=5)
    def tell_alone(self) -> None:
        """Write the count where the bench reads it."""
        if "_alone" not in vars(self):
            self._alone = my_counts(ALONE_VARIABLE)
        self._alone.write(self.slot, _alone_count)


class Dripping(Busy):
    """Sends one message each 10 ms, to its targets in turn, and answers none."""

    turn: int = 0

    def start(self) -> None:
        """Nothing is under way at first."""

    def receive(self, channel: Channel, message: Transfer) -> None:
        """Count it."""
        self.received_count += 1

    @every(ms=10)
    def drip(self) -> None:
        """Send the next."""
        self.turn += 1
        self.send(self.outgoing[self.turn % len(self.outgoing)], Transfer(7))


def _processes(kind: type[Busy], count: int) -> dict[str, Process]:
    return {f"P{slot}": kind(slot=slot) for slot in range(count)}


busy_ring = Topology.ring(_processes(Busy, PROCESS_COUNT))
busy_mesh = Topology.mesh(_processes(Busy, PROCESS_COUNT))
busy_mesh_of_8 = Topology.mesh(_processes(Busy, 8))
dripping_ring = Topology.ring(_processes(Dripping, PROCESS_COUNT))
dripping_mesh = Topology.mesh(_processes(Dripping, PROCESS_COUNT))
dripping_mesh_of_8 = Topology.mesh(_processes(Dripping, 8))
