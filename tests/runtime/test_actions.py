"""When actions and messages are taken, in virtual time: nothing here depends on the machine."""

from dataclasses import field

from stillframe import Channel, Message, Process, Topology, every
from stillframe.model import Fragment, SnapshotId
from stillframe.runtime import control
from stillframe.runtime.process.endpoints import HOLD_BYTES, WINDOW_BYTES
from stillframe.runtime.process.handlers import BURST_COUNT, SLICE_COUNT
from stillframe.runtime.process.host import Delivery
from tests.runtime.memory import MemoryNetwork
from tests.runtime.programs import Sink, Source, Tick


class Clock(Process):
    """Notes when its action is taken."""

    times_ms: list[float] = field(default_factory=list)
    _network: MemoryNetwork | None = None

    @every(ms=10)
    def tick(self) -> None:
        """Note the time."""
        assert self._network is not None
        self.times_ms.append(round(self._network.scheduler.time() * 1000, 6))
        for target in self.outgoing:
            self.send(target, Tick(len(self.times_ms)))


def network_of(topology: Topology, parts: list[Fragment] | None = None) -> MemoryNetwork:
    """Link the processes of `topology` in memory, and put what they record into `parts`."""

    def report(process: str, message: control.FromProcess) -> None:
        assert isinstance(message, control.FragmentComplete), message
        if parts is not None:
            parts.append(message.fragment)

    return MemoryNetwork(topology, report)


def test_an_action_is_taken_at_its_times() -> None:
    """``every(ms=10)`` means at 10, 20, 30 ... ms, without drift."""
    clock = Clock()
    network = clock._network = network_of(Topology({"A": clock}, []))
    network.begin("A")
    while network.scheduler.time() < 1.0:
        network.scheduler.advance()
        network.scheduler.run_all()
    assert clock.times_ms == [10.0 * number for number in range(1, 101)]


