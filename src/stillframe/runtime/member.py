"""One process's side of the system: its listener, its channels, and its line to the coordinator.

``Member`` is what an operating-system process has, whether we started it (``child.py``) or its own
program joined (``turns.py``). The order of things: say hello to the coordinator; be told where to
begin; listen; be told where the others listen; connect; run.
"""

import asyncio
import contextlib
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from stillframe.errors import DECODING_ERRORS, ProtocolViolation, StillframeError, Unavailable
from stillframe.model import Channel, SnapshotId
from stillframe.protocol import wire
from stillframe.protocol.handshake import Connector, Greeting, Proof, Welcome
from stillframe.restore import Start, check_start
from stillframe.runtime import control
from stillframe.runtime.addresses import Address
from stillframe.runtime.certificates import check_own
from stillframe.runtime.dialling import dial, keep_connected
from stillframe.runtime.door import Door
from stillframe.runtime.host import Host, describe
from stillframe.runtime.link import Carrier, Connection, Credentials, ListeningLink
from stillframe.runtime.standing import standing_of
from stillframe.topology import Topology

SomeHost = TypeVar("SomeHost", bound=Host)

Expected = TypeVar("Expected", control.Setup, control.Addresses)

_decode: Callable[[bytes], control.ToProcess] = msgspec.msgpack.Decoder(control.ToProcess).decode


