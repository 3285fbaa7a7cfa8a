"""Calls that time out, and what becomes of their amounts: over httpx and ``grpc.aio``, in `gather`,
with retries and after a restart."""

import asyncio
import contextlib
from random import Random
from typing import Any

import grpc
import httpx
import pytest
from fastapi import FastAPI
from google.protobuf.wrappers_pb2 import Int64Value

from stillframe.errors import UsageError
from stillframe.protocol.calls import Observation, call_named
from stillframe.services.agent import Agent, MadeCall
from stillframe.services.attachment import observe_application
from stillframe.services.grpc_client import ObservedChannel
from stillframe.services.grpc_server import ObservedCalls
from stillframe.services.http_client import ObservedTransport
from tests.services import grpc_bank
from tests.services.deployment import SECRET, Collected, amount_of, money_in

TARGET = "bank:80"


class Lossy(httpx.AsyncBaseTransport):
    """Passes requests on to an application. Some are not sent, or lost, or their answers are."""

    def __init__(self, app: FastAPI) -> None:
        self._inner = httpx.ASGITransport(app)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Do with a request what its query says."""
        fate = request.url.params.get("fate")
        if fate == "request lost":
            raise httpx.ReadTimeout(fate)
        response = await self._inner.handle_async_request(request)
        if fate == "answer lost":
            raise httpx.ReadTimeout(fate)
        return response


class Shop(Collected):
    """A shop that pays a bank, and their collector."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.till = {"balance": 100}
        self.vault = {"balance": 100}
        self.paid: set[int] = set()
        app = FastAPI()
        self.agents_of = [
            Agent(
                name,
                state,
                secret=SECRET,
                targets=[TARGET],
                carries=amount_of,
                on_fragment=self.report,
            )
            for name, state in (("shop", self.till), ("bank", self.vault))
        ]
        self.agent, bank = self.agents_of
        observe_application(app, bank)
        for agent in self.agents_of:
            self.join(agent)
        self.client = httpx.AsyncClient(
            transport=ObservedTransport(self.agent, Lossy(app)), base_url=f"http://{TARGET}"
        )

        @app.post("/pay")
        async def pay(payment: dict[str, int]) -> dict[str, int]:
            self.vault["balance"] += payment["amount"]
            self.paid.add(payment["amount"])
            return {"amount": 0}

        @app.get("/paid")
        async def is_paid(amount: int) -> bool:
            return amount in self.paid

    async def pay(self, amount: int, fate: str = "", *, is_careful: bool = True) -> MadeCall:
        """Pay; if there is no answer, ask what became of it, or give it back at once."""
        self.till["balance"] -= amount
        with self.agent.calls() as made, contextlib.suppress(httpx.ReadTimeout):
            await self.client.post("/pay", params={"fate": fate}, json={"amount": amount})
            return made[0]
        answer = await self.client.get("/paid", params={"amount": amount})
        if answer.json() and is_careful:
            self.agent.settled(made[0])
        else:
            self.till["balance"] += amount
            self.agent.settled(made[0], returned={"EUR": amount})
        return made[0]


def spent_twice(observation: Observation) -> dict[str, int]:
    """Return what was spent twice of each call."""
    assert observation.is_exact, observation.partial
    return {call: amounts["EUR"] for call, amounts in observation.double_spent.items()}


def test_amounts_of_calls_without_an_answer_are_given_back() -> None:
    """Side by side, each by its own call; one that was paid all the same is spent twice."""

    async def run() -> None:
        shop = Shop()
        await shop.pay(3)
        assert money_in(await shop.observe()) == 200
        fates = ("request lost", "answer lost", "")
        made = await asyncio.gather(*(shop.pay(5 + n, fate) for n, fate in enumerate(fates)))
        assert [one.name for one in made] == ["POST /pay"] * 3
        assert {one.target for one in made} == {TARGET}
        observation = await shop.observe()
        assert (money_in(observation), spent_twice(observation)) == (200, {})
        assert shop.till["balance"] == 100 - 3 - 6 - 7
        careless = await shop.pay(9, "answer lost", is_careful=False)
        observation = await shop.observe()
        assert money_in(observation) == 209
        assert spent_twice(observation) == {str(careless): 9}

    asyncio.run(run())


