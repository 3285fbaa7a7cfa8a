"""The HTTP shop of the examples under load, with ``kill -9`` at random moments: what it has
answered is never lost, and no charge is made twice."""

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from starlette.requests import Request
from starlette.responses import Response

from stillframe import Due, JoinedProcess, Keyed, Message, Outbox
from stillframe.examples import http_shop
from stillframe.examples.http_shop import PRICE, STOCK, Shop, charge, connect, system
from stillframe.model import Abandoned, Snapshot
from stillframe.runtime import events
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.store import Store
from tests.nightly import Figure, by_night, seeds
from tests.ports import free_port
from tests.runtime.links import until

REFERENCE = "stillframe.examples.http_shop:system"
CUSTOMER_COUNT = 8
STEP_TIMEOUT_S = 60.0
WHOM = ("the server", "the warehouse", "nobody", "the server")


class Shopping:
    """One system, its HTTP server, and customers that repeat each order until it is answered.

    `answered` has what customers know: order -> pieces.
    """

    def __init__(
        self, directory: Path, seed: int, server: str = "stillframe.examples.http_shop"
    ) -> None:
        self.random = random.Random(seed)
        self.store = Store.create(
            directory / "store", description=system.description, reference=REFERENCE
        )
        os.environ["CHARGES"] = str(directory / "charges.sqlite")
        self.port = free_port()
        self.program = (sys.executable, "-m", server, str(directory / "store"), str(self.port))
        self.answered: dict[str, int] = {}
        self.statuses: Counter[int] = Counter()
        self.closed = False
        self.epochs = 0

    def emit(self, event: events.Event) -> None:
        """Count the epochs."""
        self.epochs += isinstance(event, events.SystemRunning)

    async def start_server(self) -> None:
        """Start the HTTP server."""
        self.server = await asyncio.create_subprocess_exec(*self.program)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Supervisor]:
        """Run the system with its server."""
        await self.start_server()
        try:
            async with Supervisor(REFERENCE, self.store, emit=self.emit) as supervisor:
                yield supervisor
        finally:
            with contextlib.suppress(ProcessLookupError):
                self.server.kill()
            await self.server.wait()
            self.store.close()

    async def put(self, order: str, pieces: int, on_sent: Callable[[], None] = lambda: None) -> int:
        """Send an order once; return the status, 0 if there is no answer."""
        try:
            lines, request = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return 0
        with closing(request):
            head = f"PUT /orders/{order}?pieces={pieces} HTTP/1.1"
            request.write(f"{head}\r\nHost: shop\r\nConnection: close\r\n\r\n".encode())
            on_sent()
            try:
                answer = await lines.readline()
            except OSError:
                return 0
        return int(answer.split()[1]) if answer else 0

    async def until_open(self) -> None:
        """Wait until the server takes part: before, it refuses everything with 503."""
        while await self.put("x" * 65, 1) != 400:  # noqa: ASYNC110 - of another program
            await asyncio.sleep(0.01)

    async def order(self, order: str, pieces: int) -> None:
        """Send an order until it is answered."""
        while (status := await self.put(order, pieces)) != 200:
            self.statuses[status] += 1
            assert status in (0, 503), f"{order}: {status}"
            await asyncio.sleep(0.01)
        self.answered[order] = pieces

    async def shop(self, customer: int) -> None:
        """Order one thing after the other, until the shop is to close."""
        number = 0
        while not self.closed:
            number += 1
            await self.order(f"C{customer}-{number}", self.random.randrange(1, 10))

    async def take_snapshots(self, supervisor: Supervisor) -> None:
        """Take one snapshot after the other, as ``--every`` does."""
        while True:
            with contextlib.suppress(Exception):  # none can be taken while the system is restored
                await supervisor.snapshot()
            await asyncio.sleep(0.02)

    async def strike(self, supervisor: Supervisor, whom: str) -> None:
        """Kill it, or restore the system, and wait until the system runs again."""
        epochs = self.epochs
        if whom == "the server":
            self.server.kill()
            await self.server.wait()
            await self.start_server()
        elif whom == "the warehouse":
            os.kill(supervisor.children["warehouse"].pid, signal.SIGKILL)
        else:
            await supervisor.restore()
        await until(lambda: self.epochs > epochs)

    async def soak(self, count: int) -> list[str]:
        """Shop under `count` strikes; return what is wrong afterwards."""
        loop = asyncio.get_running_loop()
        async with self.running() as supervisor:
            customers = [loop.create_task(self.shop(c)) for c in range(CUSTOMER_COUNT)]
            snapshots = loop.create_task(self.take_snapshots(supervisor))
            for index in range(count):
                async with asyncio.timeout(STEP_TIMEOUT_S):
                    goal = len(self.answered) + self.random.randrange(1, 40)
                    await until(lambda goal=goal: len(self.answered) >= goal)  # type: ignore[misc]
                    await asyncio.sleep(self.random.random() * 0.05)
                    await self.strike(supervisor, WHOM[index % len(WHOM)])
            self.closed = True
            async with asyncio.timeout(STEP_TIMEOUT_S):
                await asyncio.gather(*customers)
            snapshots.cancel()
            await asyncio.wait([snapshots])
            outcome = await supervisor.last_snapshot("shop")
            assert not isinstance(outcome, Abandoned), str(outcome)
            return self.wrong(self.store.load(outcome.id))

    def wrong(self, last: Snapshot) -> list[str]:
        """Return what is wrong with the last snapshot and the charges, one sentence each."""
        fields = {
            s.process: system.codecs[s.process].decode(s.encoded) for s in last.state.processes
        }
        orders, charges = fields["shop"]["orders"], fields["shop"]["charges"]
        assert isinstance(orders, Keyed)
        assert isinstance(charges, Outbox)
        wrong = [f"{order} was answered, and is lost" for order in self.answered.keys() - orders]
        rows = charged()
        known = charges.recorded()["committed"]
        if len(rows) < known:
            wrong.append(f"{known - len(rows)} charges are missing")
        # What waits in the last snapshot is committed when the system is started again.
        names = [order for order, _ in rows]
        due: Due[object] | None = charges.due()
        rest = [] if due is None else due.after(mark(), is_done=None).items
        names += [item.order for item in rest]  # type: ignore[attr-defined]
        wrong += [f"{order} was charged {n} times" for order, n in Counter(names).items() if n > 1]
        wrong += [f"{order} was not charged" for order in orders.keys() - names]
        wrong += [f"{order} was charged, and is no order" for order in {*names} - orders.keys()]
        wrong += [f"{o}: {a} was charged" for o, a in rows if a != orders.get(o, 0) * PRICE]
        shelf, ordered = fields["warehouse"]["pieces"], sum(orders.values())
        moving = sum(s.message_count for s in last.state.channels)
        if not moving and (shelf != STOCK - ordered or fields["shop"]["shipped"] != ordered):
            wrong.append(f"{ordered} pieces were ordered, and {STOCK - shelf} left the shelf")
        return wrong


