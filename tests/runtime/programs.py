"""Small topologies for the tests, importable by processes as ``tests.runtime.programs:NAME``."""

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

from stillframe import (
    Channel,
    ExternalProcess,
    Keyed,
    Message,
    Outbox,
    Process,
    SnapshotId,
    Topology,
    every,
)

LATE_VARIABLE = "STILLFRAME_TEST_LATE"
"""Names the file at which ``RaisesLater`` raises."""


class Tick(Message):
    """The message number `serial` of its channel."""

    serial: int


class Source(Process):
    """Sends numbered ticks on every channel, as fast as they are taken, or up to a limit."""

    limit: int = 10**9
    sent: int = 0

    @every(ms=0)
    def tick(self) -> None:
        """Send one more."""
        if self.sent < self.limit:
            self.sent += 1
            for target in self.outgoing:
                self.send(target, Tick(self.sent))


class Sink(Process):
    """Refuses a tick that is not the next of its channel."""

    received: dict[str, int] = field(default_factory=dict)

    def receive(self, channel: Channel, message: Tick) -> None:
        """Count it."""
        count = self.received.get(channel.source, 0) + 1
        self.received[channel.source] = count
        if message.serial != count:
            raise AssertionError(f"{channel}: tick {message.serial} came where {count} should")


class Relay(Sink):
    """Passes every tick on."""

    def receive(self, channel: Channel, message: Tick) -> None:
        """Count it and send it on."""
        super().receive(channel, message)
        for target in self.outgoing:
            self.send(target, message)


class Raises(Process):
    """Cannot go on after a few ticks."""

    def receive(self, channel: Channel, message: Tick) -> None:
        """Raise on the seventh."""
        if message.serial == 7:
            raise ValueError("seven is too much")


class RaisesLater(Process):
    """Cannot go on as soon as the file exists that ``LATE_VARIABLE`` names."""

    @every(ms=10)
    def look(self) -> None:
        """Raise if it is there."""
        if Path(os.environ[LATE_VARIABLE]).exists():
            raise ValueError("it is too late")


class RaisesAtStart(Process):
    """Cannot even begin."""

    def start(self) -> None:
        """Raise."""
        raise LookupError("nowhere to begin")


class RaisesInCallback(Process):
    """Fails in a function that the event loop calls."""

    @every(ms=1)
    def act(self) -> None:
        """Let the loop call it."""
        asyncio.get_running_loop().call_soon([].pop)


class CancelsAll(Process):
    """Cancels every task of its event loop."""

    @every(ms=1)
    def act(self) -> None:
        """Cancel them."""
        for task in asyncio.all_tasks():
            task.cancel()


class RaisesWhenPublished(Process):
    """Fails after each snapshot."""

    def on_published(self, snapshot: SnapshotId) -> None:
        """Raise."""
        raise ValueError("no use for it")


class Stubborn(Process):
    """Never comes out of its handler."""

    def receive(self, channel: Channel, message: Tick) -> None:
        """Stay here."""
        while True:
            pass


class Immovable(Sink):
    """Never comes out of its start."""

    def start(self) -> None:
        """Stay here."""
        while True:
            pass


class Ball(Message):
    """Goes to and fro."""

    hits: int


class Player(Process):
    """Returns the ball; the first to serve has `serves`."""

    serves: bool = False
    hit_count: int = 0
    published: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Serve."""
        if self.serves:
            self.send(self.outgoing[0], Ball(1))

    def receive(self, channel: Channel, message: Ball) -> None:
        """Return the ball."""
        self.hit_count += 1
        self.send(channel.source, Ball(message.hits + 1))

    def on_published(self, snapshot: SnapshotId) -> None:
        """Note the snapshot."""
        self.published.append(str(snapshot))


class Forks(Player):
    """Forks at the third hit, and lets the child return."""

    def receive(self, channel: Channel, message: Ball) -> None:
        """Return the ball, as the child would too."""
        if self.hit_count == 2 and (child := os.fork()):
            os.waitpid(child, 0)
        super().receive(channel, message)


class ForksAsync(Player):
    """Does so in a handler that waits."""

    async def receive(self, channel: Channel, message: Ball) -> None:  # type: ignore[override]
        """Return the ball, as the child would too."""
        if self.hit_count == 2 and (child := os.fork()):
            os.waitpid(child, 0)  # noqa: ASYNC222 - the test is about what is no good idea
        await asyncio.sleep(0)
        super().receive(channel, message)


class ForksAtCut(Player):
    """Forks in ``on_cut`` at the first snapshot, and lets the child return."""

    def on_cut(self, snapshot: SnapshotId) -> None:
        """Fork, as one would to write the state down."""
        if snapshot.number == 1 and (child := os.fork()):
            os.waitpid(child, 0)


@dataclass
class Books:
    """What a joined program records."""

    received: int = 0
    sent: int = 0


@dataclass
class Shelf:
    """What a joined program records that keeps the newest tick of each place."""

    places: Keyed[int, int] = field(default_factory=Keyed)
    received: int = 0


@dataclass
class Orders:
    """What a joined program records that has effects outside."""

    effects: Outbox[str]
    names: list[str] = field(default_factory=list)


rally = Topology.mesh({"A": Player(serves=True), "B": Player()})
pipeline = Topology({"A": Source(), "B": Relay(), "C": Sink()}, [("A", "B"), ("B", "C")])
raising = Topology({"A": Source(), "B": Raises()}, [("A", "B")])
raising_later = Topology({"B": RaisesLater()}, [])
raising_at_start = Topology({"A": RaisesAtStart(), "B": Sink()}, [("A", "B")])
raising_in_callback = Topology({"A": RaisesInCallback()}, [])
cancelling_all = Topology({"A": CancelsAll()}, [])
raising_when_published = Topology({"Z": RaisesWhenPublished(), "A": Sink()}, [])
immovable = Topology({"A": Source(), "B": Immovable(), "C": Sink()}, [("A", "C")])
stubborn = Topology({"A": Source(limit=1), "B": Stubborn()}, [("A", "B")])
sending = Topology({"J": ExternalProcess(state=Books), "S": Sink()}, [("J", "S")])
joining = Topology(
    {"A": Source(), "J": ExternalProcess(state=Books, accepts=Tick), "S": Sink()},
    [("A", "J"), ("J", "S")],
)
shelving = Topology({"A": Source(), "J": ExternalProcess(state=Shelf, accepts=Tick)}, [("A", "J")])
ordering = Topology({"A": Sink(), "J": ExternalProcess(state=Orders, accepts=Tick)}, [("J", "A")])
all_joining = Topology({f"J{n}": ExternalProcess(state=Books) for n in (2, 10)}, [])
only_joining = Topology({"J": ExternalProcess(state=Books)}, [])
trio = Topology.mesh({"A": Sink(), "B": Sink(), "C": Sink()})
separate = Topology({"A": Source(limit=9), "B": Sink(), "R": Sink()}, [("A", "B")])
forking = Topology.mesh({"A": Player(serves=True), "B": Forks()})
forking_at_cut = Topology.mesh({"A": Player(serves=True), "B": ForksAtCut()})
forking_async = Topology.mesh({"A": Player(serves=True), "B": ForksAsync()})
