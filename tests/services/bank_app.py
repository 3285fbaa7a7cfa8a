"""A bank behind uvicorn, for tests with real processes: pays the targets that its environment
names, as long as it runs."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from random import Random

import fastapi
import httpx

from stillframe.services.attach import attach
from stillframe.services.http_client import ObservedTransport
from tests.services.deployment import BALANCE, SECRET, amount_of

TARGETS = os.environ["BANK_TARGETS"].split()
chance = Random(os.getpid())
state = {"balance": BALANCE}


@contextlib.asynccontextmanager
async def paying(app: fastapi.FastAPI) -> AsyncIterator[None]:
    """Pay while the server runs."""
    tasks = [asyncio.create_task(pay_others()) for _ in range(2)]
    yield
    for task in tasks:
        task.cancel()


app = fastapi.FastAPI(lifespan=paying)
agent = attach(
    app,
    service=os.environ["BANK_NAME"],
    state=state,
    collector=os.environ["BANK_COLLECTOR"],
    secret=SECRET,
    targets=TARGETS,
    carries=amount_of,
)
client = httpx.AsyncClient(transport=ObservedTransport(agent), timeout=1)


@app.post("/pay")
async def pay(payment: dict[str, int]) -> dict[str, int]:
    """Take money, and give half of it back a little later."""
    back = payment["amount"] // 2
    state["balance"] += payment["amount"] - back
    with agent.held(EUR=back):
        await asyncio.sleep(chance.random() * 0.02)
    return {"amount": back}


async def pay_others() -> None:
    """Pay one target after the other."""
    while True:
        amount = chance.randint(1, 9)
        if state["balance"] >= amount:
            state["balance"] -= amount
            with contextlib.suppress(httpx.HTTPError):
                answer = await client.post(
                    f"http://{chance.choice(TARGETS)}/pay", json={"amount": amount}
                )
                state["balance"] += answer.json()["amount"]
        await asyncio.sleep(0.01)
