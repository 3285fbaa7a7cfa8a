"""Services behind a bad network, whose every observation is judged.

``python -m tests.soak.services --observations 1000 --seed 1`` prints ``SEED=`` first. Three banks,
one with several processes, pay each other through proxies that lose, delay and double requests and
answers. The messages of the collector are late on purpose: otherwise a wrong rule would hardly ever
be noticed. Every total of an exact observation must be right. Sometimes three banks open their
vaults for each other at once, in an order that can end in a deadlock: an observation must find each
one that its calls prove, and none must be reported at another time. At the end instances are killed
-9 and started again, and each is named.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import httpx

from examples.services import BALANCE, VAULT_TIMEOUT_S
from examples.services.bad_network import LOOPBACK, BadNetwork, Faults, Proxy
from stillframe.detect.call_waits import CallDeadlock, find_call_deadlock
from stillframe.protocol.calls import CallPlace, Observation
from stillframe.runtime.network.addresses import Address
from stillframe.services.observer import Observer, ObserverConfig
from tests.nightly import by_night
from tests.ports import free_port
from tests.services.deployment import money_in

ROOT = Path(__file__).parent.parent.parent
SECRET = "the secret of the soak"
LATE_S_MAX = 0.4
FAULTS = Faults(lost_requests=0.02, lost_answers=0.02, doubled=0.02, delayed=0.1)
RATE = 20.0
PROCESS_COUNTS = {"A": 1, "B": by_night(4, check=2), "C": 1, "D": 1}
INSTANCE_COUNT = sum(PROCESS_COUNTS.values())
RING = ("A", "C", "D")
"""Banks with one process, so that a request reaches the vault that is meant."""
OBSERVATIONS_A_RING = 25
WAIT_S = 120.0


class LateLines(Proxy):
    """A relay in front of the collector, which delays what passes and keeps its order."""

    def __init__(self, target_port: int, chance: Random) -> None:
        super().__init__()
        self._target_port = target_port
        self._chance = chance

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay both directions."""
        async with self.connected(self._target_port) as (other_reader, other_writer):
            ways = ((reader, other_writer), (other_reader, writer))
            await asyncio.gather(*(self._pass(*way) for way in ways))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            while chunk := await reader.read(2**16):
                await asyncio.sleep(self._chance.random() * LATE_S_MAX)
                writer.write(chunk)
                await writer.drain()


