"""An HTTP shop that answers an order only when no death can undo it, and charges for it once.

    stillframe run stillframe.examples.http_shop:system --store shop --interval 100ms &
    python -m stillframe.examples.http_shop shop 8000 &
    curl -X PUT 'http://127.0.0.1:8000/orders/C1-1?pieces=3'

The client chooses the name of its order. If it gets no answer, or 503, it is unknown whether the
order was taken: the client sends the same order again until it gets another answer. Whatever an
answer says was read before the wait for a snapshot, so no death takes it back.
"""

import asyncio
import os
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from stillframe import (
    Channel,
    Due,
    ExternalProcess,
    JoinedProcess,
    Keyed,
    Message,
    Outbox,
    Process,
    Topology,
    join,
)
from stillframe.errors import StillframeError, Unavailable, UsageError

PRICE = 5
STOCK = 1_000_000
PIECES_MAX = 100
RETRY_S = 0.1
ANSWER_S = 10.0
TABLES = """
    create table if not exists charges (customer_order text, amount integer);
    create table if not exists mark (mark text);
    insert into mark select '' where not exists (select * from mark);
"""


class Order(Message):
    """A request of the shop to the warehouse."""

    order: str
    pieces: int


class Shipped(Message):
    """A parcel that the warehouse has sent to the customer."""

    order: str
    pieces: int


class Charge(Message):
    """A payment of the customer: an effect outside of the system."""

    order: str
    amount: int


class Warehouse(Process):
    """Ships what was ordered."""

    pieces: int = STOCK

    def receive(self, channel: Channel, message: Order) -> None:
        """Take the pieces from the shelf."""
        self.pieces -= message.pieces
        self.send(channel.source, Shipped(message.order, message.pieces))


@dataclass
class Shop:
    """The recorded state of the server: the orders that it has taken, and the charges to make."""

    charges: Outbox[Charge]
    orders: Keyed[str, int] = field(default_factory=Keyed)
    shipped: int = 0


system = Topology(
    {"shop": ExternalProcess(state=Shop, accepts=Shipped), "warehouse": Warehouse()},
    [("shop", "warehouse"), ("warehouse", "shop")],
)


def connect() -> sqlite3.Connection:
    """Open the file of the charges: the variable CHARGES names it."""
    books = sqlite3.connect(os.environ.get("CHARGES", "charges.sqlite"), isolation_level=None)
    books.executescript(f"begin immediate; {TABLES} commit;")
    return books


def charge(due: Due[Charge]) -> None:
    """Commit charges, and the mark, in one transaction."""
    with closing(connect()) as books, books:
        books.execute("begin immediate")
        due = due.after(books.execute("select mark from mark").fetchone()[0])
        rows = [(charge.order, charge.amount) for charge in due.items]
        books.executemany("insert into charges values (?, ?)", rows)
        books.execute("update mark set mark = ?", (due.mark,))


class Server:
    """The HTTP server. It keeps running when an epoch ends, and joins the next one."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.shop = Shop(Outbox(charge))
        self.me: JoinedProcess | None = None
        self.app = Starlette(routes=[Route("/orders/{order}", self.order, methods=["PUT"])])

    async def order(self, request: Request) -> Response:
        """Take an order, or find that it was taken, and answer when that is safe."""
        me, shop = self.me, self.shop
        if me is None:
            return PlainTextResponse("the system is being restored: repeat", status_code=503)
        order, text = request.path_params["order"], request.query_params.get("pieces", "")
        pieces = int(text) if text.isdecimal() and len(text) < 4 else 0
        if len(order) > 64 or not 0 < pieces <= PIECES_MAX:
            return PlainTextResponse(f"give pieces=1 to {PIECES_MAX}", status_code=400)
        # Nothing is awaited from here to until_safe(): the order is taken in one atomic action.
        # What can fail comes first, since an error undoes nothing of what was done before it.
        if order not in shop.orders:
            try:
                shop.charges.put(Charge(order, pieces * PRICE))
            except UsageError:
                return PlainTextResponse("too many charges wait: repeat later", status_code=503)
            await me.send("warehouse", Order(order, pieces))
            shop.orders[order] = pieces
        taken = shop.orders[order]
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.until_safe(me)
        except (StillframeError, TimeoutError):
            return PlainTextResponse("unknown: repeat the same order", status_code=503)
        if taken != pieces:
            return PlainTextResponse(f"this order has {taken} pieces", status_code=409)
        return JSONResponse({"order": order, "pieces": pieces})

    async def until_safe(self, me: JoinedProcess) -> None:
        """Wait until no death can undo what was done."""
        await me.until_safe()

    async def take_part(self) -> None:
        """Be the process `shop`, in one epoch after the other."""
        while True:
            shop = Shop(Outbox(charge))
            try:
                async with join("shop", topology=system, store=self.store, state=shop) as me:
                    self.shop, self.me = shop, me
                    async for _, shipped in me:
                        assert isinstance(shipped, Shipped)
                        shop.shipped += shipped.pieces
            except Unavailable:
                self.me = None
                await asyncio.sleep(RETRY_S)

    async def serve(self, port: int) -> None:
        """Serve until a signal ends it, or an error."""
        config = uvicorn.Config(self.app, port=port, log_level="warning")
        async with asyncio.TaskGroup() as tasks:
            part = tasks.create_task(self.take_part())
            await uvicorn.Server(config).serve()
            part.cancel()


if __name__ == "__main__":
    asyncio.run(Server(Path(sys.argv[1])).serve(int(sys.argv[2])))
