"""A bank behind ``grpc.aio``, for tests with real processes: pays the targets that its environment
names, as long as it runs. Its argument is its port."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import Int64Value

from stillframe.services.attachment import connected_agent
from stillframe.services.grpc_client import ObservedChannel
from stillframe.services.grpc_server import ObservedCalls
from tests.services.deployment import BALANCE, SECRET
from tests.services.grpc_bank import amount_of, method_of, served_methods

TARGETS = os.environ["BANK_TARGETS"].split()
BROKEN = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""What grpc raises for operations of a call whose server was killed."""
chance = Random(os.getpid())
state = {"balance": BALANCE}


async def trade(requests: AsyncIterator[Int64Value], _: Any) -> AsyncIterator[Int64Value]:
    """Take money, and give half of each part back."""
    async for request in requests:
        back = request.value // 2
        state["balance"] += request.value - back
        yield Int64Value(value=back)


async def pay_others(channels: list[ObservedChannel]) -> None:
    """Pay one target after the other, in parts."""
    while True:
        call = method_of(chance.choice(channels), "stream_stream")(timeout=1)
        with contextlib.suppress(*BROKEN):
            for _ in range(3):
                amount = chance.randint(1, 9)
                if state["balance"] >= amount:
                    state["balance"] -= amount
                    await call.write(Int64Value(value=amount))
                    answer = await call.read()
                    state["balance"] += answer.value
            await call.done_writing()
            await call.read()
        await asyncio.sleep(0.01)


async def main() -> None:
    """Serve, and pay."""
    agent = connected_agent(
        service=os.environ["BANK_NAME"],
        state=state,
        collector=os.environ["BANK_COLLECTOR"],
        secret=SECRET,
        targets=TARGETS,
        carries=amount_of,
    )
    server = grpc.aio.server(interceptors=[ObservedCalls(agent)])
    server.add_generic_rpc_handlers((served_methods({"stream_stream": trade}),))
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    await server.start()
    channels = [
        ObservedChannel(agent, grpc.aio.insecure_channel(target), target) for target in TARGETS
    ]
    await asyncio.gather(*(pay_others(channels) for _ in range(2)))


if __name__ == "__main__":
    asyncio.run(main())
