"""What snapshots cost in messages and in processor time, and how long one takes."""

import asyncio
import os
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.forward import system
from bench.measure import (
    PROCESS_COUNT,
    WARM_UP_S,
    Rate,
    Running,
    median,
    quantile,
    ratios,
    shared_counts,
    window,
)
from stillframe.errors import StillframeError
from stillframe.model import Abandoned
from stillframe.runtime.events import Event, SnapshotPublished
from stillframe.runtime.supervisor.supervisor import Supervisor, trigger_periodically

COST_ROUND_COUNT = 20
COST_WINDOW_S = 1.0
COST_MAX = {1: 0.02, 10: 0.08}
COLOURED = {
    "met": "[green]met[/]",
    "missed": "[red]missed[/]",
    "cannot tell": "[yellow]cannot tell[/]",
    "failed": "[red]failed[/]",
}
LATENCY_COUNT = 150
LATENCY_S_MAX = 15.0
LOADS = {
    "idle": "bench.forward:idle_of_5",
    "64 in flight each": "bench.forward:mesh_of_5",
    "paying as fast as they can": "stillframe.examples.bank:bank",
}


@dataclass
class Costs:
    """What each round showed, by snapshots a second that were asked for; how many were taken, and
    how long each took from its initiation until it was published, in s."""

    window_s: float = COST_WINDOW_S
    rounds: list[dict[int, Rate]] = field(default_factory=list)
    published_counts: dict[int, int] = field(default_factory=dict)
    published_s: list[float] = field(default_factory=list)


@dataclass
class Latencies:
    """How long snapshots took under one load, in s; how many were given up."""

    complete_s: list[float] = field(default_factory=list)
    published_s: list[float] = field(default_factory=list)
    abandoned_count: int = 0


async def measure_cost(
    progress: Progress,
    *,
    reference: str = "bench.forward:mesh",
    process_count: int = PROCESS_COUNT,
    round_count: int = COST_ROUND_COUNT,
    window_s: float = COST_WINDOW_S,
) -> Costs:
    """Measure a system with 0, 1 and 10 snapshots a second, in turn: A B C, A B C, ..."""
    costs = Costs(window_s)
    published = 0

    def note(event: Event) -> None:
        nonlocal published
        if isinstance(event, SnapshotPublished):
            published += 1
            costs.published_s.append(event.entry.published_at - event.entry.initiated_at)

    arms = (0, *COST_MAX)
    task = progress.add_task(f"cost of snapshots, {reference}", total=round_count * len(arms))
    try:
        async with shared_counts(process_count) as counts, system(reference, emit=note) as running:
            # Collecting and writing are part of the cost: they happen in this process.
            pids = [os.getpid(), *(child.pid for child in running.children.values())]
            measured = Running(pids, counts)
            await running.snapshot()
            await asyncio.sleep(WARM_UP_S)
            for _ in range(round_count):
                costs.rounds.append({})
                for per_second in arms:
                    before = published
                    rate = await window_with(running, measured, per_second, window_s)
                    taken = costs.published_counts.get(per_second, 0) + published - before
                    costs.published_counts[per_second] = taken
                    costs.rounds[-1][per_second] = rate
                    # When this one is published, so are all before it: nothing is left over for
                    # the next window.
                    await running.snapshot()
                    progress.advance(task)
    except (StillframeError, OSError) as error:
        progress.console.print(f"cost: stopped early: {error}", markup=False)
    return costs


async def window_with(
    running: Supervisor, measured: Running, per_second: int, seconds: float
) -> Rate:
    """Measure for so many seconds with so many snapshots a second."""
    if not per_second:
        return await window(measured, seconds)
    periodic = asyncio.create_task(
        trigger_periodically(
            running, every_s=1 / per_second, initiators=("P0", "P1"), emit=lambda event: None
        )
    )
    try:
        return await window(measured, seconds)
    finally:
        periodic.cancel()
        await asyncio.wait([periodic])


