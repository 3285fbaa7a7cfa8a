"""A bank of FastAPI for tests with real processes, which takes money and may never answer.

``uvicorn tests.services.kept_bank:app`` runs it. Its environment has BANK_COLLECTOR.
"""

import asyncio
import os

import fastapi

from stillframe.services import attach
from tests.services.deployment import BALANCE, SECRET, amount_of

state = {"balance": BALANCE}
app = fastapi.FastAPI()
attach(
    app,
    service="D",
    state=state,
    collector=os.environ["BANK_COLLECTOR"],
    secret=SECRET,
    carries=amount_of,
)


@app.post("/pay")
async def pay(payment: dict[str, int]) -> dict[str, int]:
    """Take money; if the payment is to be kept, never answer."""
    state["balance"] += payment["amount"]
    if payment.get("is_kept"):
        await asyncio.Event().wait()
    return {"amount": 0}