def charged() -> list[tuple[str, int]]:
    """Return the charges that were made."""
    with closing(connect()) as books:
        return books.execute("select customer_order, amount from charges").fetchall()


def mark() -> str:
    """Return the mark that is stored with them."""
    with closing(connect()) as books:
        return str(books.execute("select mark from mark").fetchone()[0])


@pytest.fixture
def shopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Shopping]:
    """Return what makes a shop."""
    monkeypatch.setenv("CHARGES", "")

    def make(seed: int = 1, **options: str) -> Shopping:
        return Shopping(tmp_path, seed, **options)

    return make


@pytest.mark.nightly(part="soak")
@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds("http", night=1) or (1,))
def test_no_answered_order_is_lost_and_none_is_charged_twice(
    seed: int, shopping: Callable[..., Shopping], figure: Figure
) -> None:
    """Under load, with deaths of the server and of another process, and restores."""
    count = by_night(40, check=4)
    shop = shopping(seed)
    assert asyncio.run(shop.soak(count)) == []
    figure("strikes", count)
    figure("orders", len(shop.answered))
    assert shop.epochs >= count + 1
    assert len(shop.answered) > count


async def order_and_die(shop: Shopping) -> int:
    """Order without a snapshot, let the warehouse die, and take a last snapshot; return how the
    order was answered."""
    async with asyncio.timeout(STEP_TIMEOUT_S), shop.running() as supervisor:
        await shop.until_open()
        await supervisor.snapshot()
        sent = asyncio.Event()
        waiting = asyncio.get_running_loop().create_task(shop.put("one", 3, sent.set))
        await sent.wait()
        for _ in range(2):  # what comes in later is answered later: now it was taken, or answered
            await shop.until_open()
        await shop.strike(supervisor, "the warehouse")
        status = await waiting
        if status == 200:
            shop.answered["one"] = 3
        else:
            await shop.until_open()
            again = asyncio.get_running_loop().create_task(shop.order("one", 3))
            while not again.done():
                await supervisor.snapshot()
        outcome = await supervisor.last_snapshot("warehouse")
        assert not isinstance(outcome, Abandoned)
        assert shop.wrong(shop.store.load(outcome.id)) == []
        return status


