"""Banks behind ``grpc.aio`` in one event loop, which pay each other by all four kinds of calls."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from random import Random
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import Int64Value

from stillframe.protocol.calls import Amounts
from stillframe.services.agent import Agent, Message
from stillframe.services.grpc_client import ObservedChannel
from stillframe.services.grpc_server import ObservedCalls
from tests.services.deployment import BALANCE, SECRET, Collected

SERVICE = "bank.Bank"
REFUSED = grpc.StatusCode.FAILED_PRECONDITION
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def amount_of(message: Message) -> Amounts:
    """Return the money in a message. A refusal gives back what the request brought."""
    if message.status not in (0, REFUSED.value[0]):
        return {}
    body = message.request_body if message.status else message.body
    return {"EUR": Int64Value.FromString(body).value}


def served_methods(methods: Mapping[str, Callable[..., Any]]) -> grpc.GenericRpcHandler:
    """Return handlers of a service whose methods have the names of their kinds."""
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            kind: getattr(grpc, f"{kind}_rpc_method_handler")(
                method,
                request_deserializer=Int64Value.FromString,
                response_serializer=Int64Value.SerializeToString,
            )
            for kind, method in methods.items()
        },
    )


def method_of(channel: Any, kind: str) -> Any:
    """Return what a generated stub has for a method."""
    return getattr(channel, kind)(
        f"/{SERVICE}/{kind}",
        request_serializer=Int64Value.SerializeToString,
        response_deserializer=Int64Value.FromString,
    )


@contextlib.asynccontextmanager
async def served(
    methods: Mapping[str, Callable[..., Any]], interceptors: list[Any]
) -> AsyncIterator[str]:
    """Serve methods while the body runs; yield the address."""
    server = grpc.aio.server(interceptors=interceptors)
    server.add_generic_rpc_handlers((served_methods(methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


class GrpcBank:
    """A service with money, which it sends in requests, answers, errors and messages of streams."""

    def __init__(self, name: str, deployment: "GrpcDeployment") -> None:
        self.balance = BALANCE
        self.agent = Agent(
            name,
            self,
            secret=SECRET,
            targets=deployment.targets.values(),
            carries=amount_of,
            on_fragment=deployment.report,
        )
        self._chance = deployment.chance

    def __call__(self) -> dict[str, int]:
        """Return the state."""
        return {"balance": self.balance}

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Return the handlers."""
        return {
            "unary_unary": self.pay,
            "unary_stream": self.draw,
            "stream_unary": self.fill,
            "stream_stream": self.trade,
        }

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.random() * 0.02)

    async def pay(self, request: Int64Value, context: Any) -> Int64Value:
        """Take money, and give some of it back, or all of it with an error."""
        self.balance += request.value
        await self._pause()
        if self._chance.random() < 0.2:
            self.balance -= request.value
            await context.abort(REFUSED, "refused")
        back = request.value // 2
        self.balance -= back
        return Int64Value(value=back)

    async def draw(self, request: Int64Value, _: Any) -> AsyncIterator[Int64Value]:
        """Take money, and give it back in parts."""
        self.balance += request.value
        for _number in range(request.value):
            self.balance -= 1
            yield Int64Value(value=1)
            await self._pause()

    async def fill(self, requests: AsyncIterator[Int64Value], _: Any) -> Int64Value:
        """Take money in parts, and give half of it back."""
        taken = 0
        async for request in requests:
            self.balance += request.value
            taken += request.value
            await self._pause()
        self.balance -= taken // 2
        return Int64Value(value=taken // 2)

    async def trade(self, _: Any, context: Any) -> None:
        """Take parts, and give some of each back."""
        while (request := await context.read()) is not grpc.aio.EOF:
            self.balance += request.value
            await self._pause()
            self.balance -= request.value // 2
            await context.write(Int64Value(value=request.value // 2))

    async def call(self, channel: Any, kind: str, amount: int) -> None:
        """Pay another one by a call of a kind."""
        method = method_of(channel, kind)
        match kind:
            case "unary_unary":
                self.balance -= amount
                try:
                    answer = await method(Int64Value(value=amount))
                except grpc.aio.AioRpcError as error:
                    assert error.code() is REFUSED  # noqa: PT017 - it is part of a load
                    self.balance += amount
                else:
                    self.balance += answer.value
            case "unary_stream":
                self.balance -= amount
                async for message in method(Int64Value(value=amount)):
                    self.balance += message.value
            case "stream_unary":
                answer = await method(self._parts(amount))
                self.balance += answer.value
            case "stream_stream":
                call = method()
                async for part in self._parts(amount):
                    await call.write(part)
                    answer = await call.read()
                    self.balance += answer.value
                await call.done_writing()
                assert await call.read() is grpc.aio.EOF

    async def _parts(self, amount: int) -> AsyncIterator[Int64Value]:
        for part in (amount, 1, amount):
            self.balance -= part
            yield Int64Value(value=part)
            await self._pause()


class GrpcDeployment(Collected):
    """Banks that pay each other, and a collector.

    Args:
        seed: the seed of chance.
        timeout_s: how long a caller waits at most, if it does not wait until the end. Money that a
            cancelled call has taken along is lost.
    """

    def __init__(self, seed: int, *, timeout_s: float | None = None) -> None:
        super().__init__(Random(seed))
        names = "ABC"
        self.cancelled_count = 0
        self._timeout_s = timeout_s
        self.targets = {name: f"{name}:1" for name in names}
        self.banks = [GrpcBank(name, self) for name in names]
        for bank in self.banks:
            self.join(bank.agent)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve all of them, and let them pay while the body runs."""
        async with contextlib.AsyncExitStack() as stack:
            addresses = {
                name: await stack.enter_async_context(
                    served(bank.methods(), [ObservedCalls(bank.agent)])
                )
                for name, bank in zip(self.targets, self.banks, strict=True)
            }
            over = asyncio.Event()
            loads = []
            for bank in self.banks:
                for kind in KINDS:
                    channels = [
                        await stack.enter_async_context(
                            ObservedChannel(
                                bank.agent, grpc.aio.insecure_channel(addresses[name]), target
                            )
                        )
                        for name, target in self.targets.items()
                        if name != bank.agent.service
                    ]
                    loads.append(asyncio.create_task(self._load(bank, channels, kind, over)))
            try:
                yield
            finally:
                over.set()
                await asyncio.gather(*loads)

    async def _load(
        self, bank: GrpcBank, channels: list[Any], kind: str, over: asyncio.Event
    ) -> None:
        while not over.is_set():
            limit_s = self.chance.random() * self._timeout_s if self._timeout_s else None
            try:
                async with asyncio.timeout(limit_s):
                    await bank.call(self.chance.choice(channels), kind, self.chance.randint(1, 9))
            except TimeoutError:
                self.cancelled_count += 1
