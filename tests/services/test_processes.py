"""Services in processes of their own, of which one is killed: behind ``grpc.aio`` and uvicorn.

``tests.soak.services`` has many behind uvicorn.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import httpx
import pytest

from stillframe.protocol.calls import Baseline, CallId, CallPlace, Observation
from stillframe.runtime.network.addresses import Address
from stillframe.services.attachment import connected_agent
from stillframe.services.http_client import ObservedTransport
from stillframe.services.observer import Membership, Observer, ObserverConfig
from tests.nightly import by_night
from tests.ports import free_port
from tests.services.deployment import BALANCE, SECRET, amount_of, money_in
from tests.soak.services import LateLines

ROOT = Path(__file__).parent.parent.parent
KEPT_COUNT = 3
AMOUNT = 5


class Banks:
    """Banks in processes, and a collector in this one."""

    def __init__(self, names: str) -> None:
        self.ports = {name: free_port() for name in names}
        self.published: list[Observation] = []
        self.abandoned: list[tuple[int, str]] = []
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.observer = Observer(
            ObserverConfig(secret=SECRET, interval_s=0.05, retire_s=0.5),
            publish=lambda observation, times, ledger: self.published.append(observation),
            store=lambda ledger: None,
            abandoned=lambda number, why: self.abandoned.append((number, why)),
            warn=lambda text: None,
        )
        self._address = Address("127.0.0.1", 0)

    def start(self, name: str) -> None:
        """Start the process of a bank."""
        targets = [f"127.0.0.1:{port}" for other, port in self.ports.items() if other != name]
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-m", "tests.services.grpc_bank_app", str(self.ports[name])],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
                "BANK_NAME": name,
                "BANK_TARGETS": " ".join(targets),
                "BANK_COLLECTOR": str(self._address),
            },
        )

    def end(self, name: str) -> None:
        """Kill the process of a bank."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all of them, and take observations while the body runs."""
        self._address = await self.observer.open(self._address)
        observing = asyncio.create_task(self.observer.run())
        try:
            for name in self.ports:
                self.start(name)
            yield
        finally:
            observing.cancel()
            for name in tuple(self.processes):
                self.end(name)
            await asyncio.gather(observing, return_exceptions=True)
            await self.observer.close()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition."""
        async with asyncio.timeout(120):
            while not holds():  # noqa: ASYNC110 - other processes make it hold
                await asyncio.sleep(0.02)

    def exact(self, instance_count: int) -> list[Observation]:
        """Return the exact observations of so many instances."""
        return [
            one for one in self.published if one.is_exact and len(one.fragments) == instance_count
        ]


@pytest.mark.slow
def test_a_killed_instance_is_named_and_its_calls_are_unknown() -> None:
    """Observations go on without it, and with the one that is started in its place."""
    banks = Banks("ABC")

    async def run() -> float:
        async with banks.running():
            await banks.until(lambda: bool(banks.exact(3)))
            banks.end("C")
            ended_at = time.time()
            await banks.until(lambda: any(one.disconnected for one in banks.published))
            await banks.until(lambda: len(banks.published[-1].fragments) == 2)
            banks.start("C")
            await banks.until(lambda: len(banks.published[-1].fragments) == 3)
            return ended_at

    ended_at = asyncio.run(run())
    assert {money_in(one) for one in banks.exact(3)[:1]} == {3 * BALANCE}
    [without] = [one for one in banks.published if one.disconnected]
    [dead] = without.disconnected
    assert dead.startswith("C-")
    assert dead not in without.fragments
    # Its caller may know that a later call was refused, or that C is retired.
    open_to_dead = [
        call
        for call in without.calls
        if call.record.target.endswith(f":{banks.ports['C']}") and not call.served
        if call.record.details.began_at < ended_at and call.record.was_sent
    ]
    assert {call.place for call in open_to_dead} <= {CallPlace.UNKNOWN}
    [again] = [name for name in banks.published[-1].fragments if name.startswith("C-")]
    assert again != dead


class Payer:
    """A caller in this process, a bank in another one, and a collector that learns of its end only
    when it may. If there is a file, the money of the bank is durable."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.port = free_port()
        self.target = f"127.0.0.1:{self.port}"
        self.state = {"balance": BALANCE}
        self.published: list[Observation] = []
        self.abandoned: list[str] = []
        self.members: list[tuple[str, Membership]] = []
        self.observer = Observer(
            ObserverConfig(secret=SECRET, interval_s=0.05, timeout_s=120, retire_s=0.2),
            publish=lambda observation, times, ledger: self.published.append(observation),
            store=lambda ledger: None,
            abandoned=lambda number, why: self.abandoned.append(why),
            warn=lambda text: None,
            member=lambda name, change: self.members.append((name, change)),
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take observations while the body runs."""
        address = await self.observer.open(Address("127.0.0.1", 0))
        self.lines = LateLines(address.port, Random(1), 0.0)
        async with self.lines.running():
            self._collector = f"127.0.0.1:{self.lines.port}"
            agent = connected_agent(
                service="A",
                state=self.state,
                collector=self._collector,
                secret=SECRET,
                targets=[self.target],
                carries=amount_of,
            )
            observing = asyncio.create_task(self.observer.run())
            async with httpx.AsyncClient(transport=ObservedTransport(agent)) as self.client:
                try:
                    self.start()
                    yield
                finally:
                    self.kill()
                    observing.cancel()
                    await asyncio.gather(observing, return_exceptions=True)
                    await self.observer.close()

    def start(self) -> None:
        """Start the bank."""
        durable = {} if self.file is None else {"BANK_FILE": str(self.file)}
        self._bank = subprocess.Popen(
            [
                *(sys.executable, "-m", "uvicorn", "tests.services.kept_bank:app"),
                *("--port", str(self.port), "--log-level", "critical"),
            ],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
                "BANK_COLLECTOR": self._collector,
                **durable,
            },
        )

    async def end(self) -> None:
        """End the bank in order."""
        self._bank.terminate()
        await asyncio.to_thread(self._bank.wait)

    def kill(self) -> None:
        """Kill the bank."""
        self._bank.kill()
        self._bank.wait()

    async def pay(self, **options: int) -> None:
        """Pay the bank."""
        self.state["balance"] -= AMOUNT
        payment = {"amount": AMOUNT, **options}
        answer = await self.client.post(f"http://{self.target}/pay", json=payment, timeout=None)
        self.state["balance"] += answer.json()["amount"]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition."""
        async with asyncio.timeout(120):
            while not holds():  # noqa: ASYNC110 - other processes make it hold
                await asyncio.sleep(0.02)

    async def bank(self, after: int = 0) -> str:
        """Wait until an instance of the bank has joined, after so many changes; return its name."""

        def joined() -> list[str]:
            changes = self.members[after:]
            return [name for name, change in changes if (name[0], change) == ("D", "joined")]

        await self.until(lambda: bool(joined()))
        return joined()[0]

    def is_kept(self) -> bool:
        """Return whether the last observation has every kept call at the bank."""
        places = [call.place for call in self.published[-1].calls] if self.published else []
        return places == [CallPlace.SERVED] * KEPT_COUNT

    def is_serving(self, bank: str) -> bool:
        """Return whether a bank serves a call in the last observation."""
        calls = self.published[-1].calls
        return [name for one in calls for name, served in one.served if not served.number] == [bank]

    def is_observed(self, bank: str) -> bool:
        """Return whether the last observation has a bank and the caller."""
        fragments = self.published[-1].fragments if self.published else {}
        return bank in fragments and len(fragments) == 2

    def exact(self, bank: str) -> list[Observation]:
        """Return the exact observations of a bank and the caller."""
        both = [one for one in self.published if len(one.fragments) == 2]
        return [one for one in both if one.is_exact and bank in one.fragments]


@pytest.mark.slow
@pytest.mark.nightly(part="soak")
@pytest.mark.parametrize("is_noticed", by_night((False, True), check=(False,)))
def test_a_server_is_killed_during_calls_and_starts_again_at_once(is_noticed: bool) -> None:
    """Also if the collector notices that only afterwards: its calls are unknown, so no observation
    is exact until an operator begins a new baseline. Every exact total is right."""
    payer = Payer()

    async def run() -> tuple[str, str, set[CallId]]:
        async with payer.running():
            dead = await payer.bank()
            await payer.pay()
            calls = [asyncio.create_task(payer.pay(is_kept=1)) for _ in range(KEPT_COUNT)]
            await payer.until(payer.is_kept)
            kept = {one.call for one in payer.published[-1].calls}
            change_count = len(payer.members)
            if not is_noticed:
                payer.lines.passes_ends.clear()
            payer.kill()
            payer.start()
            broken = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(one) for one in broken} <= {httpx.RemoteProtocolError, httpx.ReadError}
            successor = await payer.bank(change_count)
            assert is_noticed or (dead, "left") not in payer.members
            payer.lines.passes_ends.set()
            await payer.until(lambda: any(dead in one.disconnected for one in payer.published))
            await payer.pay()
            await payer.until(lambda: payer.is_observed(successor))
            assert not payer.exact(successor)
            await payer.observer.rebase(Baseline(0, "the money was counted", "Ada"))
            await payer.until(lambda: len(payer.exact(successor)) >= KEPT_COUNT)
            return dead, successor, kept

    dead, successor, kept = asyncio.run(run())
    assert set(payer.abandoned) <= {f"{dead} was disconnected", "a new baseline begins"}
    assert {money_in(one) for one in payer.exact(dead)} == {2 * BALANCE}
    taken_along = AMOUNT * (1 + KEPT_COUNT)
    assert {money_in(one) for one in payer.exact(successor)} == {2 * BALANCE - taken_along}
    without = [one for one in payer.published if dead not in one.fragments]
    places = [[call.place for call in one.calls if call.call in kept] for one in without]
    assert max(map(len, places)) == KEPT_COUNT
    assert {place for one in places for place in one} == {CallPlace.UNKNOWN}
    assert not any(one.not_accepted for one in payer.published)


@pytest.mark.slow
def test_a_server_with_durable_money_restarts_in_order(tmp_path: Path) -> None:
    """On SIGTERM uvicorn answers what it serves, and then lets the application store its state and
    say goodbye. Every observation is exact, with one total."""
    payer = Payer(tmp_path / "money")

    async def restart(name: str) -> str:
        last = asyncio.create_task(payer.pay(is_last=1))
        await payer.until(lambda: payer.is_serving(name))
        await payer.end()
        await last
        assert payer.members[-1] == (name, "ended")
        payer.start()
        return await payer.bank(len(payer.members))

    async def run() -> tuple[int, str]:
        async with payer.running():
            first = name = await payer.bank()
            await payer.pay()
            await payer.until(lambda: bool(payer.exact(first)))
            for _ in range(2):
                name = await restart(name)
            await payer.until(lambda: bool(payer.exact(name)))
            return payer.exact(first)[0].number, name

    first, name = asyncio.run(run())
    later = [one for one in payer.published if one.number >= first]
    assert all(one.is_exact for one in later)
    assert {(money_in(one), one.baseline) for one in later} == {(2 * BALANCE, first)}
    assert later[-1].fragments[name].state.conserved == {"EUR": BALANCE + 3 * AMOUNT}
