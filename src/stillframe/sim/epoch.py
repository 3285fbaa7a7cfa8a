"""What happened in a simulated world between two restores."""

from dataclasses import dataclass, field

import msgspec

from stillframe.model import Abandoned, Channel, Fragment, ProcessId, Snapshot, SnapshotId
from stillframe.sim import choices
from stillframe.sim.network import Frame
from stillframe.topology import Description
from stillframe.trace import MessageId, Step, Trace


class Taken(msgspec.Struct):
    """A choice that was taken. Its steps end where those of the next one begin.

    Attributes:
        choice: the choice.
        at: when, in virtual seconds.
        step_count: how many steps there were before it.
        frames: the frames that it delivered, with their channels.
        is_done: whether it finished: no rule was found broken, no handler raised.
    """

    choice: choices.Choice
    at: float
    step_count: int
    frames: tuple[tuple[Channel, Frame], ...] = ()
    is_done: bool = False


@dataclass
class Epoch:
    """What happened in one epoch.

    Attributes:
        number: which epoch, from 1.
        start: the snapshot that it was restored from; None for a fresh start.
        steps: events and recording steps, in the order in which they happened.
        taken: the choices of which they came, except for those of the start.
        initiated: the snapshots that were initiated.
        began_s: when, in virtual seconds.
        fragments: what each process recorded of them, as soon as it is complete.
        outcomes: how they ended.
        ended_at: how many steps there were when they ended.
        ended_s: when they ended, in virtual seconds.
        ended_in: in which of `taken`, from 0.
        contents: every message that was sent, or recorded on a channel at the start; encoded.
        refused_count: how many connections of the epoch before were attempted, and refused.
        resent_count: how many frames were lost with a connection, and sent again by the next.
        dropped_count: how many frames arrived a second time, and were dropped.
        held_count: how many frames were in flight between the two sides when a partition ended.
    """

    number: int
    start: Snapshot | None
    steps: list[Step] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    initiated: list[SnapshotId] = field(default_factory=list)
    began_s: dict[SnapshotId, float] = field(default_factory=dict)
    fragments: dict[SnapshotId, dict[ProcessId, Fragment]] = field(default_factory=dict)
    outcomes: dict[SnapshotId, Snapshot | Abandoned] = field(default_factory=dict)
    ended_at: dict[SnapshotId, int] = field(default_factory=dict)
    ended_s: dict[SnapshotId, float] = field(default_factory=dict)
    ended_in: dict[SnapshotId, int] = field(default_factory=dict)
    contents: dict[MessageId, bytes] = field(default_factory=dict)
    refused_count: int = 0
    resent_count: int = 0
    dropped_count: int = 0
    held_count: int = 0

    def trace(self, description: Description) -> Trace:
        """Return what happened as a trace; NotConsistent if a message was accepted twice, or never
        sent: no execution is like that."""
        return Trace(description.processes, self.steps, description.channels)
