"""The processes that a snapshot may exclude: those without channels.

A cut is consistent if it has no effect without its cause, and a message is the only cause between
processes (Chandy & Lamport 1985, section 3.1). Every past state of a process without channels is
part of a consistent cut, and so is the one that it recorded last. An older state of a process with
channels is not: its neighbours may since have received messages that it had not sent in that state,
and messages that it had sent and they had not received would be lost.
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
    """The state that a process recorded last, and its snapshot."""

    state: ProcessState
    snapshot: SnapshotId

    def fragment(self, snapshot: SnapshotId) -> Fragment:
        """Return it as the fragment of a process without channels in another `snapshot`."""
        return Fragment(snapshot, self.state, {}, ())


class LastStates:
    """The states that the processes without channels recorded last; `began` are those that the
    epoch began with, if it was restored."""

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
        """Use `snapshot`, the new restore point, from now on. No older state may be used again:
        processes were notified that the system will not roll back behind it."""
        for state in snapshot.state.processes:
            if not self._channels_of(state.process):
                origin = snapshot.excluded.get(state.process, snapshot.id)
                self._last[state.process] = LastRecorded(_kept(state, snapshot.id), origin)

    def of(self, process: ProcessId) -> LastRecorded | None:
        """Return the state to use if `process` is excluded; None if it cannot be."""
        return self._last.get(process)

    def refusal(self, process: ProcessId) -> str:
        """Return in words why `process` cannot be excluded."""
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
    """Return `state` without the keyed data that is stored with the published `snapshot`."""
    if not state.keyed:
        return state
    none = KeyedChange((), 0, encode_array([]))
    return msgspec.structs.replace(state, base=snapshot, keyed=dict.fromkeys(state.keyed, none))
