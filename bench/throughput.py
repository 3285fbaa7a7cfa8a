"""Messages per core-second of four processes, against the floor and the peers, in one run."""

import asyncio
import functools
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.forward import stillframe
from bench.measure import SHAPES, TURN_S_MAX, WARM_UP_S, Contender, Rate, median, ratios, window
from bench.peers import contender, floor, grpc_aio, pyzmq
from stillframe.errors import StillframeError

ROUND_COUNT = 3
FLOOR_SHARE_MIN = 0.40
PYZMQ_FACTOR_MIN = 1.5

CONTENDERS: dict[str, Contender] = {
    "floor (uvloop + msgspec)": contender(floor),
    "stillframe": stillframe,
    "stillframe over TLS": functools.partial(stillframe, has_tls=True),
    "pyzmq PUSH/PULL": contender(pyzmq),
    "grpc.aio stream": contender(grpc_aio),
}
FLOOR, OURS, _, PYZMQ, GRPC = CONTENDERS

Round = dict[tuple[str, str], Rate]
"""What one round showed, by contender and shape; one that failed is missing."""


async def measure(progress: Progress) -> list[Round]:
    """Measure every contender and shape once a round: A B C D, A B C D, ..."""
    rounds: list[Round] = []
    task = progress.add_task("messages", total=ROUND_COUNT * len(CONTENDERS) * len(SHAPES))
    for _ in range(ROUND_COUNT):
        rounds.append({})
        for name, start in CONTENDERS.items():
            for shape in SHAPES:
                try:
                    rounds[-1][name, shape] = await _turn(start, shape)
                except (StillframeError, RuntimeError, OSError) as error:
                    progress.console.print(
                        f"{name}, {shape}: one window failed: {str(error) or type(error).__name__}",
                        markup=False,
                    )
                progress.advance(task)
    return rounds


async def _turn(start: Contender, shape: str) -> Rate:
    async with asyncio.timeout(TURN_S_MAX), start(shape) as running:
        await asyncio.sleep(WARM_UP_S)
        return await window(running)


def report(rounds: list[Round], console: Console) -> dict[str, Any]:
    """Print the table, and whether what is wanted was met; return the figures."""
    table = Table(title=f"messages per core-second, 4 processes, medians of {ROUND_COUNT} rounds")
    table.add_column("way")
    for shape in SHAPES:
        for column in (shape, "x floor", "x pyzmq", "a second"):
            table.add_column(column, justify="right")
    figures: dict[str, Any] = {}
    for name in CONTENDERS:
        cells = [name]
        for shape in SHAPES:
            figure = figures[f"{name}, {shape}"] = _figures(rounds, name, shape)
            if not figure["window_count"]:
                cells += ["failed", "", "", ""]
                continue
            cells += [
                f"{figure['per_core_second']:,.0f}",
                f"{figure['to_floor']:.2f}",
                f"{figure['to_pyzmq']:.2f}",
                f"{figure['per_second']:,.0f}",
            ]
        table.add_row(*cells, style="bold" if name == OURS else None)
    console.print(table)
    for shape in SHAPES:
        ours = figures[f"{OURS}, {shape}"]
        is_met = ours["to_floor"] >= FLOOR_SHARE_MIN and ours["to_pyzmq"] >= PYZMQ_FACTOR_MIN
        ours["is_met"] = is_met
        console.print(
            f"{shape}: {ours['to_floor']:.0%} of the floor (wanted {FLOOR_SHARE_MIN:.0%}), "
            f"{ours['to_pyzmq']:.1f} x pyzmq (wanted {PYZMQ_FACTOR_MIN}), rounds "
            f"{ours['to_floor_min']:.0%} to {ours['to_floor_max']:.0%} and "
            f"{ours['to_pyzmq_min']:.1f} to {ours['to_pyzmq_max']:.1f}: "
            + ("[green]met[/green]" if is_met else "[red]missed[/red]")
        )
    return figures


def _figures(rounds: list[Round], name: str, shape: str) -> dict[str, float]:
    seen = [turn[name, shape] for turn in rounds if (name, shape) in turn]
    figures = {
        "per_core_second": median([rate.per_core_second for rate in seen]),
        "per_second": median([rate.per_second for rate in seen]),
        "window_count": len(seen),
    }
    for label, other in (("to_floor", FLOOR), ("to_pyzmq", PYZMQ)):
        shares = ratios(rounds, (name, shape), (other, shape), lambda rate: rate.per_core_second)
        figures[label] = median(shares)
        figures[f"{label}_min"] = min(shares, default=0.0)
        figures[f"{label}_max"] = max(shares, default=0.0)
    return figures
