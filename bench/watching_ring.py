"""A ring of fifty processes with little to do, for the live page."""

from stillframe import Channel, Message, Process, Topology, every


class Turn(Message):
    """Whose turn it is."""


class Passer(Process):
    """Passes something on ten times a second."""

    count: int = 0

    def receive(self, channel: Channel, message: Turn) -> None:
        """Count it."""
        self.count += 1

    @every(ms=100)
    def go_on(self) -> None:
        """Send it to the next."""
        self.send(self.outgoing[0], Turn())


ring = Topology.ring({f"P{number}": Passer() for number in range(1, 51)})
