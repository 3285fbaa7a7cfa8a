"""Services of FastAPI behind real servers, in one event loop, with a collector whose messages are
late on purpose: otherwise every instance would capture at the same time."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any

import fastapi
import httpx
import msgspec

from stillframe.protocol.activities import InstanceState
from stillframe.protocol.calls import (
    Amounts,
    CallPlace,
    Collector,
    InstanceFragment,
    Observation,
    Settlement,
)
from stillframe.services.agent import Agent, Message
from stillframe.services.attachment import observe_application
from stillframe.services.http_client import ObservedTransport
from tests.services.servers import client_transport, served

SECRET = b"the secret of a test"
BALANCE = 1000
DELAY_S = 0.2


def listening() -> socket.socket:
    """Return a socket that listens on a free port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener


def address(listener: socket.socket) -> str:
    """Return the address of a socket as a target."""
    return f"127.0.0.1:{listener.getsockname()[1]}"


def amount_of(message: Message) -> Amounts:
    """Return the money in a message."""
    if message.path == "/pay" and message.status in (0, 200):
        return {"EUR": json.loads(message.body)["amount"]}
    return {}


class Bank:
    """A service with money that pays others and gives a part back."""

    def __init__(
        self,
        name: str,
        chance: Random,
        targets: list[str],
        report: Callable[[InstanceFragment], None],
    ) -> None:
        self.balance = BALANCE
        self.app = fastapi.FastAPI()
        self.agent = Agent(
            name, self, secret=SECRET, targets=targets, carries=amount_of, on_fragment=report
        )
        self._chance = chance
        self.app.post("/pay")(self.pay)
        observe_application(self.app, self.agent)
        transport = ObservedTransport(self.agent, client_transport())
        self.client = httpx.AsyncClient(transport=transport, timeout=30)

    async def close(self) -> None:
        """Close the client."""
        await self.client.aclose()

    def __call__(self) -> dict[str, int]:
        """Return the state."""
        return {"balance": self.balance}

    async def pay(self, payment: dict[str, int]) -> Any:
        """Take money, and give some of it back, now or later."""
        self.balance += payment["amount"]
        back = payment["amount"] // 2
        self.balance -= back
        if self._chance.random() < 0.5:
            with self.agent.held(EUR=back):
                await asyncio.sleep(self._chance.random() * 0.02)
        return {"amount": back}

    async def send(self, target: str, amount: int, **settings: Any) -> None:
        """Pay another one."""
        self.balance -= amount
        url = f"http://{target}/pay"
        answer = await self.client.post(url, json={"amount": amount}, **settings)
        self.balance += answer.json()["amount"]


class BankInThreads(Bank):
    """A bank whose endpoint is an ordinary function, which FastAPI calls in a thread. Threads do
    not change the field that tasks change."""

    vault = 0

    def __call__(self) -> dict[str, int]:
        """Return the state."""
        return {"balance": self.balance + self.vault}

    def pay(self, payment: dict[str, int]) -> Any:
        """Take money in one step, and give some of it back in another one."""
        back = payment["amount"] // 2
        time.sleep(self._chance.random() * 0.01)
        with self.agent.step():
            self.vault += payment["amount"]
        time.sleep(self._chance.random() * 0.01)
        with self.agent.step(EUR=back):
            before = self.vault
            time.sleep(self._chance.random() * 0.001)
            self.vault = before - back
        time.sleep(self._chance.random() * 0.01)
        return {"amount": back}


