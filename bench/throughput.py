"""Messages per core-second of four processes, against the floor and the peers, in one run."""

import asyncio
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.forward import stillframe
from bench.measure import SHAPES, WARM_UP_S, Contender, Rate, median, window
from bench.peers import contender, floor, grpc_aio, pyzmq

ROUND_COUNT = 5
FLOOR_SHARE_MIN = 0.40
PYZMQ_FACTOR_MIN = 1.5

CONTENDERS: dict[str, Contender] = {
    "floor (uvloop + msgspec)": contender(floor),
    "stillframe": stillframe,
    "pyzmq PUSH/PULL": contender(pyzmq),
    "grpc.aio stream": contender(grpc_aio),
}
FLOOR, OURS, PYZMQ, GRPC = CONTENDERS


async def measure(progress: Progress) -> dict[tuple[str, str], list[Rate]]:
    """Return the rates of every contender and shape, one a round: A B C D, A B C D, ..."""
    rates: dict[tuple[str, str], list[Rate]] = {}
    task = progress.add_task("messages", total=ROUND_COUNT * len(CONTENDERS) * len(SHAPES))
    for _ in range(ROUND_COUNT):
        for name, start in CONTENDERS.items():
            for shape in SHAPES:
                async with start(shape) as running:
                    await asyncio.sleep(WARM_UP_S)
                    rates.setdefault((name, shape), []).append(await window(running))
                progress.advance(task)
    return rates


def report(rates: dict[tuple[str, str], list[Rate]], console: Console) -> dict[str, Any]:
    """Print the table; return the figures."""
    table = Table(title=f"messages per core-second, 4 processes, medians of {ROUND_COUNT} windows")
    table.add_column("way")
    for shape in SHAPES:
        for column in (shape, "x floor", "x pyzmq", "a second"):
            table.add_column(column, justify="right")
    figures: dict[str, Any] = {}
    cores = {key: median([rate.per_core_second for rate in seen]) for key, seen in rates.items()}
    for name in CONTENDERS:
        cells = [name]
        for shape in SHAPES:
            core = cores[name, shape]
            to_floor, to_pyzmq = core / cores[FLOOR, shape], core / cores[PYZMQ, shape]
            wall = median([rate.per_second for rate in rates[name, shape]])
            cells += [f"{core:,.0f}", f"{to_floor:.2f}", f"{to_pyzmq:.2f}", f"{wall:,.0f}"]
            figures[f"{name}, {shape}"] = {
                "per_core_second": core,
                "to_floor": to_floor,
                "to_pyzmq": to_pyzmq,
                "per_second": wall,
            }
        table.add_row(*cells, style="bold" if name == OURS else None)
    console.print(table)
    for shape in SHAPES:
        ours = figures[f"{OURS}, {shape}"]
        is_met = ours["to_floor"] >= FLOOR_SHARE_MIN and ours["to_pyzmq"] >= PYZMQ_FACTOR_MIN
        console.print(
            f"{shape}: {ours['to_floor']:.0%} of the floor (wanted {FLOOR_SHARE_MIN:.0%}), "
            f"{ours['to_pyzmq']:.1f} x pyzmq (wanted {PYZMQ_FACTOR_MIN}): "
            + ("[green]met[/green]" if is_met else "[red]missed[/red]")
        )
    return figures
