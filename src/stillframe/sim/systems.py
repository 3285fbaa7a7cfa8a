"""Systems to test the rules on: graphs of every kind, of processes that pay each other.

The actions of a process depend on its own recorded state alone, never on outside randomness: so a
run can be repeated without snapshots, and must have the same result.
"""

from itertools import pairwise
from random import Random

from stillframe.model import Channel, SnapshotId
from stillframe.process import Message, Process, every
from stillframe.topology import Topology

START_BALANCE = 100
_MULTIPLIER, _MODULUS = 48271, 2**31 - 1


class Payment(Message):
    """An amount of money in transit."""

    amount: int


class Gossip(Message):
    """A rumour, and the processes that have passed it on so far."""

    said: str
    hops: list[str]


class Payer(Process):
    """Pays its neighbours, passes on gossip, and now and then asks for a snapshot itself.

    `draw` is the state of its pseudo-random numbers (Lehmer 1951): recorded like the rest.
    """

    draw: int = 1
    balance: int = START_BALANCE
    heard_count: int = 0
    safe: str = ""

    def start(self) -> None:
        """Say hello to the first neighbour."""
        if self.outgoing:
            self.send(self.outgoing[0], Gossip("hello", [self.id]))

    def receive(self, channel: Channel, message: Payment | Gossip) -> None:
        """Add the money, and sometimes pass half of it on; pass gossip on for three hops."""
        if isinstance(message, Payment):
            self.balance += message.amount
            if self._draw(3) == 0:
                self._pay(message.amount // 2)
            return
        self.heard_count += 1
        if self.outgoing and len(message.hops) < 3:
            self.send(self._neighbour(), Gossip(message.said, [*message.hops, self.id]))

    @every(ms=0)
    def pay(self) -> None:
        """Pay a neighbour, sometimes in two or three parts."""
        self._pay(self._draw(9), part_count=max(1, self._draw(6) - 2))

    @every(ms=30)
    def look(self) -> None:
        """Ask for a snapshot, sometimes."""
        if self._draw(4) == 0:
            self.snapshot()

    def on_published(self, snapshot: SnapshotId) -> None:
        """Remember the snapshot before which the system will not roll back."""
        self.safe = str(snapshot)

    def _pay(self, amount: int, part_count: int = 1) -> None:
        if self.outgoing and 0 < amount * part_count <= self.balance:
            self.balance -= amount * part_count
            target = self._neighbour()
            for _ in range(part_count):
                self.send(target, Payment(amount))

    def _neighbour(self) -> str:
        return self.outgoing[self._draw(len(self.outgoing))]

    def _draw(self, below: int) -> int:
        self.draw = self.draw * _MULTIPLIER % _MODULUS
        return self.draw % below


class Account(Process):
    """Pays every neighbour 1 at a time: the smallest system to explore."""

    balance: int = START_BALANCE

    def receive(self, channel: Channel, message: Payment) -> None:
        """Add the money."""
        self.balance += message.amount

    @every(ms=0)
    def pay(self) -> None:
        """Pay every neighbour 1."""
        for target in self.outgoing:
            self.balance -= 1
            self.send(target, Payment(1))


def pair() -> Topology:
    """Return two accounts that can pay each other."""
    return Topology.mesh({"P1": Account(), "P2": Account()})


def random_system(chance: Random) -> Topology:
    """Return 2 to 5 payers on a ring, a chain, a star or a mesh, with some more channels."""
    names = [f"P{index}" for index in range(1, chance.randint(2, 5) + 1)]
    pairs = [(a, b) for a in names for b in names if a != b]
    shape = chance.choice(("ring", "chain", "star", "mesh"))
    channels = {
        "ring": {*pairwise(names), (names[-1], names[0])},
        "chain": {*pairwise(names)},
        "star": {(a, b) for a, b in pairs if names[0] in (a, b)},
        "mesh": {*pairs},
    }[shape]
    share = chance.choice((0.0, 0.0, 0.3))
    channels |= {pair for pair in pairs if chance.random() < share}
    return Topology(
        {name: Payer(draw=chance.randrange(1, _MODULUS)) for name in names}, sorted(channels)
    )
