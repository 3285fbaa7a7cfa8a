"""Commands from people to a running system, over a socket that only its owner can reach.

One request, one answer, each a line of JSON. The socket lies in a directory with mode 0700, so the
file system does the authentication.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from stillframe.decoding import DECODING_ERRORS
from stillframe.errors import ProtocolViolation, StillframeError, Unavailable, UsageError
from stillframe.model import Abandoned, ProcessId, SnapshotId
from stillframe.protocol.holdup import UnderWay
from stillframe.runtime.running import find
from stillframe.runtime.supervisor import Supervisor
from stillframe.store.manifest import Entry

LINE_BYTES_MAX = 2**20


class TakeSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Take a snapshot now; `initiator` None leaves the choice to the system."""

    initiator: ProcessId | None


class RestoreSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Take the system back to `snapshot`; None for the last one published."""

    snapshot: SnapshotId | None


class Save(msgspec.Struct, frozen=True, tag=True):
    """Keep a snapshot under a name, as a savepoint."""

    snapshot: SnapshotId
    name: str


class Drop(msgspec.Struct, frozen=True, tag=True):
    """Remove a snapshot by its id, or a savepoint by its name."""

    text: str


class Look(msgspec.Struct, frozen=True, tag=True):
    """Say which snapshots are under way, and who holds each of them up."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """The request was carried out; the system is in `epoch`.

    `detail` is why a snapshot stays whose name was dropped.
    """

    epoch: int
    detail: str | None = None
    entry: Entry | None = None
    abandoned: Abandoned | None = None
    under_way: tuple[UnderWay, ...] = ()


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It was not, and why; `is_usage` if the request itself was wrong."""

    detail: str
    is_usage: bool


Request = TakeSnapshot | RestoreSnapshot | Save | Drop | Look

# An entry names its directory: a path, which JSON has no word for.
_encode = msgspec.json.Encoder(enc_hook=str).encode
_decode_request = msgspec.json.Decoder(Request).decode
_decode_answer: Callable[[bytes], Done | Failed] = msgspec.json.Decoder(
    Done | Failed, dec_hook=lambda kind, text: kind(text)
).decode


@contextlib.asynccontextmanager
async def serve_commands(system: Supervisor) -> AsyncIterator[None]:
    """Answer commands for `system` while the body runs."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(_encode(await _carry_out(system, reader)) + b"\n")
                await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, system.commands_path, limit=LINE_BYTES_MAX)
    try:
        yield
    finally:
        server.close()


async def _carry_out(system: Supervisor, reader: asyncio.StreamReader) -> Done | Failed:
    try:
        request = _decode_request(await reader.readline())
        if isinstance(request, RestoreSnapshot):
            await system.restore(request.snapshot)
            return Done(system.store.epoch)
        if isinstance(request, Save):
            await asyncio.to_thread(system.store.save, request.snapshot, request.name)
            return Done(system.store.epoch)
        if isinstance(request, Drop):
            reason = await asyncio.to_thread(system.store.drop, request.text)
            return Done(system.store.epoch, reason)
        if isinstance(request, Look):
            await system.until_running()
            assert system.coordinator is not None
            return Done(system.store.epoch, under_way=await system.coordinator.look())
        outcome = await system.snapshot(request.initiator)
        if isinstance(outcome, Abandoned):
            return Done(system.store.epoch, abandoned=outcome)
        return Done(system.store.epoch, entry=outcome)
    except StillframeError as error:
        return Failed(str(error), isinstance(error, UsageError))
    except (ValueError, *DECODING_ERRORS) as error:
        return Failed(f"the command cannot be read: {error}", is_usage=True)


async def command(store: Path, request: Request) -> Done:
    """Ask the system that runs on `store`, and wait for its answer.

    Raises:
        Unavailable: no system is running there, or it ended before it answered.
        UsageError: it says that the request was wrong.
        StillframeError: it could not carry the request out.
    """
    system = find(store)
    try:
        reader, writer = await asyncio.open_unix_connection(system.commands, limit=LINE_BYTES_MAX)
    except OSError as error:
        raise Unavailable(
            f"the system on the store {store} does not answer ({error}): it is still starting, or "
            "waits for processes to join; try again when it runs"
        ) from error
    try:
        writer.write(_encode(request) + b"\n")
        line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise Unavailable(f"the system on the store {store} ended before it answered")
    try:
        answer = _decode_answer(line)
    except DECODING_ERRORS as error:
        raise ProtocolViolation(f"the system's answer cannot be read: {error}") from error
    if isinstance(answer, Done):
        return answer
    raise UsageError(answer.detail) if answer.is_usage else StillframeError(answer.detail)
