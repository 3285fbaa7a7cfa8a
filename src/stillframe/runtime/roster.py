"""Which processes of one epoch are connected to the coordinator, and where they listen.

The coordinator takes snapshots; this is its ear and its mouth. The order of things at the start of
an epoch: a process says hello and is told where to begin; it says where it listens; when all have,
everybody is told where the others are; each says that its channels are connected; then all run.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import cast

import msgspec

from stillframe.errors import DECODING_ERRORS, ProtocolViolation, Refused, StillframeError
from stillframe.model import ProcessId
from stillframe.protocol import wire
from stillframe.protocol.handshake import (
    NONCE_BYTES,
    Declined,
    Greeting,
    Hello,
    Listener,
    Welcome,
)
from stillframe.restore import Start
from stillframe.runtime import control, events
from stillframe.runtime.addresses import Address
from stillframe.runtime.door import Door
from stillframe.runtime.host import describe
from stillframe.runtime.link import Connection
from stillframe.topology import Description

_decode = msgspec.msgpack.Decoder(control.FromProcess).decode


class MemberLine(Connection):
    """The coordinator's end of the connection to one process."""

    def __init__(self, roster: "Roster", listener: Listener) -> None:
        super().__init__()
        self.process: ProcessId | None = None
        self._roster = roster
        self._listener = listener

    def take(self, frame: wire.Frame) -> None:
        """Hand on what the process says."""
        if isinstance(frame, wire.Control):
            assert self.process is not None
            try:
                message = _decode(frame.encoded)
            except DECODING_ERRORS as error:
                raise ProtocolViolation(f"its message cannot be read: {error}") from error
            self._roster.heard(self.process, message)
            return
        if isinstance(frame, Hello):
            self.check_certificate(frame.source)
        answer = self._listener.receive(cast(Greeting, frame))
        if not isinstance(answer, str):
            self.write_greeting(answer)
            return
        self._roster.check_free(answer)
        self.process = answer
        self.open(wire.Kind.CONTROL, frame_bytes_max=wire.CONTROL_BYTES_MAX)
        self.write_greeting(Welcome(0))
        self._roster.arrived(answer, self)

    def say(self, message: control.ToProcess) -> None:
        """Tell the process."""
        if self.transport is not None:
            self.transport.write(wire.encode_control(message))

    def broken(self, error: StillframeError) -> None:
        """Say why a stranger is refused, or why a process is dropped."""
        if self.process is None and isinstance(error, Refused):
            self.write_greeting(Declined(str(error)[:1000]))
        who = self.process or self.peer
        detail = f"the connection of {who} to the coordinator was closed: {error}"
        if self.process is None:
            self._roster.door.refused(detail)
        else:
            self._roster.emit(events.ConnectionTrouble(detail))

    def crashed(self, error: Exception) -> None:
        """Drop the process, as if its connection had ended."""
        self._roster.emit(events.ConnectionTrouble(f"a bug in stillframe: {describe(error)}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The process is gone, or was never one."""
        super().connection_lost(exc)
        if self.process is not None:
            self._roster.departed(self.process)


class Roster:
    """The processes of one epoch, as far as they have come.

    Args:
        description: which processes there are.
        epoch: the epoch that they must name.
        secret: the secret of this epoch.
        starts: where each process begins; None for a fresh start.
        marker_wait_s: how long a marker may wait for messages to ride on; 0 sends it at once.
        emit: takes what happens.
        heard: takes what a process says about snapshots.
        departed: called with a process whose connection ended, and with its last words.
    """

    def __init__(
        self,
        description: Description,
        *,
        epoch: int,
        secret: bytes,
        starts: dict[ProcessId, Start] | None,
        marker_wait_s: float,
        emit: Callable[[events.Event], None],
        heard: Callable[[ProcessId, control.AboutSnapshots], None],
        departed: Callable[[ProcessId, control.Failure | None], None],
    ) -> None:
        self.emit = emit
        self.running = asyncio.Event()
        self.door = Door(self._answer, lambda detail: emit(events.ConnectionTrouble(detail)))
        self._description = description
        self._epoch = epoch
        self._secret = secret
        self._starts = starts
        self._marker_wait_s = marker_wait_s
        self._heard = heard
        self._departed = departed
        self._lines: dict[ProcessId, MemberLine] = {}
        self._addresses: dict[ProcessId, Address] = {}
        self._connected: set[ProcessId] = set()
        self._failures: dict[ProcessId, control.Failure] = {}
        self._is_over = False

    async def listen(self, listen: Address, certificates: str | None) -> Address:
        """Begin to listen; return where. See ``Door.open``."""
        return await self.door.open(listen, certificates)

    def has_met(self, process: ProcessId) -> bool:
        """Return whether `process` has connected: then the end of its connection tells its end."""
        return process in self._lines

    @property
    def not_listening(self) -> tuple[ProcessId, ...]:
        """The processes that have not said yet where they listen."""
        return tuple(p for p in self._description.processes if p not in self._addresses)

    def say(self, process: ProcessId, message: control.ToProcess) -> None:
        """Tell one process, if it is there."""
        if process in self._lines:
            self._lines[process].say(message)

    def say_to_all(self, message: control.ToProcess) -> None:
        """Tell every process that is there."""
        for line in self._lines.values():
            line.say(message)

    def expect_departures(self) -> None:
        """The epoch is over: a process that goes is no news from now on."""
        self._is_over = True

    def hang_up(self) -> None:
        """Close every connection."""
        self.door.close()
        for line in self._lines.values():
            line.close()

    def check_free(self, process: ProcessId) -> None:
        """Raise Refused if `process` is connected already."""
        if process in self._lines:
            raise Refused(f"process {process!r} is already there: each can join once")

    def arrived(self, process: ProcessId, line: MemberLine) -> None:
        """A process has connected: tell it where to begin."""
        self._lines[process] = line
        start = self._starts[process] if self._starts else None
        line.say(control.Setup(self._epoch, start, self._marker_wait_s))

    def departed(self, process: ProcessId) -> None:
        """A process's connection has ended."""
        if not self._is_over:
            # This epoch ends: whoever comes now is to find the next one.
            self.door.close()
            self._departed(process, self._failures.get(process))

    def heard(self, process: ProcessId, message: control.FromProcess) -> None:
        """Act on what a process says of itself; hand on what it says about snapshots."""
        match message:
            case control.Listening(address):
                self._note_address(process, address)
            case control.Running():
                self._note_connected(process)
            case control.Trouble(detail):
                self.emit(events.ConnectionTrouble(detail))
            case control.Failure():
                self._failures[process] = message
            case _:
                self._heard(process, message)

    def _note_address(self, process: ProcessId, address: Address) -> None:
        self._addresses[process] = address
        if not self.not_listening:
            self.say_to_all(control.Addresses(self._addresses))

    def _note_connected(self, process: ProcessId) -> None:
        self._connected.add(process)
        if len(self._connected) == len(self._description.processes):
            self.running.set()

    def _answer(self) -> MemberLine:
        return MemberLine(
            self,
            Listener(
                secret=self._secret,
                epoch=self._epoch,
                topology_hash=self._description.hash,
                target=None,
                sources=tuple(self._description.processes),
                nonce=secrets.token_bytes(NONCE_BYTES),
            ),
        )