class Place:
    """The place of the shop in a system that does not run: it notes what is sent and awaited."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.is_safe = asyncio.Event()

    async def send(self, target: str, message: Message) -> None:
        """Note it."""
        self.done.append(f"sent to {target}")

    async def until_safe(self) -> None:
        """Wait for the test."""
        self.done.append("waits")
        await self.is_safe.wait()


def test_an_answer_says_nothing_that_is_not_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is an order taken in half when its charge cannot be put; a client does not wait for
    ever."""
    place, server = Place(), http_shop.Server(tmp_path)
    server.me, server.shop = cast(JoinedProcess, place), Shop(Outbox(charge, count_max=1))

    def ask(order: str, pieces: int) -> asyncio.Task[Response]:
        scope: dict[str, object] = {"type": "http", "path_params": {"order": order}}
        scope["query_string"] = f"pieces={pieces}".encode()
        return asyncio.get_running_loop().create_task(server.order(Request(scope)))

    async def main() -> None:
        monkeypatch.setattr(http_shop, "ANSWER_S", 0.0)
        assert (await ask("one", 3)).status_code == 503
        assert place.done == ["sent to warehouse", "waits"]
        monkeypatch.setattr(http_shop, "ANSWER_S", 60.0)
        answers = [ask("one", 3), ask("one", 4)]
        await asyncio.wait(answers, timeout=0)
        assert place.done[2:] == ["waits", "waits"]
        assert not any(answer.done() for answer in answers)
        full = await ask("two", 1)
        assert (full.status_code, full.body) == (503, b"too many charges wait: repeat later")
        assert dict(server.shop.orders) == {"one": 3}
        assert len(place.done) == 4
        place.is_safe.set()
        assert [(await answer).status_code for answer in answers] == [200, 409]

    asyncio.run(main())


@pytest.mark.slow
def test_an_order_is_answered_when_it_is_safe(shopping: Callable[..., Shopping]) -> None:
    """At a death before that the customer gets 503; the same order again is taken once."""
    shop = shopping()
    assert asyncio.run(order_and_die(shop)) == 503
    assert shop.answered == {"one": 3}


@pytest.mark.slow
def test_a_server_that_answers_at_once_loses_orders(shopping: Callable[..., Shopping]) -> None:
    """The same check finds what it has lost."""
    shop = shopping(server="tests.soak.http_programs")
    with pytest.raises(AssertionError, match="one was answered, and is lost"):
        asyncio.run(order_and_die(shop))
