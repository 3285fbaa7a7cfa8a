"""The invariants of a simulated run, and the evidence against which they are checked."""

import enum
from functools import cache, cached_property

import msgspec

from stillframe.model import Channel, SnapshotId
from stillframe.protocol.lai_yang import LaiYangRecorder
from stillframe.protocol.replay import Replay
from stillframe.sim.network import Fifo, Reordering
from stillframe.sim.world import World
from stillframe.trace import Cut, Trace


class Invariant(enum.Enum):
    """An invariant; the value is its sentence for people."""

    ONCE = "every message is accepted at most once, after it was sent, and in order"
    BOOKS = "the books of every channel balance"
    CONSISTENT = "no message that was accepted before the cut was sent after it"
    EXACT = "the recorded states and messages are exactly those at the cut"
    MARKERS = "one marker travels on each channel for each snapshot, behind what was sent before"
    ATOMIC = "recording a state and sending the markers is one step"
    WHOLE = "a snapshot is published whole, or abandoned with the names of the missing"
    UNCHANGED = "a snapshot changes nothing: without it the processes do the same"
    EPOCHS = "after a restore the epoch is higher, and nothing of an older one is accepted"
    RESTORED = (
        "a restore goes back to the last restore point, and what was on its channels is first"
    )
    ORDERED_WORLD = "the recording rules find nothing wrong with a channel that keeps order"
    TAKEN = "each thing that is let happen does what it says, once, and nothing else"
    ARRIVED = "in the end every message that was sent is accepted"
    POINTS = "the restore point is the last snapshot that was begun after the one before was whole"
    TIMES = "a snapshot says rightly when and in which epoch it was taken"
    REASON = "a snapshot is given up for a reason that is there, and not before its deadline"
    HEARD = "who has heard that a snapshot is over does not record it any more"
    TOLD = "every process is told of every restore point once, in their order, and of nothing else"
    CAUSED = "a snapshot that shows what was told of another one has that one's cut behind it"
    LIVE = "when nothing goes wrong any more, a snapshot is published"


class Violation(msgspec.Struct, frozen=True):
    """An invariant that does not hold, and the evidence."""

    invariant: Invariant
    detail: str

    def __str__(self) -> str:
        return f"not kept: {self.invariant.value}\n  {self.detail}"


def rules_fit(world: World) -> bool:
    """Return whether the recording rules are made for such channels: then they must succeed."""
    if world.network is Reordering:
        return all(isinstance(r, LaiYangRecorder) for r in world.recorders.values())
    return world.network is Fifo


class Evidence:
    """One epoch of a world that is checked, the one at `index` (from 0) of its epochs."""

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.index = index
        self.before = world.epochs[:index]
        self.epoch = world.epochs[index]
        self.description = world.description
        self.cut_of = cache(self._cut_of)

    @cached_property
    def trace(self) -> Trace:
        """The trace of the epoch; NotConsistent if no execution is like that."""
        return self.epoch.trace(self.description)

    @cached_property
    def first_numbers(self) -> dict[Channel, int]:
        """How many messages were received on each channel before the epoch began."""
        start = self.epoch.start
        if start is None:
            return dict.fromkeys(self.description.channels, 0)
        return {state.channel: state.received_count for state in start.state.channels}

    def new_replay(self) -> Replay:
        """Return the system in its initial state, to perform the actions again."""
        start = self.epoch.start
        return Replay(
            self.world.topology,
            start.state if start is not None else None,
            contents=self.epoch.contents,
            trace=self.trace,
        )

    def _cut_of(self, snapshot: SnapshotId) -> Cut:
        return self.trace.cut_of(snapshot)
