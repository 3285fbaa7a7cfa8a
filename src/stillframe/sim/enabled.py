"""Which choices are enabled in a world, and why others are not."""

from collections.abc import Iterable
from typing import Protocol, assert_never

from stillframe.model import Channel, ProcessId
from stillframe.protocol.action_runner import ActionRunner
from stillframe.sim import choices
from stillframe.sim.epoch import Epoch
from stillframe.sim.network import Fifo, Frame, MemoryChannel, Network


class World(Protocol):
    """The state that decides what is enabled; ``world.World`` has it."""

    network: Network
    refusal: str
    down: set[ProcessId]
    parted: frozenset[ProcessId]
    channels: dict[Channel, MemoryChannel]
    runners: dict[ProcessId, ActionRunner]

    @property
    def epoch(self) -> Epoch:
        """The current epoch."""
        ...


def deliverable(world: World) -> list[choices.Deliver]:
    """Return every arrival that is enabled, in the order of the channels."""
    if world.refusal:
        return []
    return [
        choices.Deliver((channel,), position)
        for channel, memory in world.channels.items()
        if not _shut_reason(world, channel)
        for position in range(len(memory) if world.network is Network.REORDERING else 1)
        if position < len(memory)
    ]


def disabled_reason(world: World, choice: choices.Choice) -> str:
    """Return why `choice` is not enabled; empty if it is."""
    if world.refusal:
        return f"the run has ended: {world.refusal}"
    kind = f"channels are {world.network.value}"
    match choice:
        case choices.Deliver(channels, position):
            reasons = (_cannot_deliver(world, channel, position) for channel in channels)
            return _first(reasons) or _cannot_deliver_together(world, channels, position)
        case choices.Act(process, action):
            return _down(world, process) or _no_action(world, process, action)
        case choices.Initiate(process, _) | choices.Crash(process):
            return _down(world, process)
        case choices.DeliverNotice(process, snapshot):
            is_over = snapshot in world.epoch.outcomes
            return _down(world, process) or ("" if is_over else f"snapshot {snapshot} is not over")
        case choices.Lose(channel, position):
            is_lossy = world.network is Network.LOSSY
            return _no_frame(world, channel, position) or (
                "" if is_lossy else f"{kind}: they lose nothing"
            )
        case choices.Duplicate(channel):
            is_fifo = world.network is Fifo
            return _no_frame(world, channel, 0) or (
                "" if is_fifo else f"{kind}: nothing removes what comes twice"
            )
        case choices.Break(channel) | choices.Connect(channel):
            return _connection_obstacle(world, channel, choice)
        case choices.Partition(processes):
            return _first(_unknown(world, process) for process in processes)
        case choices.Expire() | choices.Heal() | choices.Restart():
            return ""
        case _:
            assert_never(choice)


def _first(reasons: Iterable[str]) -> str:
    return next(filter(None, reasons), "")


def _unknown(world: World, process: ProcessId) -> str:
    if process in world.runners:
        return ""
    return f"there is no process {process!r}; there are {', '.join(world.runners)}"


def _down(world: World, process: ProcessId) -> str:
    is_down = process in world.down
    return _unknown(world, process) or (f"process {process} has crashed" if is_down else "")


def _no_action(world: World, process: ProcessId, action: str) -> str:
    if action in (actions := world.runners[process].actions):
        return ""
    return f"{process} has no action {action!r}; it has {', '.join(actions) or 'none'}"


def arriving(world: World, choice: choices.Choice) -> tuple[tuple[Channel, Frame], ...]:
    """Return the frames that `choice`, which must be enabled, delivers, each with its channel."""
    if not isinstance(choice, choices.Deliver):
        return ()
    return tuple((c, world.channels[c].peek(choice.position)) for c in choice.channels)


def held_count(world: World) -> int:
    """Return how many frames are in flight between the two sides of a partition."""
    return sum(len(memory) for c, memory in world.channels.items() if _is_parted(world, c))


def _is_parted(world: World, channel: Channel) -> bool:
    return (channel.source in world.parted) != (channel.target in world.parted)


def _shut_reason(world: World, channel: Channel) -> str:
    """Return why nothing can arrive on an existing channel."""
    if channel.target in world.down:
        return f"process {channel.target} has crashed"
    if not world.channels[channel].is_connected:
        return f"the connection of {channel} is lost"
    if _is_parted(world, channel):
        return f"a partition lies between {channel.source} and {channel.target}"
    return ""


def _no_frame(world: World, channel: Channel, position: int) -> str:
    if channel not in world.channels:
        return f"there is no channel {channel}"
    count = len(world.channels[channel])
    return f"{count} messages and markers are on {channel}" if position >= count else ""


def _cannot_deliver(world: World, channel: Channel, position: int) -> str:
    if channel in world.channels and (reason := _shut_reason(world, channel)):
        return reason
    if reason := _no_frame(world, channel, position):
        return reason
    if position and world.network is not Network.REORDERING:
        return f"channels are {world.network.value}: only the oldest can arrive"
    return ""


def _cannot_deliver_together(world: World, channels: tuple[Channel, ...], position: int) -> str:
    if len(channels) == 1:
        return ""
    if len({channel.target for channel in channels}) > 1 or len({*channels}) < len(channels):
        return "one atomic action accepts one message from each of several channels of one process"
    for channel in channels:
        if not world.channels[channel].is_message(position):
            what = "a marker" if world.channels[channel].peek(position).batch is None else "a batch"
            return f"{what} is what comes on {channel}: it is no part of an action"
    return ""


def _connection_obstacle(
    world: World, channel: Channel, choice: choices.Break | choices.Connect
) -> str:
    if channel not in world.channels:
        return f"there is no channel {channel}"
    if world.network is not Fifo:
        return f"channels are {world.network.value}: they have no connections"
    is_lost = not world.channels[channel].is_connected
    if is_lost == isinstance(choice, choices.Break):
        return f"the connection of {channel} is {'lost' if is_lost else 'there'} already"
    if isinstance(choice, choices.Connect) and {channel.source, channel.target} & world.down:
        return "one of its processes has crashed"
    return ""
