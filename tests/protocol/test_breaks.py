"""One channel over a connection that breaks at any byte, seen from both ends."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from stillframe.model import Marker, SnapshotId
from stillframe.protocol import wire
from stillframe.protocol.session import ReceiveSession, SendSession

chances = st.randoms(use_true_random=False)
WRITE_COUNT = 25


class Direction:
    """The bytes on the way to one end of a connection, and the reader there."""

    def __init__(self, *kinds: wire.Kind) -> None:
        self.reader = wire.FrameReader()
        self.reader.open(*kinds, frame_bytes_max=wire.FRAME_BYTES_MAX)
        self.on_the_way = bytearray()

    def arrive(self, count: int) -> list[wire.Frame]:
        """Let up to `count` bytes arrive; return the frames that they complete."""
        free = self.reader.writable()
        count = min(count, len(free), len(self.on_the_way))
        free[:count] = self.on_the_way[:count]
        del self.on_the_way[:count]
        self.reader.written(count)
        frames = []
        while (frame := self.reader.next_frame()) is not None:
            frames.append(frame)
        return frames


class BreakingChannel:
    """Both halves of a channel, and the connection between them.

    Args:
        acknowledge_bytes: how much the target handles before it acknowledges.
    """

    def __init__(self, acknowledge_bytes: int) -> None:
        self.source, self.target = SendSession(), ReceiveSession(acknowledge_bytes)
        self.written: list[wire.Frame] = []
        self.received: list[wire.Frame] = []
        self.sizes: list[int] = []
        self.handled_count = self.acknowledged = self.heard = 0
        self.double_count = self.torn_count = 0
        self.connect(0)

    def write(self, chance: Random) -> None:
        """Send a batch, a marker, or a batch on which a marker rides."""
        sequence = self.source.sequence + 1
        frame: bytes | bytearray
        if chance.random() < 0.2:
            frame = wire.encode_marker(sequence, Marker(SnapshotId("P", sequence)))
        else:
            rider = Marker(SnapshotId("P", sequence)) if chance.random() < 0.2 else None
            frame = wire.encode_messages(sequence, sequence, ["x" * chance.randint(0, 40)], rider)
        self.source.add(frame)
        self.sizes.append(len(frame))
        self.forth.on_the_way += frame
        check = Direction(*wire.CHANNEL_KINDS)
        check.on_the_way += frame
        self.written += check.arrive(len(frame))

    def arrive(self, count: int) -> None:
        """Let up to `count` bytes arrive at the target."""
        for frame in self.forth.arrive(count):
            assert isinstance(frame, wire.Messages | wire.Marked)
            if self.target.accept(frame.sequence):
                self.received.append(frame)
            else:
                self.double_count += 1

    def handle(self) -> None:
        """Let the target handle one frame, if one is waiting."""
        if self.handled_count < len(self.received):
            size = self.sizes[self.handled_count]
            self.handled_count += 1
            if sequence := self.target.handle(size):
                assert sequence == self.handled_count
                self.acknowledged = sequence
                self.back.on_the_way += wire.encode_ack(sequence)

    def arrive_back(self, count: int) -> None:
        """Let up to `count` bytes arrive at the source."""
        for frame in self.back.arrive(count):
            assert isinstance(frame, wire.Ack)
            self.source.acknowledge(frame.sequence)
            self.heard = max(self.heard, frame.sequence)

    def break_off(self, chance: Random) -> None:
        """Lose all but some bytes on their way, and connect anew.

        Sometimes what the target says that it has is out of date: more came on the old connection.
        """
        stale = self.target.received
        self.arrive_back(chance.randint(0, 30))
        self.arrive(chance.randint(0, 200))
        self.torn_count += bool(self.forth.on_the_way)
        self.connect(stale if chance.random() < 0.3 else self.target.received)

    def connect(self, received: int) -> None:
        """Begin a connection with nothing on it but what must be sent again."""
        self.forth = Direction(*wire.CHANNEL_KINDS)
        self.back = Direction(wire.Kind.ACK)
        for frame in self.source.resume(received):
            self.forth.on_the_way += frame
        if self.acknowledged:
            self.back.on_the_way += wire.encode_ack(self.acknowledged)

    def check(self) -> None:
        """At any moment: the target has a beginning of what was sent; the source keeps the rest."""
        assert self.received == self.written[: len(self.received)]
        assert self.heard <= self.handled_count <= self.target.received == len(self.received)
        assert self.source.unacknowledged_bytes == sum(self.sizes[self.heard :])


def run(chance: Random) -> BreakingChannel:
    """Let a channel live through random writes, arrivals and breaks, then carry everything over."""
    channel = BreakingChannel(chance.choice([1, 100, 1000]))
    while channel.source.sequence < WRITE_COUNT:
        match chance.randint(0, 9):
            case 0 | 1 | 2:
                channel.write(chance)
            case 3 | 4 | 5:
                channel.arrive(chance.randint(1, 90))
            case 6 | 7:
                channel.handle()
            case 8:
                channel.arrive_back(chance.randint(1, 30))
            case _:
                channel.break_off(chance)
        channel.check()
    channel.connect(channel.target.received)
    while channel.forth.on_the_way:
        channel.arrive(1000)
    while channel.handled_count < len(channel.received):
        channel.handle()
    channel.arrive_back(10_000)
    channel.check()
    return channel


@given(chances)
def test_nothing_is_lost_doubled_or_disordered(chance: Random) -> None:
    """The target has exactly the frames that were written, in their order."""
    channel = run(chance)
    assert channel.received == channel.written
    assert len(channel.received) == WRITE_COUNT


@given(chances)
def test_the_source_keeps_no_more_than_the_target_may_hold_back(chance: Random) -> None:
    """At rest only what is below the threshold of an acknowledgement is still kept."""
    channel = run(chance)
    assert channel.source.unacknowledged_bytes < channel.target._acknowledge_bytes


def test_the_breaks_are_worth_looking_at() -> None:
    """Sometimes a frame was torn, came twice, or stayed unacknowledged."""
    channels = [run(Random(seed)) for seed in range(40)]
    assert sum(channel.torn_count for channel in channels) > 40
    assert sum(channel.double_count for channel in channels) > 20
    assert any(channel.source.unacknowledged_bytes for channel in channels)


def test_a_stream_may_be_cut_after_every_single_byte() -> None:
    """Wherever the first connection ends, the second brings exactly the rest."""
    rider = Marker(SnapshotId("P", 1))
    frames = [
        bytes(wire.encode_messages(n, n, ["m" * n], rider if n == 2 else None)) for n in (1, 2, 3)
    ]
    stream = b"".join(frames)
    for cut in range(len(stream) + 1):
        channel = BreakingChannel(acknowledge_bytes=1)
        for frame in frames:
            channel.source.add(frame)
        channel.forth.on_the_way += stream
        channel.arrive(cut)
        whole = sum(len(b"".join(frames[: n + 1])) <= cut for n in range(3))
        assert len(channel.received) == whole
        channel.connect(channel.target.received)
        assert channel.forth.on_the_way == b"".join(frames[whole:])
        channel.arrive(len(stream))
        assert [f.sequence for f in channel.received if isinstance(f, wire.Messages)] == [1, 2, 3]
