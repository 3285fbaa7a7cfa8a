"""What is known of one epoch of a world that is judged."""

from functools import cache, cached_property

from stillframe.model import Channel, SnapshotId
from stillframe.protocol.colour import ColourRecorder
from stillframe.protocol.replay import Replay
from stillframe.sim.network import Fifo, Reordering
from stillframe.sim.world import World
from stillframe.trace import Cut, Trace


def rules_fit(world: World) -> bool:
    """Return whether the recording rules are made for such channels: then they must succeed."""
    if world.network is Reordering:
        return all(isinstance(r, ColourRecorder) for r in world.recorders.values())
    return world.network is Fifo


class Evidence:
    """One epoch before the judge.

    Args:
        world: what is judged.
        index: which of its epochs, from 0.
    """

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.index = index
        self.before = world.epochs[:index]
        self.epoch = world.epochs[index]
        self.description = world.description
        self.cut_of = cache(self._cut_of)

    @cached_property
    def trace(self) -> Trace:
        """What happened.

        Raises:
            NotConsistent: no execution is like that.
        """
        return self.epoch.trace(self.description)

    @cached_property
    def first_numbers(self) -> dict[Channel, int]:
        """How many messages were received on each channel before the epoch began."""
        start = self.epoch.start
        if start is None:
            return dict.fromkeys(self.description.channels, 0)
        return {state.channel: state.received_count for state in start.state.channels}

    def new_replay(self) -> Replay:
        """Return the system as it was at the beginning, to do the actions again."""
        start = self.epoch.start
        return Replay(
            self.world.topology,
            start.state if start is not None else None,
            contents=self.epoch.contents,
            trace=self.trace,
        )

    def _cut_of(self, snapshot: SnapshotId) -> Cut:
        return self.trace.cut_of(snapshot)
