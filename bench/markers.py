"""What it saves and costs when markers wait for messages to ride on."""

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.forward import system
from bench.measure import (
    ALONE_VARIABLE,
    WARM_UP_S,
    Rate,
    Running,
    median,
    quantile,
    shared_counts,
    window,
)
from bench.snapshots import window_with
from stillframe.errors import StillframeError
from stillframe.model import Abandoned

WAITS_MS = (0, 1, 5)
ROUND_COUNT = 5
WINDOW_S = 1.0
PER_SECOND = (1, 10)
LATENCY_COUNT = 30
TURN_S_MAX = 30.0
SAVED_BYTES = 11
"""A frame of its own has 13 bytes before the marker; on a batch there are 2."""
SHAPES = {
    "ring of 4, busy": ("busy_ring", 4, 4),
    "mesh of 4, busy": ("busy_mesh", 4, 12),
    "mesh of 8, busy": ("busy_mesh_of_8", 8, 56),
    "ring of 4, nearly idle": ("dripping_ring", 4, 4),
    "mesh of 4, nearly idle": ("dripping_mesh", 4, 12),
    "mesh of 8, nearly idle": ("dripping_mesh_of_8", 8, 56),
}
"""What is measured: the topology, how many processes and how many channels it has."""


@dataclass
class Turn:
    """What one system showed: rates by snapshots a second; the rest of snapshots one by one."""

    rates: dict[int, Rate] = field(default_factory=dict)
    complete_s: list[float] = field(default_factory=list)
    alone_count: int = 0


Turns = dict[tuple[str, int], list[Turn | None]]
"""By shape and wait in ms, one a round; None if it failed."""


async def measure(progress: Progress) -> Turns:
    """Measure every shape with every wait once a round: A B C, A B C, ..."""
    turns: Turns = defaultdict(list)
    task = progress.add_task("markers", total=ROUND_COUNT * len(SHAPES) * len(WAITS_MS))
    for _ in range(ROUND_COUNT):
        for shape in SHAPES:
            for wait_ms in WAITS_MS:
                turn = None
                try:
                    async with asyncio.timeout(TURN_S_MAX):
                        turn = await _turn(shape, wait_ms)
                except (StillframeError, RuntimeError, OSError) as error:
                    progress.console.print(
                        f"{shape}, {wait_ms} ms: one turn failed: "
                        f"{str(error) or type(error).__name__}",
                        markup=False,
                    )
                turns[shape, wait_ms].append(turn)
                progress.advance(task)
    return turns


async def _turn(shape: str, wait_ms: int) -> Turn:
    name, process_count, _ = SHAPES[shape]
    turn = Turn()
    async with (
        shared_counts(process_count) as counts,
        shared_counts(process_count, ALONE_VARIABLE) as alone,
        system(f"bench.riding:{name}", marker_wait_s=wait_ms / 1000) as running,
    ):
        pids = [os.getpid(), *(child.pid for child in running.children.values())]
        measured = Running(pids, counts)
        await running.snapshot()
        await asyncio.sleep(WARM_UP_S)
        turn.rates[0] = await window(measured, WINDOW_S)
        for per_second in PER_SECOND:
            turn.rates[per_second] = await window_with(running, measured, per_second, WINDOW_S)
            await running.snapshot()
        await asyncio.sleep(WARM_UP_S)
        before = alone.total()
        for _ in range(LATENCY_COUNT):
            entry = await running.snapshot()
            if isinstance(entry, Abandoned):
                raise StillframeError(str(entry))
            turn.complete_s.append(entry.completed_at - entry.initiated_at)
        await asyncio.sleep(WARM_UP_S)
        turn.alone_count = alone.total() - before
    return turn


def report(turns: Turns, console: Console) -> dict[str, Any]:
    """Print the table; return the figures."""
    table = Table(title=f"markers that wait for messages, medians of {ROUND_COUNT} rounds")
    for column in (
        *("shape", "wait ms", "frames saved", "of", "bytes saved", "complete ms p50", "p99"),
        *("messages at 1/s", "at 10/s", "per core at 1/s", "at 10/s"),
    ):
        is_shape = column == "shape"
        table.add_column(column, justify="left" if is_shape else "right", no_wrap=is_shape)
    figures: dict[str, Any] = {}
    for shape, (_, _, channel_count) in SHAPES.items():
        for wait_ms in WAITS_MS:
            figure = figures[f"{shape}, {wait_ms} ms"] = _figures(turns, shape, wait_ms)
            table.add_row(
                shape,
                str(wait_ms),
                f"{figure['frames_saved']:.1f}",
                str(channel_count),
                f"{figure['bytes_saved']:.0f}",
                f"{figure['complete_p50_ms']:.1f}",
                f"{figure['complete_p99_ms']:.1f}",
                *[
                    f"{figure[f'{what}_share_at_{per_second}']:.3f}" if wait_ms else ""
                    for what in ("messages", "core")
                    for per_second in PER_SECOND
                ],
            )
    console.print(table)
    console.print(
        "frames and bytes are saved in one snapshot; messages and messages per core-second are "
        "against markers that go at once, each as a share of no snapshot in the same system"
    )
    return figures


def _figures(turns: Turns, shape: str, wait_ms: int) -> dict[str, float]:
    seen = [turn for turn in turns[shape, wait_ms] if turn is not None]
    complete_ms = [seconds * 1000 for turn in seen for seconds in turn.complete_s]
    alone_count = median([turn.alone_count / LATENCY_COUNT for turn in seen])
    saved_count = SHAPES[shape][2] - alone_count if seen else 0.0
    figures = {
        "turn_count": len(seen),
        "frames_saved": saved_count,
        "bytes_saved": saved_count * SAVED_BYTES,
        "complete_p50_ms": quantile(complete_ms, 0.5),
        "complete_p99_ms": quantile(complete_ms, 0.99),
    }
    for per_second in PER_SECOND:
        for what, figure in (("messages", _per_second), ("core", _per_core_second)):
            share = _share(turns, shape, wait_ms, per_second, figure)
            figures[f"{what}_share_at_{per_second}"] = share
    return figures


def _per_second(rate: Rate) -> float:
    return rate.per_second


def _per_core_second(rate: Rate) -> float:
    return rate.per_core_second


def _share(
    turns: Turns, shape: str, wait_ms: int, per_second: int, figure: Callable[[Rate], float]
) -> float:
    """Return what is left of a rate with snapshots, against the same with a wait of nothing.

    Within each round; the rate without snapshots is taken out, since systems differ by more.
    """

    def left(turn: Turn) -> float:
        return figure(turn.rates[per_second]) / figure(turn.rates[0])

    pairs = zip(turns[shape, wait_ms], turns[shape, 0], strict=True)
    return median([left(ours) / left(plain) for ours, plain in pairs if ours and plain])
