"""A proxy for HTTP between services that loses, delays and doubles messages."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import NamedTuple

LOOPBACK = "127.0.0.1"
HEAD_BYTES_MAX = 2**16
DELAY_S_MAX = 0.3
_END = b"\r\n\r\n"


class Faults(NamedTuple):
    """How often what goes wrong: fractions of all requests."""

    lost_requests: float = 0.0
    lost_answers: float = 0.0
    doubled: float = 0.0
    delayed: float = 0.0


class Proxy:
    """A server on loopback that passes on what connects to it. `serve` says how."""

    def __init__(self) -> None:
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen while the body runs; `port` is where."""
        server = await asyncio.start_server(self._accept, LOOPBACK, 0, limit=HEAD_BYTES_MAX)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.gather(*self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), self._open(writer):
            await self.serve(reader, writer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what comes over a connection, until it is closed."""
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def connected(
        self, port: int
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Connect to a port of this machine while the body runs."""
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        with self._open(writer):
            yield reader, writer

    @contextlib.contextmanager
    def _open(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.remove(writer)
            writer.close()


class BadNetwork(Proxy):
    """A proxy in front of one address.

    Args:
        port: the port of the server on this machine.
        faults: what goes wrong.
        chance: chooses the requests.

    Attributes:
        counts: how often each fault happened.
    """

    def __init__(self, port: int, faults: Faults, chance: Random) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._target_port = port
        self._faults = faults
        self._chance = chance

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward requests, except those that are chosen."""
        while True:
            request = await _message(reader)
            if self._is_chosen("lost requests", self._faults.lost_requests):
                return
            if self._is_chosen("delayed", self._faults.delayed):
                await asyncio.sleep(self._chance.random() * DELAY_S_MAX)
            copies = 1 + self._is_chosen("doubled", self._faults.doubled)
            answers = await asyncio.gather(*(self._forward(request) for _ in range(copies)))
            if self._is_chosen("lost answers", self._faults.lost_answers):
                return
            writer.write(answers[0])
            await writer.drain()

    async def _forward(self, request: bytes) -> bytes:
        async with self.connected(self._target_port) as (reader, writer):
            writer.write(request)
            return await _message(reader)

    def _is_chosen(self, name: str, share: float) -> bool:
        is_chosen = self._chance.random() < share
        self.counts[name] += is_chosen
        return is_chosen


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Read a request or an answer whose length is in its head."""
    head = await reader.readuntil(_END)
    lines = (line.partition(":") for line in head.decode("latin-1").split("\r\n"))
    fields = {name.strip().lower(): value.strip() for name, _, value in lines}
    return head + await reader.readexactly(int(fields.get("content-length", "0")))
