"""What snapshots cost as a system grows: full meshes of 5, 20 and 50 processes."""

from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.measure import median, quantile, ratios
from bench.snapshots import COST_MAX, Costs, measure_cost

PROCESS_COUNTS = (5, 20, 50)
ROUND_COUNT = 8
WINDOW_S = 3.0


async def measure(progress: Progress) -> dict[int, Costs]:
    """Measure each size with 0, 1 and 10 snapshots a second, in turn."""
    return {
        count: await measure_cost(
            progress,
            reference=f"bench.forward:mesh_of_{count}",
            process_count=count,
            round_count=ROUND_COUNT,
            window_s=WINDOW_S,
        )
        for count in PROCESS_COUNTS
    }


def report(sizes: dict[int, Costs], console: Console) -> dict[str, Any]:
    """Print the table; return the figures."""
    table = Table(
        title=f"snapshots as a mesh grows, {ROUND_COUNT} windows of {WINDOW_S:.0f} s each"
    )
    for column in ("processes", "channels", "snapshots a second", "really", "messages a second"):
        table.add_column(column, justify="right")
    for column in ("against none", "per core-second", "published p50, ms", "p99, ms"):
        table.add_column(column, justify="right")
    figures: dict[str, Any] = {}
    for count, costs in sizes.items():
        published_ms = [1000 * seconds for seconds in costs.published_s]
        for per_second in (0, *COST_MAX):
            seen = [turn[per_second] for turn in costs.rounds if per_second in turn]
            really = costs.published_counts.get(per_second, 0) / max(1, len(seen)) / WINDOW_S
            share = median(ratios(costs.rounds, per_second, 0, lambda rate: rate.per_second))
            core = median(ratios(costs.rounds, per_second, 0, lambda rate: rate.per_core_second))
            rate = median([window.per_second for window in seen])
            table.add_row(
                str(count),
                f"{count * (count - 1):,}",
                str(per_second),
                f"{really:.1f}",
                f"{rate:,.0f}",
                *((f"{share:.2f}", f"{core:.2f}") if per_second else ("", "")),
                *("", "")
                if per_second
                else (f"{median(published_ms):,.0f}", f"{quantile(published_ms, 0.99):,.0f}"),
            )
            figures[f"{count} processes, {per_second} a second"] = {
                "really_per_second": really,
                "messages_per_second": rate,
                "messages_share": share,
                "core_share": core,
            }
        figures[f"{count} processes"] = {
            "published_ms_p50": median(published_ms),
            "published_ms_p99": quantile(published_ms, 0.99),
        }
    console.print(table)
    return figures
