"""What observations cost a request, next to OpenTelemetry's instrumentation of the same services.

Two services of FastAPI, each one process of uvicorn: for each request that A gets, it calls B by
httpx. Connections of this process send requests at a fixed rate. Each round starts new processes
of every kind, and each arm has its turn in it. Processor time is what the kernel reports of a
service's process with all its threads, divided by the requests. The collector of observations, and
the endpoint for spans, are in this process, so they are no part of it. This process takes part in
no observation: a request is observed where A makes a call, and where B serves it.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.measure import core_seconds, median, quantile
from bench.services_app import SECRET
from stillframe.errors import StillframeError
from stillframe.protocol.calls import Observation
from stillframe.runtime.network.addresses import Address
from stillframe.services.observer import Observer, ObserverConfig

ROOT = Path(__file__).parent.parent
ROUND_COUNT = 5
WARM_UP_S = 1.0
WINDOW_S = 5.0
"""As long as OpenTelemetry keeps spans at most before it exports them."""
AGENT_COUNT = 2
CONNECTION_COUNT = 8
REQUESTS_PER_S = 200
START_S_MAX = 30.0
TURN_S_MAX = 20.0
END_S_MAX = 5.0
ARMS = {
    "plain": ("plain", 0),
    "OpenTelemetry": ("otel", 0),
    "OpenTelemetry, no spans of events": ("otel-lean", 0),
    "OpenTelemetry, 10 % sampled": ("otel-tenth", 0),
    "Stillframe, 0/s": ("stillframe", 0),
    "Stillframe, 1/s": ("stillframe", 1),
    "Stillframe, 10/s": ("stillframe", 10),
}
"""The kind of service of each arm, and the observations a second."""
PLAIN, TRACED, LEAN, *_ = ARMS
OBSERVED = [arm for arm, (kind, _) in ARMS.items() if kind == "stillframe"]
_ORDER = b"POST /order HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"


@dataclass
class Turn:
    """The figures of one arm in one round: processor time of a request in A and in B, in µs, and
    how long each request took from the moment at which it was due, in ms."""

    caller_us: float
    callee_us: float
    latencies_ms: list[float]

    @property
    def total_us(self) -> float:
        """The processor time of a request in both services."""
        return self.caller_us + self.callee_us


@dataclass
class Figures:
    """The turns of each round, the observations that were taken and how many of them are exact, and
    the bytes of spans that arrived."""

    rounds: list[dict[str, Turn]] = field(default_factory=list)
    observation_count: int = 0
    exact_count: int = 0
    span_bytes: int = 0

    def publish(self, observation: Observation) -> None:
        """Count an observation."""
        self.observation_count += 1
        self.exact_count += observation.is_exact


@dataclass
class Pair:
    """The two services, and the address of the first one."""

    pids: list[int]
    port: int


async def measure(progress: Progress) -> Figures:
    """Measure every arm in each round."""
    figures = Figures()
    task = progress.add_task("services", total=ROUND_COUNT * len(ARMS))
    kinds = dict.fromkeys(kind for kind, _ in ARMS.values())
    arms = [*ARMS]
    for _ in range(ROUND_COUNT):
        figures.rounds.append({})
        async with contextlib.AsyncExitStack() as stack:
            observer, collector = await stack.enter_async_context(_collector(figures))
            sink = await stack.enter_async_context(_sink(figures))
            endpoints = {kind: collector if kind == "stillframe" else sink for kind in kinds}
            pairs = {
                kind: await stack.enter_async_context(_pair(kind, endpoint))
                for kind, endpoint in endpoints.items()
            }
            async with asyncio.timeout(START_S_MAX):
                await _ready(pairs.values(), observer)
            for arm in arms:
                kind, per_second = ARMS[arm]
                try:
                    async with asyncio.timeout(TURN_S_MAX), _observing(observer, per_second):
                        figures.rounds[-1][arm] = await _turn(pairs[kind])
                except (StillframeError, OSError, EOFError) as error:
                    why = str(error) or type(error).__name__
                    progress.console.print(f"{arm}: one turn failed: {why}", markup=False)
                progress.advance(task)
        # Another arm is the first one in the next round.
        arms.append(arms.pop(0))
    return figures


# --- what runs meanwhile


@contextlib.asynccontextmanager
async def _collector(figures: Figures) -> AsyncIterator[tuple[Observer, str]]:
    """Collect observations while the body runs."""
    observer = Observer(
        ObserverConfig(secret=SECRET),
        publish=lambda observation, times, ledger: figures.publish(observation),
        store=lambda ledger: None,
        abandoned=lambda number, why: None,
        warn=lambda text: None,
    )
    address = await observer.open(Address("127.0.0.1", 0))
    try:
        yield observer, str(address)
    finally:
        await observer.close()


@contextlib.asynccontextmanager
async def _sink(figures: Figures) -> AsyncIterator[str]:
    """Take spans, as OTLP over HTTP, while the body runs."""
    connections: list[asyncio.Task[Any] | None] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        with contextlib.suppress(EOFError, OSError), contextlib.closing(writer):
            while True:
                body = await _body(reader)
                figures.span_bytes += len(body)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()
        await asyncio.gather(*filter(None, connections))


@contextlib.asynccontextmanager
async def _pair(kind: str, endpoint: str) -> AsyncIterator[Pair]:
    """Run the two services while the body runs."""
    processes: list[subprocess.Popen[bytes]] = []
    listeners: list[socket.socket] = []
    target = ""
    try:
        for name in ("B", "A"):
            listener = socket.create_server(("127.0.0.1", 0), backlog=128)
            listeners.append(listener)
            processes.append(_started(kind, name, listener, target, endpoint))
            target = f"127.0.0.1:{listener.getsockname()[1]}"
        callee, caller = processes
        yield Pair([caller.pid, callee.pid], listeners[-1].getsockname()[1])
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                await asyncio.to_thread(process.wait, END_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for listener in listeners:
            listener.close()


def _started(
    kind: str, name: str, listener: socket.socket, target: str, endpoint: str
) -> subprocess.Popen[bytes]:
    descriptor = listener.fileno()
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "bench.services_app"),
            *(kind, name, str(descriptor), target, endpoint),
        ],
        cwd=ROOT,
        env={**os.environ, "NO_PROXY": "127.0.0.1", "OTEL_SERVICE_NAME": name},
        pass_fds=[descriptor],
    )


async def _ready(pairs: Collection[Pair], observer: Observer) -> None:
    """Wait until every service has answered, and both agents are connected."""
    for pair in pairs:
        await _send(pair.port, [asyncio.get_running_loop().time()])
    while len(observer.collector.ledger.members) < AGENT_COUNT:  # noqa: ASYNC110 - other processes
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def _observing(observer: Observer, per_second: int) -> AsyncIterator[None]:
    """Take observations while the body runs."""

    async def observe() -> None:
        while True:
            await asyncio.sleep(1 / per_second)
            await observer.observe()

    task = asyncio.create_task(observe()) if per_second else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


# --- the load


async def _turn(pair: Pair) -> Turn:
    """Send requests to a pair of services, and measure after the warm-up."""
    await _load(pair, WARM_UP_S)
    before = [core_seconds([pid]) for pid in pair.pids]
    latencies_ms = await _load(pair, WINDOW_S)
    after = [core_seconds([pid]) for pid in pair.pids]
    caller_us, callee_us = (
        1e6 * (late - early) / len(latencies_ms) for early, late in zip(before, after, strict=True)
    )
    return Turn(caller_us, callee_us, latencies_ms)


async def _load(pair: Pair, seconds: float) -> list[float]:
    """Send requests at the fixed rate; return how long each took, in ms."""
    began = asyncio.get_running_loop().time()
    due = [began + number / REQUESTS_PER_S for number in range(int(seconds * REQUESTS_PER_S))]
    found = await asyncio.gather(
        *(_send(pair.port, due[place::CONNECTION_COUNT]) for place in range(CONNECTION_COUNT))
    )
    return [one for of_connection in found for one in of_connection]


async def _send(port: int, due: list[float]) -> list[float]:
    """Send a request at each moment that is due, over one connection."""
    loop, latencies_ms = asyncio.get_running_loop(), []
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        for moment in due:
            await asyncio.sleep(moment - loop.time())
            writer.write(_ORDER)
            if not (await _body(reader)).startswith(b'{"amount":'):
                raise OSError("a request was refused")
            latencies_ms.append(1000 * (loop.time() - moment))
    return latencies_ms


async def _body(reader: asyncio.StreamReader) -> bytes:
    """Return the body of the next HTTP message."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
    return await reader.readexactly(int(length))


