"""Asks for snapshots, collects their parts, gives up in time, publishes. One epoch each.

The coordinator decides nothing about what a snapshot is: ``protocol/assembler.py`` does. Writing
happens in a thread, one snapshot after the other, so that asking and collecting go on meanwhile.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import assert_never, cast

import msgspec

from stillframe.errors import (
    ProtocolViolation,
    Refused,
    StillframeError,
    Unavailable,
    UsageError,
)
from stillframe.model import (
    Abandoned,
    Fragment,
    ProcessId,
    ProcessState,
    Reason,
    Snapshot,
    SnapshotId,
)
from stillframe.protocol import wire
from stillframe.protocol.announcements import Announcements
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.handshake import NONCE_BYTES, Declined, Greeting, Listener, Welcome
from stillframe.restore import Start
from stillframe.runtime import control, events
from stillframe.runtime.host import describe
from stillframe.runtime.link import LOOPBACK, Connection
from stillframe.store.manifest import Entry
from stillframe.store.store import Store

PENDING_COUNT_MAX = 64
"""So many snapshots may be under way at once; more are refused."""

_decode = msgspec.msgpack.Decoder(control.FromProcess).decode


class MemberLine(Connection):
    """The coordinator's end of the connection to one process."""

    def __init__(self, coordinator: "Coordinator", listener: Listener) -> None:
        super().__init__()
        self.process: ProcessId | None = None
        self._coordinator = coordinator
        self._listener = listener

    def take(self, frame: wire.Frame) -> None:
        """Hand what the process says to the coordinator."""
        if isinstance(frame, wire.Control):
            assert self.process is not None
            try:
                message = _decode(frame.encoded)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise ProtocolViolation(f"its message cannot be read: {error}") from error
            self._coordinator.heard(self.process, message)
            return
        answer = self._listener.receive(cast(Greeting, frame))
        if not isinstance(answer, str):
            self.write_greeting(answer)
            return
        self._coordinator.check_free(answer)
        self.process = answer
        self.open(wire.Kind.CONTROL, frame_bytes_max=wire.CONTROL_BYTES_MAX)
        self.write_greeting(Welcome(0))
        self._coordinator.arrived(answer, self)

    def say(self, message: control.ToProcess) -> None:
        """Tell the process."""
        if self.transport is not None:
            self.transport.write(wire.encode_control(message))

    def broken(self, error: StillframeError) -> None:
        """Say why a stranger is refused, or why a process is dropped."""
        if self.process is None and isinstance(error, Refused):
            self.write_greeting(Declined(str(error)[:1000]))
        who = self.process or (self.transport and self.transport.get_extra_info("peername"))
        self._coordinator.emit(
            events.ConnectionTrouble(
                f"the connection of {who} to the coordinator was closed: {error}"
            )
        )

    def crashed(self, error: Exception) -> None:
        """Drop the process, as if its connection had ended."""
        self._coordinator.emit(events.ConnectionTrouble(f"a bug in stillframe: {describe(error)}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The process is gone, or was never one."""
        super().connection_lost(exc)
        if self.process is not None:
            self._coordinator.departed(self.process)


class Coordinator:
    """Takes snapshots of the processes of one epoch.

    Args:
        store: where snapshots are published; open for writing.
        check: raises a UsageError if a recorded state could not be restored.
        secret: the secret of this epoch.
        starts: where each process begins; None for a fresh start.
        first_number: the number of the first snapshot.
        timeout_s: how long a snapshot may take until it is abandoned.
        emit: takes what happens.
        departed: called with a process whose connection ended, and with its last words.
    """

    def __init__(
        self,
        store: Store,
        *,
        check: Callable[[ProcessState], None],
        secret: bytes,
        starts: dict[ProcessId, Start] | None,
        first_number: int,
        timeout_s: float,
        emit: Callable[[events.Event], None],
        departed: Callable[[ProcessId, control.Failure | None], None],
    ) -> None:
        self.store = store
        self.emit = emit
        self.next_number = first_number
        self.running = asyncio.Event()
        self._check = check
        self._secret = secret
        self._starts = starts
        self._timeout_s = timeout_s
        self._departed = departed
        self._description = store.description
        self._assembler = Assembler(self._description, store.epoch)
        self._announcements = Announcements()
        self._lines: dict[ProcessId, MemberLine] = {}
        self._ports: dict[ProcessId, int] = {}
        self._connected: set[ProcessId] = set()
        self._failures: dict[ProcessId, control.Failure] = {}
        self._wanted: set[ProcessId] = set()
        self._results: dict[SnapshotId, asyncio.Future[Entry | Abandoned]] = {}
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._writing: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        # Wall time that goes on evenly: a clock that is set must not move a deadline.
        self._clock_offset_s = time.time() - time.monotonic()

    async def listen(self) -> int:
        """Begin to listen on the loopback address; return the port.

        Raises:
            Unavailable: the machine has no port or no descriptor left.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._answer, LOOPBACK, 0)
        except OSError as error:
            raise Unavailable(
                f"no connection can be taken on {LOOPBACK}: {error}; end programs that keep many "
                "ports or files open, or raise the limit (ulimit -n)"
            ) from error
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def awaited(self) -> tuple[ProcessId, ...]:
        """The processes that have not connected yet."""
        return tuple(p for p in self._description.processes if p not in self._lines)

    @property
    def under_way(self) -> tuple[SnapshotId, ...]:
        """The snapshots that have begun and are neither published nor abandoned, oldest first."""
        return tuple(self._results)

    def missing(self, snapshot: SnapshotId) -> tuple[ProcessId, ...]:
        """Return the processes that a snapshot under way waits for."""
        return self._assembler.missing(snapshot) if snapshot in self._assembler.pending else ()

    def begin(self, initiator: ProcessId) -> asyncio.Future[Entry | Abandoned]:
        """Begin a snapshot; the future has its entry in the store, or why it was abandoned.

        Raises:
            UsageError: there is no such process, or too many snapshots are under way.
        """
        initiators = self._description.initiators(initiator)
        if len(self._results) >= PENDING_COUNT_MAX:
            raise UsageError(
                f"{PENDING_COUNT_MAX} snapshots are under way already: wait until one has ended"
            )
        snapshot = SnapshotId(initiator, self.next_number)
        self.next_number += 1
        self._results[snapshot] = asyncio.get_running_loop().create_future()
        result = self._results[snapshot]
        self._assembler.begin(snapshot, self._now(), timeout_s=self._timeout_s)
        self._set_timer()
        for process in initiators:
            self._say(process, control.Initiate(snapshot))
        return result

    def check_free(self, process: ProcessId) -> None:
        """Raise Refused if `process` is connected already."""
        if process in self._lines:
            raise Refused(f"process {process!r} is already there: each can join once")

    def arrived(self, process: ProcessId, line: MemberLine) -> None:
        """A process has connected: tell it where to begin."""
        self._lines[process] = line
        line.say(control.Setup(self._starts[process] if self._starts else None))

    def departed(self, process: ProcessId) -> None:
        """A process's connection has ended."""
        if not self._is_closed:
            self._departed(process, self._failures.get(process))

    def heard(self, process: ProcessId, message: control.FromProcess) -> None:
        """Act on what a process says."""
        match message:
            case control.Listening(port):
                self._note_port(process, port)
            case control.Running():
                self._note_connected(process)
            case control.Part(fragment):
                self._take_part(process, fragment)
            case control.CouldNotRecord(snapshot, detail):
                self._give_up(snapshot, Reason.NOT_RECORDED, f"{process}: {detail}")
            case control.Wanted():
                self._begin_for(process)
            case control.Trouble(detail):
                self.emit(events.ConnectionTrouble(detail))
            case control.Failure():
                self._failures[process] = message
            case _:
                assert_never(message)

    def _begin_for(self, process: ProcessId) -> None:
        """Begin a snapshot that a process wants; one more after its own that is under way."""
        if any(snapshot.initiator == process for snapshot in self._results):
            self._wanted.add(process)
        elif len(self._results) < PENDING_COUNT_MAX:
            _ = self.begin(process)

    def _take_part(self, process: ProcessId, fragment: Fragment) -> None:
        if fragment.state.process != process:
            raise ProtocolViolation(f"it speaks for {fragment.state.process!r}")
        self._complete(self._assembler.add(fragment, self._now()))

    def has_met(self, process: ProcessId) -> bool:
        """Return whether `process` has connected: then the end of its connection tells its end."""
        return process in self._lines

    @property
    def not_listening(self) -> tuple[ProcessId, ...]:
        """The processes that have not said yet where they listen."""
        return tuple(p for p in self._description.processes if p not in self._ports)

    def _note_port(self, process: ProcessId, port: int) -> None:
        self._ports[process] = port
        if len(self._ports) == len(self._description.processes):
            for line in self._lines.values():
                line.say(control.Addresses(self._ports))

    def _note_connected(self, process: ProcessId) -> None:
        self._connected.add(process)
        if len(self._connected) == len(self._description.processes):
            self.running.set()

    async def close(self) -> None:
        """Abandon what is under way, finish what is being written, and hang up."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for snapshot in self._assembler.pending:
            self._give_up(snapshot, Reason.STOPPED)
        await asyncio.gather(*self._writing)
        if self._server is not None:
            self._server.close()
        for line in self._lines.values():
            line.close()
        self._writer.shutdown()

    def process_died(self) -> None:
        """Abandon every snapshot under way: one process will not record its part any more."""
        for snapshot in self._assembler.pending:
            self._give_up(snapshot, Reason.PROCESS_DIED)

    def _answer(self) -> MemberLine:
        return MemberLine(
            self,
            Listener(
                secret=self._secret,
                epoch=self.store.epoch,
                topology_hash=self._description.hash,
                target=None,
                sources=tuple(self._description.processes),
                nonce=secrets.token_bytes(NONCE_BYTES),
            ),
        )

    def _say(self, process: ProcessId, message: control.ToProcess) -> None:
        if process in self._lines:
            self._lines[process].say(message)

    def _complete(self, outcome: Snapshot | Abandoned | None) -> None:
        match outcome:
            case Snapshot():
                self._announce(self._announcements.ended(outcome.id))
                task = asyncio.get_running_loop().create_task(self._publish(outcome))
                self._writing.add(task)
                task.add_done_callback(self._writing.discard)
            case Abandoned():
                self._end(outcome.snapshot, outcome)
        self._set_timer()

    async def _publish(self, snapshot: Snapshot) -> None:
        loop = asyncio.get_running_loop()
        outcome: Entry | Abandoned
        try:
            outcome = await loop.run_in_executor(self._writer, self._write, snapshot)
        except Exception as error:
            detail = str(error) if isinstance(error, StillframeError) else describe(error)
            outcome = Abandoned(snapshot.id, Reason.NOT_PUBLISHED, (), detail)
        if isinstance(outcome, Entry) and outcome.is_restore_point:
            under_way = self._assembler.pending
            self._announce(self._announcements.published(snapshot.id, under_way))
        self._end(snapshot.id, outcome)

    def _announce(self, snapshots: Iterable[SnapshotId]) -> None:
        for snapshot in snapshots:
            for line in self._lines.values():
                line.say(control.Published(snapshot))

    def _write(self, snapshot: Snapshot) -> Entry | Abandoned:
        """Publish a snapshot that can be restored. Runs in the writer's thread."""
        for state in snapshot.state.processes:
            try:
                self._check(state)
            except UsageError as error:
                detail = f"{state.process}: {error}"
                return Abandoned(snapshot.id, Reason.NOT_RECORDED, (), detail)
        return self.store.publish(snapshot)

    def _give_up(self, snapshot: SnapshotId, reason: Reason, detail: str = "") -> None:
        abandoned = self._assembler.abandon(snapshot, reason, detail)
        if abandoned is not None:
            self._end(snapshot, abandoned)

    def _end(self, snapshot: SnapshotId, outcome: Entry | Abandoned) -> None:
        if isinstance(outcome, Abandoned):
            for line in self._lines.values():
                line.say(control.Abandon(snapshot))
            self._announce(self._announcements.ended(snapshot))
        result = self._results.pop(snapshot)
        if not result.done():
            result.set_result(outcome)
        if snapshot.initiator in self._wanted and not self._is_closed:
            self._wanted.discard(snapshot.initiator)
            self._begin_for(snapshot.initiator)
        if isinstance(outcome, Abandoned):
            self.emit(events.SnapshotAbandoned(outcome))
        else:
            self.emit(events.SnapshotPublished(outcome))

    def _now(self) -> float:
        return self._clock_offset_s + time.monotonic()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._assembler.next_deadline()
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_later(
                max(0.0, deadline - self._now()), self._expire
            )

    def _expire(self) -> None:
        for abandoned in self._assembler.expire(self._now()):
            self._end(abandoned.snapshot, abandoned)
        self._set_timer()
