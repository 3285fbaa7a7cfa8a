"""Markers that ride on messages: every order of what can happen to a channel, and every host."""

import asyncio
import itertools
from collections import Counter, deque
from pathlib import Path

import msgspec
import pytest

from stillframe import Channel, Message, Process, Topology, every
from stillframe.model import Marker, SnapshotId, encode_array
from stillframe.protocol import wire
from stillframe.protocol.recorder import Phase
from stillframe.protocol.session import ReceiveSession
from stillframe.runtime.process.endpoints import (
    BATCH_BYTES_MAX,
    FRAME_EXTRA_BYTES,
    OutgoingEndpoint,
)
from tests.runtime.local import LocalSystem
from tests.runtime.memory import MARKED_MESSAGES, MARKER, MemoryNetwork, MemoryTransport, parse

STEPS = "msrdx"
STEP_COUNT = 6


class Tick(Message):
    """A numbered message."""

    serial: int
    filler: bytes = b""


_decode = msgspec.msgpack.Decoder(list[Tick]).decode


class Source:
    """The source's end of a channel, and all that its target has received, in order.

    A message is noted as its number, a marker as its snapshot.
    """

    def __init__(self) -> None:
        self.outgoing = OutgoingEndpoint(Channel("A", "B"), frozenset({Tick}), 0, is_on_cycle=False)
        self.sent: list[int | SnapshotId] = []
        self.received: list[int | SnapshotId] = []
        self.seen: Counter[int] = Counter()
        self._markers: deque[Marker] = deque()
        self._target = ReceiveSession(acknowledge_bytes=1)
        self.connect()

    def mark(self) -> None:
        """Send a marker, which may wait."""
        marker = Marker(SnapshotId("A", len(self.sent)))
        self.outgoing.send_marker(marker, may_wait=True)
        self._markers.append(marker)
        self.sent.append(marker.snapshot)

    def send(self, filler_bytes: int = 0) -> None:
        """Send a message, and let it leave."""
        number = len(self.sent)
        self.outgoing.pending.append(Tick(number, bytes(filler_bytes)))
        self.outgoing.flush()
        self.sent.append(number)

    def release(self) -> None:
        """Let the time of the oldest marker pass that it has not passed for yet."""
        if self._markers:
            self.outgoing.release(self._markers.popleft())

    def deliver(self) -> None:
        """Let all that is on its way arrive."""
        while self.forth.queue:
            written = self.forth.queue.popleft()
            (frame,) = parse(self._reader, written.frame)
            assert isinstance(frame, wire.Messages | wire.Marked)
            if not self._target.accept(frame.sequence):
                continue
            self.seen[written.kind] += 1
            if frame.marker is not None:
                self.received.append(frame.marker.snapshot)
            if isinstance(frame, wire.Messages):
                for message in _decode(frame.batch.encoded):
                    self.received.append(message.serial)

    def connect(self) -> None:
        """Lose what is on its way, and go on over a new connection."""
        self.forth = MemoryTransport(lambda: 0)
        self._reader = wire.FrameReader()
        self._reader.open(*wire.CHANNEL_KINDS, frame_bytes_max=wire.FRAME_BYTES_MAX)
        self.outgoing.attach(self.forth, self._target.received)

    def step(self, name: str) -> None:
        """Do what one of `STEPS` stands for."""
        match name:
            case "m":
                self.mark()
            case "s":
                self.send()
            case "r":
                self.release()
            case "d":
                self.deliver()
            case _:
                self.connect()

    def end(self) -> None:
        """Let the time of all markers pass, and everything arrive."""
        while self._markers:
            self.release()
        self.deliver()


@pytest.mark.slow
def test_in_every_order_of_steps_each_marker_keeps_its_place() -> None:
    """Marks, messages, time that passes, arrivals and broken connections: the target receives what
    was sent, each marker once and between the same messages, whether it rode or not."""
    seen: Counter[int] = Counter()
    run_count = 0
    for steps in itertools.product(STEPS, repeat=STEP_COUNT):
        source = Source()
        for step in steps:
            source.step(step)
            assert source.received == source.sent[: len(source.received)], "".join(steps)
        source.end()
        assert source.received == source.sent, "".join(steps)
        seen += source.seen
        run_count += 1
    assert run_count == 15_625
    assert min(seen[kind] for kind in wire.CHANNEL_KINDS) > 1000


@pytest.mark.parametrize("filler_bytes", [BATCH_BYTES_MAX, wire.FRAME_BYTES_MAX - 64])
def test_a_marker_does_not_ride_on_a_large_message(filler_bytes: int) -> None:
    """The largest message leaves no room in its frame: the marker goes before it, by itself."""
    source = Source()
    source.mark()
    source.send(filler_bytes)
    source.send()
    source.end()
    assert source.received == source.sent
    assert source.seen == {wire.Kind.MARKER: 1, wire.Kind.MESSAGES: 2}


