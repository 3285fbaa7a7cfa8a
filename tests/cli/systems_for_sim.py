"""Systems that the tests of ``sim`` and ``explore`` simulate, each with something wrong."""

from itertools import count

from stillframe import Channel, Message, Process, Topology, every

_drawn = count()
_asked = count()


class Note(Message):
    """Some text, on its way."""

    text: str


class Listener(Process):
    """Counts what it hears."""

    heard_count: int = 0

    def receive(self, channel: Channel, message: Note) -> None:
        """Count it."""
        self.heard_count += 1


class Talker(Listener):
    """Says something that a terminal would take for an order."""

    @every(ms=0)
    def talk(self) -> None:
        """Talk to everybody."""
        for target in self.outgoing:
            self.send(target, Note("\x1b[31mred"))


class Dicey(Talker):
    """Takes its state from outside, where nobody records it."""

    def receive(self, channel: Channel, message: Note) -> None:
        """Remember what nobody else can know."""
        self.heard_count = next(_drawn) + 1


class Erratic(Talker):
    """Talks every other time that it is asked in the life of the program."""

    @every(ms=0)
    def talk(self) -> None:
        """Talk, or not."""
        if next(_asked) % 2:
            super().talk()


class Broken(Talker):
    """Fails at the first message."""

    def receive(self, channel: Channel, message: Note) -> None:
        """Fail."""
        raise ValueError("\x1b[31mno")


class Lender(Listener):
    """Sends several notes, and counts more."""

    @every(ms=0)
    def lend(self, count: int = 1, more: int = 0) -> None:
        """Send `count` notes to everybody."""
        self.heard_count += more
        for target in self.outgoing * count:
            self.send(target, Note("lent"))


lenders = Topology({"P1": Lender(), "P2": Talker()}, [("P1", "P2")])
talkers = Topology.mesh({"P1": Talker(), "P2": Talker()})
dicey = Topology.mesh({"P1": Dicey(), "P2": Dicey()})
erratic = Topology.mesh({"P1": Erratic(), "P2": Talker()})
broken = Topology.mesh({"P1": Broken(), "P2": Broken()})
chain = Topology({"P1": Talker(), "P2": Talker()}, [("P1", "P2")])
