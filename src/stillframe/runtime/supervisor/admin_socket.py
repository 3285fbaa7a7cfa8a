"""Commands to a running system, over a socket that only its owner can reach.

One request, one reply, each a line of JSON; a request contains the protocol version of the command.
The socket lies in a directory with mode 0700, so the file system does the authentication.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import assert_never

import msgspec

from stillframe.durable_files import shell_command
from stillframe.errors import ProtocolViolation, StillframeError, Unavailable, UsageError, text_of
from stillframe.model import DECODING_ERRORS, Abandoned, ProcessId, SnapshotId
from stillframe.protocol import wire
from stillframe.protocol.policy import TRY_COUNT_MAX
from stillframe.protocol.stragglers import PendingSnapshot, ProcessStatus
from stillframe.runtime.coordinator.snapshot_monitor import SnapshotTimeline
from stillframe.runtime.network.acceptor import close_gracefully
from stillframe.runtime.run_file import VERSION_BEFORE_IT_WAS_WRITTEN, find_running
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.storage.location import Location, location_of
from stillframe.storage.opened import requests_to
from stillframe.storage.storage import RequestCounts
from stillframe.store.manifest import SnapshotEntry

LINE_BYTES_MAX = 2**20
NOTICE_S = 0.8
"""How long a command waits before it reports what it waits for, in seconds."""
DEADLINE_S = 60.0
"""Timeout of a command, in seconds, in addition to what a snapshot may take."""
REPLY_BYTES_MAX = 2**26
"""The status of hundreds of processes contains each end of each channel."""


class TriggerSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Take a snapshot now; `initiator` None lets the system choose."""

    initiator: ProcessId | None


class RestoreSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Restore `snapshot`; None for the latest published one."""

    snapshot: SnapshotId | None


class CreateSavepoint(msgspec.Struct, frozen=True, tag=True):
    """Keep a snapshot under a name, as a savepoint."""

    snapshot: SnapshotId
    name: str


class DropSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Remove a snapshot by its id, or a savepoint by its name."""

    text: str


class GetPendingSnapshots(msgspec.Struct, frozen=True, tag=True):
    """Return the pending snapshots, and their stragglers."""


class GetStatus(msgspec.Struct, frozen=True, tag=True):
    """Return the status of the system at once, even while nothing runs; with the timelines of the
    snapshots that ended later than `timelines_after`, by the coordinator's clock."""

    timelines_after: float = 0.0


class SystemStatus(msgspec.Struct, frozen=True, tag=True):
    """The status of the system in its `epoch`, and of each process that replied in time.
    `is_running` is false while processes start; then nothing else is known. `timelines` are of the
    last snapshots that ended, and `now` is the time by the clock of the snapshots. `requests` are
    those of the supervisor to the object store, if its store is in one."""

    epoch: int
    is_running: bool
    statuses: dict[ProcessId, ProcessStatus] = {}
    pending: tuple[PendingSnapshot, ...] = ()
    timelines: tuple[SnapshotTimeline, ...] = ()
    now: float = 0.0
    requests: RequestCounts | msgspec.UnsetType = msgspec.UNSET


