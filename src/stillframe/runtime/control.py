"""The messages between a process and the coordinator after the handshake, and what a process is
launched with."""

import msgspec

from stillframe.errors import ProtocolViolation
from stillframe.model import Fragment, KeyedRows, ProcessId, SnapshotId
from stillframe.protocol import wire
from stillframe.protocol.stragglers import ProcessStatus
from stillframe.restore import Start
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.network.connection import Credentials
from stillframe.runtime.os_process import OsProcess

CLOSE_S_MAX = 5.0
"""How long a process that terminates waits for its event log, and again for its fragments."""
ORPHANED_S = 60.0
"""How long a process runs without a coordinator before it terminates, in seconds."""
EXIT_FAILED = 1
EXIT_JOIN_REJECTED = 2
"""The process was refused, by the coordinator or on its own decision, before it had joined."""
FRAGMENT_BYTES_MAX = wire.CONTROL_BYTES_MAX - 2**20
MESSAGE_EXTRA_BYTES = 256
"""What a chunk counts beyond its bytes: many small ones cost too."""


class JoinRequest(msgspec.Struct, frozen=True, tag=True):
    """From a process, the first message: it is new in this epoch. ``Setup`` is the reply."""


class RejoinRequest(msgspec.Struct, frozen=True, tag=True):
    """From a process, the first message on a new connection: it kept running without one.
    ``Rejoined`` is the reply. `is_connected` says whether all its outgoing channels have been."""

    is_connected: bool


class Rejoined(msgspec.Struct, frozen=True, tag=True):
    """To a process that has rejoined: what happened meanwhile.

    Every snapshot with a number up to `last_number` whose fragment it has not sent has ended.
    `published` is the newest one that it may be notified of, and `supervisor` its supervisor now.
    `marker_wait_s` is how long a marker may wait for messages to ride on, in seconds.
    """

    last_number: int
    published: SnapshotId | None
    supervisor: OsProcess
    marker_wait_s: float


EPOCH_OVER = "this epoch of the system has ended: it was stopped, or continues in a new epoch"


class Dismissed(msgspec.Struct, frozen=True, tag=True):
    """To a process: it has no place, or no longer one, in the system; `detail` says why."""

    detail: str


class Setup(msgspec.Struct, frozen=True, tag=True):
    """To a process: the epoch and its initial state, None for a fresh start.

    `run` is unique to this epoch of this system. `marker_wait_s` is how long a marker may
    wait for messages to ride on, in seconds.
    """

    epoch: int
    run: str
    start: Start | None
    marker_wait_s: float


class ListeningOn(msgspec.Struct, frozen=True, tag=True):
    """From a process: the address at which it accepts connections."""

    address: Address


class Addresses(msgspec.Struct, frozen=True, tag=True):
    """To a process: the addresses of all processes. It is to connect, and to run."""

    addresses: dict[ProcessId, Address]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From a process: all its outgoing channels are connected."""


class Initiate(msgspec.Struct, frozen=True, tag=True):
    """To a process: begin this snapshot."""

    snapshot: SnapshotId


class FragmentRows(msgspec.Struct, frozen=True, tag=True):
    """From a process: rows of a keyed field, sent before the fragment that they belong to."""

    snapshot: SnapshotId
    field: str
    rows: KeyedRows


class FragmentChunk(msgspec.Struct, frozen=True, tag=True):
    """From a process: the next bytes of its encoded state, sent before their fragment."""

    snapshot: SnapshotId
    chunk: bytes


class FragmentComplete(msgspec.Struct, frozen=True, tag=True):
    """From a process: its fragment of a snapshot, except for the rows and chunks sent before."""

    fragment: Fragment


class SnapshotDeclined(msgspec.Struct, frozen=True, tag=True):
    """From a process: its state could not be captured."""

    snapshot: SnapshotId
    detail: str


class SnapshotRequested(msgspec.Struct, frozen=True, tag=True):
    """From a process: it asks to initiate a snapshot."""


class Abandon(msgspec.Struct, frozen=True, tag=True):
    """To a process: stop recording this snapshot."""

    snapshot: SnapshotId


class StatusRequest(msgspec.Struct, frozen=True, tag=True):
    """To a process: report, between two atomic actions, your status and that of these snapshots;
    with `has_quantities` your conserved quantities too."""

    number: int
    snapshots: tuple[SnapshotId, ...]
    has_quantities: bool = False


class StatusReply(msgspec.Struct, frozen=True, tag=True):
    """From a process: its status, in reply to the request with this number."""

    number: int
    status: ProcessStatus


class Published(msgspec.Struct, frozen=True, tag=True):
    """To a process: this snapshot was published."""

    snapshot: SnapshotId


class SnapshotDurable(msgspec.Struct, frozen=True, tag=True):
    """To a process: this snapshot is in the store, so the next fragment may hold only what changed
    since. None: one that the process took for published is missing."""

    snapshot: SnapshotId | None


class ConnectionWarning(msgspec.Struct, frozen=True, tag=True):
    """From a process: a connection failed, and the failure was handled."""

    detail: str


class OutputFailed(msgspec.Struct, frozen=True, tag=True):
    """From a process: its event log or fragments cannot be written; it keeps running."""

    detail: str


class Failure(msgspec.Struct, frozen=True, tag=True):
    """From a process: it cannot continue. `story` is the traceback of the application's error."""

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


