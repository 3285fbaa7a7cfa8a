"""The whole bench: prints tables of what was measured, good or bad; ``--json`` prints figures."""

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bench import (
    comparison,
    incremental,
    markers,
    noting,
    pause,
    scale,
    services,
    snapshots,
    start,
    throughput,
)

PARTS: dict[str, tuple[Callable[[Progress], Awaitable[Any]], Callable[[Any, Console], Any]]] = {
    "start": (start.measure, start.report),
    "throughput": (throughput.measure, throughput.report),
    "cost": (snapshots.measure_cost, snapshots.report_cost),
    "latency": (snapshots.measure_latency, snapshots.report_latency),
    "incremental": (incremental.measure, incremental.report),
    "pause": (pause.measure, pause.report),
    "comparison": (comparison.measure, comparison.report),
    "scale": (scale.measure, scale.report),
    "markers": (markers.measure, markers.report),
    "log": (noting.measure, noting.report),
    "services": (services.measure, services.report),
}
"""What measures each part, and what prints and returns its figures."""
SHORT_PARTS = ("throughput", "cost", "latency")
"""These run unless others are named."""


async def _run(parts: list[str], console: Console) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for part in parts:
            measure, report = PARTS[part]
            figures[part] = report(await measure(progress), console)
    return figures


def main() -> int:
    """Run the parts that are named, or all that are short."""
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"{', '.join(PARTS)}; default {', '.join(SHORT_PARTS)}",
    )
    parser.add_argument("--json", action="store_true", help="print figures instead of tables")
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - PARTS.keys()):
        parser.error(f"there is no part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 120)
    console.print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f} at the start"
    )
    try:
        figures = asyncio.run(_run(options.parts or list(SHORT_PARTS), console))
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
