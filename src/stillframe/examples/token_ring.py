"""A token that circulates in a ring, for mutual exclusion, until a faulty process loses it.

    stillframe run stillframe.examples.token_ring:careless --store ring --every 200ms --until loss

One process of `careless` loses the token after it passed it on a number of times. No process can
detect that, because each only waits for the token. A snapshot counts the tokens at processes and in
flight.
"""

from stillframe import Channel, Message, Process, Topology, every
from stillframe.process import Quantities

PROCESS_COUNT = 4


class Token(Message):
    """The token. There should be exactly one."""

    def conserved(self) -> Quantities:
        """Count the token in transit."""
        return {"token": 1}


class Passer(Process):
    """A process that passes the token on; a faulty one loses it the `drops_at`-th time."""

    has_token: bool = False
    passed_count: int = 0
    drops_at: int = 0
    has_dropped: bool = False

    def conserved(self) -> Quantities:
        """Count the token if this process has it."""
        return {"token": int(self.has_token)}

    def receive(self, channel: Channel, message: Token) -> None:
        """Accept the token, or lose it."""
        self.has_token = self.passed_count + 1 != self.drops_at
        self.has_dropped = self.has_dropped or not self.has_token

    @every(ms=2)
    def hand_on(self) -> None:
        """Pass the token to the next process."""
        if self.has_token:
            self.has_token = False
            self.passed_count += 1
            self.send(self.outgoing[0], Token())


def ring(*, process_count: int = PROCESS_COUNT, faulty: int = 1, drops_at: int = 0) -> Topology:
    """Return a ring in which process number `faulty` loses the token if `drops_at` is positive."""
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