class Collected:
    """Agents, and a collector whose messages to and from them are late."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.agents: list[Agent] = []
        self.collector = Collector()
        self.results: asyncio.Queue[Any] = asyncio.Queue()

    def join(self, agent: Agent) -> None:
        """Add an agent."""
        self.agents.append(agent)
        self.collector.joined(agent.rules.name, 0)

    def report(self, fragment: InstanceFragment) -> None:
        """Pass a fragment on, later."""
        self._later(self._add, fragment)

    def _add(self, fragment: InstanceFragment) -> None:
        try:
            result = self.collector.add(fragment)
        except Exception as error:  # noqa: BLE001 - the test decides
            self.results.put_nowait(error)
        else:
            if result is not None:
                self.results.put_nowait(result)

    def _later(self, action: Callable[..., object], *arguments: object) -> None:
        delay_s = self.chance.random() * DELAY_S
        asyncio.get_running_loop().call_later(delay_s, action, *arguments)

    async def observe(self) -> Observation:
        """Take an observation, with every message of the collector late.

        Raises:
            NotConsistent: the cut is not consistent.
        """
        start = self.collector.begin()
        for agent in self.agents:
            self._later(self._pass, agent.rules.start, start)
        result = await self.results.get()
        if isinstance(result, Exception):
            raise result
        observation: Observation
        settlement: Settlement
        observation, settlement = result
        for agent in self.agents:
            self._pass(agent.rules.settle, settlement.of(agent.rules.name))
        return observation

    def _pass(self, rule: Callable[[Any], InstanceFragment | None], message: object) -> None:
        fragment = rule(message)
        if fragment is not None:
            self.report(fragment)


def money_in(observation: Observation) -> int:
    """Return the money in an observation of banks, and of those that have ended in order."""
    total = observation.outside_states().get("EUR", 0)
    total += sum(amounts.get("EUR", 0) for amounts in observation.ended.values())
    for fragment in observation.fragments.values():
        state: InstanceState = fragment.state
        total += msgspec.msgpack.decode(state.encoded)["balance"] + state.held.get("EUR", 0)
    return total


async def observed(deployment: Any, count: int) -> dict[CallPlace, int]:
    """Take this many observations of a deployment under load, or more until calls were in transit
    and served in one. Check the total of each; return where calls were."""
    found = dict.fromkeys(CallPlace, 0)
    async with deployment.running():
        while (await deployment.observe()).partial:
            pass  # over gRPC, until each has had an answer of each
        while (
            count > 0
            or not found[CallPlace.SERVED]
            or not found[CallPlace.REQUESTED] + found[CallPlace.ANSWERED]
        ):
            count -= 1
            observation = await deployment.observe()
            assert observation.partial == (), observation.partial
            assert money_in(observation) == BALANCE * len(deployment.banks)
            for call in observation.calls:
                found[call.place] += 1
    return found


def find(mistake: Callable[[Agent], None], deployment: Any) -> None:
    """Let every bank of a deployment make a mistake, and take observations until one finds it.

    Raises:
        NotConsistent: it was found, as it must be.
    """
    for bank in deployment.banks:
        mistake(bank.agent)

    async def run() -> None:
        async with deployment.running():
            for _ in range(100):
                await deployment.observe()

    asyncio.run(run())


class Deployment(Collected):
    """Banks of a kind that pay each other, and a collector."""

    def __init__(self, seed: int, names: str = "ABC", kind: type[Bank] = Bank) -> None:
        super().__init__(Random(seed))
        self._listeners = [listening() for _ in names]
        self.targets = [address(listener) for listener in self._listeners]
        self.banks = [kind(name, self.chance, self.targets, self.report) for name in names]
        for bank in self.banks:
            self.join(bank.agent)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve all of them. Let each pay each once, and others while the body runs."""
        async with contextlib.AsyncExitStack() as stack:
            for bank, listener in zip(self.banks, self._listeners, strict=True):
                await stack.enter_async_context(self.served(bank.app, listener))
            for bank in self.banks:
                # granian waits until every client has closed its connections.
                stack.push_async_callback(bank.close)
            for bank in self.banks:
                for target in self.targets:
                    await bank.send(target, 1)
            over = asyncio.Event()
            loads = [
                asyncio.create_task(self._load(number % len(self.banks), over))
                for number in range(2 * len(self.banks))
            ]
            try:
                yield
            finally:
                over.set()
                await asyncio.gather(*loads)

    async def _load(self, number: int, over: asyncio.Event) -> None:
        others = [target for place, target in enumerate(self.targets) if place != number]
        while not over.is_set():
            await self.pay(number, self.chance.choice(others), self.chance.randint(1, 9))

    def served(
        self, app: fastapi.FastAPI, listener: socket.socket
    ) -> AbstractAsyncContextManager[object]:
        """Serve the application of a bank while the body runs."""
        return served(app, listener)

    async def pay(self, number: int, target: str, amount: int) -> None:
        """Let a bank pay a target."""
        await self.banks[number].send(target, amount)