async def measure_latency(progress: Progress) -> dict[str, Latencies]:
    """Take snapshots one after the other under each load."""
    seen: dict[str, Latencies] = {}
    task = progress.add_task("latency", total=LATENCY_COUNT * len(LOADS))
    for load, reference in LOADS.items():
        latencies = seen[load] = Latencies()
        try:
            async with (
                asyncio.timeout(LATENCY_S_MAX),
                shared_counts(5),
                system(reference) as running,
            ):
                await running.snapshot()
                await asyncio.sleep(WARM_UP_S)
                for _ in range(LATENCY_COUNT):
                    entry = await running.snapshot()
                    progress.advance(task)
                    if isinstance(entry, Abandoned):
                        latencies.abandoned_count += 1
                        continue
                    latencies.complete_s.append(entry.completed_at - entry.initiated_at)
                    latencies.published_s.append(entry.published_at - entry.initiated_at)
        except (StillframeError, OSError) as error:
            progress.console.print(
                f"latency, {load}: stopped early: {str(error) or type(error).__name__}",
                markup=False,
            )
    return seen


def report_cost(costs: Costs, console: Console) -> dict[str, Any]:
    """Print the table; return the figures."""
    table = Table(title=f"cost of snapshots, mesh of 4, {len(costs.rounds)} windows each, in turn")
    for column in (
        *("snapshots a second", "really", "messages a second", "against none", "half lie in"),
        *("wanted", "so", "per core-second", "half lie in"),
    ):
        table.add_column(column, justify="right")
    figures: dict[str, Any] = {}
    for per_second in (0, *COST_MAX):
        seen = [turn[per_second] for turn in costs.rounds if per_second in turn]
        shares = ratios(costs.rounds, per_second, 0, lambda rate: rate.per_second)
        core_shares = ratios(costs.rounds, per_second, 0, lambda rate: rate.per_core_second)
        share = median(shares)
        really = costs.published_counts.get(per_second, 0) / (max(len(seen), 1) * costs.window_s)
        share_min = 1 - COST_MAX.get(per_second, 1.0)
        verdict = _verdict(shares, share_min)
        table.add_row(
            str(per_second),
            f"{really:.1f}",
            f"{median([rate.per_second for rate in seen]):,.0f}",
            f"{share:.3f}",
            _middle_half(shares),
            f">= {share_min:.2f}" if per_second else "",
            COLOURED[verdict] if per_second else "",
            f"{median(core_shares):.3f}",
            _middle_half(core_shares),
        )
        figures[str(per_second)] = {
            "really_per_second": really,
            "messages_share": share,
            "verdict": verdict if per_second else "",
            "messages_share_quartiles": [quantile(shares, 0.25), quantile(shares, 0.75)],
            "core_share": median(core_shares),
            "core_share_quartiles": [quantile(core_shares, 0.25), quantile(core_shares, 0.75)],
            "window_count": len(seen),
        }
    console.print(table)
    return figures


def _verdict(shares: list[float], share_min: float) -> str:
    # Of 20 rounds, the quartiles are where the true median lies 97 times in 100.
    if not shares:
        return "failed"
    if quantile(shares, 0.25) >= share_min:
        return "met"
    return "missed" if quantile(shares, 0.75) < share_min else "cannot tell"


def _middle_half(shares: list[float]) -> str:
    return f"{quantile(shares, 0.25):.2f}-{quantile(shares, 0.75):.2f}"


def report_latency(seen: dict[str, Latencies], console: Console) -> dict[str, Any]:
    """Print the table; return the figures."""
    table = Table(title="snapshot latency, 5 processes, 20 channels, one after the other, in ms")
    for column in ("load", "snapshots", "abandoned", "complete p50", "p99", "published p50", "p99"):
        table.add_column(column, justify="left" if column == "load" else "right")
    figures: dict[str, Any] = {}
    for load, latencies in seen.items():
        ms = [
            quantile(seconds, share) * 1000
            for seconds in (latencies.complete_s, latencies.published_s)
            for share in (0.5, 0.99)
        ]
        published_count = len(latencies.published_s)
        table.add_row(
            load,
            str(published_count),
            str(latencies.abandoned_count),
            *[f"{value:.1f}" for value in ms],
        )
        names = ("complete_p50_ms", "complete_p99_ms", "published_p50_ms", "published_p99_ms")
        figures[load] = {
            "snapshot_count": published_count,
            "abandoned_count": latencies.abandoned_count,
            **dict(zip(names, ms, strict=True)),
        }
    console.print(table)
    return figures
