"""Services in processes of their own, behind uvicorn with one process and with several."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from stillframe.protocol.activities import InstanceState
from stillframe.protocol.calls import CallPlace, Observation
from stillframe.runtime.network.addresses import Address
from stillframe.services.observer import Observer, ObserverConfig
from tests.nightly import Figure, by_night
from tests.services.deployment import BALANCE, SECRET

ROOT = Path(__file__).parent.parent.parent
OBSERVATION_COUNT = by_night(300, check=10)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def total(observation: Observation) -> int:
    """Return the money in an observation."""
    found = observation.outside_states().get("EUR", 0)
    for fragment in observation.fragments.values():
        state: InstanceState = fragment.state
        found += msgspec.msgpack.decode(state.encoded)["balance"] + state.held.get("EUR", 0)
    return found


class Banks:
    """Banks in processes, and a collector in this one."""

    def __init__(self, **process_counts: int) -> None:
        self.process_counts = process_counts
        self.ports = {name: free_port() for name in process_counts}
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
        """Start the processes of a bank."""
        targets = [f"127.0.0.1:{port}" for other, port in self.ports.items() if other != name]
        self.processes[name] = subprocess.Popen(
            [
                *(sys.executable, "-m", "uvicorn", "tests.services.bank_app:app"),
                *("--port", str(self.ports[name]), "--log-level", "critical"),
                *("--workers", str(self.process_counts[name])),
            ],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
                "BANK_NAME": name,
                "BANK_TARGETS": " ".join(targets),
                "BANK_COLLECTOR": str(self._address),
            },
            start_new_session=True,
        )

    def end(self, name: str) -> None:
        """Kill the processes of a bank."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all of them, and take observations while the body runs."""
        self._address = await self.observer.open(self._address)
        observing = asyncio.create_task(self.observer.run())
        try:
            for name in self.process_counts:
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
@pytest.mark.nightly(part="soak")
def test_every_total_over_processes_is_exact(figure: Figure) -> None:
    """One of the services has several processes behind one address."""
    banks = Banks(A=1, B=3)

    async def run() -> None:
        async with banks.running():
            await banks.until(lambda: len(banks.exact(4)) >= OBSERVATION_COUNT)

    asyncio.run(run())
    exact = banks.exact(4)
    figure("observations", len(exact))
    assert {total(one) for one in exact} == {4 * BALANCE}
    assert banks.abandoned == []
    places = {call.place for one in exact for call in one.calls}
    assert CallPlace.SERVED in places


@pytest.mark.slow
def test_a_killed_instance_is_named_and_its_calls_are_unknown() -> None:
    """Observations go on without it, and with the one that is started in its place."""
    banks = Banks(A=1, B=1, C=1)

    async def run() -> None:
        async with banks.running():
            await banks.until(lambda: bool(banks.exact(3)))
            banks.end("C")
            await banks.until(lambda: any(one.gone for one in banks.published))
            await banks.until(lambda: len(banks.published[-1].fragments) == 2)
            banks.start("C")
            await banks.until(lambda: len(banks.published[-1].fragments) == 3)

    asyncio.run(run())
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