# --- the report


def report(figures: Figures, console: Console) -> dict[str, Any]:
    """Print the tables, and whether what is wanted was met; return the figures."""
    arms = {arm: _of_arm(figures.rounds, arm) for arm in ARMS}
    table = Table(
        title=f"a request, of {REQUESTS_PER_S} a second over {CONNECTION_COUNT} connections, "
        f"medians of {ROUND_COUNT} rounds"
    )
    for column in ("arm", "A, µs", "B, µs", "both, µs", "added, µs", "range", "p50, ms", "p99, ms"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for arm, one in arms.items():
        table.add_row(
            arm,
            *(f"{one[name]:,.0f}" for name in ("caller_us", "callee_us", "total_us", "added_us")),
            _range(one["all_added_us"], "{:,.0f}"),
            f"{one['p50_ms']:.2f}",
            f"{one['p99_ms']:.1f}",
        )
    console.print(table)
    console.print(
        f"{figures.observation_count} observations, {figures.exact_count} of them exact; "
        f"{figures.span_bytes / 1e6:.1f} MB of spans arrived"
    )
    shares: dict[str, Any] = {}
    for arm in OBSERVED:
        for other in (TRACED, LEAN):
            found = _shares(figures.rounds, arm, other)
            share = median(found)
            shares[f"{arm} / {other}"] = {"share": share, "shares": found, "is_met": share <= 1}
            met = "[green]met[/green]" if share <= 1 else "[red]missed[/red]"
            console.print(
                f"{arm} adds {share:.2f} of what {other} adds ({_range(found, '{:.2f}')}; "
                f"wanted at most 1): {met}"
            )
    return {
        "arms": arms,
        "shares": shares,
        "observations": figures.observation_count,
        "exact": figures.exact_count,
        "span_bytes": figures.span_bytes,
    }


def _of_arm(rounds: list[dict[str, Turn]], arm: str) -> dict[str, Any]:
    """Return the medians of an arm, and what it adds to the plain services in each round."""
    turns = [turn[arm] for turn in rounds if arm in turn]
    added = [
        turn[arm].total_us - turn[PLAIN].total_us for turn in rounds if {arm, PLAIN} <= {*turn}
    ]

    def middle(figure: Callable[[Turn], float]) -> float:
        return median([figure(turn) for turn in turns])

    return {
        "caller_us": middle(lambda turn: turn.caller_us),
        "callee_us": middle(lambda turn: turn.callee_us),
        "total_us": middle(lambda turn: turn.total_us),
        "added_us": median(added),
        "all_added_us": added,
        "p50_ms": middle(lambda turn: quantile(turn.latencies_ms, 0.5)),
        "p99_ms": middle(lambda turn: quantile(turn.latencies_ms, 0.99)),
    }


def _shares(rounds: list[dict[str, Turn]], one: str, other: str) -> list[float]:
    """Return what one arm adds divided by what another adds, for each round that has both."""
    return [
        (turn[one].total_us - turn[PLAIN].total_us) / (turn[other].total_us - turn[PLAIN].total_us)
        for turn in rounds
        if {one, other, PLAIN} <= {*turn}
    ]


def _range(values: list[float], form: str) -> str:
    """Return the least and the greatest value."""
    least, most = (form.format(bound(values, default=0.0)) for bound in (min, max))
    return f"{least} to {most}"