class CoordinatorLine(Connection):
    """The connection to the coordinator: what it says goes into `heard`, None when it is gone."""

    def __init__(self, me: Credentials) -> None:
        super().__init__()
        self.heard: asyncio.Queue[control.ToProcess | StillframeError | None] = asyncio.Queue()
        self.gone = asyncio.Event()
        self._connector = Connector(me.hello(None), me.secret)

    def begin(self, carrier: Carrier) -> None:
        """Begin the handshake."""
        super().begin(carrier)
        self.write_greeting(self._connector.hello)

    def take(self, frame: wire.Frame) -> None:
        """Queue what the coordinator says; answer in the handshake."""
        if isinstance(frame, wire.Control):
            self.heard.put_nowait(_decode_control(frame))
            return
        match self._connector.receive(cast(Greeting, frame)):
            case Proof() as proof:
                self.write_greeting(proof)
            case Welcome():
                self.open(wire.Kind.CONTROL, frame_bytes_max=wire.CONTROL_BYTES_MAX)

    def say(self, message: control.FromProcess) -> None:
        """Tell the coordinator; silently nothing once it is gone, which `heard` tells."""
        if self.transport is not None:
            self.transport.write(wire.encode_control(message))

    def broken(self, error: StillframeError) -> None:
        """Pass on why the connection ends."""
        self.heard.put_nowait(error)

    def crashed(self, error: Exception) -> None:
        """Pass on what we did not expect."""
        self.heard.put_nowait(StillframeError(describe(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that it ended."""
        self.heard.put_nowait(None)
        self.gone.set()
        super().connection_lost(exc)


def _decode_control(frame: wire.Control) -> control.ToProcess:
    try:
        return _decode(frame.encoded)
    except DECODING_ERRORS as error:
        raise ProtocolViolation(f"the coordinator's message cannot be read: {error}") from error


class Member:
    """A process's place in one epoch of the system.

    Args:
        me: who this is, and how to prove it.
        coordinator: where the coordinator listens.
        listen: where this process listens, at an address at which the others can reach it.
    """

    def __init__(self, me: Credentials, coordinator: Address, listen: Address) -> None:
        self.me = me
        self._coordinator = coordinator
        self._listen = listen
        self._marker_wait_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._closers: list[Callable[[], None]] = []
        self.failed: asyncio.Future[StillframeError] = asyncio.get_running_loop().create_future()

    async def connect(self) -> Start | None:
        """Say hello; return where to begin, None for a fresh start.

        Raises:
            Refused: the coordinator said no, and why; or we did.
            Unavailable: there is no coordinator.
            UsageError: our certificates are not what they must be.
        """
        if self.me.certificates is not None:
            check_own(Path(self.me.certificates), self.me.process)
        line = CoordinatorLine(self.me)
        try:
            self._line = await dial(line, self._coordinator, self.me.certificates, None)
        except OSError as error:
            reason = str(error) or "no answer"
            raise Unavailable(
                f"the coordinator does not answer at {self._coordinator}: {reason}; "
                "is the system running?"
            ) from error
        self._closers.append(self._line.close)
        setup = await self._hear(control.Setup)
        self._marker_wait_s = setup.marker_wait_s
        self.me = msgspec.structs.replace(self.me, epoch=setup.epoch)
        return setup.start

    def host(
        self, kind: type[SomeHost], topology: Topology, subject: object, start: Start | None
    ) -> SomeHost:
        """Return a host of class `kind` for this member's process.

        Args:
            kind: HandlerHost or TurnHost.
            topology: which channels there are, and which messages they take.
            subject: the object whose fields are the recorded state.
            start: what `connect` returned.
        """
        process, description = self.me.process, topology.description
        if start is not None:
            check_start(start, process, description)
        return kind(
            process,
            codec=topology.codecs[process],
            subject=subject,
            incoming=dict.fromkeys(description.incoming(process), topology.accepts[process]),
            outgoing={t: topology.accepts[t] for t in description.outgoing(process)},
            cyclic=description.cyclic_targets(process),
            start=start,
            report=self.report,
            fail=self.fail,
            scheduler=asyncio.get_running_loop(),
            marker_wait_s=self._marker_wait_s,
        )

    async def run(
        self,
        host: Host,
        *,
        begin: Callable[[], None],
        published: Callable[[SnapshotId], None],
    ) -> None:
        """Listen, learn where the others are, connect, and begin; returns when all has begun.

        Args:
            host: made with this member's `report` and `fail`.
            begin: called when messages may flow.
            published: called with each snapshot that was published.
        """
        self.door = door = Door(
            lambda: ListeningLink(host, self.me, trouble=self._trouble, refused=door.refused),
            self._trouble,
        )
        try:
            address = await door.open(self._listen, self.me.certificates)
        except Unavailable as error:
            raise Unavailable(f"process {self.me.process}: {error}") from error
        self._closers.append(door.close)
        self._closers.append(host.captures.close)
        self.report(control.Listening(address))
        addresses = await self._hear(control.Addresses)
        if missing := sorted(host.outgoing.keys() - addresses.addresses.keys()):
            raise ProtocolViolation(f"the coordinator has no address of {', '.join(missing)}")
        begin()
        unconnected = {outgoing.channel for outgoing in host.outgoing.values()}
        if not unconnected:
            self.report(control.Running())

        def connected(channel: Channel) -> None:
            if channel in unconnected:
                unconnected.remove(channel)
                if not unconnected:
                    self.report(control.Running())

        for target, outgoing in host.outgoing.items():
            self._spawn(
                keep_connected(
                    host,
                    outgoing,
                    self.me,
                    address=addresses.addresses[target],
                    trouble=self._trouble,
                    connected=connected,
                )
            )
        self._spawn(self._listen_to_coordinator(host, published))

    def report(self, message: control.FromProcess) -> None:
        """Tell the coordinator."""
        self._line.say(message)

    def fail(self, error: StillframeError) -> None:
        """Tell the coordinator that this process cannot go on, and why; sets `failed`."""
        cause = error.__cause__
        story = "".join(traceback.format_exception(cause)) if cause else ""
        self.report(control.Failure(str(error), story))
        if not self.failed.done():
            self.failed.set_result(error)

    async def leave(self) -> None:
        """Wait until the coordinator has been sent everything that we reported, and hang up."""
        self._line.close()
        await self._line.gone.wait()

    async def close(self) -> None:
        """Close everything that this member opened."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for close in self._closers:
            close()

    def _trouble(self, detail: str) -> None:
        self.report(control.Trouble(detail))

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(coroutine))

    async def _hear(self, kind: type[Expected]) -> Expected:
        message = await self._line.heard.get()
        if isinstance(message, StillframeError):
            raise message
        if not isinstance(message, kind):
            raise Unavailable(
                "the coordinator closed the connection"
                if message is None
                else f"the coordinator said {type(message).__name__} out of turn"
            )
        return message

    async def _listen_to_coordinator(
        self, host: Host, published: Callable[[SnapshotId], None]
    ) -> None:
        while True:
            match await self._line.heard.get():
                case control.Initiate(snapshot):
                    host.initiate(snapshot)
                case control.Abandon(snapshot):
                    host.abandon(snapshot)
                case control.InStore(base):
                    host.captures.in_store(base)
                case control.Published(snapshot):
                    published(snapshot)
                case control.Ask(number, snapshots):
                    self.report(control.Answer(number, standing_of(host, snapshots)))
                case None:
                    host.fail(
                        Unavailable("the coordinator is gone: this epoch of the system is over")
                    )
                    return
                case other:
                    host.fail(Unavailable(f"the coordinator's connection broke: {other}"))
                    return
