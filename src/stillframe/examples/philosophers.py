"""Dining philosophers: each needs two forks, and takes the left one first.

Eventually each holds its left fork and waits for the right one forever:

    stillframe run stillframe.examples.philosophers:table --store dinner --duration 10s
    stillframe detect dinner deadlock

At `polite_table` one philosopher takes the right fork first, and no deadlock is possible.
"""

from dataclasses import field

from stillframe import Channel, Message, Process, Topology, every
from stillframe.waiting import Waiting, for_all

SEAT_COUNT = 5


class Ask(Message):
    """A request for a fork."""


class Granted(Message):
    """The fork is granted."""


class Return(Message):
    """The fork is returned."""


class Fork(Process):
    """A fork that one philosopher holds at a time, while others wait for it."""

    holder: str = ""
    asking: list[str] = field(default_factory=list)

    def receive(self, channel: Channel, message: Ask | Return) -> None:
        """Grant the fork to the first philosopher in the queue."""
        if isinstance(message, Ask):
            self.asking.append(channel.source)
        else:
            self.holder = ""
        if not self.holder and self.asking:
            self.holder = self.asking.pop(0)
            self.send(self.holder, Granted())

    def waits_for(self) -> Waiting | None:
        """Wait for the holder to return the fork."""
        return for_all(self.holder, ended_by=Return) if self.holder else None


class Philosopher(Process):
    """A philosopher that requests one fork after the other, eats, and returns both."""

    first: str
    second: str
    asked: str = ""
    held: list[str] = field(default_factory=list)
    meal_count: int = 0

    @every(ms=1)
    def think(self) -> None:
        """Become hungry."""
        if not self.asked and not self.held:
            self._ask(self.first)

    def receive(self, channel: Channel, message: Granted) -> None:
        """Request the other fork, or eat."""
        self.held.append(channel.source)
        self.asked = ""
        if channel.source == self.first:
            self._ask(self.second)
            return
        self.meal_count += 1
        for fork in self.held:
            self.send(fork, Return())
        self.held.clear()

    def waits_for(self) -> Waiting | None:
        """Wait for the requested fork; a hungry philosopher does nothing else."""
        return for_all(self.asked, ended_by=Granted) if self.asked else None

    def _ask(self, fork: str) -> None:
        self.asked = fork
        self.send(fork, Ask())


def dinner(*, seat_count: int = SEAT_COUNT, is_polite: bool) -> Topology:
    """Return a round table; at a polite one the last philosopher takes the right fork first."""
    processes: dict[str, Process] = {}
    channels = []
    for seat in range(1, seat_count + 1):
        left, right = f"F{seat}", f"F{seat % seat_count + 1}"
        first, second = (right, left) if is_polite and seat == seat_count else (left, right)
        name = f"P{seat}"
        processes[left] = Fork()
        processes[name] = Philosopher(first=first, second=second)
        channels += [(name, left), (left, name), (name, right), (right, name)]
    return Topology(processes, channels)


table = dinner(is_polite=False)
polite_table = dinner(is_polite=True)
