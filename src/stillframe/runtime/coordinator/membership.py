"""The members of one epoch: the processes connected to the coordinator, and their addresses.

At the start of an epoch a process joins and receives its initial state; it reports where it
listens; when all have, each receives the addresses of the others; each reports that its channels
are connected; then all run.

A process whose connection breaks, or whose coordinator was replaced, keeps running and reconnects.
It is awaited unless it is known to have terminated: its operating-system process here has exited,
or the kernel of its machine has closed the connection.
"""

import asyncio
import errno
import secrets
from collections.abc import Callable, Collection

import msgspec

from stillframe.errors import ProtocolViolation, Refused, StillframeError, describe, text_of
from stillframe.model import DECODING_ERRORS, ProcessId
from stillframe.protocol import wire
from stillframe.protocol.handshake import NONCE_BYTES, Listener, Welcome
from stillframe.protocol.policy import Policy
from stillframe.restore import Start
from stillframe.runtime import control, events
from stillframe.runtime.network.acceptor import Acceptor
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.network.connection import InboundConnection
from stillframe.topology import Description

_decode = msgspec.msgpack.Decoder(control.FromProcess).decode
RUN_BYTES = 16
TIMEOUT_S = 10.0
MARKER_WAIT_S_MAX = 1.0
RETURN_TURNS = 10
"""In how many turns the time passes in which a process must reconnect. While the coordinator is
busy with others, it could not answer, and at most one of them passes."""
_NETWORK_ERRORS = frozenset(
    (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN)
)


