"""What an event log costs: the same forwarding processes without one and with one, in turn."""

import asyncio
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.forward import stillframe
from bench.measure import SHAPES, WARM_UP_S, Rate, median, ratios, window
from stillframe.errors import StillframeError

ROUND_COUNT = 5
WINDOW_S = 6.0
"""Long enough for files to become complete, and to be written again as Parquet."""
TURN_S_MAX = 40.0
COST_MAX = 0.10

Round = dict[tuple[str, bool], Rate]
"""What one round showed, by shape and whether there was a log; what failed is missing."""


async def measure(progress: Progress) -> list[Round]:
    """Measure each shape without and with a log: A B, A B, ..."""
    rounds: list[Round] = []
    task = progress.add_task("event logs", total=ROUND_COUNT * len(SHAPES) * 2)
    for _ in range(ROUND_COUNT):
        rounds.append({})
        for shape in SHAPES:
            for has_log in (False, True):
                try:
                    rounds[-1][shape, has_log] = await _turn(shape, has_log=has_log)
                except (StillframeError, RuntimeError, OSError) as error:
                    progress.console.print(
                        f"{shape}: one window failed: {str(error) or type(error).__name__}",
                        markup=False,
                    )
                progress.advance(task)
    return rounds


async def _turn(shape: str, *, has_log: bool) -> Rate:
    async with asyncio.timeout(TURN_S_MAX), stillframe(shape, has_log=has_log) as running:
        await asyncio.sleep(WARM_UP_S)
        return await window(running, WINDOW_S)


def report(rounds: list[Round], console: Console) -> dict[str, Any]:
    """Print the table, and whether what is wanted was met; return the figures."""
    table = Table(title=f"messages per core-second, 4 processes, medians of {ROUND_COUNT} rounds")
    for column in ("shape", "without a log", "with one", "with / without", "rounds"):
        table.add_column(column, justify="left" if column == "shape" else "right")
    figures: dict[str, Any] = {}
    for shape in SHAPES:
        shares = ratios(rounds, (shape, True), (shape, False), lambda rate: rate.per_core_second)
        without, with_log = (
            median([turn[shape, has].per_core_second for turn in rounds if (shape, has) in turn])
            for has in (False, True)
        )
        share = median(shares)
        figures[shape] = {
            "without": without,
            "with": with_log,
            "share": share,
            "shares": shares,
            "is_met": share >= 1 - COST_MAX,
        }
        table.add_row(
            *(shape, f"{without:,.0f}", f"{with_log:,.0f}", f"{share:.2f}"),
            f"{min(shares, default=0.0):.2f} to {max(shares, default=0.0):.2f}",
        )
    console.print(table)
    for shape, figure in figures.items():
        met = "[green]met[/green]" if figure["is_met"] else "[red]missed[/red]"
        console.print(
            f"{shape}: {1 - figure['share']:.0%} fewer (wanted at most {COST_MAX:.0%}): {met}"
        )
    return figures
