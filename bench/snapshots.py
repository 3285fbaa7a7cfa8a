"""What snapshots cost in messages per second, and how long one takes."""

import asyncio
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
    shared_counts,
    window,
)
from stillframe.model import Abandoned
from stillframe.runtime.periodic import take_periodically
from stillframe.runtime.supervisor import Supervisor

COST_ROUND_COUNT = 10
COST_WINDOW_S = 2.0
COST_MAX = {1: 0.02, 10: 0.08}
LATENCY_COUNT = 150
LOADS = {
    "idle": "bench.forward:idle_of_5",
    "64 in flight each": "bench.forward:mesh_of_5",
    "paying as fast as they can": "examples.bank:bank",
}


async def measure_cost(progress: Progress) -> dict[int, list[Rate]]:
    """Return the rates of a mesh of four with 0, 1 and 10 snapshots a second, in turn."""
    rates: dict[int, list[Rate]] = {0: [], **{rate: [] for rate in COST_MAX}}
    task = progress.add_task("cost of snapshots", total=COST_ROUND_COUNT * len(rates))
    async with shared_counts(PROCESS_COUNT) as counts, system("bench.forward:mesh") as running:
        measured = Running([child.pid for child in running.children.values()], counts)
        await running.snapshot()
        await asyncio.sleep(WARM_UP_S)
        for _ in range(COST_ROUND_COUNT):
            for per_second, seen in rates.items():
                seen.append(await _window_with(running, measured, per_second))
                progress.advance(task)
    return rates


async def _window_with(running: Supervisor, measured: Running, per_second: int) -> Rate:
    if not per_second:
        return await window(measured, COST_WINDOW_S)
    periodic = asyncio.create_task(
        take_periodically(
            running, every_s=1 / per_second, initiators=("P0", "P1"), emit=lambda event: None
        )
    )
    rate = await window(measured, COST_WINDOW_S)
    periodic.cancel()
    return rate


async def measure_latency(progress: Progress) -> dict[str, list[tuple[float, float]]]:
    """Return for each load how long snapshots took, in s: until complete, until published."""
    latencies: dict[str, list[tuple[float, float]]] = {}
    task = progress.add_task("latency", total=LATENCY_COUNT * len(LOADS))
    for load, reference in LOADS.items():
        async with shared_counts(5), system(reference) as running:
            await running.snapshot()
            await asyncio.sleep(WARM_UP_S)
            for _ in range(LATENCY_COUNT):
                entry = await running.snapshot()
                assert not isinstance(entry, Abandoned), str(entry)
                latencies.setdefault(load, []).append(
                    (
                        entry.completed_at - entry.initiated_at,
                        entry.published_at - entry.initiated_at,
                    )
                )
                progress.advance(task)
    return latencies


def report_cost(rates: dict[int, list[Rate]], console: Console) -> dict[str, Any]:
    """Print the table; return the figures."""
    table = Table(title=f"cost of snapshots, mesh of 4, {COST_ROUND_COUNT} windows each, in turn")
    for column in ("snapshots a second", "messages a second", "against none", "wanted"):
        table.add_column(column, justify="right")
    figures: dict[str, Any] = {}
    for per_second, seen in rates.items():
        # Each window against the one without snapshots of the same round: the machine drifts.
        share = median(
            [rate.per_second / none.per_second for rate, none in zip(seen, rates[0], strict=True)]
        )
        wanted = f">= {1 - COST_MAX[per_second]:.2f}" if per_second else ""
        met = not per_second or share >= 1 - COST_MAX[per_second]
        table.add_row(
            str(per_second),
            f"{median([rate.per_second for rate in seen]):,.0f}",
            f"[{'green' if met else 'red'}]{share:.3f}[/]",
            wanted,
        )
        figures[str(per_second)] = share
    console.print(table)
    return figures


def report_latency(
    latencies: dict[str, list[tuple[float, float]]], console: Console
) -> dict[str, Any]:
    """Print the table; return the figures."""
    table = Table(title=f"snapshot latency, 5 processes, 20 channels, {LATENCY_COUNT} each, in ms")
    for column in ("load", "complete p50", "p99", "published p50", "p99"):
        table.add_column(column, justify="left" if column == "load" else "right")
    figures: dict[str, Any] = {}
    for load, seen in latencies.items():
        ms = [
            quantile([pair[kind] * 1000 for pair in seen], share)
            for kind in (0, 1)
            for share in (0.5, 0.99)
        ]
        table.add_row(load, *[f"{value:.1f}" for value in ms])
        names = ("complete_p50_ms", "complete_p99_ms", "published_p50_ms", "published_p99_ms")
        figures[load] = dict(zip(names, ms, strict=True))
    console.print(table)
    return figures
