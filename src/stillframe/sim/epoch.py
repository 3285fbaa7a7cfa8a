"""What happened in a simulated world between two restores."""

from dataclasses import dataclass, field

from stillframe.model import Abandoned, Fragment, ProcessId, Snapshot, SnapshotId
from stillframe.topology import Description
from stillframe.trace import MessageId, Step, Trace


@dataclass
class Epoch:
    """What happened in one epoch.

    Attributes:
        number: which epoch, from 1.
        start: the snapshot that it began with; None for a fresh start.
        steps: events and recording steps, in the order in which they happened.
        initiated: the snapshots that were begun.
        parts: what each process recorded of them, as soon as it is complete.
        outcomes: how they ended.
        ended_at: how many steps there were when they ended.
        contents: every message that was sent, or recorded on a channel at the start; encoded.
        refused_count: how many connections of the epoch before were attempted, and refused.
    """

    number: int
    start: Snapshot | None
    steps: list[Step] = field(default_factory=list)
    initiated: list[SnapshotId] = field(default_factory=list)
    parts: dict[SnapshotId, dict[ProcessId, Fragment]] = field(default_factory=dict)
    outcomes: dict[SnapshotId, Snapshot | Abandoned] = field(default_factory=dict)
    ended_at: dict[SnapshotId, int] = field(default_factory=dict)
    contents: dict[MessageId, bytes] = field(default_factory=dict)
    refused_count: int = 0

    def trace(self, description: Description) -> Trace:
        """Return what happened as a trace.

        Raises:
            NotConsistent: no execution is like that: a message was accepted twice, or never sent.
        """
        return Trace(description.processes, self.steps, description.channels)
