"""What can happen next in a world, and why something cannot."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, assert_never

from stillframe.model import Channel, ProcessId
from stillframe.sim import choices
from stillframe.sim.network import Fifo, Frame, Network

if TYPE_CHECKING:
    from stillframe.sim.world import World


def deliverable(world: "World") -> list[choices.Deliver]:
    """Return every arrival that is possible now, in the order of the channels."""
    if world.refusal:
        return []
    return [
        choices.Deliver((channel,), position)
        for channel, memory in world.channels.items()
        if not _why_shut(world, channel)
        for position in range(len(memory) if world.network is Network.REORDERING else 1)
        if position < len(memory)
    ]


def why_not(world: "World", choice: choices.Choice) -> str:
    """Return why `choice` is not possible now; empty if it is."""
    return next(_obstacles(world, choice), "")


def _obstacles(world: "World", choice: choices.Choice) -> Iterator[str]:
    if world.refusal:
        yield f"the run has ended: {world.refusal}"
    match choice:
        case choices.Deliver(channels, position):
            for channel in channels:
                yield from _why_not_deliver(world, channel, position)
            if len(channels) > 1:
                yield from _why_not_together(world, channels, position)
        case choices.Act(process, action):
            yield from _why_down(world, process)
            if action not in (actions := world.performers[process].actions):
                yield f"{process} has no action {action!r}; it has {', '.join(actions) or 'none'}"
        case choices.Initiate(process, _):
            yield from _why_down(world, process)
        case choices.Hear(process, snapshot):
            yield from _why_down(world, process)
            if snapshot not in world.epoch.outcomes:
                yield f"snapshot {snapshot} is not over"
        case choices.Expire():
            pass
        case _:
            yield from _why_not_fault(world, choice)


def _why_not_fault(world: "World", fault: choices.Fault) -> Iterator[str]:
    match fault:
        case choices.Lose(channel, position):
            yield from _why_nothing_there(world, channel, position)
            if world.network is not Network.LOSSY:
                yield f"channels are {world.network.value}: they lose nothing"
        case choices.Double(channel):
            yield from _why_nothing_there(world, channel, 0)
            if world.network is not Fifo:
                yield f"channels are {world.network.value}: nothing removes what comes twice"
        case choices.Break(channel) | choices.Connect(channel):
            yield from _why_not_connection(world, channel, fault)
        case choices.Crash(process):
            yield from _why_down(world, process)
        case choices.Partition(processes):
            for process in processes:
                yield from _why_unknown(world, process)
        case choices.Heal() | choices.Restart():
            pass
        case _:
            assert_never(fault)


def _why_unknown(world: "World", process: ProcessId) -> Iterator[str]:
    if process not in world.performers:
        yield f"there is no process {process!r}; there are {', '.join(world.performers)}"


def _why_down(world: "World", process: ProcessId) -> Iterator[str]:
    yield from _why_unknown(world, process)
    if process in world.down:
        yield f"process {process} has crashed"


def arriving(world: "World", choice: choices.Choice) -> tuple[tuple[Channel, Frame], ...]:
    """Return what `choice`, which must be possible, lets arrive, each with its channel."""
    if not isinstance(choice, choices.Deliver):
        return ()
    return tuple((c, world.channels[c].peek(choice.position)) for c in choice.channels)


def held_count(world: "World") -> int:
    """Return how much is on its way between the two sides of a partition."""
    return sum(len(memory) for c, memory in world.channels.items() if _lies_between(world, c))


def _lies_between(world: "World", channel: Channel) -> bool:
    return (channel.source in world.parted) != (channel.target in world.parted)


def _why_shut(world: "World", channel: Channel) -> str:
    """Return why nothing can arrive on a channel that there is."""
    if channel.target in world.down:
        return f"process {channel.target} has crashed"
    if not world.channels[channel].is_connected:
        return f"the connection of {channel} is lost"
    if _lies_between(world, channel):
        return f"a partition lies between {channel.source} and {channel.target}"
    return ""


def _why_nothing_there(world: "World", channel: Channel, position: int) -> Iterator[str]:
    if channel not in world.channels:
        yield f"there is no channel {channel}"
    elif position >= len(world.channels[channel]):
        yield f"{len(world.channels[channel])} messages and markers are on {channel}"


def _why_not_deliver(world: "World", channel: Channel, position: int) -> Iterator[str]:
    if channel in world.channels and (reason := _why_shut(world, channel)):
        yield reason
    yield from _why_nothing_there(world, channel, position)
    if position and world.network is not Network.REORDERING:
        yield f"channels are {world.network.value}: only the oldest can arrive"


def _why_not_together(
    world: "World", channels: tuple[Channel, ...], position: int
) -> Iterator[str]:
    if len({channel.target for channel in channels}) > 1 or len({*channels}) < len(channels):
        yield "one atomic action accepts one message from each of several channels of one process"
    for channel in channels:
        if not world.channels[channel].is_message(position):
            what = "a marker" if world.channels[channel].peek(position).batch is None else "a batch"
            yield f"{what} is what comes on {channel}: it is no part of an action"


def _why_not_connection(
    world: "World", channel: Channel, choice: choices.Break | choices.Connect
) -> Iterator[str]:
    if channel not in world.channels:
        yield f"there is no channel {channel}"
    if world.network is not Fifo:
        yield f"channels are {world.network.value}: they have no connections"
    is_lost = not world.channels[channel].is_connected
    if is_lost == isinstance(choice, choices.Break):
        yield f"the connection of {channel} is {'lost' if is_lost else 'there'} already"
    if isinstance(choice, choices.Connect) and {channel.source, channel.target} & world.down:
        yield "one of its processes has crashed"
