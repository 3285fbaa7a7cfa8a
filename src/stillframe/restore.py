"""From a snapshot to start states: what each process starts with, and what it receives first.

Chandy & Lamport 1985: a system that starts in a recorded global state is in a state that the real
one could have passed through. So a restore sets every process to its recorded state and its counts,
and delivers the recorded messages of each channel before anything new, in order.
"""

import msgspec

from stillframe.errors import ProtocolViolation, UsageError
from stillframe.model import Channel, ChannelState, IncomingRecord, ProcessId, Snapshot, SnapshotId
from stillframe.topology import Description


class Start(msgspec.Struct, frozen=True):
    """The start of one process after a restore. `encoded` is its recorded state, for
    ``StateCodec.restore``. `sent_counts` has for each target how many messages it had sent there.
    `incoming` has for each channel into it the messages received at its cut, and those to deliver
    before any other. `base` is the snapshot in the store that has exactly this state, if any."""

    kind: str
    encoded: bytes
    sent_counts: dict[ProcessId, int]
    incoming: tuple[IncomingRecord, ...]
    base: SnapshotId | None = None


def start_states(
    snapshot: Snapshot, description: Description, *, base: SnapshotId | None = None
) -> dict[ProcessId, Start]:
    """Return how each process of `description` starts, so that the system continues from
    `snapshot`.

    The next step: raise the epoch, start every process with its state, and let none of them act
    before its `incoming` messages were delivered. `base` is the id of `snapshot`, if the store has
    its states exactly as they are here, not converted: then the next snapshot need only hold
    changes. NotConsistent if the books of a channel do not balance; UsageError if snapshot and
    description name different processes, classes or channels.
    """
    channels = snapshot.state.channels
    recorded = [f"{state.process} ({state.kind})" for state in snapshot.state.processes]
    described = [f"{process} ({kind})" for process, kind in description.processes.items()]
    _check_same(snapshot, "process", recorded, described)
    recorded = [str(state.channel) for state in channels]
    _check_same(snapshot, "channel", recorded, [str(channel) for channel in description.channels])
    snapshot.state.check_books()
    return {
        state.process: Start(
            kind=state.kind,
            encoded=state.encoded,
            sent_counts={
                c.channel.target: c.sent_count
                for c in channels
                if c.channel.source == state.process
            },
            incoming=tuple(
                IncomingRecord(c.channel.source, c.received_count, c.batches)
                for c in channels
                if c.channel.target == state.process
            ),
            base=base,
        )
        for state in snapshot.state.processes
    }


def check_start(start: Start, process: ProcessId, description: Description) -> None:
    """Check that a process of `description` can start with this state. ProtocolViolation if it is
    of another class or has other channels, NotConsistent if the books of a channel do not balance.
    """
    sources = tuple(record.source for record in start.incoming)
    targets = tuple(start.sent_counts)
    if (
        start.kind != description.processes[process]
        or sources != description.incoming(process)
        or targets != description.outgoing(process)
        or min(start.sent_counts.values(), default=0) < 0
    ):
        raise ProtocolViolation(
            f"process {process} is to start as {start.kind!r}, with channels from "
            f"{', '.join(sources) or 'none'} and to {', '.join(targets) or 'none'}: the "
            "coordinator has a different topology, or bytes were lost"
        )
    for record in start.incoming:
        sent_count = record.received_count + sum(batch.count for batch in record.batches)
        channel = Channel(record.source, process)
        ChannelState(channel, sent_count, record.received_count, record.batches).check_books()


def _check_same(snapshot: Snapshot, noun: str, recorded: list[str], described: list[str]) -> None:
    missing = sorted(set(described) - set(recorded))
    extra = sorted(set(recorded) - set(described))
    if missing or extra or len(recorded) != len(described):
        raise UsageError(
            f"snapshot {snapshot.id} has a different topology from the one to start: only in the "
            f"topology: {noun} {', '.join(missing) or '(none)'}; only in the snapshot: "
            f"{noun} {', '.join(extra) or '(none)'}",
            snapshot=snapshot.id,
            remedy="start the topology of the snapshot, or use another snapshot",
        )
