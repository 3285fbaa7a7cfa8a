"""The events of a running system."""

import msgspec

from stillframe.migration import Change, listed
from stillframe.model import Abandoned, ProcessId, SnapshotId
from stillframe.store.manifest import SnapshotEntry

__all__ = [
    "AwaitingProcesses",
    "Change",
    "CodeChanged",
    "ConnectionWarning",
    "EpochBegan",
    "Event",
    "NotShared",
    "OrphansKilled",
    "OutputFailed",
    "ProcessDied",
    "SnapshotAbandoned",
    "SnapshotPublished",
    "SnapshotSkipped",
    "StoreUnavailable",
    "SystemRunning",
    "TakenOver",
]


class SystemRunning(msgspec.Struct, frozen=True, tag=True):
    """Every process runs and every channel is connected, `seconds` after the start or the death.

    `processes_s` of these were spent on ending the processes of the last epoch and starting those
    of this one. `state_s` were spent on reading the snapshot and recording the new epoch, and
    `connections_s` on loading the states and connecting the channels.
    """

    epoch: int
    seconds: float
    restored_from: SnapshotId | None
    processes_s: float
    state_s: float
    connections_s: float


class EpochBegan(msgspec.Struct, frozen=True, tag=True):
    """The processes of a new epoch were started; they connect to each other."""

    epoch: int
    restored_from: SnapshotId | None


class NotShared(msgspec.Struct, frozen=True, tag=True):
    """The processes cannot share what the topology imports, which makes starts slower. It is
    repeated in a later epoch only if the reason changes."""

    detail: str


class CodeChanged(msgspec.Struct, frozen=True, tag=True):
    """The system starts from a snapshot that was taken with other code; `changes` are those of its
    migration."""

    snapshot: SnapshotId
    changes: tuple[Change, ...]


class TakenOver(msgspec.Struct, frozen=True, tag=True):
    """The supervisor had died, and its processes have reconnected to this one, after `seconds`."""

    epoch: int
    seconds: float


class OrphansKilled(msgspec.Struct, frozen=True, tag=True):
    """The supervisor had died, and its processes, which still ran, were killed; `reason` says why
    they could not be taken over."""

    processes: tuple[ProcessId, ...]
    reason: str


class AwaitingProcesses(msgspec.Struct, frozen=True, tag=True):
    """The system waits for `processes` to join; their programs are started by the user. It also
    waits for those `starting`, which the supervisor has started. If there are none of either, the
    processes are connecting to each other."""

    processes: tuple[ProcessId, ...]
    starting: tuple[ProcessId, ...] = ()

    def __str__(self) -> str:
        awaited = []
        if self.processes:
            programs = "its program" if len(self.processes) == 1 else "their programs"
            awaited.append(f"{listed(self.processes)} to join (start {programs})")
        if self.starting:
            awaited.append(f"{listed(self.starting)} to start")
        return ", and for ".join(awaited) or "the processes to connect to each other"


class SnapshotPublished(msgspec.Struct, frozen=True, tag=True):
    """A snapshot is in the store."""

    entry: SnapshotEntry


class SnapshotAbandoned(msgspec.Struct, frozen=True, tag=True):
    """A snapshot was abandoned; `retried_as` is the one that replaces it."""

    abandoned: Abandoned
    retried_as: SnapshotId | None = None


class SnapshotSkipped(msgspec.Struct, frozen=True, tag=True):
    """A periodic snapshot was due while another one was `pending`."""

    pending: SnapshotId


class ProcessDied(msgspec.Struct, frozen=True, tag=True):
    """A process has terminated; the whole system is restored to the latest published snapshot."""

    process: ProcessId
    cause: str
    story: str = ""


class StoreUnavailable(msgspec.Struct, frozen=True, tag=True):
    """The store cannot be written to, and the system waits until it can."""

    detail: str


class ConnectionWarning(msgspec.Struct, frozen=True, tag=True):
    """A connection was refused, failed, or violated the protocol; nothing was lost."""

    detail: str


class OutputFailed(msgspec.Struct, frozen=True, tag=True):
    """The event log or fragments of a process cannot be written; the process keeps running."""

    detail: str


Event = (
    NotShared
    | CodeChanged
    | EpochBegan
    | SystemRunning
    | TakenOver
    | OrphansKilled
    | AwaitingProcesses
    | SnapshotPublished
    | SnapshotAbandoned
    | SnapshotSkipped
    | ProcessDied
    | StoreUnavailable
    | ConnectionWarning
    | OutputFailed
)
"""Any of these events."""