class MemberConnection(InboundConnection):
    """The coordinator's end of the connection to one process."""

    def __init__(self, membership: "Membership", listener: Listener) -> None:
        super().__init__(listener)
        self.process: ProcessId | None = None
        self._membership = membership
        self._is_dropped = False
        self._has_spoken = False

    def take(self, frame: wire.Frame) -> None:
        """Pass on a message of the process."""
        if not isinstance(frame, wire.Control):
            self.process = self.authenticate(frame)
            if self.process is not None:
                # Its first word belongs to the handshake: a silent one, however often, is not kept.
                self.reader.open(wire.Kind.CONTROL, frame_bytes_max=wire.GREETING_BYTES_MAX)
                self.write_greeting(Welcome(0))
            return
        assert self.process is not None
        if not self._has_spoken:
            self._has_spoken = True
            self.open(wire.Kind.CONTROL, frame_bytes_max=wire.CONTROL_BYTES_MAX)
        try:
            message = _decode(frame.encoded)
        except DECODING_ERRORS as error:
            raise ProtocolViolation(f"its message cannot be read: {text_of(error)}") from error
        self._membership.on_message(self.process, message, self)

    def send(self, message: control.ToProcess) -> None:
        """Send a message to the process."""
        self.write(wire.encode_control(message))

    def write(self, encoded: bytes | bytearray) -> None:
        """Send a message that was encoded."""
        if self.transport is not None:
            self.transport.write(encoded)

    def refuse(self, detail: str) -> None:
        """Dismiss a process that has no place, and close."""
        self.send(control.Dismissed(detail))
        self.broken(Refused(detail))
        self.close()

    def broken(self, error: StillframeError) -> None:
        """Report why a stranger is refused, or a process is dropped."""
        self._is_dropped = True
        who = self.process or self.peer
        detail = f"the connection of {who} to the coordinator was closed: {error}"
        if self.process is None:
            self.decline(error)
            self._membership.acceptor.refused(detail)
        else:
            self._membership.warn(detail)

    def crashed(self, error: Exception) -> None:
        """Drop the process: it would only meet the bug again."""
        self._is_dropped = True
        self._membership.warn(f"a bug in stillframe: {describe(error)}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle a closed connection: its process terminated, will reconnect, or never joined."""
        super().connection_lost(exc)
        if self.process is not None:
            is_cut = isinstance(exc, OSError) and exc.errno in _NETWORK_ERRORS
            self._membership.lost(self.process, self, is_cut=is_cut, is_dropped=self._is_dropped)


class CoordinatorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings for taking snapshots and awaiting processes, the same in every epoch; times in
    seconds."""

    timeout_s: float = TIMEOUT_S
    """A snapshot that takes longer is abandoned."""
    marker_wait_s: float = 0.0
    """How long a marker may wait for messages to ride on; 0 sends it at once."""
    policy: Policy = Policy.ABANDON
    """What to do with a snapshot for which a fragment is missing."""
    return_s: float = 15.0
    """How long the system waits for a process that may reconnect."""


class EpochStart(msgspec.Struct, frozen=True, kw_only=True):
    """The start of one epoch: the initial states `starts`, None for a fresh start, and the number
    of its first snapshot. The secret proves the identity of a process; it is empty with TLS. An
    epoch that `is_taken_over` continues after its coordinator died: every process was connected and
    must reconnect.

    `emit` receives events, and `departed` a process that has terminated, with its last words;
    `runs` tells whether the operating-system process that was started for a process still runs.
    """

    emit: Callable[[events.Event], None]
    departed: Callable[[ProcessId, control.Failure | None], None]
    runs: Callable[[ProcessId], bool] = lambda process: False
    epoch: int
    secret: bytes
    starts: dict[ProcessId, Start] | None = None
    first_number: int = 1
    is_taken_over: bool = False


class Membership:
    """The connections of the processes of one epoch. `on_message` receives what a process reports
    about snapshots, `returned` one that has rejoined; it must be sent ``Rejoined`` first."""

    def __init__(
        self,
        description: Description,
        config: CoordinatorConfig,
        start: EpochStart,
        *,
        on_message: Callable[[ProcessId, control.SnapshotMessage], None],
        returned: Callable[[ProcessId], None],
    ) -> None:
        self.running = asyncio.Event()
        # All processes may connect at the same time, at the start or when they reconnect.
        expected_count = len(description.processes)
        self.acceptor = Acceptor(self._answer, self.warn, expected_count=expected_count)
        self._description = description
        self._config = config
        self._start = start
        self._run = secrets.token_hex(RUN_BYTES)
        self._on_message = on_message
        self._returned = returned
        self._connections: dict[ProcessId, MemberConnection] = {}
        self._known = set(description.processes) if start.is_taken_over else set[ProcessId]()
        self._returning: dict[ProcessId, asyncio.TimerHandle] = {}
        self._addresses: dict[ProcessId, Address] = {}
        self._connected: set[ProcessId] = set()
        self._failures: dict[ProcessId, control.Failure] = {}
        self._is_over = False

    async def listen(self, listen: Address, certificates: str | None) -> Address:
        """Listen, and await the processes that are to return; return where (``Acceptor.open``)."""
        found = await self.acceptor.open(listen, certificates)
        for process in self._known:
            self._await(process)
        return found

    def is_there(self, process: ProcessId) -> bool:
        """Return whether `process` is connected."""
        return process in self._connections

    @property
    def not_listening(self) -> tuple[ProcessId, ...]:
        """The processes that have not yet reported where they listen."""
        return tuple(p for p in self._description.processes if p not in self._addresses)

    @property
    def missing(self) -> tuple[ProcessId, ...]:
        """The processes that are not connected, or have not yet reported where they listen."""
        silent = () if self._start.is_taken_over else self.not_listening
        return tuple(
            p for p in self._description.processes if p not in self._connections or p in silent
        )

    def send(self, process: ProcessId, message: control.ToProcess) -> None:
        """Send a message to a process, if it is connected."""
        if process in self._connections:
            self._connections[process].send(message)

    def broadcast(self, message: control.ToProcess, *, but: Collection[ProcessId] = ()) -> None:
        """Send a message to every connected process, `but` some."""
        encoded = wire.encode_control(message)
        for process, connection in self._connections.items():
            if process not in but:
                connection.write(encoded)

    def warn(self, detail: str) -> None:
        """Report that a connection failed, and the failure was handled."""
        self._start.emit(events.ConnectionWarning(detail))

    def expect_departures(self) -> None:
        """End the epoch: from now on a terminating process is not an event."""
        self._is_over = True
        for waiting in self._returning.values():
            waiting.cancel()

    def hang_up(self) -> None:
        """Dismiss all processes, and close their connections."""
        self.acceptor.close()
        for connection in self._connections.values():
            connection.send(control.Dismissed(control.EPOCH_OVER))
            connection.close()

    def lost(
        self, process: ProcessId, connection: MemberConnection, *, is_cut: bool, is_dropped: bool
    ) -> None:
        """Handle a closed connection of `process`: by us because of what was received on it if
        `is_dropped`, by a network failure, which says nothing of the process, if `is_cut`."""
        if self._is_over or self._connections.get(process) is not connection:
            return
        del self._connections[process]
        may_return = not is_dropped and process not in self._failures
        if may_return and (is_cut or self._start.runs(process)):
            if is_cut:
                self.warn(
                    f"the connection of {process} to the coordinator was lost: waiting "
                    "for it to reconnect"
                )
            self._await(process)
        else:
            self._on_departed(process, self._failures.get(process))

    def on_message(
        self, process: ProcessId, message: control.FromProcess, connection: MemberConnection
    ) -> None:
        """Handle a message of a process about itself; pass on one about snapshots. One that is sent
        before the request to join is a ProtocolViolation."""
        if self._is_over and self._connections.get(process) is not connection:
            # It was let in too late to hear it with the others: it is to find the next epoch.
            connection.close()
            return
        match message:
            case control.JoinRequest():
                self._join(process, connection)
            case control.RejoinRequest(is_connected):
                self._take_back(process, connection, is_connected=is_connected)
            case _ if self._connections.get(process) is not connection:
                raise ProtocolViolation("it sent a message before it reported whether it is new")
            case control.ListeningOn(address):
                self._addresses[process] = address
                if not self.not_listening:
                    self.broadcast(control.Addresses(self._addresses))
            case control.Ready():
                self._record_connected(process)
            case control.ConnectionWarning(detail):
                self.warn(detail)
            case control.OutputFailed(detail):
                self._start.emit(events.OutputFailed(detail))
            case control.Failure():
                self._failures[process] = message
            case _:
                self._on_message(process, message)

    def _on_departed(self, process: ProcessId, failure: control.Failure | None) -> None:
        # This epoch ends: a process that connects now is to find the next one.
        self.acceptor.close()
        self._start.departed(process, failure)

    def _join(self, process: ProcessId, connection: MemberConnection) -> None:
        """Let a new process join, and send its initial state."""
        if process in self._connections:
            connection.refuse(f"process {process!r} has joined already: each process can join once")
        elif process in self._known:
            connection.refuse(
                f"{control.EPOCH_OVER}, because process {process!r} started again: join again"
            )
            detail = f"process {process}: it started again instead of continuing"
            self._on_departed(process, control.Failure(detail, ""))
        else:
            self._known.add(process)
            self._connections[process] = connection
            epoch, starts = self._start.epoch, self._start.starts
            start = starts[process] if starts else None
            connection.send(control.Setup(epoch, self._run, start, self._config.marker_wait_s))

    def _take_back(
        self, process: ProcessId, connection: MemberConnection, *, is_connected: bool
    ) -> None:
        """Let a process rejoin that kept running, and send it what happened meanwhile."""
        if process not in self._known:
            connection.refuse(control.EPOCH_OVER)
            return
        if process in self._returning:
            self._returning.pop(process).cancel()
        if process in self._connections:
            self._connections[process].close()
        self._connections[process] = connection
        self._returned(process)
        if is_connected:
            self._record_connected(process)

    def _await(self, process: ProcessId, turn_count: int = RETURN_TURNS) -> None:
        if not turn_count:
            detail = f"it did not reconnect within {self._config.return_s:.0f} s"
            self._on_departed(process, control.Failure(f"process {process}: {detail}", ""))
            return
        turn_s, loop = self._config.return_s / RETURN_TURNS, asyncio.get_running_loop()
        self._returning[process] = loop.call_later(turn_s, self._await, process, turn_count - 1)

    def _record_connected(self, process: ProcessId) -> None:
        self._connected.add(process)
        if len(self._connected) == len(self._description.processes):
            self.running.set()

    def _answer(self) -> MemberConnection:
        listener = Listener(
            secret=self._start.secret,
            epoch=self._start.epoch,
            topology_hash=self._description.hash,
            target=None,
            sources=tuple(self._description.processes),
            nonce=secrets.token_bytes(NONCE_BYTES),
        )
        return MemberConnection(self, listener)
