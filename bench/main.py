"""The whole bench: prints tables of what was measured, good or bad; ``--json`` prints figures."""

import argparse
import asyncio
import json
import os
import platform
import sys
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bench import markers, pause, scale, snapshots, throughput

PARTS = ("throughput", "cost", "latency", "scale")
LONG_PARTS = ("markers", "pause")
"""These run only when they are named."""


async def _run(parts: list[str], console: Console) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        if "throughput" in parts:
            rounds = await throughput.measure(progress)
            figures["throughput"] = throughput.report(rounds, console)
        if "cost" in parts:
            costs = await snapshots.measure_cost(progress)
            figures["cost"] = snapshots.report_cost(costs, console)
        if "latency" in parts:
            latencies = await snapshots.measure_latency(progress)
            figures["latency"] = snapshots.report_latency(latencies, console)
        if "pause" in parts:
            pauses = await pause.measure(progress)
            figures["pause"] = pause.report(pauses, console)
        if "scale" in parts:
            sizes = await scale.measure(progress)
            figures["scale"] = scale.report(sizes, console)
        if "markers" in parts:
            turns = await markers.measure(progress)
            figures["markers"] = markers.report(turns, console)
    return figures


def main() -> int:
    """Run the parts that are named, or all that are not long."""
    known = (*PARTS, *LONG_PARTS)
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(known)}; default all but the last"
    )
    parser.add_argument("--json", action="store_true", help="print figures instead of tables")
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - set(known)):
        parser.error(f"there is no part {unknown[0]!r}: choose from {', '.join(known)}")
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 120)
    console.print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f} at the start"
    )
    try:
        figures = asyncio.run(_run(options.parts or list(PARTS), console))
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