class Done(msgspec.Struct, frozen=True, tag=True):
    """The request was carried out; the system is in `epoch`. `detail` is why a snapshot stays whose
    name was dropped, `now` the time by the clock of the pending snapshots."""

    epoch: int
    detail: str | None = None
    entry: SnapshotEntry | None = None
    abandoned: Abandoned | None = None
    pending: tuple[PendingSnapshot, ...] = ()
    now: float = 0.0


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The request was not carried out, and why; `is_usage` if the request itself was wrong. The
    rest are the fields of the error."""

    detail: str
    is_usage: bool
    path: str | None = None
    process: ProcessId | None = None
    snapshot: str | None = None
    remedy: str | None = None


class _Versioned(msgspec.Struct, frozen=True):
    """The part that every request has besides its subject."""

    protocol_version: int = VERSION_BEFORE_IT_WAS_WRITTEN


Request = (
    TriggerSnapshot
    | RestoreSnapshot
    | CreateSavepoint
    | DropSnapshot
    | GetPendingSnapshots
    | GetStatus
)
Reply = Done | SystemStatus | Failed
# An entry names its directory: a path, which JSON has no word for.
_encode = msgspec.json.Encoder(enc_hook=str).encode
_decode_version = msgspec.json.Decoder(_Versioned).decode
_decode_request = msgspec.json.Decoder(Request).decode
_decode_reply: Callable[[bytes], Reply] = msgspec.json.Decoder(
    Reply, dec_hook=lambda _, text: location_of(text)
).decode


@contextlib.asynccontextmanager
async def serve_commands(system: Supervisor) -> AsyncIterator[None]:
    """Reply to commands for `system`, which runs, while the body does."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(_encode(await _execute(system, reader)) + b"\n")
            await writer.drain()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replying = asyncio.ensure_future(reply(reader, writer))
        tasks.add(replying)
        replying.add_done_callback(tasks.discard)
        # Not in the task: one that is called off before its first step does nothing at all.
        replying.add_done_callback(lambda _: writer.close())

    tasks: set[asyncio.Future[None]] = set()
    listener = system.admin_socket
    server = await asyncio.start_unix_server(accept, sock=listener, limit=LINE_BYTES_MAX)
    try:
        yield
    finally:
        close_gracefully(server)


async def _execute(system: Supervisor, reader: asyncio.StreamReader) -> Reply:
    try:
        line = await reader.readline()
        wire.check_version(_decode_version(line).protocol_version, "the command")
        match request := _decode_request(line):
            case TriggerSnapshot(initiator):
                outcome = await system.snapshot(initiator)
                if isinstance(outcome, Abandoned):
                    return Done(system.store.epoch, abandoned=outcome)
                return Done(system.store.epoch, entry=outcome)
            case RestoreSnapshot(snapshot):
                await system.restore(snapshot)
                return Done(system.store.epoch)
            case CreateSavepoint(snapshot, name):
                await asyncio.to_thread(system.store.save, snapshot, name)
                return Done(system.store.epoch)
            case DropSnapshot(text):
                reason = await asyncio.to_thread(system.store.drop, text)
                return Done(system.store.epoch, reason)
            case GetPendingSnapshots():
                coordinator = await system.until_running()
                pending = await coordinator.monitor.poll_pending()
                return Done(system.store.epoch, pending=pending, now=coordinator.now())
            case GetStatus(timelines_after):
                return await _system_status(system, timelines_after)
            case _:
                assert_never(request)
    except StillframeError as error:
        return Failed(
            text_of(error),
            isinstance(error, UsageError),
            error.path,
            error.process,
            error.snapshot,
            error.remedy,
        )
    except (ValueError, *DECODING_ERRORS) as error:
        return Failed(f"the command cannot be read: {text_of(error)}", is_usage=True)


async def _system_status(system: Supervisor, timelines_after: float) -> SystemStatus:
    coordinator = system.coordinator
    if not system.is_running or coordinator is None:
        return SystemStatus(system.store.epoch, is_running=False)
    pending, statuses = await coordinator.monitor.poll()
    latest = coordinator.timelines.latest()
    timelines = tuple(t for t in latest if t.ended_at is not None and t.ended_at > timelines_after)
    return SystemStatus(
        coordinator.store.epoch,
        is_running=True,
        statuses=statuses,
        pending=pending,
        timelines=timelines,
        now=coordinator.now(),
        requests=requests_to(coordinator.store.path) or msgspec.UNSET,
    )


async def query_status(store: Location, timelines_after: float = 0.0) -> SystemStatus:
    """Return the status of the system that runs on `store`; raises as ``send_command`` does."""
    reply = await _exchange(store, GetStatus(timelines_after))
    assert isinstance(reply, SystemStatus), reply
    return reply


