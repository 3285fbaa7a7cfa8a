"""The channels in memory: what each network keeps, loses, doubles, and brings back."""

import pytest

from stillframe.errors import ProtocolViolation
from stillframe.model import Batch, Marker, SnapshotId
from stillframe.protocol.lai_yang import CountingMarker
from stillframe.sim.network import Fifo, Frame, Lossy, MemoryChannel, Network, Reordering

S = SnapshotId("P1", 1)


def filled(network: Network, count: int) -> MemoryChannel:
    """Return a channel with `count` messages on their way."""
    channel = MemoryChannel(network)
    for number in range(1, count + 1):
        send(channel, number)
    return channel


def send(channel: MemoryChannel, number: int) -> None:
    """Send one message."""
    channel.send(Frame(channel.next_sequence, Batch.of(number, [bytes([number])])))


def numbers(channel: MemoryChannel) -> list[int]:
    """Return the numbers of the frames that are on their way."""
    return [frame.sequence for frame in channel.contents]


@pytest.mark.parametrize("marker", [Marker(S), CountingMarker(S, 7)])
def test_a_marker_arrives_as_it_was_sent(marker: Marker) -> None:
    """Plain markers and counting ones go through a frame unchanged, and are no messages."""
    channel = MemoryChannel(Fifo)
    channel.send(Frame.of_marker(channel.next_sequence, marker))
    assert channel.peek(0).batch is None
    frame = channel.take()
    assert frame is not None
    assert frame.as_marker() == marker


@pytest.mark.parametrize("network", Network)
def test_the_oldest_arrives_first_where_nothing_else_is_asked_for(network: Network) -> None:
    """Every network can deliver in the order of sending, and then holds nothing any more."""
    channel = filled(network, 3)
    taken = [channel.take() for _ in range(3)]
    assert [frame.batch.first for frame in taken if frame and frame.batch] == [1, 2, 3]
    assert len(channel) == 0


def test_without_order_any_message_can_arrive() -> None:
    """A channel that reorders gives what is at the position, and keeps the rest as it was."""
    channel = filled(Reordering, 3)
    frame = channel.take(1)
    assert frame is not None
    assert frame.sequence == 2
    assert numbers(channel) == [1, 3]


def test_what_is_lost_is_gone() -> None:
    """A channel that loses hands over what comes behind, without a word."""
    channel = filled(Lossy, 3)
    channel.lose(1)
    assert numbers(channel) == [1, 3]
    channel.lose(0)
    frame = channel.take()
    assert frame is not None
    assert frame.sequence == 3


def test_what_comes_twice_arrives_once() -> None:
    """The second of two equal frames is let drop where order is kept."""
    channel = filled(Fifo, 2)
    channel.duplicate()
    assert numbers(channel) == [1, 1, 2]
    assert [frame and frame.sequence for frame in (channel.take() for _ in range(3))] == [
        1,
        None,
        2,
    ]


def test_a_gap_is_found() -> None:
    """A channel that keeps order says so when a frame before this one is missing."""
    channel = filled(Fifo, 2)
    with pytest.raises(ProtocolViolation, match="frame 2 arrived instead of 1"):
        channel.take(1)


def test_a_lost_connection_loses_nothing_in_the_end() -> None:
    """What was on its way, and what was sent meanwhile, is on its way again, in order and once."""
    channel = filled(Fifo, 3)
    channel.take()
    channel.disconnect()
    assert (channel.is_connected, numbers(channel)) == (False, [])
    send(channel, 4)
    assert numbers(channel) == []
    assert channel.connect() == 3
    assert (channel.is_connected, numbers(channel)) == (True, [2, 3, 4])


def test_what_was_sent_before_an_acknowledgement_arrives_is_not_asked_for_again() -> None:
    """The source forgets what it knows to have arrived, and can still go on from there."""
    channel = filled(Fifo, 2)
    channel.take()
    send(channel, 3)
    channel.disconnect()
    assert channel.connect() == 2
    channel.disconnect()
    assert channel.connect() == 2
    assert numbers(channel) == [2, 3]
