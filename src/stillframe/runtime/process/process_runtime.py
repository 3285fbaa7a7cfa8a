"""One process's side of the system: its listener, its channels, and its line to the coordinator.

Every operating-system process of a system has one ``ProcessRuntime``: one that the supervisor
started (``process_main.py``), and a program that joined (``join.py``). It greets the coordinator,
receives its initial state, listens, receives the addresses of the others, connects, and runs.

From then on the process needs the coordinator for snapshots only. When that connection is lost, the
process keeps running, and tries to reach the coordinator again, or the one that replaces it.
"""

import asyncio
import contextlib
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import msgspec

from stillframe.detect.view import conserved
from stillframe.errors import (
    ApplicationError,
    ProtocolViolation,
    Refused,
    StillframeError,
    Unavailable,
    describe,
    text_of,
    utf8,
)
from stillframe.model import DECODING_ERRORS, Channel, SnapshotId
from stillframe.protocol import wire
from stillframe.protocol.handshake import EpochEnded
from stillframe.protocol.stragglers import (
    NAME_CHARS_MAX,
    QUANTITY_COUNT_MAX,
    TEXT_CHARS_MAX,
    EndpointStatus,
    ProcessStatus,
    RecordingStatus,
)
from stillframe.restore import Start, check_start
from stillframe.runtime import control
from stillframe.runtime.control import NO_OUTPUT, ORPHANED_S, OutputDirs
from stillframe.runtime.network.acceptor import Acceptor
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.network.certificates import check_own
from stillframe.runtime.network.connection import Credentials, OutboundConnection
from stillframe.runtime.os_process import OsProcess
from stillframe.runtime.process.host import Delivery, Host, failure_of
from stillframe.runtime.process.link import (
    RETRY_S_MAX,
    RETRY_S_MIN,
    ListeningLink,
    connect,
    keep_connected,
)
from stillframe.topology import Topology

QUICK_S = 0.002
"""A ``conserved()`` that takes no longer is called for each request, in seconds."""
STORY_LENGTH_MAX = 100_000
"""How many characters of a traceback are reported: its last ones."""
REST = 100
"""A slower one is not called again for this many times as long as it took."""
_decode: Callable[[bytes], control.ToProcess] = msgspec.msgpack.Decoder(control.ToProcess).decode


