"""Which processes a snapshot may leave out: those that no channel relates to the others.

A cut is consistent if it has no effect without its cause, and a message is the only cause that
there is between processes (Chandy & Lamport 1985, section 3.1). Of a process without channels any
state that it was in belongs to a consistent cut, so also the one that it recorded last. Of one that
has channels an older state does not: its neighbours may have received since then what it had not
sent in that state, and what it had sent and they had not received would be lost.
"""

import msgspec

from stillframe.model import (
    Fragment,
    KeyedChange,
    ProcessId,
    ProcessState,
    Snapshot,
    SnapshotId,
    encode_array,
)
from stillframe.topology import Description


class LastRecorded(msgspec.Struct, frozen=True):
    """What a process recorded last: its state, and in which snapshot."""

    state: ProcessState
    snapshot: SnapshotId

    def fragment(self, snapshot: SnapshotId) -> Fragment:
        """Return it as the part of a process without channels in another `snapshot`."""
        return Fragment(snapshot, self.state, {}, ())


class LastStates:
    """What the processes without channels recorded last.

    Args:
        description: which processes and channels there are.
        began: with what the epoch began, for each process; nothing if it began afresh.
    """

    def __init__(
        self, description: Description, began: dict[ProcessId, LastRecorded] | None = None
    ) -> None:
        self._description = description
        self._last = {
            process: recorded
            for process, recorded in (began or {}).items()
            if not self._channels_of(process)
        }

    def published(self, snapshot: Snapshot) -> None:
        """Note that `snapshot` is what a death goes back to now.

        Of any older one nobody may be taken back to the state: processes were told that they are
        safe from that.
        """
        for state in snapshot.state.processes:
            if not self._channels_of(state.process):
                origin = snapshot.excluded.get(state.process, snapshot.id)
                self._last[state.process] = LastRecorded(_kept(state, snapshot.id), origin)

    def of(self, process: ProcessId) -> LastRecorded | None:
        """Return what stands for `process` if it is left out; None if it cannot be."""
        return self._last.get(process)

    def refusal(self, process: ProcessId) -> str:
        """Return in words why `process` cannot be left out."""
        channels = self._channels_of(process)
        if not channels:
            return f"{process} cannot be left out: no snapshot holds a state of it yet"
        return (
            f"{process} cannot be left out: it has channels ({', '.join(channels)}), and with an "
            "older state of it the others would have received what it had not sent, or lost what "
            "it had"
        )

    def _channels_of(self, process: ProcessId) -> list[str]:
        return [
            str(channel)
            for channel in self._description.channels
            if process in (channel.source, channel.target)
        ]


def _kept(state: ProcessState, snapshot: SnapshotId) -> ProcessState:
    """Return `state`, which is in the published `snapshot`, without what can be read there."""
    if not state.keyed:
        return state
    none = KeyedChange((), 0, encode_array([]))
    return msgspec.structs.replace(state, base=snapshot, keyed=dict.fromkeys(state.keyed, none))