def test_an_action_that_was_late_is_not_made_up_for() -> None:
    """What was due while channels were full is taken once when they have room, then on time."""
    clock, sink = Clock(), Sink()
    network = clock._network = network_of(Topology({"A": clock, "B": sink}, [("A", "B")]))
    host = network.hosts["A"]
    network.begin("A")
    while host.has_room:
        network.scheduler.advance()
        network.scheduler.run_all()
    taken = list(clock.times_ms)
    network.scheduler.call_later(0.0734, lambda: None)
    network.scheduler.advance()
    network.scheduler.advance()
    assert clock.times_ms == taken, "its channel is full"
    late_ms = round(network.scheduler.time() * 1000, 6)
    link = network.link("A", "B")
    network.begin("B")
    while link.forth.queue:
        link.deliver()
        link.deliver_acknowledgements()
        network.scheduler.run_all()
    assert clock.times_ms[len(taken) :] == [late_ms]
    network.scheduler.advance()
    assert clock.times_ms[-1] == (late_ms // 10 + 1) * 10


def test_an_action_without_interval_goes_on_in_bursts_between_messages() -> None:
    """``every(ms=0)`` is taken in bursts; a message that comes in waits for one burst at most."""
    source, sink = Source(), Sink()
    network = network_of(Topology({"A": source, "B": sink}, [("A", "B")]))
    network.begin("A", "B")
    assert source.sent == 0
    for burst in range(1, 4):
        while source.sent < burst * BURST_COUNT:
            before = source.sent
            network.scheduler.run_one()
            assert source.sent - before <= BURST_COUNT


def test_an_action_that_sends_nothing_is_tried_again_later() -> None:
    """An idle ``every(ms=0)`` action leaves the loop to others."""
    source = Source(limit=0)
    network = network_of(Topology({"A": source, "B": Sink()}, [("A", "B")]))
    network.begin("A", "B")
    network.scheduler.run_all()
    source.limit = 1
    network.scheduler.advance()
    assert source.sent == 1
    assert network.scheduler.time() > 0


class Slow(Sink):
    """Takes a millisecond for each message."""

    _network: MemoryNetwork | None = None

    def receive(self, channel: Channel, message: Tick) -> None:
        """Count, and let time go by."""
        super().receive(channel, message)
        assert self._network is not None
        self._network.scheduler.pass_time(0.001)


def test_a_snapshot_gets_its_turn_in_the_middle_of_a_batch() -> None:
    """A batch that takes long is handled in slices: the cut falls between two of them, and what
    was not handled yet is channel state."""
    parts: list[Fragment] = []
    source, slow = Source(limit=0), Slow()
    network = slow._network = network_of(Topology({"A": source, "B": slow}, [("A", "B")]), parts)
    network.begin("A", "B")
    for serial in range(1, 2001):
        network.hosts["A"].send("B", Tick(serial))
    network.hosts["A"].flush()
    link = network.link("A", "B")
    link.deliver()
    assert slow.received == {"A": SLICE_COUNT}
    snapshot = SnapshotId("B", 1)
    network.hosts["B"].initiate(snapshot)
    network.hosts["A"].initiate(snapshot)
    while link.forth.queue:
        link.deliver()
    network.scheduler.run_all()
    assert slow.received == {"A": 2000}
    (record,) = next(part for part in parts if part.state.process == "B").incoming
    assert record.received_count % SLICE_COUNT == 0
    assert 0 < record.received_count < 2000
    assert record.batches[0].first == record.received_count + 1
    assert sum(batch.count for batch in record.batches) == 2000 - record.received_count


def test_others_get_their_turn_between_small_frames() -> None:
    """One read can hold thousands of them: a slow process that handled all at once would neither
    accept a connection nor hear its coordinator meanwhile."""
    slow = Slow()
    network = network_of(Topology({"A": Process(), "B": slow}, [("A", "B")]))
    slow._network = network
    network.begin("A", "B")
    link = network.link("A", "B")
    for serial in range(1, 101):
        network.hosts["A"].send("B", Tick(serial))
        network.hosts["A"].flush()
    while link.forth.queue:
        link.deliver()
    assert 0 < slow.received["A"] < 100
    network.scheduler.run_all()
    assert slow.received == {"A": 100}


class Page(Message):
    """Something larger."""

    serial: int
    text: str


class Press(Process):
    """Passes pages on."""

    passed_count: int = 0

    def receive(self, channel: Channel, message: Page) -> None:
        """Pass it on to everybody."""
        self.passed_count += 1
        for target in self.outgoing:
            self.send(target, message)


class Author(Process):
    """Writes pages without end."""

    written_count: int = 0

    @every(ms=0)
    def write(self) -> None:
        """Write one."""
        self.written_count += 1
        self.send(self.outgoing[0], Page(self.written_count, "word " * 200))


def test_a_slow_target_bounds_the_memory_of_everybody_before_it() -> None:
    """Nothing is handled at the end of a pipeline: the relay before it holds, the source before
    the relay waits, and what each keeps is bounded; then all goes on, and nothing is lost."""
    author, press, reader = Author(), Press(), Press()
    network = network_of(Topology({"A": author, "B": press, "C": reader}, [("A", "B"), ("B", "C")]))
    network.begin("A", "B")

    def go_on(step_count_max: int = 20_000) -> None:
        """Let everything happen that can happen now, for a while."""
        for _ in range(step_count_max):
            for link in network.links.values():
                if link.forth.queue:
                    link.deliver()
                link.deliver_acknowledgements()
            if not network.scheduler.run_one():
                return

    page_bytes = 1000 + 128
    slack_bytes = BURST_COUNT * page_bytes
    go_on()
    assert not network.hosts["A"].has_room
    assert network.hosts["B"].is_blocked
    first = network.hosts["A"].outgoing["B"].session.unacknowledged_bytes
    second = network.hosts["B"].outgoing["C"].session.unacknowledged_bytes
    assert WINDOW_BYTES <= first <= WINDOW_BYTES + slack_bytes
    assert HOLD_BYTES <= second <= HOLD_BYTES + WINDOW_BYTES + slack_bytes
    waiting = [item for item in network.hosts["C"].mailbox if isinstance(item, Delivery)]
    assert 0 < sum(len(item.batch.encoded) for item in waiting) <= second
    stopped_at = author.written_count
    go_on()
    assert author.written_count == stopped_at
    network.begin("C")
    while reader.passed_count <= stopped_at:
        go_on(10)
    assert author.written_count > stopped_at
