"""A token goes around, and whoever has it may do what only one may do at a time; then it is lost.

    stillframe run examples.token_ring:careless --store ring --every 200ms --until loss

One process of `careless` lets the token drop when it has handed it on often enough. No process can
see that: each just waits until it comes round again. A snapshot counts it, wherever it is.
"""

from stillframe import Channel, Message, Process, Topology, every
from stillframe.process import Quantities

PROCESS_COUNT = 4


class Token(Message):
    """There is one, or should be."""

    def conserved(self) -> Quantities:
        """It is one."""
        return {"token": 1}


class Passer(Process):
    """Hands the token on; one with a fault loses it at the hand-over number `drops_at`."""

    has_token: bool = False
    passed_count: int = 0
    drops_at: int = 0
    has_dropped: bool = False

    def conserved(self) -> Quantities:
        """Whoever has it has it all."""
        return {"token": int(self.has_token)}

    def receive(self, channel: Channel, message: Token) -> None:
        """Take it, or lose it."""
        self.has_token = self.passed_count + 1 != self.drops_at
        self.has_dropped = self.has_dropped or not self.has_token

    @every(ms=2)
    def hand_on(self) -> None:
        """Hand it on."""
        if self.has_token:
            self.has_token = False
            self.passed_count += 1
            self.send(self.outgoing[0], Token())


def ring(*, process_count: int = PROCESS_COUNT, faulty: int = 1, drops_at: int = 0) -> Topology:
    """Return a ring in which the process number `faulty` loses the token some time, if at all."""
    return Topology.ring(
        {
            f"R{number}": Passer(
                has_token=number == 1, drops_at=drops_at if number == faulty else 0
            )
            for number in range(1, process_count + 1)
        }
    )


careful = ring()
careless = ring(faulty=3, drops_at=100)