class OutputDirs(msgspec.Struct, frozen=True):
    """The directories, or addresses in object stores, of the event `log` (``eventlog``) and of the
    `fragments` that each process records of snapshots (``store.fragments``); None for nowhere."""

    log: str | None = None
    fragments: str | None = None

    @property
    def any(self) -> bool:
        """Whether anything is written: then a process takes a while to terminate."""
        return self.log is not None or self.fragments is not None


NO_OUTPUT = OutputDirs()


def size_of(message: FragmentRows | FragmentChunk) -> int:
    """Return how much a message counts towards the `FRAGMENT_BYTES_MAX` of a fragment."""
    match message:
        case FragmentRows(_, field, rows):
            return len(field) + len(rows.keys) + len(rows.values) + MESSAGE_EXTRA_BYTES
        case FragmentChunk(_, chunk):
            return len(chunk) + MESSAGE_EXTRA_BYTES


class _Unfinished(msgspec.Struct):
    """The chunks and rows that one process has sent of one fragment."""

    chunks: list[bytes] = []
    rows: dict[str, list[KeyedRows]] = {}
    byte_count: int = 0


class ChunkBuffer:
    """Collects the chunks and rows of pending fragments, and puts them together."""

    def __init__(self) -> None:
        self._unfinished: dict[tuple[SnapshotId, ProcessId], _Unfinished] = {}

    def add(self, process: ProcessId, message: FragmentRows | FragmentChunk) -> None:
        """Take rows or a chunk of a fragment of `process`; one that becomes too large is a
        ProtocolViolation."""
        unfinished = self._unfinished.setdefault((message.snapshot, process), _Unfinished())
        unfinished.byte_count += size_of(message)
        match message:
            case FragmentRows(_, field, rows):
                unfinished.rows.setdefault(field, []).append(rows)
            case FragmentChunk(_, chunk):
                unfinished.chunks.append(chunk)
        if unfinished.byte_count > FRAGMENT_BYTES_MAX:
            raise ProtocolViolation(
                f"its fragment of snapshot {message.snapshot} has more than "
                f"{FRAGMENT_BYTES_MAX:,} bytes"
            )

    def complete(self, fragment: Fragment) -> Fragment:
        """Return a fragment with its chunks and rows."""
        unfinished = self._unfinished.pop((fragment.snapshot, fragment.state.process), None)
        if unfinished is None:
            return fragment
        state = fragment.state
        keyed = {
            field: msgspec.structs.replace(change, rows=tuple(unfinished.rows.get(field, ())))
            for field, change in state.keyed.items()
        }
        encoded = b"".join(unfinished.chunks) if unfinished.chunks else state.encoded
        return msgspec.structs.replace(
            fragment, state=msgspec.structs.replace(state, encoded=encoded, keyed=keyed)
        )

    def forget(self, snapshot: SnapshotId) -> None:
        """Drop the fragments of `snapshot`: it has ended."""
        for key in [key for key in self._unfinished if key[0] == snapshot]:
            del self._unfinished[key]


class LaunchSpec(msgspec.Struct, frozen=True):
    """The configuration of a child process, as one line of JSON on its standard input.

    `supervisor` watches over it, and `orphaned_s` is how long it runs without a coordinator, in
    seconds. `pipeline` is the place of the pipeline in which this process is a service,
    `pipeline_epoch` its epoch, from which the state of the process is, and `system` the name of its
    system there. `outputs` says where it writes its event log and
    fragments. It writes why it failed, a ``Failure``, into the directory `last_words`, in a file
    that is called like its process number. A process that `is_elsewhere` than the coordinator waits
    for it, prints its own messages, and determines the hash of its topology itself.
    """

    me: Credentials
    reference: str
    search_path: list[str]
    coordinator: Address
    listen: Address
    supervisor: OsProcess
    orphaned_s: float
    pipeline: str | None = None
    pipeline_epoch: int = 0
    system: str = ""
    outputs: OutputDirs = NO_OUTPUT
    is_elsewhere: bool = False
    last_words: str = ""
