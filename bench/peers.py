"""The others: the floor (nothing but a socket and an encoder), pyzmq, and grpc.aio.

Each runs in child processes of its own; message, forwarding and counting are the same as ours.
"""

import asyncio
import multiprocessing
import signal
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import msgspec
import uvloop
import zmq

from bench.measure import (
    IN_FLIGHT_COUNT,
    PROCESS_COUNT,
    TURN_S_MAX,
    Contender,
    Running,
    my_counts,
    shared_counts,
    targets,
)

LOOPBACK = "127.0.0.1"
COUNT_EVERY = 64


class Transfer(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=True):
    """The message, as light as msgspec can make it."""

    amount: int


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind((LOOPBACK, 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


Program = Callable[[int, str, list[int], Any], None]


def _run_alone(program: Program, index: int, shape: str, ports: list[int], ready: Any) -> None:
    # Ctrl-C in a terminal reaches the bench too: it ends us. If it is gone, the alarm does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.alarm(int(2 * TURN_S_MAX))
    program(index, shape, ports, ready)


def contender(program: Program) -> Contender:
    """Return a contender that runs `program` (index, shape, ports, barrier) in each process."""

    @asynccontextmanager
    async def start(shape: str) -> AsyncIterator[Running]:
        context = multiprocessing.get_context("spawn")
        async with shared_counts(PROCESS_COUNT) as counts:
            ports = _free_ports(PROCESS_COUNT)
            ready = context.Barrier(PROCESS_COUNT)
            children = [
                context.Process(
                    target=_run_alone, args=(program, i, shape, ports, ready), daemon=True
                )
                for i in range(PROCESS_COUNT)
            ]
            for child in children:
                child.start()
            try:
                while not counts.total():
                    if not all(child.is_alive() for child in children):
                        raise RuntimeError(f"{program.__name__}: a process ended by itself")
                    await asyncio.sleep(0.01)
                yield Running([child.pid for child in children if child.pid], counts)
            finally:
                for child in children:
                    child.kill()
                for child in children:
                    child.join()

    return start


def floor(index: int, shape: str, ports: list[int], ready: Any) -> None:
    """One uvloop ``BufferedProtocol``, one frame and one write a target and loop turn."""
    with suppress(ConnectionError, RuntimeError):
        uvloop.run(_floor(index, shape, ports, ready))


async def _floor(  # noqa: C901 - closures all, so that no attribute is looked up
    index: int, shape: str, ports: list[int], ready: Any
) -> None:
    loop = asyncio.get_running_loop()
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(list[Transfer]).decode
    pending: list[list[Transfer]] = [[] for _ in targets(shape, index)]
    target_count = len(pending)
    transports: list[asyncio.WriteTransport] = []
    counts = my_counts()
    received = 0
    is_flush_scheduled = False

    def handle(message: Transfer) -> None:
        nonlocal received
        received += 1
        pending[received % target_count].append(Transfer(message.amount))

    def flush() -> None:
        nonlocal is_flush_scheduled
        is_flush_scheduled = False
        for messages, transport in zip(pending, transports, strict=True):
            if messages:
                body = encode(messages)
                messages.clear()
                transport.write(struct.pack("!I", len(body)) + body)
        counts.write(index, received)

    class Reader(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self._view = memoryview(bytearray(2**18))
            self._end = 0

        def get_buffer(self, sizehint: int) -> memoryview:
            return self._view[self._end :]

        def buffer_updated(self, nbytes: int) -> None:
            nonlocal is_flush_scheduled
            self._end += nbytes
            view, start = self._view, 0
            while self._end - start >= 4:
                stop = start + 4 + int.from_bytes(view[start : start + 4], "big")
                if stop > self._end:
                    break
                for message in decode(view[start + 4 : stop]):
                    handle(message)
                start = stop
            rest = self._end - start
            view[:rest] = view[start : self._end]
            self._end = rest
            if not is_flush_scheduled:
                is_flush_scheduled = True
                loop.call_soon(flush)

    server = await loop.create_server(Reader, LOOPBACK, ports[index])
    ready.wait()
    for target in targets(shape, index):
        transport, _ = await loop.create_connection(asyncio.Protocol, LOOPBACK, ports[target])
        transports.append(transport)
    ready.wait()
    for number in range(IN_FLIGHT_COUNT):
        pending[number % target_count].append(Transfer(7))
    flush()
    await server.serve_forever()


def pyzmq(index: int, shape: str, ports: list[int], ready: Any) -> None:
    """Blocking PUSH and PULL over TCP, one message at a time."""
    context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.bind(f"tcp://{LOOPBACK}:{ports[index]}")
    ready.wait()
    pushes = []
    for target in targets(shape, index):
        push = context.socket(zmq.PUSH)
        push.connect(f"tcp://{LOOPBACK}:{ports[target]}")
        pushes.append(push)
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(Transfer).decode
    counts, received, target_count = my_counts(), 0, len(pushes)
    for number in range(IN_FLIGHT_COUNT):
        pushes[number % target_count].send(encode(Transfer(7)))
    while True:
        message = decode(pull.recv())
        received += 1
        pushes[received % target_count].send(encode(Transfer(message.amount)))
        if not received % COUNT_EVERY:
            counts.write(index, received)


def grpc_aio(index: int, shape: str, ports: list[int], ready: Any) -> None:
    """One client stream a channel, one message at a time."""
    asyncio.run(_grpc(index, shape, ports, ready))


async def _grpc(index: int, shape: str, ports: list[int], ready: Any) -> None:
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(Transfer).decode
    counts, received = my_counts(), 0
    streams: list[Any] = []
    writing: list[asyncio.Lock] = []

    async def take(requests: AsyncIterator[Transfer], _: Any) -> Transfer:
        nonlocal received
        async for message in requests:
            received += 1
            counts.write(index, received)
            turn = received % len(streams)
            async with writing[turn]:
                await streams[turn].write(Transfer(message.amount))
        return Transfer(0)

    handler = grpc.stream_unary_rpc_method_handler(take, decode, encode)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("B", {"T": handler}),))
    server.add_insecure_port(f"{LOOPBACK}:{ports[index]}")
    await server.start()
    await asyncio.to_thread(ready.wait)
    for target in targets(shape, index):
        channel = grpc.aio.insecure_channel(f"{LOOPBACK}:{ports[target]}")
        await channel.channel_ready()
        streams.append(channel.stream_unary("/B/T", encode, decode)())
        writing.append(asyncio.Lock())
    await asyncio.to_thread(ready.wait)
    for number in range(IN_FLIGHT_COUNT):
        turn = number % len(streams)
        async with writing[turn]:
            await streams[turn].write(Transfer(7))
    await server.wait_for_termination()
