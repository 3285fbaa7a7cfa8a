"""What a process and the coordinator say to each other, after the handshake."""

import msgspec

from stillframe.errors import ProtocolViolation
from stillframe.model import Fragment, KeyedRows, ProcessId, SnapshotId
from stillframe.protocol import wire
from stillframe.protocol.stragglers import ProcessStatus
from stillframe.restore import Start
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.network.connection import Credentials
from stillframe.runtime.os_process import OsProcess


class JoinRequest(msgspec.Struct, frozen=True, tag="Joining"):
    """From a process, first of all: it is new in this epoch. A ``Setup`` is due."""


class RejoinRequest(msgspec.Struct, frozen=True, tag="Returning"):
    """From a process, first of all on a new connection: it went on while there was none. A
    ``Rejoined`` is due. `is_connected` says whether all its outgoing channels have been."""

    is_connected: bool


class Rejoined(msgspec.Struct, frozen=True, tag="Resumed"):
    """To a process that has come back: what happened meanwhile.

    Every snapshot with a number up to `last_number` of which it has not sent its part is over.
    `published` is the newest of which it may know. `supervisor` is who watches over it now, and
    `marker_wait_s` how long a marker may wait for messages to ride on from now on, in seconds.
    """

    last_number: int
    published: SnapshotId | None
    supervisor: OsProcess
    marker_wait_s: float


class Dismissed(msgspec.Struct, frozen=True, tag="Over"):
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


class ListeningOn(msgspec.Struct, frozen=True, tag="Listening"):
    """From a process: it takes connections here."""

    address: Address


class Addresses(msgspec.Struct, frozen=True, tag=True):
    """To a process: where every process takes connections. Connect, and begin."""

    addresses: dict[ProcessId, Address]


class Ready(msgspec.Struct, frozen=True, tag="Running"):
    """From a process: all its outgoing channels are connected."""


class Initiate(msgspec.Struct, frozen=True, tag=True):
    """To a process: begin this snapshot."""

    snapshot: SnapshotId


class FragmentRows(msgspec.Struct, frozen=True, tag="PartRows"):
    """From a process: some rows of a keyed field, which belong to the part that will come."""

    snapshot: SnapshotId
    field: str
    rows: KeyedRows


class FragmentChunk(msgspec.Struct, frozen=True, tag="PartPiece"):
    """From a process: the next bytes of its encoded state; they belong to the part to come."""

    snapshot: SnapshotId
    chunk: bytes = msgspec.field(name="piece")


class FragmentComplete(msgspec.Struct, frozen=True, tag="Part"):
    """From a process: its part of a snapshot, but for the rows and pieces that went before."""

    fragment: Fragment


class SnapshotDeclined(msgspec.Struct, frozen=True, tag="CouldNotRecord"):
    """From a process: its state could not be captured."""

    snapshot: SnapshotId
    detail: str


class SnapshotRequested(msgspec.Struct, frozen=True, tag="Wanted"):
    """From a process: it wants a snapshot that it initiates."""


class Abandon(msgspec.Struct, frozen=True, tag=True):
    """To a process: stop recording this snapshot."""

    snapshot: SnapshotId


class StatusRequest(msgspec.Struct, frozen=True, tag="Ask"):
    """To a process: say how far you are with these snapshots, between two atomic actions; and, if
    `has_quantities`, what you have of conserved quantities."""

    number: int
    snapshots: tuple[SnapshotId, ...]
    has_quantities: bool = False


class StatusReply(msgspec.Struct, frozen=True, tag="Answer"):
    """From a process: how it stands, in answer to the question with this number."""

    number: int
    status: ProcessStatus = msgspec.field(name="standing")


class Published(msgspec.Struct, frozen=True, tag=True):
    """To a process: this snapshot is in the store."""

    snapshot: SnapshotId


class SnapshotDurable(msgspec.Struct, frozen=True, tag="InStore"):
    """To a process: this snapshot is in the store, and what changes after it is enough; None: some
    snapshot that the process took for published is not there."""

    snapshot: SnapshotId | None


class ConnectionWarning(msgspec.Struct, frozen=True, tag="Trouble"):
    """From a process: something went wrong on a connection, and was dealt with."""

    detail: str


class OutputFailed(msgspec.Struct, frozen=True, tag="LogTrouble"):
    """From a process: its event log cannot be written, and it goes on."""

    detail: str


class Failure(msgspec.Struct, frozen=True, tag=True):
    """From a process: it cannot go on. `story` is the traceback of the application's error."""

    detail: str
    story: str