class CoordinatorConnection(OutboundConnection):
    """The connection to the coordinator: its messages go into `received`, None when it closes.
    `first` returns the first message, which is sent after the handshake; `is_welcome` says that it
    was."""

    def __init__(self, me: Credentials, first: Callable[[], control.FirstMessage]) -> None:
        super().__init__(me, None)
        self._first = first
        self.is_welcome = False
        self.received: asyncio.Queue[control.ToProcess | StillframeError | None] = asyncio.Queue()
        self.closed = asyncio.Event()

    def take(self, frame: wire.Frame) -> None:
        """Queue a message of the coordinator, or answer in the handshake."""
        if isinstance(frame, wire.Control):
            try:
                message = _decode(frame.encoded)
            except DECODING_ERRORS as error:
                detail = f"the coordinator's message cannot be read: {text_of(error)}"
                raise ProtocolViolation(detail) from error
            self.received.put_nowait(message)
        elif self.greet(frame) is not None:
            self.open(wire.Kind.CONTROL, frame_bytes_max=wire.CONTROL_BYTES_MAX)
            self.is_open = self.is_welcome = True
            self.send(self._first())

    def send(self, message: control.FromProcess) -> None:
        """Send a message; it is dropped while there is no connection, which `received` shows."""
        if self.is_open and self.transport is not None:
            self.transport.write(wire.encode_control(message))

    def broken(self, error: StillframeError) -> None:
        """Queue why the connection ends."""
        self.received.put_nowait(error)

    def crashed(self, error: Exception) -> None:
        """Queue an unexpected error."""
        self.received.put_nowait(StillframeError(describe(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        """Queue that it was closed."""
        self.is_open = False
        self.received.put_nowait(None)
        self.closed.set()
        super().connection_lost(exc)


SomeHost = TypeVar("SomeHost", bound=Host)
Expected = TypeVar("Expected", control.Setup, control.Addresses, control.Rejoined)


class NoAnswer(Unavailable):
    """The coordinator did not answer in the handshake: it may be busy with other processes."""


class RetryLater(Refused):
    """The coordinator has no place for this process now, but may have one later."""


class ProcessRuntime:
    """A process's place in one epoch of the system.

    It listens at `listen`, which the others can reach, and runs at most `orphaned_s` seconds
    without a coordinator; `on_supervisor` receives the supervisor each time that it has rejoined.
    `failed` is why this process cannot continue, once it cannot; `close_logs` finishes the event
    log and the fragments, if any: call it last.
    """

    def __init__(
        self,
        me: Credentials,
        coordinator: Address,
        listen: Address,
        *,
        orphaned_s: float = ORPHANED_S,
        on_supervisor: Callable[[OsProcess], None] = lambda supervisor: None,
    ) -> None:
        self.me = me
        self._orphaned_s = orphaned_s
        self._on_supervisor = on_supervisor
        self._unconnected: set[Channel] = set()
        self._last_published: SnapshotId | None = None
        self._coordinator = coordinator
        self._listen = listen
        self._marker_wait_s = 0.0
        self._run = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._closers: list[Callable[[], None]] = []
        self._is_closing = False
        self.close_logs: Callable[[], None] = lambda: None
        self.failed: asyncio.Future[StillframeError] = asyncio.get_running_loop().create_future()

    async def connect(self, *, is_patient: bool = False) -> Start | None:
        """Join the epoch; return the initial state, None for a fresh start. Raises Refused if the
        coordinator refused this process, or the reverse; Unavailable if there is none, and NoAnswer
        if it does not answer in time: one that `is_patient` waits for that as long as it exists.
        UsageError if the certificates are not valid."""
        if self.me.certificates is not None:
            check_own(Path(self.me.certificates), self.me.process)
        while True:
            try:
                self._connection = await self._dial(control.JoinRequest, is_limited=not is_patient)
                self._closers = [self._hang_up]
                setup = await self._expect(control.Setup)
                break
            except NoAnswer:
                if not is_patient:
                    raise
            await asyncio.sleep(RETRY_S_MAX)
        self._marker_wait_s = setup.marker_wait_s
        self._run = setup.run
        self.me = msgspec.structs.replace(self.me, epoch=setup.epoch)
        return setup.start

    def host(
        self,
        kind: type[SomeHost],
        topology: Topology,
        subject: object,
        start: Start | None,
        *,
        outputs: OutputDirs = NO_OUTPUT,
        reference: str | None = None,
    ) -> SomeHost:
        """Return a host of class `kind` for this process, with the recorded object `subject` and
        the initial state that `connect` returned; `reference` is ``module:attribute`` of the
        topology, if known."""
        process, description = self.me.process, topology.description
        if start is not None:
            check_start(start, process, description)
        host = kind(
            topology,
            process,
            subject,
            start,
            report=self.report,
            fail=self.fail,
            loop=asyncio.get_running_loop(),
            marker_wait_s=self._marker_wait_s,
        )
        host.open_outboxes(self._run)
        self.close_logs = host.close_logs
        # Loaded only here: most processes write neither, and are to start quickly.
        if outputs.fragments is not None:
            from stillframe.runtime.process.fragment_recorder import FragmentRecorder  # noqa: PLC0415
            from stillframe.storage.location import locate  # noqa: PLC0415
            from stillframe.store.fragments import FragmentSource  # noqa: PLC0415

            began_from = None if start is None else start.base
            life = FragmentSource(process, self.me.epoch, self._run, began_from)
            host.open_fragments(
                FragmentRecorder(
                    locate(outputs.fragments),
                    life,
                    description,
                    reference,
                    report_failure=self._report_output_failure,
                )
            )
        if outputs.log is not None:
            from stillframe.runtime.process.event_logging import EventLogger  # noqa: PLC0415
            from stillframe.storage.location import locate  # noqa: PLC0415

            host.open_log(
                EventLogger(
                    locate(outputs.log),
                    process,
                    self.me.epoch,
                    host.recorder,
                    host.outgoing,
                    report_failure=self._report_output_failure,
                )
            )
        return host

    async def run(self, host: Host, begin: Callable[[], None]) -> None:
        """Listen, connect to the others, and call `begin` when messages may flow; returns then."""
        self.acceptor = acceptor = Acceptor(
            lambda: ListeningLink(host, self.me, warn=self._warn, refused=acceptor.refused),
            self._warn,
            expected_count=len(host.incoming),
        )
        try:
            address = await acceptor.open(self._listen, self.me.certificates)
        except Unavailable as error:
            raise Unavailable(f"process {self.me.process}: {error}") from error
        self._closers.append(acceptor.close)
        self._closers.append(host.captures.close)
        self.report(control.ListeningOn(address))
        addresses = await self._expect(control.Addresses)
        if missing := sorted(host.outgoing.keys() - addresses.addresses.keys()):
            raise ProtocolViolation(f"the coordinator sent no address of {', '.join(missing)}")
        self._unconnected = {outgoing.channel for outgoing in host.outgoing.values()}
        if not self._unconnected:
            self.report(control.Ready())
            # A handler that never returns must not keep it from being sent: the loop does that.
            await asyncio.sleep(0)
        begin()

        def connected(channel: Channel) -> None:
            if channel in self._unconnected:
                self._unconnected.remove(channel)
                if not self._unconnected:
                    self.report(control.Ready())

        for target, outgoing in host.outgoing.items():
            self._spawn(
                keep_connected(
                    host,
                    outgoing,
                    self.me,
                    address=addresses.addresses[target],
                    warn=self._warn,
                    connected=connected,
                )
            )
        self._spawn(self._follow_coordinator(host))

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the coordinator."""
        return self._connection.is_open

    def report(self, message: control.FromProcess) -> None:
        """Send a message to the coordinator, if it is connected."""
        self._connection.send(message)

    def fail(self, error: StillframeError) -> None:
        """Report that this process cannot continue, and why; sets `failed`."""
        if not self.failed.done():
            self.failed.set_result(error)
            self.report(control.Failure(text_of(error), traceback_of(error)))

    async def leave(self) -> None:
        """Close the connection to the coordinator once everything reported has been sent."""
        self._hang_up()
        await self._connection.closed.wait()

    async def close(self) -> None:
        """Close everything that was opened here."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        # `_on_task_done` has told of what they raise.
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for close in (*self._closers, self.close_logs):
            close()

    def _hang_up(self) -> None:
        self._connection.close()

    def _warn(self, detail: str) -> None:
        self.report(control.ConnectionWarning(detail))

    def _report_output_failure(self, detail: str) -> None:
        """Report that an event log or fragments cannot be written; any thread may call this."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is reported now
            loop = self.failed.get_loop()
            loop.call_soon_threadsafe(self.report, control.OutputFailed(detail))

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(self._on_task_done)
        self._tasks.append(task)

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        """Fail if a task has failed: the process must not continue without it."""
        try:
            error = task.exception()
        except asyncio.CancelledError as cancelled:
            if not self._is_closing:
                self.fail(failure_of(self.me.process, cancelled))
            return
        if error is not None:
            failure = StillframeError(
                f"process {self.me.process}: a bug in stillframe: {describe(error)}"
            )
            failure.__cause__ = error
            self.fail(failure)

    async def _dial(
        self, first: Callable[[], control.FirstMessage], *, is_limited: bool = True
    ) -> CoordinatorConnection:
        connection = CoordinatorConnection(self.me, first)
        connection.is_limited = is_limited
        try:
            return await connect(connection, self._coordinator, self.me.certificates, None)
        except OSError as error:
            reason = error.strerror or text_of(error) or "no answer"
            kind = NoAnswer if isinstance(error, TimeoutError) else Unavailable
            raise kind(
                f"the coordinator does not answer at {self._coordinator}: {reason}; "
                "is the system running?"
            ) from error

    async def _expect(self, kind: type[Expected]) -> Expected:
        message = await self._connection.received.get()
        if isinstance(message, StillframeError):
            raise message
        if isinstance(message, control.Dismissed):
            is_over = message.detail.startswith(control.EPOCH_OVER)
            raise (EpochEnded if is_over else RetryLater)(message.detail)
        if message is None and not self._connection.is_welcome:
            raise NoAnswer(
                f"the coordinator at {self._coordinator} closed the connection during the handshake"
            )
        if not isinstance(message, kind):
            raise Unavailable(
                "the coordinator closed the connection"
                if message is None
                else f"the coordinator sent {type(message).__name__} out of turn"
            )
        return message

    async def _follow_coordinator(self, host: Host) -> None:
        while host.error is None:
            match await self._connection.received.get():
                case control.Initiate(snapshot):
                    host.initiate(snapshot)
                case control.Abandon(snapshot):
                    host.abandon(snapshot)
                case control.SnapshotDurable(base):
                    host.captures.on_durable(base)
                case control.Published(snapshot):
                    self._last_published = snapshot
                    host.published(snapshot)
                case control.StatusRequest() as asked:
                    self.report(control.StatusReply(asked.number, process_status(host, asked)))
                case None:
                    await self._await_coordinator(host)
                case control.Dismissed(detail):
                    host.fail(Unavailable(detail))
                case other:
                    host.fail(Unavailable(f"the connection to the coordinator was lost: {other}"))

    async def _await_coordinator(self, host: Host) -> None:
        """Run until there is a coordinator again, or fail this process."""
        if host.error is not None:
            return
        try:
            resumed = await self._rejoin()
        except StillframeError as error:
            host.fail(error)
            return
        host.marker_wait_s = resumed.marker_wait_s
        host.forget_through(resumed.last_number)
        # The newest is announced again to a process that reconnects.
        newest = resumed.published
        if newest is not None and newest != self._last_published:
            self._last_published = newest
            host.published(newest)

    async def _rejoin(self) -> control.Rejoined:
        """Connect to the coordinator again, or to the one that replaces it; raises Refused if it
        has no place for this process, Unavailable if none arrived in time."""
        retry_s = RETRY_S_MIN
        try:
            async with asyncio.timeout(self._orphaned_s):
                while True:
                    try:
                        self._connection = await self._dial(self._rejoin_request)
                        resumed = await self._expect(control.Rejoined)
                    except Refused:
                        raise
                    except StillframeError:  # there is none yet, or another program listens there
                        self._connection.close()
                        await asyncio.sleep(retry_s)
                        retry_s = min(retry_s * 2, RETRY_S_MAX)
                    else:
                        self._on_supervisor(resumed.supervisor)
                        return resumed
        except TimeoutError:
            raise Unavailable(
                f"process {self.me.process} lost the coordinator, and no other replaced it within "
                f"{self._orphaned_s:.0f} s: this epoch of the system has ended"
            ) from None

    def _rejoin_request(self) -> control.RejoinRequest:
        return control.RejoinRequest(is_connected=not self._unconnected)


def traceback_of(error: StillframeError) -> str:
    """Return the traceback of the cause of `error`; empty if it has none."""
    cause = error.__cause__
    if cause is None:
        return ""
    try:
        story = "".join(traceback.format_exception(cause))
    except BaseException:  # an attribute of an exception that is read for it has raised
        story = "".join(traceback.format_tb(cause.__traceback__)) + describe(cause)
    return utf8(story[-STORY_LENGTH_MAX:])


def process_status(host: Host, request: control.StatusRequest) -> ProcessStatus:
    """Return the status of a process; nothing is kept for it between requests."""
    unhandled: Counter[str] = Counter()
    for item in host.mailbox:
        if isinstance(item, Delivery):
            unhandled[item.incoming.source] += len(item.batch.encoded)
    received = host.recorder.received_counts
    return ProcessStatus(
        is_busy=host.is_busy,
        snapshots=tuple(
            RecordingStatus(
                snapshot,
                host.recorder.phase(snapshot),
                host.recorder.awaited(snapshot),
                host.captures.age_s(snapshot),
            )
            for snapshot in request.snapshots
        ),
        incoming={
            source: EndpointStatus(incoming.is_connected, unhandled[source], count=received[source])
            for source, incoming in host.incoming.items()
        },
        outgoing={
            target: EndpointStatus(
                outgoing.is_connected,
                outgoing.session.unacknowledged_bytes,
                host.is_blocked and not outgoing.is_on_cycle and outgoing.is_full,
                outgoing.sent_count,
            )
            for target, outgoing in host.outgoing.items()
        },
        quantities=_quantities(host) if request.has_quantities else {},
        moment_s=time.monotonic(),
    )


def _quantities(host: Host) -> dict[str, int | float] | str:
    """Return the conserved quantities at this moment, or why they are unknown. Whatever its method
    does, a request must neither fail a process nor keep it busy."""
    began_s, where = time.perf_counter(), f"process {host.process}"
    if began_s < host.quantities_from_s:
        wait_s = math.ceil(host.quantities_from_s - began_s)
        return f"{where}: conserved() is slow: it is called again only after {wait_s} s"
    answer: dict[str, int | float] | str
    try:
        found = conserved(host.subject, where, None)
        if len(found) > QUANTITY_COUNT_MAX or any(len(name) > NAME_CHARS_MAX for name in found):
            answer = (
                f"{where}: it returned {len(found):,} conserved quantities: at most "
                f"{QUANTITY_COUNT_MAX} are shown, with names of at most {NAME_CHARS_MAX} "
                "characters"
            )
        else:
            answer = {text_of(name): _plain(amount) for name, amount in found.items()}
    except ApplicationError as error:
        answer = text_of(error)
    except BaseException as error:  # of a name or an amount, whose class may be the application's
        answer = f"{where}: conserved(): {describe(error)}"
    took_s = time.perf_counter() - began_s
    if took_s > QUICK_S:
        host.quantities_from_s = began_s + took_s * REST
    return answer if isinstance(answer, dict) else answer[:TEXT_CHARS_MAX]


def _plain(amount: float) -> int | float:
    """Return a number as it can be sent: integers have 64 bits."""
    if isinstance(amount, int) and abs(amount) < 2**63:
        return int(amount)
    return float(amount)
