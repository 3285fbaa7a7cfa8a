"""A bank of FastAPI that pays other banks over HTTP and is observed.

``uvicorn examples.services.bank:app`` runs it. Its environment has BANK_NAME, BANK_PAYEES (the
addresses of the banks that it pays), BANK_TARGETS (all addresses of banks), BANK_COLLECTOR,
BANK_RATE (payments a second) and STILLFRAME_SECRET. With BANK_FILE its balance is kept in a file,
and the next process continues with it.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import fastapi
import httpx

from examples.services import BALANCE, VAULT_TIMEOUT_S
from stillframe.services import Message, ObservedTransport, attach

PAYING = "/pay"
TIMEOUT_S = 0.5
SENDER_COUNT = 4
AMOUNT_MAX = 9

payees = os.environ["BANK_PAYEES"].split()
rate = float(os.environ["BANK_RATE"])
chance = Random(os.getpid())
file = Path(os.environ["BANK_FILE"]) if "BANK_FILE" in os.environ else None


class Books:
    """The state of a bank."""

    def __init__(self) -> None:
        self.balance = int(file.read_text()) if file and file.exists() else BALANCE

    def change(self, amount: int) -> None:
        """Add money, in memory and in the file: all in one step of the event loop."""
        self.balance += amount
        if file:
            new = file.with_suffix(".new")
            new.write_text(str(self.balance))
            new.replace(file)

    def conserved(self) -> dict[str, int]:
        """Return the money in it."""
        return {"EUR": self.balance}


def amounts(message: Message) -> dict[str, int]:
    """Return the money in a request or an answer."""
    if message.path == PAYING and message.status in (0, 200):
        return {"EUR": json.loads(message.body)["amount"]}
    return {}


@contextlib.asynccontextmanager
async def paying(_: fastapi.FastAPI) -> AsyncIterator[None]:
    """Pay while the server runs."""
    tasks = [asyncio.create_task(pay_others()) for _ in range(SENDER_COUNT if rate else 0)]
    yield
    for task in tasks:
        task.cancel()


books = Books()
app = fastapi.FastAPI(lifespan=paying)
agent = attach(
    app,
    service=os.environ["BANK_NAME"],
    state=books,
    collector=os.environ["BANK_COLLECTOR"],
    secret=os.environ["STILLFRAME_SECRET"].encode(),
    targets=os.environ["BANK_TARGETS"].split(),
    carries=amounts,
    stored_fields=["amount"],
)
client = httpx.AsyncClient(transport=ObservedTransport(agent), timeout=TIMEOUT_S)
vault = agent.lock("vault")


@app.post(PAYING)
async def pay(payment: dict[str, int]) -> dict[str, int]:
    """Take money, and give half of it back a little later."""
    back = payment["amount"] // 2
    books.change(payment["amount"] - back)
    with agent.held(EUR=back):
        await asyncio.sleep(chance.random() * 0.02)
    return {"amount": back}


@app.post("/open")
async def open_vaults(places: list[str]) -> str:
    """Hold the vault while the next bank opens its own: three of these at once can deadlock."""
    async with vault:
        await asyncio.sleep(0.1)
        if places:
            url = f"http://{places[0]}/open"
            await client.post(url, json=places[1:], timeout=VAULT_TIMEOUT_S)
    return "open"


@app.get("/balance")
async def balance() -> dict[str, int]:
    """Return the balance of this process, for a program that asks one after the other."""
    return {"process": os.getpid(), "balance": books.balance}


async def pay_others() -> None:
    """Pay one target after the other."""
    while True:
        await asyncio.sleep(chance.expovariate(rate / SENDER_COUNT))
        amount = chance.randint(1, AMOUNT_MAX)
        if books.balance < amount:
            continue
        books.change(-amount)
        with contextlib.suppress(httpx.HTTPError):
            url = f"http://{chance.choice(payees)}{PAYING}"
            answer = await client.post(url, json={"amount": amount})
            books.change(answer.json()["amount"])
