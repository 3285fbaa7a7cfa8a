"""A demonstration: three banks of FastAPI behind a bad network are observed while they pay.

One bank has two processes. The network loses, delays and doubles requests and answers. A poll asks
all of them one after the other, for comparison. Then the banks open their vaults for each other
until they are deadlocked. The demonstration checks every claim that it prints, and exits with 0
only if all claims hold.
"""

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

import httpx
from rich.console import Console

from examples.claims import exit_code_of, show_claims
from examples.services import BALANCE
from examples.services.bad_network import LOOPBACK, BadNetwork, Faults
from stillframe.detect.call_waits import CallDeadlock, find_call_deadlock
from stillframe.protocol.activities import service_of
from stillframe.protocol.calls import CallPlace, Observation
from stillframe.store.layout import has_observations
from stillframe.store.observation_tables import amounts_of
from stillframe.store.observations import ObservationReader, StoredObservation

PROCESS_COUNTS = {"A": 1, "B": 2, "C": 1}
INSTANCE_COUNT = sum(PROCESS_COUNTS.values())
TOTAL = INSTANCE_COUNT * BALANCE
FAULTS = Faults(lost_requests=0.02, lost_answers=0.02, doubled=0.02, delayed=0.1)
RATE = 25.0
"""How many payments a second each process makes."""
EVERY = "100ms"
POLL_S = 0.1
ATTEMPT_COUNT_MAX = 12
WAIT_S = 60.0


class Attempt(NamedTuple):
    """The banks have opened their vaults for each other: when, and whether a call timed out."""

    began_at: float
    ended_at: float
    is_deadlock: bool


@dataclass
class Findings:
    """The measurements of the run. `totals` are those of exact observations of all instances."""

    polled: list[int] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    observed_count: int = 0
    totals: list[int] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    unresolved: Counter[str] = field(default_factory=Counter)
    alarms: list[tuple[StoredObservation, CallDeadlock]] = field(default_factory=list)
    collector_exit: int | None = None

    def look_at(self, found: StoredObservation) -> None:
        """Take an observation into account."""
        observation, manifest = found.observation, found.manifest
        self.observed_count += 1
        if observation.is_exact and len(observation.fragments) == INSTANCE_COUNT:
            self.totals.append(sum(row["total"] for row in amounts_of(observation)))
            self.took_s.append(manifest.completed_at - manifest.initiated_at)
        self.unresolved.update(fates_of(observation))
        deadlock = find_call_deadlock(observation)
        if deadlock is not None:
            self.alarms.append((found, deadlock))

    def alarms_in(self, attempt: Attempt) -> list[tuple[StoredObservation, CallDeadlock]]:
        """Return the alarms of observations that were taken during an attempt."""
        return [
            one
            for one in self.alarms
            if attempt.began_at <= one[0].manifest.completed_at
            and one[0].manifest.initiated_at <= attempt.ended_at
        ]


def fates_of(observation: Observation) -> Counter[str]:
    """Return how many payments timed out for which reason."""
    paid = [one for one in observation.calls if one.record.details.name.endswith("/pay")]
    over = Counter(one.place for one in paid if not one.record.is_awaited)
    return Counter(
        {
            "not accepted": over[CallPlace.REQUESTED],
            "answered": over[CallPlace.ANSWERED],
            "served": over[CallPlace.SERVED],
            "doubled": len(observation.duplicates),
        }
    )


