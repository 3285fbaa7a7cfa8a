"""What the measurements of dataflows share: records, a feeding service, a chain of queries."""

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.spark.queries import read_channels, start_query

RECORDS = pa.schema([("key", pa.int64()), ("amount", pa.float64()), ("name", pa.string())])
TIMEOUT_S = 300.0


@dataclass
class Feed:
    """What the feeding service has appended."""

    item_count: int = 0


def records(count: int, seed: int) -> pa.Table:
    """Return records by chance: a thousand keys, fifty names."""
    chance = np.random.default_rng(seed)
    names = np.char.add("name-", chance.integers(0, 50, count).astype(str))
    return pa.table(
        {"key": chance.integers(0, 1000, count), "amount": chance.random(count), "name": names},
        schema=RECORDS,
    )


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """Give a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="stillframe-bench-", ignore_cleanup_errors=True) as at:
        yield Path(at)


@contextlib.contextmanager
def running(*queries: StreamingQuery) -> Iterator[None]:
    """Stop queries at the end."""
    try:
        yield
    finally:
        for query in queries:
            query.stop()


def take_snapshot(pipeline: Pipeline, mode: str) -> Manifest:
    """Take a snapshot.

    Raises:
        RuntimeError: it was given up.
    """
    outcome = pipeline.snapshot(mode, timeout_s=TIMEOUT_S)
    if isinstance(outcome, Manifest):
        return outcome
    raise RuntimeError(str(outcome))


def took_s(manifest: Manifest) -> float:
    """Return how long a snapshot took until it was complete, in seconds."""
    return manifest.completed_at - manifest.initiated_at


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column(columns[0])
    for column in columns[1:]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)


class Feeding:
    """A service in a thread that keeps a few items ahead of the query, until it is ended."""

    def __init__(self, pipeline: Pipeline, lead: Callable[[int], bool], item: pa.Table) -> None:
        self._pipeline, self._lead, self._item = pipeline, lead, item
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._ended.set()
        self._thread.join()

    def _go(self) -> None:
        state = Feed()
        with self._pipeline.join_service("feed", state=state) as me:
            while not self._ended.is_set():
                me.boundary()
                if self._lead(state.item_count):
                    me.append("in", self._item)
                    state.item_count += 1
                else:
                    self._ended.wait(0.005)


def chain(at: Path, hops: int) -> Pipeline:
    """Make a pipeline of a service and so many queries one after the other."""
    names = [f"q{number}" for number in range(1, hops + 1)]
    logs = [channel("in", RECORDS, source="feed", targets=["q1"])]
    for name, target in zip(names, [*names[1:], None], strict=True):
        logs.append(
            channel(f"from-{name}", RECORDS, source=name, targets=[target] if target else [])
        )
    return Pipeline.create(at / "chain", queries=names, services={"feed": Feed}, channels=logs)


def start_chain(spark: SparkSession, pipeline: Pipeline, hops: int) -> list[StreamingQuery]:
    """Start its queries: each passes on what it has not seen."""
    queries = []
    for number in range(1, hops + 1):
        frame = read_channels(
            spark, pipeline, f"q{number}", "in" if number == 1 else f"from-q{number - 1}"
        )
        queries.append(start_query(frame, pipeline, f"q{number}"))
    return queries
