"""A bank of FastAPI for tests with real processes, which takes money and may never answer.

``uvicorn tests.services.kept_bank:app`` runs it. Its environment has BANK_COLLECTOR, and BANK_FILE
if its money is durable.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import fastapi

from stillframe.services import attach, attachment
from tests.services.deployment import BALANCE, SECRET, amount_of

FILE = Path(os.environ.get("BANK_FILE", os.devnull))

attachment.LEAVE_S = 60.0  # the machine may be busy


class Kept:
    """The money of the bank."""

    def __init__(self) -> None:
        self.balance = BALANCE

    def conserved(self) -> dict[str, int]:
        """Return it."""
        return {"EUR": self.balance}

    def load(self) -> None:
        """Load it, if it was stored."""
        if FILE.exists():
            self.balance = int(FILE.read_text() or BALANCE)

    def store(self) -> None:
        """Store it."""
        FILE.write_text(str(self.balance))


@contextlib.asynccontextmanager
async def _stored(_: fastapi.FastAPI) -> AsyncIterator[None]:
    kept.load()
    yield
    kept.store()


kept = Kept()
app = fastapi.FastAPI(lifespan=_stored)
attach(
    app,
    service="D",
    state=kept,
    collector=os.environ["BANK_COLLECTOR"],
    secret=SECRET,
    carries=amount_of,
)


@app.post("/pay")
async def pay(request: fastapi.Request, payment: dict[str, int]) -> dict[str, int]:
    """Take money; if the payment is to be kept, never answer; or only when the server ends."""
    kept.balance += payment["amount"]
    if payment.get("is_kept"):
        await asyncio.Event().wait()
    if payment.get("is_last"):
        await _is_closed(*request.scope["server"])
    return {"amount": 0}


async def _is_closed(host: str, port: int) -> None:
    """Wait until the server accepts no connection."""
    with contextlib.suppress(OSError):
        while True:
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            await asyncio.sleep(0.01)