def test_a_marker_rides_on_the_first_of_many_frames() -> None:
    """A batch that is cut in pieces carries it once, before all of them."""
    source = Source()
    source.mark()
    for number in range(1, 301):
        source.outgoing.pending.append(Tick(number, bytes(1000)))
        source.sent.append(number)
    source.outgoing.flush()
    source.end()
    assert source.received == source.sent
    assert source.seen[MARKED_MESSAGES] == 1
    assert source.seen[wire.Kind.MESSAGES] > 1


def test_a_target_counts_no_less_of_a_frame_than_its_source() -> None:
    """Else a source could wait for an acknowledgement that is not due yet: also for the longest
    name and the highest number that a snapshot can have."""
    marker = Marker(SnapshotId("P" * 64, 2**64 - 1))
    alone = wire.encode_marker(1, marker)
    assert len(alone) <= FRAME_EXTRA_BYTES
    carrying = wire.encode_messages(1, 1, [None], marker)
    assert len(carrying) <= len(encode_array([b"\xc0"])) + 2 * FRAME_EXTRA_BYTES


class Pacer(Process):
    """Sends a tick to everybody now and then, as often as it may."""

    limit: int = 0
    sent_count: int = 0
    received_count: int = 0

    def receive(self, channel: Channel, message: Tick) -> None:
        """Count it."""
        self.received_count += 1

    @every(ms=1)
    def pace(self) -> None:
        """Send the next."""
        if self.sent_count < self.limit:
            self.sent_count += 1
            for target in self.outgoing:
                self.send(target, Tick(self.sent_count))


class Ponderer(Pacer):
    """The same with a coroutine function: a host of the other kind."""

    async def receive(self, channel: Channel, message: Tick) -> None:  # type: ignore[override]
        """Count it, after a while."""
        await asyncio.sleep(0)
        self.received_count += 1


def idle_pair(marker_wait_s: float) -> MemoryNetwork:
    """Return two hosts that send nothing by themselves."""
    topology = Topology.mesh({"A": Pacer(), "B": Pacer()})
    network = MemoryNetwork(topology, lambda process, message: None, marker_wait_s=marker_wait_s)
    network.begin("A", "B")
    return network


def test_a_marker_on_an_idle_channel_waits_so_long_and_no_longer() -> None:
    """It is written by itself when its time has passed, to the millisecond; never without end."""
    network = idle_pair(marker_wait_s=0.0125)
    network.scheduler.run_all()
    network.hosts["A"].initiate(SnapshotId("A", 1))
    link = network.link("A", "B")
    while not link.forth.queue:
        before = network.scheduler.time()
        assert before < 0.0125
        network.scheduler.advance()
        network.scheduler.run_all()
    assert network.scheduler.time() == 0.0125
    assert [written.kind for written in link.forth.queue] == [MARKER]


def test_an_abandoned_snapshot_keeps_its_waiting_marker() -> None:
    """Its target may hear of the end later than of the marker: without one it would record, or
    take the next snapshot's cut, at another place. So the marker goes, where it was put."""
    network = idle_pair(marker_wait_s=1.0)
    snapshot, host = SnapshotId("A", 1), network.hosts["A"]
    host.initiate(snapshot)
    host.abandon(snapshot)
    host.send("B", Tick(1))
    host.flush()
    link = network.link("A", "B")
    assert [link.deliver().kind] == [MARKED_MESSAGES]
    assert network.hosts["B"].recorder.phase(snapshot) is not Phase.IDLE


def test_a_wait_of_nothing_sends_markers_at_once() -> None:
    """The switch is off: no timer, and every marker in a frame of its own."""
    network = idle_pair(marker_wait_s=0.0)
    network.hosts["A"].initiate(SnapshotId("A", 1))
    assert [written.kind for written in network.link("A", "B").forth.queue] == [MARKER]


@pytest.mark.parametrize("limit", [0, 10_000], ids=["idle", "busy"])
def test_both_kinds_of_host_take_whole_snapshots_with_markers_that_wait(
    tmp_path: Path, limit: int
) -> None:
    """Over TCP, handlers and coroutine functions mixed: whole also when no message ever comes."""

    async def main() -> None:
        topology = Topology.mesh(
            {"A": Pacer(limit=limit), "B": Ponderer(limit=limit), "C": Pacer(limit=limit)}
        )
        async with (
            asyncio.timeout(30),
            LocalSystem(topology, tmp_path, marker_wait_s=0.005) as system,
        ):
            for initiator in "ABC":
                snapshot = await system.take(initiator)
                assert len(snapshot.state.channels) == 6

    asyncio.run(main())
