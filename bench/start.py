"""How long a system takes to start, and to be back after a process is killed; the memory it takes.

Rings of idle processes with small states. A start is timed from the call to the moment when every
channel is connected; a recovery from the kill to that moment, with a snapshot just taken. The
start of a bare Python on the same machine is there for scale.
"""

import asyncio
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stillframe.imports import load_topology
from stillframe.runtime import events
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.store import Store

PROCESS_COUNTS = (5, 50, 200)
ROUND_COUNTS = {5: 15, 50: 5, 200: 3}
KILL_COUNTS = {5: 3, 50: 3, 200: 3}
"""So many starts of each size, and kills in each."""
BARE_COUNT = 20


@dataclass
class Timed:
    """How often one size was started and killed, in seconds each; private bytes of a process."""

    starts: list[tuple[float, events.SystemRunning]] = field(default_factory=list)
    recoveries: list[tuple[float, events.SystemRunning]] = field(default_factory=list)
    private_bytes: list[int] = field(default_factory=list)


@dataclass
class Figures:
    """What was measured: the starts of a bare Python in seconds, and each size."""

    bare_s: list[float] = field(default_factory=list)
    sizes: dict[int, Timed] = field(default_factory=dict)


async def measure(progress: Progress) -> Figures:
    """Start and kill each size so many times."""
    figures = Figures()
    total = BARE_COUNT + sum(ROUND_COUNTS[count] for count in PROCESS_COUNTS)
    task = progress.add_task("start", total=total)
    for _ in range(BARE_COUNT):
        began = time.monotonic()
        bare = await asyncio.create_subprocess_exec(sys.executable, "-c", "pass")
        await bare.wait()
        figures.bare_s.append(time.monotonic() - began)
        progress.advance(task)
    for count in PROCESS_COUNTS:
        timed = figures.sizes[count] = Timed()
        for _ in range(ROUND_COUNTS[count]):
            with tempfile.TemporaryDirectory(prefix="stillframe-bench-") as directory:
                await _one_round(Path(directory) / "store", count, timed)
            progress.advance(task)
    return figures


async def _one_round(path: Path, count: int, timed: Timed) -> None:
    """Start one system, look at its memory, and kill one of its processes after the other."""
    reference = f"bench.rings:ring_of_{count}"
    seen: asyncio.Queue[events.Event] = asyncio.Queue()
    store = Store.create(path, description=load_topology(reference).description)
    began = time.monotonic()
    async with Supervisor(reference, store, emit=seen.put_nowait) as system:
        timed.starts.append((time.monotonic() - began, await _until_running(seen)))
        timed.private_bytes += [private_bytes(child.pid) for child in system.children.values()]
        for _ in range(KILL_COUNTS[count]):
            # From an older snapshot, a death soon after another is waited out.
            await system.snapshot()
            killed = random.choice(tuple(system.children.values()))
            began = time.monotonic()
            os.kill(killed.pid, signal.SIGKILL)
            running = await _until_running(seen)
            timed.recoveries.append((time.monotonic() - began, running))
    store.close()


async def _until_running(seen: "asyncio.Queue[events.Event]") -> events.SystemRunning:
    while True:
        event = await seen.get()
        if isinstance(event, events.SystemRunning):
            return event


def private_bytes(pid: int) -> int:
    """Return the memory that a process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("Private_")]
    return 1024 * sum(kilobytes)


def report(figures: Figures, console: Console) -> dict[str, Any]:
    """Print the table; return the figures."""
    bare_s = statistics.median(figures.bare_s)
    table = Table(title=f"starts and recoveries, medians; a bare Python starts in {bare_s:.3f} s")
    for column in ("processes", "what", "count", "seconds", "worst", "bare starts"):
        table.add_column(column, justify="right")
    for column in ("processes, s", "state, s", "connections, s", "private MB"):
        table.add_column(column, justify="right")
    found: dict[str, Any] = {"bare_s": bare_s}
    for count, timed in figures.sizes.items():
        private_mb = statistics.median(timed.private_bytes) / 1e6
        for what, times in (("start", timed.starts), ("recovery", timed.recoveries)):
            seconds = statistics.median(took for took, _ in times)
            worst = max(took for took, _ in times)
            parts = {
                "processes_s": _median_of(times, lambda running: running.processes_s),
                "state_s": _median_of(times, lambda running: running.state_s),
                "connections_s": _median_of(times, lambda running: running.connections_s),
            }
            table.add_row(
                str(count),
                what,
                str(len(times)),
                f"{seconds:.3f}",
                f"{worst:.3f}",
                f"{seconds / bare_s:.0f}",
                *(f"{part:.3f}" for part in parts.values()),
                f"{private_mb:.1f}" if what == "start" else "",
            )
            found[f"{count} processes, {what}"] = {
                "seconds": seconds,
                "worst_s": worst,
                "bare_starts": seconds / bare_s,
                **parts,
            }
        found[f"{count} processes"] = {"private_mb": private_mb}
    console.print(table)
    return found


def _median_of(
    times: list[tuple[float, events.SystemRunning]], part: Callable[[events.SystemRunning], float]
) -> float:
    return statistics.median(part(running) for _, running in times)