class Banks:
    """The banks, their network, and the collector, which judges each observation.

    Args:
        seed: for all that is random.

    Attributes:
        seen: how often what was seen.
    """

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.seen: Counter[str] = Counter()
        self.abandoned: list[str] = []
        self.latest: Observation | None = None
        self.gone: set[str] = set()
        self.totals: dict[int, int] = {}
        self.alarms: list[tuple[Observation, CallDeadlock]] = []
        self.ports = {name: free_port() for name in PROCESS_COUNTS}
        self.networks = {
            name: BadNetwork(port, FAULTS, self.chance) for name, port in self.ports.items()
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.observer = Observer(
            ObserverConfig(secret=SECRET.encode(), interval_s=0.05, retire_s=1.0),
            publish=lambda observation, times, ledger: self._judge(observation),
            store=lambda ledger: None,
            abandoned=lambda number, why: self.abandoned.append(why),
            warn=lambda text: print(text, file=sys.stderr),
        )

    def _judge(self, observation: Observation) -> None:
        self.latest = observation
        self.gone |= set(observation.gone)
        self.seen["observations"] += 1
        found = find_call_deadlock(observation)
        if found is not None:
            self.alarms.append((observation, found))
        if observation.is_exact and len(observation.fragments) == INSTANCE_COUNT:
            self.seen["exact observations"] += 1
            total = money_in(observation)
            first = total if self.seen["killed"] else INSTANCE_COUNT * BALANCE
            if total != self.totals.setdefault(observation.baseline, first):
                raise AssertionError(f"observation {observation.number} has {total} EUR")
            for located in observation.calls:
                self.seen[located.place.value] += 1
            self.seen["delivered twice"] += len(observation.duplicates)
            self.seen["accepted late"] += len(observation.late)

    def start(self, name: str, collector: Address) -> None:
        """Start the processes of a bank."""
        payees = [network.port for other, network in self.networks.items() if other != name]
        ports = [*payees, *(port for other, port in self.ports.items() if other != name)]
        self.processes[name] = subprocess.Popen(
            [
                *(sys.executable, "-m", "uvicorn", "examples.services.bank:app"),
                *("--port", str(self.ports[name]), "--log-level", "critical"),
                *("--workers", str(PROCESS_COUNTS[name])),
            ],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
                "BANK_NAME": name,
                "BANK_PAYEES": " ".join(f"{LOOPBACK}:{port}" for port in payees),
                "BANK_TARGETS": " ".join(f"{LOOPBACK}:{port}" for port in ports),
                "BANK_COLLECTOR": str(collector),
                "BANK_RATE": str(RATE),
                "STILLFRAME_SECRET": SECRET,
            },
            start_new_session=True,
        )

    def kill(self, name: str) -> None:
        """Kill the processes of a bank."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Address]:
        """Run all of it, and take observations, while the body runs. Yields the address at which
        the collector is late."""
        async with contextlib.AsyncExitStack() as stack:
            for network in self.networks.values():
                await stack.enter_async_context(network.running())
            listening = await self.observer.open(Address(LOOPBACK, 0))
            lines = LateLines(listening.port, self.chance)
            stack.push_async_callback(self.observer.close)
            await stack.enter_async_context(lines.running())
            observing = asyncio.create_task(self.observer.run())
            try:
                for name in PROCESS_COUNTS:
                    self.start(name, Address(LOOPBACK, lines.port))
                yield Address(LOOPBACK, lines.port)
            finally:
                observing.cancel()
                for name in tuple(self.processes):
                    self.kill(name)
                await asyncio.gather(observing, return_exceptions=True)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition; an AssertionError says what did not come."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not holds():  # noqa: ASYNC110 - other processes make it hold
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{what} did not come: {self.seen}, {self.abandoned}") from None

    async def exact(self, count: int) -> None:
        """Wait until there were so many exact observations."""
        await self.until(lambda: self.seen["exact observations"] >= count, "exact observations")

    async def open_vaults(self) -> None:
        """Let three banks open their vaults for each other at once, and judge what observations
        say of it: a deadlock ends with a time-out of one of the calls."""
        known, began_at = len(self.alarms), time.time()
        async with httpx.AsyncClient(timeout=3 * VAULT_TIMEOUT_S) as client:
            asked = [
                client.post(
                    f"http://{LOOPBACK}:{self.ports[name]}/open",
                    json=[f"{LOOPBACK}:{self.ports[after]}"],
                )
                for name, after in zip(RING, (*RING[1:], RING[0]), strict=True)
            ]
            answers = await asyncio.gather(*asked)
        if any(answer.is_error for answer in answers):
            self.seen["deadlocks"] += 1
            # An observation may have begun in it and be complete now.
            assert self.latest is not None
            after = self.latest.number + 1
            await self.until(lambda: self.latest is not None and self.latest.number > after, "more")
            found = self.alarms[known:]
            assert found, "no observation shows the deadlock"
            for _, deadlock in found:
                [ring] = deadlock.rings
                names = {deadlock.waits[activity].instance[0] for activity in ring}
                assert names == set(RING), deadlock
                assert deadlock.ends_at is not None
                assert began_at < deadlock.ends_at < time.time() + VAULT_TIMEOUT_S
            self.seen["alarms"] += len(found)
        assert len(self.alarms) == self.seen["alarms"], f"a false alarm: {self.alarms[-1]}"

    async def judge(self, observation_count: int) -> None:
        """Judge so many exact observations, with vaults that are opened in between."""
        while (count := self.seen["exact observations"]) < observation_count:
            await self.exact(min(observation_count, count + OBSERVATIONS_A_RING))
            await self.open_vaults()
        assert self.abandoned == []

    async def kill_and_start(self, name: str, collector: Address) -> None:
        """Kill the instances of a bank, and start it again. Each must be named, and totals must be
        exact again, although the money of those instances is gone."""
        before = {one for one in self._instances() if one.startswith(name)}
        assert len(before) == PROCESS_COUNTS[name]
        self.kill(name)
        self.seen["killed"] += len(before)
        await self.until(lambda: before <= self.gone, "an observation that names it")
        self.start(name, collector)
        await self.until(lambda: len(self._instances()) == INSTANCE_COUNT, "its successor")
        assert before.isdisjoint(self._instances())
        await self.exact(self.seen["exact observations"] + 2)
        assert set(self.abandoned) <= {f"{one} was disconnected" for one in before}

    def _instances(self) -> set[str]:
        return set(self.latest.fragments) if self.latest else set()


async def soak(observation_count: int, seed: int) -> Counter[str]:
    """Run the soak; return what was seen.

    Raises:
        AssertionError: an observation was wrong, or none came.
    """
    banks = Banks(seed)
    async with banks.running() as collector:
        await banks.judge(observation_count)
        await banks.kill_and_start("D", collector)
    for network in banks.networks.values():
        banks.seen.update(network.counts)
    places = {place.value for place in CallPlace} - {"unknown", "outside"}
    assert all(banks.seen[place] for place in places), banks.seen
    return banks.seen


def main() -> None:
    """Run the soak and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--observations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"SEED={options.seed}", flush=True)
    for name, count in sorted(asyncio.run(soak(options.observations, options.seed)).items()):
        print(f"{name}: {count:,}")


if __name__ == "__main__":
    main()
