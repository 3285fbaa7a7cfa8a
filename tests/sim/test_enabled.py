"""What can happen next in a world, and the sentence that says why something cannot."""

import pytest

from stillframe.model import Channel, SnapshotId
from stillframe.protocol.lai_yang import LaiYangRecorder
from stillframe.sim.choices import Choice, Deliver, parse_choice
from stillframe.sim.network import Fifo, Lossy, Network, Reordering
from stillframe.sim.systems import Account, pair
from stillframe.sim.world import World, deliverable, disabled_reason
from stillframe.topology import Topology


def world_after(network: Network, *lines: str) -> World:
    """Return two accounts after `lines` have happened."""
    world = World(pair(), network=network)
    for line in lines:
        world.take(parse_choice(line))
    return world


DOWN = "process P1 has crashed"
MESSAGE = "P1 does pay"
OBSTACLES: list[tuple[Network, tuple[str, ...], str, str]] = [
    (Fifo, (), "P9 does pay", "there is no process 'P9'; there are P1, P2"),
    (Fifo, (), "P1 does steal", "P1 has no action 'steal'; it has pay"),
    (Fifo, ("P1 crashes",), "P1 does pay", DOWN),
    (Fifo, ("P1 crashes",), "P1 initiates P1-1", DOWN),
    (Fifo, ("P1 crashes",), "P1 crashes", DOWN),
    (Fifo, (), "P9 initiates P9-1", "there is no process 'P9'; there are P1, P2"),
    (Fifo, (), "P1 hears that P1-1 is over", "snapshot P1-1 has not ended"),
    (Fifo, ("P1 initiates P1-1",), "P1 hears that P1-1 is over", "snapshot P1-1 has not ended"),
    (Fifo, (), "deliver P1->P9", "there is no channel P1->P9"),
    (Fifo, (), "deliver P1->P2", "0 messages and markers are on P1->P2"),
    (Fifo, (MESSAGE, MESSAGE), "deliver P1->P2 at 1", "channels are fifo: only the oldest can"),
    (Lossy, (MESSAGE, MESSAGE), "deliver P1->P2 at 1", "channels are lossy: only the oldest can"),
    (
        Reordering,
        (MESSAGE,),
        "deliver P1->P2 at 1",
        "1 messages and markers are on P1->P2, counted from 0",
    ),
    (Fifo, (MESSAGE, "partition P1"), "deliver P1->P2", "a partition separates P1 and P2"),
    (Fifo, (MESSAGE,), "lose P1->P2", "channels are fifo: they lose nothing"),
    (Reordering, (MESSAGE,), "lose P1->P2", "channels are reordering: they lose nothing"),
    (Lossy, (), "lose P1->P2", "0 messages and markers are on P1->P2"),
    (Lossy, (), "lose P1->P9", "there is no channel P1->P9"),
    (Fifo, (), "double P1->P2", "0 messages and markers are on P1->P2"),
    (Lossy, (MESSAGE,), "double P1->P2", "channels are lossy: duplicates are not removed"),
    (Fifo, (), "break P1->P9", "there is no channel P1->P9"),
    (Fifo, ("break P1->P2",), "break P1->P2", "the connection of P1->P2 is already lost"),
    (Fifo, (), "connect P1->P2", "the connection of P1->P2 is already open"),
    (Fifo, ("P1 crashes",), "connect P1->P2", "one of its processes has crashed"),
    (Lossy, (), "break P1->P2", "channels are lossy: they have no connections"),
    (Fifo, (), "partition P1 P9", "there is no process 'P9'; there are P1, P2"),
    (Fifo, (MESSAGE, "P1 does pay"), "deliver P1->P2, P1->P2", "one atomic action accepts one"),
    (Fifo, (MESSAGE, "P2 does pay"), "deliver P1->P2, P2->P1", "one atomic action accepts one"),
]


@pytest.mark.parametrize(("network", "before", "line", "reason"), OBSTACLES)
def test_what_cannot_happen_is_refused_with_the_reason(
    network: Network, before: tuple[str, ...], line: str, reason: str
) -> None:
    """Each obstacle has its sentence, which names what there is instead."""
    assert reason in disabled_reason(world_after(network, *before), parse_choice(line))


def test_nothing_arrives_over_a_lost_connection_or_at_a_dead_process() -> None:
    """What is on a channel stays there, and the reason says where the trouble is."""
    for line, reason in (
        ("P2 crashes", "process P2 has crashed"),
        ("break P1->P2", "the connection of P1->P2 is lost"),
        ("partition P2", "a partition separates P1 and P2"),
    ):
        world = world_after(Fifo, MESSAGE, line, MESSAGE)
        assert disabled_reason(world, parse_choice("deliver P1->P2")) == reason
        assert deliverable(world) == []


def test_nothing_can_happen_any_more_after_a_refusal() -> None:
    """A run that the rules refused to go on with has ended, and says what they said."""
    world = world_after(Reordering, MESSAGE, MESSAGE, "deliver P1->P2 at 1")
    assert "message 1 should come next, but 2 came" in world.refusal
    assert deliverable(world) == []
    assert (
        disabled_reason(world, parse_choice("P2 does pay")) == f"the run has ended: {world.refusal}"
    )


@pytest.mark.parametrize(("network", "count"), [(Fifo, 1), (Lossy, 1), (Reordering, 3)])
def test_what_can_arrive_depends_on_the_network(network: Network, count: int) -> None:
    """Where order is kept the oldest can arrive; where it is not, each one."""
    world = world_after(network, MESSAGE, MESSAGE, MESSAGE)
    expected: list[Choice] = [Deliver((Channel("P1", "P2"),), at) for at in range(count)]
    assert deliverable(world) == expected


def test_a_marker_is_no_part_of_an_action() -> None:
    """Messages can arrive together, from several processes, if no marker is among them, wherever
    on its channel it is."""
    accounts = Topology.mesh({"P1": Account(), "P2": Account(), "P3": Account()})
    world = World(accounts, network=Reordering, recorder=LaiYangRecorder)
    for line in ("P1 initiates P1-1", "P1 does pay", "P3 does pay", "P3 does pay"):
        world.take(parse_choice(line))
    together = parse_choice("deliver P1->P2, P3->P2")
    assert disabled_reason(world, together) == (
        "the next item on P1->P2 is a marker, which is not part of an action"
    )
    assert disabled_reason(world, parse_choice("deliver P1->P2, P3->P2 at 1")) == ""


def test_what_is_possible_is_not_refused() -> None:
    """Of the choices that can be made at the beginning, none has an obstacle."""
    world = world_after(Fifo, MESSAGE, "P1 initiates P1-1")
    lines = ("P2 does pay", "deliver P1->P2", "expire", "heal", "restart", "break P1->P2")
    assert [disabled_reason(world, parse_choice(line)) for line in (*lines, "partition P1")] == [
        ""
    ] * 7
    assert SnapshotId("P1", 1) in world.pending
