"""What a process and the coordinator say to each other, after the handshake."""

import msgspec

from stillframe.model import Fragment, KeyedRows, ProcessId, SnapshotId
from stillframe.protocol.stragglers import ProcessStatus
from stillframe.restore import Start
from stillframe.runtime.addresses import Address
from stillframe.runtime.os_process import OsProcess


class Joining(msgspec.Struct, frozen=True, tag=True):
    """From a process, first of all: it is new in this epoch. A ``Setup`` is due."""


class Returning(msgspec.Struct, frozen=True, tag=True):
    """From a process, first of all on a new connection: it went on while there was none. A
    ``Resumed`` is due. `is_connected` says whether all its outgoing channels have been."""

    is_connected: bool


class Resumed(msgspec.Struct, frozen=True, tag=True):
    """To a process that has come back: what happened meanwhile.

    Every snapshot with a number up to `last_number` of which it has not sent its part is over.
    `published` is the newest of which it may know. `supervisor` is who watches over it now, and
    `marker_wait_s` how long a marker may wait for messages to ride on from now on, in seconds.
    """

    last_number: int
    published: SnapshotId | None
    supervisor: OsProcess
    marker_wait_s: float


class Over(msgspec.Struct, frozen=True, tag=True):
    """To a process: it has no place in the running system, or none any more; `detail` says why."""

    detail: str


class Setup(msgspec.Struct, frozen=True, tag=True):
    """To a process: this is the epoch, and here you begin; None means afresh.

    `run` is a name that no other epoch of any system has. `marker_wait_s` is how long a marker may
    wait for messages to ride on, in seconds.
    """

    epoch: int
    run: str
    start: Start | None
    marker_wait_s: float


class Listening(msgspec.Struct, frozen=True, tag=True):
    """From a process: it takes connections here."""

    address: Address


class Addresses(msgspec.Struct, frozen=True, tag=True):
    """To a process: where every process takes connections. Connect, and begin."""

    addresses: dict[ProcessId, Address]


class Running(msgspec.Struct, frozen=True, tag=True):
    """From a process: all its outgoing channels are connected."""


class Initiate(msgspec.Struct, frozen=True, tag=True):
    """To a process: begin this snapshot."""

    snapshot: SnapshotId


class PartRows(msgspec.Struct, frozen=True, tag=True):
    """From a process: some rows of a keyed field, which belong to the part that will come."""

    snapshot: SnapshotId
    field: str
    rows: KeyedRows


class PartPiece(msgspec.Struct, frozen=True, tag=True):
    """From a process: the next bytes of its encoded state; they belong to the part to come."""

    snapshot: SnapshotId
    piece: bytes


class Part(msgspec.Struct, frozen=True, tag=True):
    """From a process: its part of a snapshot, but for the rows and pieces that went before."""

    fragment: Fragment


class CouldNotRecord(msgspec.Struct, frozen=True, tag=True):
    """From a process: its state could not be captured."""

    snapshot: SnapshotId
    detail: str


class Wanted(msgspec.Struct, frozen=True, tag=True):
    """From a process: it wants a snapshot that it initiates."""


class Abandon(msgspec.Struct, frozen=True, tag=True):
    """To a process: stop recording this snapshot."""

    snapshot: SnapshotId


class Ask(msgspec.Struct, frozen=True, tag=True):
    """To a process: say how far you are with these snapshots, between two atomic actions; and, if
    `has_quantities`, what you have of conserved quantities."""

    number: int
    snapshots: tuple[SnapshotId, ...]
    has_quantities: bool = False


class Answer(msgspec.Struct, frozen=True, tag=True):
    """From a process: how it stands, in answer to the question with this number."""

    number: int
    standing: ProcessStatus


class Published(msgspec.Struct, frozen=True, tag=True):
    """To a process: this snapshot is in the store."""

    snapshot: SnapshotId


class InStore(msgspec.Struct, frozen=True, tag=True):
    """To a process: this snapshot is in the store, and what changes after it is enough; None: some
    snapshot that the process took for published is not there."""

    snapshot: SnapshotId | None


class Trouble(msgspec.Struct, frozen=True, tag=True):
    """From a process: something went wrong on a connection, and was dealt with."""

    detail: str


class LogTrouble(msgspec.Struct, frozen=True, tag=True):
    """From a process: its event log cannot be written, and it goes on."""

    detail: str


class Failure(msgspec.Struct, frozen=True, tag=True):
    """From a process: it cannot go on. `story` is the traceback of the application's error."""

    detail: str
    story: str


AboutSnapshots = PartRows | PartPiece | Part | CouldNotRecord | Wanted | Answer
First = Joining | Returning
FromProcess = First | Listening | Running | Trouble | LogTrouble | Failure | AboutSnapshots
ToProcess = Setup | Resumed | Over | Addresses | Initiate | Abandon | Published | InStore | Ask
