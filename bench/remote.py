"""How long a snapshot takes until it is safe in a directory and in an object store, in turn: of a
system of processes, and of a pipeline whose query keeps its state in RocksDB; of this in HDFS, too.

The object store is versitygw on this machine, and HDFS has three DataNodes on it: no network is
between, so these figures show what the protocols add, and not how far away yours are.
"""

import asyncio
import contextlib
import io
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.measure import quantile
from stillframe.imports import load_topology
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.query_runs import first_checkpoint
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.storage.files import below
from stillframe.storage.location import Location, locate
from stillframe.storage.opened import requests_to, storage_of
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from tests.hdfs_server import minicluster
from tests.s3_servers import environment, versitygw

REFERENCE = "bench.forward:idle_of_5"
ROUND_COUNT = 4
SNAPSHOT_COUNT = 100
STATE_MEGABYTES = (1, 10, 100)
MEGABYTE = 2**20


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


def made(place: Location, megabytes: int) -> Pipeline:
    """Make a pipeline whose query has committed a micro-batch, with so much state, and stopped."""
    out = channel("out", pa.schema([("n", pa.int64())]), source="query")
    pipeline = Pipeline.create(place, queries=["query"], channels=[out], name="query")
    write_checkpoint(pipeline, 0, [f"{number:06}-a.sst" for number in range(megabytes)])
    return pipeline


def write_checkpoint(pipeline: Pipeline, batch: int, new: list[str]) -> None:
    """Commit a micro-batch as Spark does, with new files of RocksDB of 1 MB each."""
    root = first_checkpoint(pipeline.path, 1, "query")
    named = [f'"dfsSstFileName":"{name}"' for name in new]
    full = io.BytesIO()
    with zipfile.ZipFile(full, "w") as archive:
        archive.writestr("metadata", "v1\n{" + ",".join(named) + "}")
    files = {f"state/0/0/SSTs/{name}": os.urandom(MEGABYTE) for name in new}
    files |= {f"state/0/0/{batch + 1}.zip": full.getvalue(), "metadata": b'{"id":"a"}'}
    files |= {f"offsets/{batch}": b"v1\n{}\n-", f"commits/{batch}": b"v1\n{}"}
    for name, content in files.items():
        path = below(root, *name.split("/"))
        if isinstance(path, Path):
            path.parent.mkdir(parents=True, exist_ok=True)
        storage_of(path).put(path, content)


def time_query(place: Location, megabytes: int) -> list[float]:
    """Return how long the first snapshot took, and a restore, in s."""
    pipeline = made(place, megabytes)
    times = [time.monotonic()]
    taken = pipeline.snapshot("unaligned")
    assert isinstance(taken, Manifest), taken
    times.append(time.monotonic())
    pipeline.restore(taken.snapshot)
    times.append(time.monotonic())
    return [after - before for before, after in itertools.pairwise(times)]


def time_queries(places: dict[str, Location]) -> dict[str, dict[str, float]]:
    """Measure pipelines with three sizes of state, in each of the places in turn; print a table,
    and return medians in ms."""
    found: dict[str, dict[str, float]] = {}
    table = Table(title="snapshot and restore of a pipeline with one query, medians in ms")
    for column in ("state", "place", "snapshot", "restore"):
        table.add_column(column, justify="right")
    for megabytes in STATE_MEGABYTES:
        rounds: dict[str, list[list[float]]] = {kind: [] for kind in places}
        for number, (kind, place) in itertools.product(range(ROUND_COUNT), places.items()):
            rounds[kind].append(time_query(below(place, f"query-{megabytes}-{number}"), megabytes))
        for kind, took in rounds.items():
            medians = [statistics.median(one) * 1000 for one in zip(*took, strict=True)]
            table.add_row(f"{megabytes} MB", kind, *(f"{ms:.0f}" for ms in medians))
            found[f"{megabytes} MB, {kind}"] = dict(
                zip(("snapshot_ms", "restore_ms"), medians, strict=True)
            )
    Console(stderr="--json" in sys.argv).print(table)
    return found


def main() -> int:
    """Measure both in turn, and print tables; with ``--json`` the figures."""
    found: dict[str, list[float]] = {"directory": [], "object store": []}
    requests: list[float] = []
    with tempfile.TemporaryDirectory() as directory, versitygw(Path(directory)) as server:
        os.environ |= environment(server)
        bucket = server.new_bucket()
        of_hdfs = Path(directory, "hdfs")
        of_hdfs.mkdir()
        for number in range(ROUND_COUNT):
            took, _ = asyncio.run(measure(Path(directory, f"store-{number}")))
            found["directory"] += took
            took, count = asyncio.run(measure(locate(f"s3://{bucket}/store-{number}")))
            found["object store"] += took
            requests.append(count)
        with minicluster(of_hdfs) as hdfs:
            places = {"object store": locate(f"s3://{bucket}"), "HDFS": locate(f"{hdfs}/bench")}
            queries = time_queries({"directory": Path(directory), **places})
    table = Table(title="published after, 5 processes, 3 files a snapshot, in ms")
    for column in ("store", "snapshots", "p50", "p99", "requests a snapshot"):
        table.add_column(column, justify="left" if column == "store" else "right")
    figures: dict[str, dict[str, float]] = queries
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
