"""One connection at one place: real links, lines and hosts on a transport in memory."""

import asyncio
import copy
from typing import Any, cast

from stillframe.errors import ApplicationError, StillframeError
from stillframe.process import Process
from stillframe.protocol import wire
from stillframe.protocol.handshake import Hello
from stillframe.restore import Start
from stillframe.runtime.network.connection import Connection, Credentials
from stillframe.runtime.process.handlers import HandlerHost
from stillframe.runtime.process.link import ListeningLink
from tests.runtime.links import SECRET
from tests.runtime.memory import VirtualScheduler, hosted
from tests.soak.hostile_shop import shop

STEP_COUNT_MAX = 1_000
NONCE = b"n" * 16


SHOP = shop()


class Found(Exception):
    """What must not happen has happened."""


class Wire:
    """A transport in memory: what is written is kept."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: bytes | bytearray) -> None:
        """Keep it."""
        self.written += data

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self.is_closed

    def close(self) -> None:
        """Note it."""
        self.is_closed = True

    abort = close

    def get_extra_info(self, name: str) -> tuple[str, int]:
        """Return an address."""
        return ("127.0.0.1", 1)

    def greetings(self) -> list[Any]:
        """Take the greetings that were written."""
        reader, found = wire.FrameReader(), []
        pour(reader, bytes(self.written))
        while (frame := reader.next_frame()) is not None:
            found.append(frame)
        self.written.clear()
        return found


def pour(reader: wire.FrameReader, data: bytes) -> None:
    """Write a little into a reader."""
    reader.writable()[: len(data)] = data
    reader.written(len(data))


def feed(connection: Connection, data: bytes, piece: int) -> None:
    """Hand over a stream as a socket would, as long as the connection is open."""
    at = 0
    while at < len(data) and connection.transport is not None:
        room = connection.get_buffer(-1)
        if not len(room):
            raise Found("there is no room for the next byte")
        size = min(piece, len(room), len(data) - at)
        room[:size] = data[at : at + size]
        at += size
        connection.buffer_updated(size)


class Trial:
    """One connection at one place, and what became of it."""

    def __init__(self) -> None:
        self.topology = SHOP
        self.wire = Wire()
        self.scheduler = VirtualScheduler()
        self.refusal: StillframeError | None = None
        self.failure: StillframeError | None = None
        self.found: Exception | None = None

    def credentials(self, process: str) -> Credentials:
        """Return what a process shows."""
        return Credentials(process, 1, self.topology.description.hash, SECRET)

    def hello(self, source: str, target: str | None) -> Hello:
        """Return a hello that is right."""
        return Hello(source, target, 1, self.topology.description.hash, NONCE)

    def watch(self, connection: Connection) -> None:
        """Connect, and note how the connection ends."""
        broken = connection.broken

        def note(error: StillframeError) -> None:
            if not str(error).strip():
                raise Found(f"an error that says nothing: {error!r}")
            self.refusal = error
            broken(error)

        def found(error: Exception) -> None:
            raise Found(f"{type(connection).__name__} fell over {error!r}") from error

        connection.broken = note  # type: ignore[method-assign]
        connection.crashed = found  # type: ignore[method-assign]
        connection.begin(cast(asyncio.Transport, self.wire))

    def fail(self, error: StillframeError) -> None:
        """Note why the host ended."""
        if isinstance(error, ApplicationError):
            raise Found(f"a host fell over {error!r}") from error
        self.failure = error

    def host(self, process: str, start: Start | None = None) -> HandlerHost:
        """Return the host of a process, which has begun."""
        subject = copy.copy(self.topology.processes[process])
        assert isinstance(subject, Process)
        host = hosted(
            self.topology, process, subject, start=start, fail=self.fail, scheduler=self.scheduler
        )
        host.begin(is_fresh=start is None)
        return host

    def listener(self) -> ListeningLink:
        """Return the end of a connection at B, which listens."""
        return ListeningLink(
            self.host("B"),
            self.credentials("B"),
            warn=lambda detail: None,
            refused=lambda detail: None,
        )

    def settle(self) -> None:
        """Let the host do what it has to."""
        for _ in range(STEP_COUNT_MAX):
            if not self.scheduler.run_one():
                return
        raise Found(f"the host is not done after {STEP_COUNT_MAX} steps")

    def end(self, connection: Connection, reached: str = "legal") -> str:
        """Close, and say what became of it."""
        was_closed = self.wire.is_closed
        connection.connection_lost(None)
        if self.found is not None:
            raise Found(f"somebody would have fallen over {self.found!r}") from self.found
        if self.refusal is not None:
            if not was_closed:
                raise Found(f"it went on after {self.refusal!r}")
            return f"refused: {type(self.refusal).__name__}"
        if self.failure is not None:
            return f"ended the process: {type(self.failure).__name__}"
        return reached