SnapshotMessage = (
    FragmentRows
    | FragmentChunk
    | FragmentComplete
    | SnapshotDeclined
    | SnapshotRequested
    | StatusReply
)
FirstMessage = JoinRequest | RejoinRequest
FromProcess = (
    FirstMessage
    | ListeningOn
    | Ready
    | ConnectionWarning
    | OutputFailed
    | Failure
    | SnapshotMessage
)
ToProcess = (
    Setup
    | Rejoined
    | Dismissed
    | Addresses
    | Initiate
    | Abandon
    | Published
    | SnapshotDurable
    | StatusRequest
)
CLOSE_S_MAX = 5.0
"""How long the end of a process waits for its event log, and again for its fragments."""


class OutputDirs(msgspec.Struct, frozen=True):
    """Where it goes; all of it is left out that has no directory.

    Attributes:
        log: the directory of the event log (``eventlog``).
        fragments: the directory of what each process records of snapshots (``store.fragments``).
    """

    log: str | None = None
    fragments: str | None = None

    @property
    def any(self) -> bool:
        """Whether there are any: then the end of a process takes a while."""
        return self.log is not None or self.fragments is not None


NO_OUTPUT = OutputDirs()


class _Unfinished:
    """What one process has sent ahead of its part of one snapshot."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.rows: dict[str, list[KeyedRows]] = {}
        self.byte_count = 0


class ChunkBuffer:
    """Keeps what comes before the parts of snapshots that are pending, and puts it into them."""

    def __init__(self) -> None:
        self._ahead: dict[tuple[SnapshotId, ProcessId], _Unfinished] = {}

    def add(self, process: ProcessId, message: FragmentRows | FragmentChunk) -> None:
        """Take what `process` sends ahead.

        Raises:
            ProtocolViolation: it is more than a part may have.
        """
        ahead = self._ahead.setdefault((message.snapshot, process), _Unfinished())
        ahead.byte_count += MESSAGE_EXTRA_BYTES
        match message:
            case FragmentRows(_, field, rows):
                ahead.byte_count += len(field) + len(rows.keys) + len(rows.values)
                ahead.rows.setdefault(field, []).append(rows)
            case FragmentChunk(_, piece):
                ahead.byte_count += len(piece)
                ahead.pieces.append(piece)
        if ahead.byte_count > FRAGMENT_BYTES_MAX:
            raise ProtocolViolation(
                f"its part of snapshot {message.snapshot} has more than "
                f"{FRAGMENT_BYTES_MAX:,} bytes"
            )

    def complete(self, fragment: Fragment) -> Fragment:
        """Return a part with all that its process sent ahead of it."""
        ahead = self._ahead.pop((fragment.snapshot, fragment.state.process), None)
        if ahead is None:
            return fragment
        state = fragment.state
        keyed = {
            field: msgspec.structs.replace(change, rows=tuple(ahead.rows.get(field, ())))
            for field, change in state.keyed.items()
        }
        encoded = b"".join(ahead.pieces) if ahead.pieces else state.encoded
        return msgspec.structs.replace(
            fragment, state=msgspec.structs.replace(state, encoded=encoded, keyed=keyed)
        )

    def forget(self, snapshot: SnapshotId) -> None:
        """Drop what belongs to `snapshot`: it has ended."""
        for key in [key for key in self._ahead if key[0] == snapshot]:
            del self._ahead[key]


ORPHANED_S = 60.0
"""How long a process runs without a coordinator before it terminates, in seconds."""
EXIT_FAILED = 1
EXIT_JOIN_REJECTED = 2
"""The coordinator, or we ourselves, said no before we were let in."""


class LaunchSpec(msgspec.Struct, frozen=True):
    """What a child must know, as one line of JSON on its standard input.

    `supervisor` watches over it, and `orphaned_s` is how long it goes on without a coordinator, in
    seconds. `pipeline` is the directory of the pipeline in which this process is a service,
    `system` the name of its system there. `traces` are what it writes of itself. A process that
    `is_elsewhere` than the coordinator waits for it, says itself what it has to say, and finds out
    by itself what it need not be told.
    """

    me: Credentials
    reference: str
    search_path: list[str]
    coordinator: Address
    listen: Address
    supervisor: OsProcess
    orphaned_s: float
    pipeline: str | None = None
    system: str = ""
    traces: OutputDirs = NO_OUTPUT
    is_elsewhere: bool = False


FRAGMENT_BYTES_MAX = wire.CONTROL_BYTES_MAX - 2**20
MESSAGE_EXTRA_BYTES = 256
"""What a message ahead of a part is taken to cost beyond its bytes: those of small ones count."""
