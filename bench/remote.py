"""How long a snapshot takes until it is safe in a directory and in an object store, in turn.

The object store is versitygw on this machine: no network is between, so these figures show what the
protocol adds, and not how far away your object store is.
"""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.measure import quantile
from stillframe.imports import load_topology
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.storage.location import Location, locate
from stillframe.storage.opened import requests_to
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from tests.s3_servers import environment, versitygw

REFERENCE = "bench.forward:idle_of_5"
ROUND_COUNT = 4
SNAPSHOT_COUNT = 100


async def measure(place: Location) -> tuple[list[float], float]:
    """Return how long snapshots took from their initiation until they were published, in s, and how
    many requests each took."""
    description = load_topology(REFERENCE).description
    took: list[float] = []
    with contextlib.closing(Store.create(place, description=description)) as store:
        async with Supervisor(REFERENCE, store) as system:
            await system.snapshot()
            before = requests_to(place)
            for _ in range(SNAPSHOT_COUNT):
                entry = await system.snapshot()
                assert isinstance(entry, SnapshotEntry), entry
                took.append(entry.published_at - entry.initiated_at)
            after = requests_to(place)
    count = 0 if before is None or after is None else after.requests - before.requests
    return took, count / SNAPSHOT_COUNT


def main() -> int:
    """Measure both in turn, and print a table; with ``--json`` the figures."""
    found: dict[str, list[float]] = {"directory": [], "object store": []}
    requests: list[float] = []
    with tempfile.TemporaryDirectory() as directory, versitygw(Path(directory)) as server:
        os.environ |= environment(server)
        bucket = server.new_bucket()
        for number in range(ROUND_COUNT):
            took, _ = asyncio.run(measure(Path(directory, f"store-{number}")))
            found["directory"] += took
            took, count = asyncio.run(measure(locate(f"s3://{bucket}/store-{number}")))
            found["object store"] += took
            requests.append(count)
    table = Table(title="published after, 5 processes, 3 files a snapshot, in ms")
    for column in ("store", "snapshots", "p50", "p99", "requests a snapshot"):
        table.add_column(column, justify="left" if column == "store" else "right")
    figures = {}
    for kind, took in found.items():
        p50, p99 = (quantile(took, share) * 1000 for share in (0.5, 0.99))
        count = max(requests) if kind == "object store" else 0.0
        table.add_row(kind, str(len(took)), f"{p50:.1f}", f"{p99:.1f}", f"{count:.1f}")
        figures[kind] = {"p50_ms": p50, "p99_ms": p99, "requests": count}
    Console(stderr="--json" in sys.argv).print(table)
    if "--json" in sys.argv:
        print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