async def send_command(
    store: Location, request: Request, *, notice: Callable[[str], None] = lambda words: None
) -> Done:
    """Send a request to the system that runs on `store`, and wait until it is carried out; `notice`
    is called once if that takes a while, with what is awaited. Unavailable if no system is running
    there, or it ended before it answered; UsageError if it says that the request was wrong; Refused
    if it speaks another version; StillframeError if it could not, or has not by the deadline."""
    system = find_running(store)
    deadline_s = DEADLINE_S + TRY_COUNT_MAX * system.snapshot_s
    supervisor = f"the supervisor of {store}, process {system.supervisor.pid}"
    waiting_for = f"{supervisor}, {_describe(request)}"
    exchange = asyncio.ensure_future(_exchange(store, request))
    try:
        await asyncio.wait({exchange}, timeout=NOTICE_S)
        if not exchange.done():
            notice(f"waiting for {waiting_for}; at most {deadline_s:.0f} s")
            await asyncio.wait({exchange}, timeout=deadline_s - NOTICE_S)
        if not exchange.done():
            find_running(store)  # if the supervisor is gone or stopped, that is what to say
            raise StillframeError(
                f"waited {deadline_s:.0f} s for {waiting_for} without success; it may still "
                f"succeed: see '{shell_command('events', store)}'"
            )
        reply = exchange.result()
    finally:
        exchange.cancel()
        await asyncio.wait({exchange})
    assert isinstance(reply, Done), reply
    return reply


def _describe(request: Request) -> str:
    """Return what the supervisor is to do, as a sentence continues after "waiting for" it."""
    match request:
        case TriggerSnapshot():
            return "to publish a snapshot"
        case RestoreSnapshot(None):
            return "to restore the last snapshot"
        case RestoreSnapshot(snapshot):
            return f"to restore snapshot {snapshot}"
        case CreateSavepoint(snapshot, name):
            return f"to keep snapshot {snapshot} as savepoint {name}"
        case DropSnapshot(text):
            return f"to drop {text}"
        case GetPendingSnapshots() | GetStatus():
            return "to answer"
        case _:
            assert_never(request)


async def _exchange(store: Location, request: Request) -> Done | SystemStatus:
    system = find_running(store)
    try:
        reader, writer = await asyncio.open_unix_connection(system.commands, limit=REPLY_BYTES_MAX)
        with contextlib.closing(writer):
            spoken = msgspec.to_builtins(_Versioned(wire.VERSION))
            writer.write(_encode(msgspec.to_builtins(request) | spoken) + b"\n")
            line = await reader.readline()
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise Unavailable(
            f"the system on the store {store} takes no commands now: it is still starting, waits "
            "for processes to join, or is stopping; try again when it runs"
        ) from error
    except ConnectionError as error:
        raise Unavailable(f"the system on the store {store} ended before it answered") from error
    except OSError as error:  # too many are waiting for it to accept them
        raise StillframeError(
            f"the system on the store {store} accepts no connection ({error.strerror}): its "
            f"supervisor, process {system.supervisor.pid}, hangs, or too many clients are "
            "connected"
        ) from error
    except ValueError as error:
        raise ProtocolViolation(
            f"the system's answer has more than {REPLY_BYTES_MAX:,} bytes"
        ) from error
    if not line:
        raise Unavailable(f"the system on the store {store} ended before it answered")
    try:
        reply = _decode_reply(line)
    except DECODING_ERRORS as error:
        raise ProtocolViolation(f"the system's answer cannot be read: {text_of(error)}") from error
    if not isinstance(reply, Failed):
        return reply
    failure = (UsageError if reply.is_usage else StillframeError)(reply.detail)
    failure.locate(path=reply.path, process=reply.process, snapshot=reply.snapshot)
    failure.remedy = reply.remedy
    raise failure