def numbered(made: MadeCall) -> int:
    """Return the number of the request of a call."""
    return call_named(str(made)).number


def test_each_request_of_a_retry_is_a_call() -> None:
    """In their order, also in an outer collection; none that was not sent."""

    async def run() -> None:
        shop = Shop()
        shop.agent.targets |= {"127.0.0.1:1"}
        with shop.agent.calls() as outer:
            with shop.agent.calls() as made:
                for fate in ("request lost", "answer lost", ""):
                    with contextlib.suppress(httpx.ReadTimeout):
                        await shop.client.get("/paid", params={"fate": fate, "amount": 1})
                async with httpx.AsyncClient(transport=ObservedTransport(shop.agent)) as other:
                    with pytest.raises(httpx.ConnectError):
                        await other.get("http://127.0.0.1:1/paid")
            await shop.client.get("/paid", params={"amount": 2})
        assert [numbered(one) for one in made] == [1, 2, 3]
        assert [one.is_answered for one in made] == [False, False, True]
        with pytest.raises(UsageError, match=r"the answer to call shop-.*#3 was received"):
            shop.agent.settled(made[2], returned={"EUR": 1})
        assert [numbered(one) for one in outer] == [1, 2, 3, 5]
        assert {one.name for one in outer} == {"GET /paid"}

    asyncio.run(run())


def test_a_call_of_grpc_is_settled_by_its_name_after_a_restart() -> None:
    """The name is text, which a database can hold; the next instance gives the amounts back."""
    shop = Collected(Random(1))
    till, vault = {"balance": 100}, {"balance": 100}
    agents = [
        Agent(
            name,
            state,
            secret=SECRET,
            targets=[TARGET],
            carries=grpc_bank.amount_of,
            on_fragment=shop.report,
        )
        for name, state in (("shop", till), ("bank", vault))
    ]
    agent, bank = agents
    for one in agents:
        shop.join(one)
    begun = asyncio.Event()

    async def pay(request: Int64Value, context: Any) -> Int64Value:
        vault["balance"] += request.value
        if request.value > 1:
            begun.set()
            await asyncio.Event().wait()
        return Int64Value()

    async def run() -> None:
        methods = {"unary_unary": pay}
        async with grpc_bank.served(methods, [ObservedCalls(bank)]) as address:
            channel = ObservedChannel(agent, grpc.aio.insecure_channel(address), TARGET)
            method = grpc_bank.method_of(channel, "unary_unary")
            till["balance"] -= 1
            await method(Int64Value(value=1))
            with agent.calls() as made:
                till["balance"] -= 5
                call = method(Int64Value(value=5))
                await begun.wait()
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            assert (made[0].name, made[0].target) == (
                f"GRPC /{grpc_bank.SERVICE}/unary_unary",
                TARGET,
            )
            assert money_in(await shop.observe()) == 200
            shop.collector.ended(agent.farewell())
            shop.collector.joined(agent.rules.name, 0)
            till["balance"] += 5
            agent.settled(str(made[0]), returned={"EUR": 5})
            observation = await shop.observe()
            assert (money_in(observation), spent_twice(observation)) == (205, {str(made[0]): 5})
            await channel.close()

    asyncio.run(run())


@pytest.mark.parametrize("call", ["", "shop", "shop#", "#1", "shop#-1", "shop#x", f"{'x' * 81}#1"])
def test_what_names_no_call_is_not_settled(call: str) -> None:
    """The error shows what a name of a call looks like."""

    async def run() -> None:
        Agent("shop", dict, secret=SECRET).settled(call)

    with pytest.raises(UsageError, match="is not a call, such as 'shop-1a2b3c4d#17'"):
        asyncio.run(run())


def test_calls_are_settled_in_the_event_loop() -> None:
    """A thread could be between a capture and its fragment."""
    agent = Agent("shop", dict, secret=SECRET)
    with pytest.raises(UsageError, match="settled is called outside of the event loop"):
        agent.settled("shop-1a2b3c4d#17", returned={"EUR": 5})
