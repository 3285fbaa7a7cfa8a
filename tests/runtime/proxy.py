"""TCP proxies that a test puts between processes: they cut connections, or change bytes."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine

from stillframe.protocol import wire
from stillframe.runtime.network.addresses import LOOPBACK
from tests.runtime.links import hang_up

CHUNK_BYTES = 16 * 2**10
GREETING_KIND = 1


class FrameEnds:
    """Knows where the frames of a byte stream end."""

    def __init__(self) -> None:
        self._head = b""
        self._rest = 0

    def feed(self, data: bytes) -> None:
        """Go on by `data`."""
        while data:
            if self._rest:
                taken = min(self._rest, len(data))
                self._rest -= taken
                data = data[taken:]
                continue
            wanted = 4 - len(self._head)
            self._head, data = self._head + data[:wanted], data[wanted:]
            if len(self._head) == 4:
                self._rest, self._head = int.from_bytes(self._head, "big"), b""

    @property
    def is_inside(self) -> bool:
        """Whether the stream stands in the middle of a frame."""
        return bool(self._rest or self._head)


class CuttingProxies:
    """Proxies that cut each connection after a random number of bytes, both ways counted.

    Args:
        chance: where the numbers come from.
        bytes_max: the largest.
    """

    def __init__(self, chance: random.Random, bytes_max: int) -> None:
        self.is_cutting = True
        self.seen: Counter[str] = Counter()
        self._chance = chance
        self._bytes_max = bytes_max

    async def relay(
        self,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Pass bytes on both ways until the connection ends or has had its number of bytes."""
        left = self._chance.randrange(1, self._bytes_max)
        frame_ends = FrameEnds()

        async def pass_on(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_forth: bool
        ) -> None:
            nonlocal left
            while data := await reader.read(CHUNK_BYTES):
                if self.is_cutting and len(data) >= left:
                    data = data[:left]
                left -= len(data)
                writer.write(data)
                if is_forth:
                    frame_ends.feed(data)
                if self.is_cutting and left <= 0:
                    await writer.drain()
                    self.seen["cuts"] += 1
                    self.seen["cuts inside a frame"] += frame_ends.is_inside
                    raise ConnectionAbortedError
                await writer.drain()
            raise ConnectionAbortedError

        with contextlib.suppress(ConnectionError):
            await asyncio.gather(
                pass_on(near[0], far[1], is_forth=True), pass_on(far[0], near[1], is_forth=False)
            )


class ChangingProxies:
    """Proxies that change one frame on every connection, until they have changed enough of them.

    Args:
        change: takes a frame of a channel, returns what goes on in its place.
        after: how many frames of a connection go through first.
        count: how many frames are changed altogether.
    """

    def __init__(self, change: Callable[[bytearray], None], *, after: int, count: int) -> None:
        self.changed_count = 0
        self._change = change
        self._after = after
        self._count = count

    async def relay(
        self,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Pass frames on one way and bytes the other until either end closes."""

        async def pass_frames() -> None:
            passed_count = 0
            while True:
                frame = await _read_frame(near[0])
                passed_count += frame[4] != GREETING_KIND
                if passed_count == self._after + 1 and self.changed_count < self._count:
                    self.changed_count += 1
                    self._change(frame)
                far[1].write(frame)
                await far[1].drain()

        await _pass_until_the_end(pass_frames(), far[0], near[1])


class TearingProxies:
    """Proxies that cut connections in the middle of frames of one kind, so many times.

    Args:
        kind: the kind of frame.
        chance: where in the frame.
        count: how many connections are cut altogether.
    """

    def __init__(self, kind: wire.Kind, chance: random.Random, *, count: int) -> None:
        self.torn_count = 0
        self._kind = kind
        self._chance = chance
        self._count = count

    async def relay(
        self,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Pass frames on one way and bytes the other until the connection is cut or ends."""

        async def pass_frames() -> None:
            while True:
                frame = await _read_frame(near[0])
                is_torn = frame[4] == self._kind and self.torn_count < self._count
                self.torn_count += is_torn
                far[1].write(frame[: self._chance.randrange(5, len(frame))] if is_torn else frame)
                await far[1].drain()
                if is_torn:
                    raise ConnectionAbortedError

        await _pass_until_the_end(pass_frames(), far[0], near[1])


async def _pass_until_the_end(
    pass_frames: Coroutine[None, None, None],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Pass frames on one way and bytes the other until either end closes."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        await asyncio.gather(pass_frames, _pass_bytes(reader, writer))


async def _read_frame(reader: asyncio.StreamReader) -> bytearray:
    head = await reader.readexactly(4)
    return bytearray(head + await reader.readexactly(int.from_bytes(head, "big")))


async def _pass_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    raise ConnectionAbortedError


Proxies = CuttingProxies | ChangingProxies | TearingProxies


@contextlib.asynccontextmanager
async def detours(proxies: Proxies, count: int) -> AsyncIterator[Callable[[int], int]]:
    """Listen on `count` ports; yield what exchanges a process's port for that of a proxy."""
    targets: dict[int, int] = {}
    tasks: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = targets[writer.get_extra_info("sockname")[1]]
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            far = await asyncio.open_connection(LOOPBACK, target)
            await proxies.relay((reader, writer), far)
        except OSError:
            return  # the target has gone: so does the proxy's connection
        finally:
            writer.transport.abort()
            if far is not None:
                far[1].transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(answer(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    servers = [await asyncio.start_server(accept, LOOPBACK, 0) for _ in range(count)]
    free = [server.sockets[0].getsockname()[1] for server in servers]

    def detour(port: int) -> int:
        proxy_port: int = free.pop()
        targets[proxy_port] = port
        return proxy_port

    try:
        yield detour
    finally:
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await hang_up()
        for server in servers:
            server.close()
        await hang_up()
