"""Services behind a bad network, whose every observation is judged.

``python -m tests.soak.services --observations 1000 --seed 1`` prints ``SEED=`` first. Three banks,
one with several processes, pay each other through proxies that lose, delay and double requests and
answers. The messages of the collector are late on purpose, some by seconds: otherwise a wrong rule
would hardly ever be noticed. Every total of an exact observation must be right. Sometimes three
banks open their vaults for each other at once, in an order that can end in a deadlock: an
observation must find each one that its calls prove, and none must be reported at another time.
Then banks are started again in order, one after the other: all of it stays exact. Some keep their
balance in a file; the next process of another one begins with another balance, which an observation
says. At the end instances are killed -9 during calls and started again, some before the collector
has noticed that they are dead. Each is named, their calls are unknown, and nothing is exact until a
new baseline begins.

``--mistake answer_without_colour`` lets every bank break a rule, and ends with 1 if an observation
shows it. With ``--prompt`` the messages of the collector are not late.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from unittest import mock

import httpx

from examples.services import BALANCE, VAULT_TIMEOUT_S
from examples.services.bad_network import LOOPBACK, BadNetwork, Faults, Proxy
from stillframe.detect.call_waits import CallDeadlock, find_call_deadlock
from stillframe.errors import NotConsistent
from stillframe.protocol import calls
from stillframe.protocol.calls import Baseline, CallPlace, InstanceFragment, Observation
from stillframe.runtime.network.addresses import Address
from stillframe.services.observer import Membership, Observer, ObserverConfig
from tests.nightly import by_night
from tests.ports import free_port
from tests.services.deployment import money_in
from tests.services.mistakes import OF_HTTP

ROOT = Path(__file__).parent.parent.parent
SECRET = "the secret of the soak"
LATE_S_MAX = 0.4
VERY_LATE_S = (1.0, 3.0)
"""Between these is how late one message is in every `OBSERVATIONS_A_VERY_LATE`."""
OBSERVATIONS_A_VERY_LATE = 4
PROMPT_S_MAX = 0.01
TIMEOUT_S = 30.0
"""The time-out of an observation: none may be abandoned because of what is late."""
FAULTS = Faults(lost_requests=0.02, lost_answers=0.02, doubled=0.02, delayed=0.1)
RATE = 20.0
PROCESS_COUNTS = {"A": 1, "B": by_night(4, check=2), "C": 1, "D": 1}
INSTANCE_COUNT = sum(PROCESS_COUNTS.values())
RING = ("A", "C", "D")
"""Banks with one process, so that a request reaches the vault that is meant."""
OBSERVATIONS_A_RING = 25
KILLS = by_night(("D", "A", "B", "C", "D", "B"), check=("D",))
"""The banks that are killed; the first, third and fifth one before the collector notices it."""
RESTARTS = by_night(("A", "B", "C", "D") * 4, check=("A", "B"))
"""The banks that are started again in order."""
IN_MEMORY = "B"
"""The bank that does not keep its balance: it has several processes."""
SAME_TOTAL_COUNT = 3
WAIT_S = 120.0
_check_cut = calls.check_cut


class LateLines(Proxy):
    """A relay in front of the collector, which delays what passes and keeps its order.

    Args:
        target_port: the port of the collector.
        chance: chooses how late a message is.
        late_s_max: the most that it is late.

    Attributes:
        passes_ends: whether it passes on that a connection was closed.
    """

    def __init__(self, target_port: int, chance: Random, late_s_max: float) -> None:
        super().__init__()
        self.passes_ends = asyncio.Event()
        self.passes_ends.set()
        self._target_port = target_port
        self._chance = chance
        self._late_s_max = late_s_max
        self._ways: dict[asyncio.StreamReader, float] = {}
        """The directions of connections, and how late the next message of each is at least."""

    def hold_up(self) -> None:
        """Let the next message in one direction of one connection be late by seconds."""
        if self._ways:
            self._ways[self._chance.choice(list(self._ways))] = self._chance.uniform(*VERY_LATE_S)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay both directions."""
        async with self.connected(self._target_port) as (other_reader, other_writer):
            ways = ((reader, other_writer), (other_reader, writer))
            await asyncio.gather(*(self._pass(*way) for way in ways))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ways[reader] = 0.0
        with contextlib.closing(writer):
            with contextlib.suppress(OSError):
                while chunk := await reader.read(2**16):
                    late_s, self._ways[reader] = self._ways[reader], 0.0
                    await asyncio.sleep(late_s or self._chance.random() * self._late_s_max)
                    writer.write(chunk)
                    await writer.drain()
            del self._ways[reader]
            await self.passes_ends.wait()


