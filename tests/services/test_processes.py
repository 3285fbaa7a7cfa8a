"""Services behind ``grpc.aio`` in processes of their own, of which one is killed.

``tests.soak.services`` has the same behind uvicorn.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from stillframe.protocol.calls import CallPlace, Observation
from stillframe.runtime.network.addresses import Address
from stillframe.services.observer import Observer, ObserverConfig
from tests.ports import free_port
from tests.services.deployment import BALANCE, SECRET, money_in

ROOT = Path(__file__).parent.parent.parent


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

    async def run() -> None:
        async with banks.running():
            await banks.until(lambda: bool(banks.exact(3)))
            banks.end("C")
            await banks.until(lambda: any(one.gone for one in banks.published))
            await banks.until(lambda: len(banks.published[-1].fragments) == 2)
            banks.start("C")
            await banks.until(lambda: len(banks.published[-1].fragments) == 3)

    asyncio.run(run())
    assert {money_in(one) for one in banks.exact(3)[:1]} == {3 * BALANCE}
    [without] = [one for one in banks.published if one.gone]
    [dead] = without.gone
    assert dead.startswith("C-")
    assert dead not in without.fragments
    open_to_dead = [
        call
        for call in without.calls
        if call.record.target.endswith(f":{banks.ports['C']}") and not call.served
    ]
    assert {call.place for call in open_to_dead} <= {CallPlace.UNKNOWN}
    [again] = [name for name in banks.published[-1].fragments if name.startswith("C-")]
    assert again != dead
