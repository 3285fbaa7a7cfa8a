"""Connections that uvicorn closes because they were idle, while a client of a pool uses them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import fastapi
import httpx
import pytest
import uvicorn

from stillframe.protocol.calls import CallPlace, Observation
from stillframe.services.http_client import ObservedTransport
from tests.nightly import Figure, by_night, seeds
from tests.services.deployment import (
    BALANCE,
    Bank,
    Collected,
    Deployment,
    address,
    listening,
    money_in,
    observed,
)
from tests.services.servers import served_by_uvicorn

AMOUNT = 8
KEEP_ALIVE_S = 0.01
CLOSED_SHARE = 0.2
BROKEN = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
"""What httpx raises for a request on a connection that is closed."""


def close_idle(server: uvicorn.Server) -> None:
    """Let the time-out of each connection be over on which uvicorn waits for a request."""
    for connection in tuple(server.server_state.connections):
        connection.timeout_keep_alive_handler()  # type: ignore[union-attr]


def at_request(act: Callable[[], None]) -> dict[str, Any]:
    """Return extensions of a request that call `act` when httpx has chosen a connection for it, and
    is about to send."""

    async def trace(event: str, _: Any) -> None:
        if event == "http11.send_request_headers.started":
            act()

    return {"trace": trace}


class Pair(Collected):
    """A bank behind uvicorn, and one that pays it."""

    def __init__(self, retries: int) -> None:
        super().__init__(Random(1))
        self._listener = listening()
        self._target = address(self._listener)
        self.payee = Bank("B", self.chance, [], self.report)
        self.payer = Bank("A", self.chance, [self._target], self.report)
        for bank in (self.payer, self.payee):
            self.join(bank.agent)
        transport = httpx.AsyncHTTPTransport(retries=retries)
        self.payer.client = httpx.AsyncClient(
            transport=ObservedTransport(self.payer.agent, transport)
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[uvicorn.Server]:
        """Serve the bank while the body runs, and let it be paid once."""
        async with (
            served_by_uvicorn(self.payee.app, self._listener) as server,
            self.payer.client,
        ):
            await self.payer.send(self._target, AMOUNT)
            assert len(server.server_state.connections) == 1, "it is kept"
            yield server

    async def pay(self, act: Callable[[], None] = lambda: None) -> None:
        """Pay, on the connection that is kept."""
        await self.payer.send(self._target, AMOUNT, extensions=at_request(act))

    async def found(self) -> Observation:
        """Take an observation, whose total must be exact; return it."""
        observation = await self.observe()
        assert observation.is_exact
        assert money_in(observation) == 2 * BALANCE
        return observation


@pytest.mark.parametrize("retries", [0, 2])
def test_a_request_on_a_connection_that_the_server_closes_is_never_accepted(retries: int) -> None:
    """Its client raises, and does not send it again; a new call is accepted."""
    pair = Pair(retries)

    async def run() -> None:
        async with pair.running() as server:
            with pytest.raises(BROKEN):
                await pair.pay(lambda: close_idle(server))
            first = await pair.found()
            assert [one.place for one in first.calls] == [CallPlace.REQUESTED]
            assert not first.calls[0].record.is_awaited
            await pair.pay()
            last = await pair.found()
            assert last.calls == last.late == ()
            assert last.not_accepted == {"EUR": AMOUNT}

    asyncio.run(run())
    assert pair.payee.balance == BALANCE + AMOUNT


def test_a_request_whose_connection_breaks_after_it_was_accepted_has_taken_effect() -> None:
    """Its answer is lost, and with it the money that it gives back."""
    pair = Pair(retries=2)

    async def run() -> None:
        async with pair.running() as server:
            accept = pair.payee.agent.rules.accept

            def accept_and_break(*arguments: Any, **settings: Any) -> Any:
                for connection in server.server_state.connections:
                    connection.transport.abort()
                return accept(*arguments, **settings)

            pair.payee.agent.rules.accept = accept_and_break  # type: ignore[method-assign]
            with pytest.raises(BROKEN):
                await pair.pay()
            pair.payee.agent.rules.accept = accept  # type: ignore[method-assign]
            first = await pair.found()
            assert [len(one.served) for one in first.calls] == [1]
            while (last := await pair.found()).calls:
                pass
            assert last.not_accepted == {}
            assert last.lost == {"EUR": AMOUNT // 2}

    asyncio.run(run())
    assert pair.payee.balance == BALANCE + AMOUNT


class Closing(Deployment):
    """Banks whose servers close connections early, often when one is used."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.broken_count = 0
        self._servers: dict[str, uvicorn.Server] = {}

    @contextlib.asynccontextmanager
    async def served(self, app: fastapi.FastAPI, listener: socket.socket) -> AsyncIterator[None]:
        """Serve the application of a bank while the body runs."""
        keep_alive = {"timeout_keep_alive": KEEP_ALIVE_S}
        async with served_by_uvicorn(app, listener, **keep_alive) as server:
            self._servers[address(listener)] = server
            yield

    async def pay(self, number: int, target: str, amount: int) -> None:
        """Pay; the connection may be closed at that."""
        await asyncio.sleep(self.chance.random() * 2 * KEEP_ALIVE_S)
        server = self._servers[target]
        is_closed = self.chance.random() < CLOSED_SHARE
        extensions = at_request(lambda: close_idle(server)) if is_closed else {}
        try:
            await self.banks[number].send(target, amount, extensions=extensions)
        except BROKEN:
            self.broken_count += 1


@pytest.mark.nightly(part="soak")
@pytest.mark.parametrize("seed", seeds("closed connections", 1, night=3))
def test_every_total_is_exact_while_servers_close_connections(seed: int, figure: Figure) -> None:
    """Each call that breaks is found where it was."""
    deployment = Closing(seed)
    found = asyncio.run(observed(deployment, by_night(100, check=4)))
    figure("broken calls", deployment.broken_count)
    assert found[CallPlace.REQUESTED] > 0
    assert deployment.broken_count > 0