class Run:
    """The banks, their network and the collector.

    Args:
        directory: where the store and the output of programs go.
        console: for progress.
    """

    def __init__(self, directory: Path, console: Console) -> None:
        chance = Random()
        self.store = directory / "observed"
        self.findings = Findings()
        self._console = console
        self._log = directory / "programs.log"
        names = (*PROCESS_COUNTS, "collector")
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._networks = {
            name: BadNetwork(self._ports[name], FAULTS, chance) for name in PROCESS_COUNTS
        }
        self._environment = os.environ | {"STILLFRAME_SECRET": secrets.token_hex(16)}
        self._programs: list[subprocess.Popen[bytes]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all of it while the body runs."""
        async with contextlib.AsyncExitStack() as stack:
            for network in self._networks.values():
                await stack.enter_async_context(network.running())
            listen = f"{LOOPBACK}:{self._ports['collector']}"
            options = ("--store", str(self.store), "--listen", listen, "--every", EVERY)
            collector = self._start(("-m", "stillframe", "observe", *options), {})
            try:
                for name in PROCESS_COUNTS:
                    self._start_bank(name)
                yield
                collector.send_signal(signal.SIGINT)
                self.findings.collector_exit = collector.wait(timeout=WAIT_S)
            finally:
                for program in self._programs:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(program.pid, signal.SIGKILL)
                    program.wait()
        for network in self._networks.values():
            self.findings.faults.update(network.counts)

    def _start_bank(self, name: str) -> None:
        payees = [network.port for other, network in self._networks.items() if other != name]
        targets = [*payees, *(self._ports[other] for other in PROCESS_COUNTS if other != name)]
        port, count = str(self._ports[name]), str(PROCESS_COUNTS[name])
        command = (
            "-m",
            "uvicorn",
            "examples.services.bank:app",
            "--port",
            port,
            "--workers",
            count,
        )
        self._start(
            (*command, "--log-level", "critical"),
            {
                "BANK_NAME": name,
                "BANK_PAYEES": " ".join(f"{LOOPBACK}:{port}" for port in payees),
                "BANK_TARGETS": " ".join(f"{LOOPBACK}:{port}" for port in targets),
                "BANK_COLLECTOR": f"{LOOPBACK}:{self._ports['collector']}",
                "BANK_RATE": str(RATE),
            },
        )

    def _start(
        self, arguments: Sequence[str], variables: dict[str, str]
    ) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            program = subprocess.Popen(
                [sys.executable, *arguments],
                env=self._environment | variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._programs.append(program)
        return program

    async def until_all_are_seen(self) -> None:
        """Wait for an observation that has every instance."""
        with self._console.status("starting the banks and the collector"):
            async with asyncio.timeout(WAIT_S):
                while True:
                    found = self._newest()
                    if found is not None and len(found.observation.fragments) == INSTANCE_COUNT:
                        return
                    await asyncio.sleep(POLL_S)

    def _newest(self) -> StoredObservation | None:
        if not has_observations(self.store):  # the collector has not made it yet
            return None
        reader = ObservationReader(self.store)
        numbers = reader.numbers()
        return reader.load_if_present(numbers[-1]) if numbers else None

    async def poll(self, seconds: float) -> None:
        """Ask each process for its balance, one after the other, again and again."""
        end = time.monotonic() + seconds
        with self._console.status("the banks pay, and are observed and polled"):
            while time.monotonic() < end:
                balances: dict[tuple[str, int], int] = {}
                for name, count in PROCESS_COUNTS.items():
                    while sum(key[0] == name for key in balances) < count:
                        # A new connection each time: each one leads to one process only.
                        async with httpx.AsyncClient() as client:
                            answer = await client.get(self._url(name, "balance"))
                        found = answer.json()
                        balances.setdefault((name, found["process"]), found["balance"])
                self.findings.polled.append(sum(balances.values()))
                await asyncio.sleep(POLL_S)

    async def open_vaults(self) -> None:
        """Let the banks open their vaults for each other until they are deadlocked. A request for
        the bank with two processes reaches the right vault in half of the attempts."""
        names = tuple(PROCESS_COUNTS)
        for number in range(1, ATTEMPT_COUNT_MAX + 1):
            began_at = time.time()
            with self._console.status(f"each bank opens the vault of the next one: {number}"):
                async with httpx.AsyncClient(timeout=WAIT_S) as client:
                    asked = [
                        client.post(
                            self._url(name, "open"), json=[f"{LOOPBACK}:{self._ports[after]}"]
                        )
                        for name, after in zip(names, (*names[1:], names[0]), strict=True)
                    ]
                    answers = await asyncio.gather(*asked)
            is_deadlock = any(answer.is_error for answer in answers)
            self.findings.attempts.append(Attempt(began_at, time.time(), is_deadlock))
            await asyncio.sleep(0.5)  # so that observations lie between the attempts
            if is_deadlock:
                return

    def _url(self, name: str, path: str) -> str:
        return f"http://{LOOPBACK}:{self._ports[name]}/{path}"


def free_ports(count: int) -> list[int]:
    """Return ports on which nothing listens."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [int(one.getsockname()[1]) for one in sockets]


async def run(one: Run, seconds: float) -> None:
    """Observe and poll the banks for a time, and deadlock them."""
    async with one.running():
        await one.until_all_are_seen()
        await one.poll(seconds)
        await one.open_vaults()


def demonstrate(directory: Path, seconds: float, console: Console) -> int:
    """Run the demonstration and check its claims; return the exit code.

    Args:
        directory: an empty directory.
        seconds: how long the banks pay before they open their vaults.
        console: for progress, claims and figures.
    """
    one = Run(directory, console)
    asyncio.run(run(one, seconds))
    reader = ObservationReader(one.store)
    with console.status("verifying and reading every observation"):
        for number in reader.numbers():
            one.findings.look_at(reader.verify(number))
    exit_code = show_claims(console, claims_of(one.findings))
    _print_figures(console, one)
    return exit_code


def claims_of(found: Findings) -> dict[str, bool]:
    """Return each claim of the demonstration, and whether it holds."""
    polled = sum(total == TOTAL for total in found.polled)
    deadlocks = [attempt for attempt in found.attempts if attempt.is_deadlock]
    named = [found.alarms_in(attempt) for attempt in deadlocks]
    expected = set(PROCESS_COUNTS)
    return {
        f"{len(found.totals)} of {found.observed_count} observations are exact and have all "
        f"{INSTANCE_COUNT} processes; each of them has {TOTAL:,} EUR": (
            len(found.totals) > found.observed_count / 2 and set(found.totals) == {TOTAL}
        ),
        f"a poll of the same processes found that sum in {polled} of {len(found.polled)} cases": (
            polled < len(found.polled)
        ),
        f"calls that timed out are told apart: {found.unresolved['not accepted']} were not "
        f"accepted, {found.unresolved['answered']} took effect although no answer came, and "
        f"{found.unresolved['doubled']} requests took effect once more": (
            min(found.unresolved[one] for one in ("not accepted", "answered", "doubled")) > 0
        ),
        f"{len(deadlocks)} of {len(found.attempts)} attempts ended in a deadlock, and an "
        "observation has named its three banks": bool(deadlocks)
        and all(
            {service_of(deadlock.waits[name].instance) for name in deadlock.rings[0]} == expected
            for alarms in named
            for _, deadlock in alarms
        )
        and all(named),
        f"{len(found.alarms)} observations have reported a deadlock, none of them falsely": (
            len(found.alarms) == sum(map(len, named))
        ),
        "the collector ended in order": found.collector_exit == 0,
    }


def _print_figures(console: Console, one: Run) -> None:
    found = one.findings
    lines = [f"network       {', '.join(f'{n:,} {name}' for name, n in found.faults.items())}"]
    if found.took_s:
        median_ms = 1000 * statistics.median(found.took_s)
        lines.append(f"observations  complete after {median_ms:.0f} ms in the median")
    if found.alarms:
        manifest, deadlock = found.alarms[0][0].manifest, found.alarms[0][1]
        began_at = found.attempts[-1].began_at
        assert deadlock.ends_at is not None, "a call has no time-out"
        lines.append(
            f"deadlock      seen {manifest.completed_at - began_at:.2f} s after the requests, "
            f"{deadlock.ends_at - manifest.completed_at:.2f} s before the first time-out"
        )
    console.print("\n  " + "\n  ".join(lines), highlight=False, soft_wrap=True)
    console.print(
        f"\nLook at them: stillframe list {one.store}\n"
        f"              stillframe detect {one.store} deadlock",
        highlight=False,
        soft_wrap=True,
    )


def main() -> int:
    """Run the demonstration as its arguments say; return the exit code."""
    parser = argparse.ArgumentParser(prog="examples.services", description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="%(default)s")
    arguments = parser.parse_args()
    console = Console()
    directory = Path(tempfile.mkdtemp(prefix="stillframe-services-"))
    # The programs that it started must end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return exit_code_of(
        lambda: demonstrate(directory, arguments.seconds, console), directory, console
    )


if __name__ == "__main__":
    sys.exit(main())