class Network(BadNetwork):
    """A bad network that loses every request until all instances have joined. One that others
    heard of earlier could be retired before it joins, and its first total would not be known.

    Args:
        has_all: whether all have joined.
    """

    def __init__(self, port: int, chance: Random, has_all: asyncio.Event) -> None:
        super().__init__(port, FAULTS, chance)
        self._has_all = has_all

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward requests, except those that are chosen."""
        if self._has_all.is_set():
            await super().serve(reader, writer)


class Banks:
    """The banks, their network, and the collector, which judges each observation.

    Args:
        seed: for all that is random.
        mistake: the name of a mistake of every bank.
        is_late: whether the messages of the collector are late.

    Attributes:
        seen: how often what was seen.
        caught: what observations showed of the mistake.
    """

    def __init__(self, seed: int, *, mistake: str = "", is_late: bool = True) -> None:
        self.chance = Random(seed)
        self.caught: list[str] = []
        self.lines: LateLines | None = None
        self._mistake = mistake
        self._is_late = is_late
        self._members: set[str] = set()
        self._has_all = asyncio.Event()
        self._directory = tempfile.TemporaryDirectory()
        """Where banks keep their balances."""
        self._joined_at = 0.0
        """When the newest instance joined."""
        self._doubtful: set[str] = set()
        """The instances that were killed and noticed since the newest baseline."""
        self._kills: list[tuple[float, set[str], set[str]]] = []
        """When instances were killed, which, and the addresses at which they were."""
        self.seen: Counter[str] = Counter()
        self.abandoned: list[str] = []
        self.latest: Observation | None = None
        self.disconnected: set[str] = set()
        self.totals: dict[int, int] = {}
        self.alarms: list[tuple[Observation, CallDeadlock]] = []
        self.ports = {name: free_port() for name in PROCESS_COUNTS}
        self.networks = {
            name: Network(port, self.chance, self._has_all) for name, port in self.ports.items()
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.observer = Observer(
            ObserverConfig(
                secret=SECRET.encode(), interval_s=0.05, timeout_s=TIMEOUT_S, retire_s=1.0
            ),
            publish=lambda observation, times, ledger: self._judge(observation),
            store=lambda ledger: None,
            abandoned=lambda number, why: self.abandoned.append(why),
            warn=lambda text: print(text, file=sys.stderr),
            member=self._record_member,
        )

    def _record_member(self, name: str, change: Membership) -> None:
        (self._members.add if change == "joined" else self._members.discard)(name)
        if change == "left":
            self._doubtful.add(name)
        elif change == "joined":
            self._doubtful.discard(name)
            self._joined_at = time.monotonic()
        if len(self._members) == INSTANCE_COUNT:
            self._has_all.set()

    def _hold_up(self) -> None:
        """Let something be late by seconds, now and then."""
        is_due = self.seen["observations"] % OBSERVATIONS_A_VERY_LATE == 0
        if self._is_late and is_due and self.lines is not None:
            self.lines.hold_up()
            self.seen["late by seconds"] += 1

    def _judge(self, observation: Observation) -> None:
        self._hold_up()
        if self._mistake:
            self._judge_mistake(observation)
            return
        self.latest = observation
        self.disconnected |= set(observation.disconnected)
        self.seen["observations"] += 1
        found = find_call_deadlock(observation)
        if found is not None:
            self.alarms.append((observation, found))
        self._judge_calls_of_dead(observation)
        if observation.is_exact and self._has_all.is_set():
            self.seen["exact observations"] += 1
            total = money_in(observation)
            is_first = not (self.seen["killed"] or self.seen["started again"])
            first = INSTANCE_COUNT * BALANCE if is_first else total
            if total != self.totals.setdefault(observation.baseline, first):
                raise AssertionError(f"observation {observation.number} has {total} EUR")
            if self._doubtful:
                raise AssertionError(
                    f"observation {observation.number} is exact without a baseline"
                )
            for located in observation.calls:
                self.seen[located.place.value] += 1
            self.seen["delivered twice"] += len(observation.duplicates)
            self.seen["accepted late"] += len(observation.late)

    def _judge_calls_of_dead(self, observation: Observation) -> None:
        """Every call to an instance that was killed is unknown, if none other has accepted it."""
        for killed_at, dead, addresses in self._kills:
            for located in observation.calls:
                began_at = located.record.details.began_at
                is_before = began_at < killed_at and dead.isdisjoint(observation.fragments)
                if is_before and located.record.target in addresses and not located.served:
                    self.seen["unknown"] += 1
                    if located.place is not CallPlace.UNKNOWN:
                        raise AssertionError(f"{located} may have been accepted by {dead}")

    def _judge_mistake(self, observation: Observation) -> None:
        """Count whether an observation shows the mistake of the banks. If so it is abandoned, so
        that it has no effect on the next one."""
        self.seen["observations"] += 1
        if len(observation.fragments) < INSTANCE_COUNT or not observation.is_exact:
            _check_cut(observation.fragments)
            return
        self.seen["exact observations"] += 1
        found = []
        try:
            _check_cut(observation.fragments)
        except NotConsistent as error:
            self.seen["not consistent"] += 1
            found.append(str(error))
        if (total := money_in(observation)) != INSTANCE_COUNT * BALANCE:
            self.seen["wrong totals"] += 1
            found.append(f"the total is {total} EUR")
        if found:
            self.seen["caught"] += 1
            self.caught.append(f"observation {observation.number}: {'; '.join(found)}")
            raise NotConsistent(self.caught[-1])

    def start(self, name: str, collector: Address) -> None:
        """Start the processes of a bank."""
        payees = [network.port for other, network in self.networks.items() if other != name]
        ports = [*payees, *(port for other, port in self.ports.items() if other != name)]
        self.processes[name] = subprocess.Popen(
            [
                *(sys.executable, "-m", "uvicorn"),
                "tests.soak.mistaken_bank:app" if self._mistake else "examples.services.bank:app",
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
                "BANK_MISTAKE": self._mistake,
                **({} if name == IN_MEMORY else {"BANK_FILE": f"{self._directory.name}/{name}"}),
                "STILLFRAME_SECRET": SECRET,
            },
            start_new_session=True,
        )

    async def start_again(self, name: str, collector: Address) -> None:
        """End a bank in order, and start it again. All of it stays exact."""
        before = {one for one in self._members if one.startswith(name)}
        process = self.processes.pop(name)
        process.terminate()
        await asyncio.to_thread(process.wait, WAIT_S)
        await self.until(lambda: before.isdisjoint(self._members), "the goodbye of a bank")
        self.start(name, collector)
        self.seen["started again"] += len(before)
        await self.until(lambda: len(self._members) == INSTANCE_COUNT, "its successor")
        await self.exact(self.seen["exact observations"] + 1)
        took_ms = round(1000 * (time.monotonic() - self._joined_at))
        self.seen["ms until exact, at most"] = max(self.seen["ms until exact, at most"], took_ms)
        await self.exact(self.seen["exact observations"] + SAME_TOTAL_COUNT)
        assert not self._doubtful, f"left without a goodbye: {self._doubtful}"

    async def start_all_again(self, collector: Address) -> None:
        """End one bank after the other in order, and start it again."""
        observed, exact = self.seen["observations"], self.seen["exact observations"]
        for name in RESTARTS:
            await self.start_again(name, collector)
        self.seen["observations at starts in order"] += self.seen["observations"] - observed
        self.seen["exact at starts in order"] += self.seen["exact observations"] - exact
        assert {one.split(" has ")[-1] for one in self.abandoned} <= {"ended"}, self.abandoned
        self.abandoned.clear()

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
            stack.enter_context(self._directory)
            for network in self.networks.values():
                await stack.enter_async_context(network.running())
            listening = await self.observer.open(Address(LOOPBACK, 0))
            late_s_max = LATE_S_MAX if self._is_late else PROMPT_S_MAX
            self.lines = lines = LateLines(listening.port, self.chance, late_s_max)
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
        """Wait until there were so many exact observations, for each one anew."""
        for number in range(self.seen["exact observations"] + 1, count + 1):
            await self.until(partial(self._has_exact, number), "an exact observation")

    def _has_exact(self, count: int) -> bool:
        return self.seen["exact observations"] >= count

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
        assert not self.abandoned, f"abandoned: {self.abandoned}"

    async def _decide(self) -> tuple[str, ...]:
        """Begin a new baseline, and return who was gone."""
        gone = await self.observer.rebase(Baseline(0, "it was killed", "the soak", time.time()))
        assert gone is not None
        self.seen["decisions"] += 1
        self._doubtful.clear()
        self._kills.clear()  # it does not matter any more what they have accepted
        return gone

    async def _is_exact_or_unknown(self) -> bool:
        """Wait for some exact observations. Return False if calls became unknown once more: a late
        request of a dead instance has arrived, so that it may be alive."""
        goal = self.seen["exact observations"] + SAME_TOTAL_COUNT
        after = self.observer.collector.number

        def is_unknown() -> bool:
            latest = self.latest
            return latest is not None and latest.number > after and bool(latest.unknown_count)

        await self.until(lambda: self._has_exact(goal) or is_unknown(), "an exact observation")
        return self._has_exact(goal)

    async def kill_and_start(self, name: str, collector: Address, *, is_noticed: bool) -> None:
        """Kill the instances of a bank, and start it again. Each must be named, and totals must be
        exact again as soon as a new baseline begins.

        Args:
            name: the bank.
            collector: the address of the collector.
            is_noticed: whether the collector notices that they are dead before they are started.
        """
        assert self.lines is not None
        before = {one for one in self._members if one.startswith(name)}
        assert len(before) == PROCESS_COUNTS[name]
        if not is_noticed:
            self.lines.passes_ends.clear()
        self.kill(name)
        ports = self.ports[name], self.networks[name].port
        self._kills.append((time.time(), before, {f"{LOOPBACK}:{port}" for port in ports}))
        self.seen["killed"] += len(before)
        if is_noticed:
            await self.until(lambda: before <= self.disconnected, "an observation that names it")
        self.start(name, collector)
        await self.until(lambda: len(self._members - before) == INSTANCE_COUNT, "its successor")
        assert is_noticed or (before <= self._members and before.isdisjoint(self.disconnected))
        self.lines.passes_ends.set()
        await self.until(lambda: before <= self.disconnected, "an observation that names it")
        assert before <= self._doubtful
        gone = await self._decide()
        assert before <= set(gone)
        while not await self._is_exact_or_unknown():
            await self._decide()
        reasons = {f"{one} was disconnected" for one in before} | {"a new baseline begins"}
        assert set(self.abandoned) <= reasons, self.abandoned
        self.abandoned.clear()


async def soak(observation_count: int, seed: int) -> Counter[str]:
    """Run the soak; return what was seen.

    Raises:
        AssertionError: an observation was wrong, or none came.
    """
    banks = Banks(seed)
    async with banks.running() as collector:
        await banks.judge(observation_count)
        await banks.start_all_again(collector)
        for number, name in enumerate(KILLS):
            await banks.kill_and_start(name, collector, is_noticed=number % 2 == 1)
    for network in banks.networks.values():
        banks.seen.update(network.counts)
    places = {place.value for place in CallPlace} - {"outside", by_night("", check="unknown")}
    assert all(banks.seen[place] for place in places), banks.seen
    return banks.seen


async def find_mistake(
    mistake: str, observation_count: int, seed: int, *, is_late: bool = True
) -> Banks:
    """Let every bank make a mistake, and count the exact observations that show it."""

    def pass_over(_: Mapping[str, InstanceFragment]) -> None:
        """Let an observation whose cut is not consistent be judged, too."""

    banks = Banks(seed, mistake=mistake, is_late=is_late)
    with mock.patch.object(calls, "check_cut", pass_over):
        async with banks.running():
            await banks.exact(observation_count)
    return banks


def main() -> None:
    """Run the soak and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--observations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mistake", choices=[one.__name__ for one in OF_HTTP])
    parser.add_argument("--prompt", action="store_true")
    options = parser.parse_args()
    print(f"SEED={options.seed}", flush=True)
    caught: list[str] = []
    if options.mistake:
        banks = asyncio.run(
            find_mistake(
                options.mistake, options.observations, options.seed, is_late=not options.prompt
            )
        )
        seen, caught = banks.seen, banks.caught
    else:
        seen = asyncio.run(soak(options.observations, options.seed))
    for name, count in sorted(seen.items()):
        print(f"{name}: {count:,}")
    if caught:
        sys.exit(caught[0])


if __name__ == "__main__":
    main()
