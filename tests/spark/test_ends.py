"""What is promised for the sinks and sources at the ends of a pipeline, with the real ones.

Two drivers run for all of these tests: the first is killed while a micro-batch is in every sink and
not committed, the second goes on from there, and then goes back to the snapshot of the first.
"""

import concurrent.futures
import contextlib
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest

from stillframe.pipeline import Pipeline
from stillframe.pipeline.snapshot_manifest import Manifest, pinned_path, snapshot_path
from tests.spark.ends_program import Place
from tests.spark.flows import records, wait_until
from tests.spark.outside import kafka, postgres

pytestmark = [pytest.mark.slow, pytest.mark.spark]

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "pipeline.md"
TABLES = re.compile(r"^```sql\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SINK = re.compile(r"^```python\n# database\.py:.*?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TIMEOUT_S = 600

Row = tuple[int, int, int]
"""Epoch, micro-batch, and the number of the purchase."""


@dataclass(frozen=True)
class Seen:
    """What there is at the end. `held` is the micro-batch in which the first driver was killed."""

    place: Place
    pipeline: Pipeline
    manifest: Manifest
    report: dict[str, Any]
    held: int

    @property
    def purchases(self) -> Counter[int]:
        """What was put into Kafka, once each."""
        return Counter(self.report["purchases"])

    @property
    def before(self) -> Counter[int]:
        """What had come through the channel at the cut."""
        [cut] = self.manifest.channels
        rows = records(self.pipeline, "sums", self.manifest, cut.position)
        return Counter(row["total"] for row in rows)

    def counted(self, rows: Counter[Row]) -> Counter[int]:
        """Return what `Pipeline.timeline` lets count of the records of a sink."""
        timeline = self.pipeline.timeline("ends")
        found: Counter[int] = Counter()
        for (epoch, batch, total), count in rows.items():
            if batch in timeline.get(epoch, ()):
                found[total] += count
        return found


def start(phase: str, place: Place) -> "subprocess.Popen[bytes]":
    """Start a driver, in a process group of its own."""
    with (place.root / f"{phase}.log").open("wb") as log:
        arguments = (phase, str(place.root), place.kafka, str(place.port))
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.ends_program", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(place.root)},
            stderr=log,
            start_new_session=True,
        )


@contextlib.contextmanager
def driver(phase: str, place: Place) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a driver until the body ends; then kill -9 what there still is of it, Java as well."""
    program = start(phase, place)
    try:
        yield program
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


@contextlib.contextmanager
def both_ends(directory: Path) -> Iterator[tuple[str, int]]:
    """Start Kafka and PostgreSQL at the same time; yield the address and the port."""
    with contextlib.ExitStack() as ends, concurrent.futures.ThreadPoolExecutor(1) as pool:
        broker = pool.submit(ends.enter_context, kafka(directory))
        port = ends.enter_context(postgres())
        yield broker.result(), port


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Run both drivers, and keep the database for whoever looks."""
    root = tmp_path_factory.mktemp("ends")
    [tables], [sink] = (pattern.findall(PAGE.read_text()) for pattern in (TABLES, SINK))
    (root / "database.py").write_text(sink)
    with both_ends(tmp_path_factory.mktemp("kafka")) as (address, port):
        place = Place(root, address, port)
        with psycopg.connect(place.address) as database:
            database.execute(tables)
        with driver("first", place) as program:
            held = root / "held"
            wait_until(lambda: held.exists() or program.poll() is not None, TIMEOUT_S)
        assert program.returncode == -signal.SIGKILL, (root / "first.log").read_text()[-6000:]
        (root / "hold").unlink()
        with driver("again", place) as program:
            done = program.wait(TIMEOUT_S)
        assert done == 0, (root / "again.log").read_text()[-6000:]
        pipeline = place.pipeline()
        yield Seen(
            place=place,
            pipeline=pipeline,
            manifest=pipeline.snapshots()[0],
            report=json.loads((root / "report.json").read_text()),
            held=int(held.read_text()),
        )


def rows_of(place: Place, table: str) -> Counter[Row]:
    """Return what a table holds."""
    with psycopg.connect(place.address) as database:
        found = database.execute(f"select epoch, batch, total from {table}".encode()).fetchall()
    return Counter((int(epoch), int(batch), int(total)) for epoch, batch, total in found)


def check_at_least_once(rows: Counter[Row], seen: Seen) -> None:
    """Compare what a sink holds that only ever appends with what is promised for it."""
    totals = Counter(total for _, _, total in rows.elements())
    assert totals.keys() == seen.purchases.keys()
    assert {total: totals[total] for total in seen.before} == dict(seen.before)
    twice = {row for row, count in rows.items() if count == 2}
    assert set(rows.values()) == {1, 2}
    assert twice == {row for row in rows if row[:2] == (1, seen.held)} != set()
    again = {total for epoch, _, total in rows if epoch == 2}
    assert again == seen.purchases.keys() - seen.before.keys()
    first = max(seen.pipeline.timeline("ends")[1]) + 1
    one, other = ({row[2] for row in rows if row[:2] == (epoch, first)} for epoch in (1, 2))
    assert one < other, "the number of the first micro-batch after the cut came with other records"


def check_once(rows: Counter[Row], seen: Seen) -> None:
    """Compare what a sink holds that writes over micro-batches with what is promised for it."""
    assert set(rows.values()) == {1}
    assert any(row[:2] == (1, seen.held) for row in rows)
    assert seen.counted(rows) == seen.purchases


def test_each_record_of_kafka_is_in_the_channel_once(seen: Seen) -> None:
    """Also after the kill and the restore: after it, exactly what came after the cut was read."""
    rows = records(seen.pipeline, "sums", None, -1)
    assert Counter(row["total"] for row in rows) == seen.purchases
    assert set(seen.purchases.values()) == {1}
    assert 20 <= len(seen.before) < seen.report["produced before the kill"]


def test_the_offsets_of_kafka_are_part_of_the_cut(seen: Seen) -> None:
    """As many records as Kafka's offsets say at the cut were sent into the channel before it."""
    state = seen.manifest.fragment("intake").query
    assert state is not None
    pinned = pinned_path(snapshot_path(seen.pipeline.path, seen.manifest.snapshot), "intake")
    lines = (pinned / "offsets" / str(state.batch)).read_text().split("\n")
    [offsets] = [json.loads(line)["purchases"] for line in lines if "purchases" in line]
    [cut] = seen.manifest.channels
    assert len(offsets) == 2
    assert sum(offsets.values()) == sum(cut.sent_counts) == len(seen.before)


def test_kafka_gets_each_record_at_least_once(seen: Seen) -> None:
    """Twice comes what was not committed at the kill, and what came after the cut."""
    rows = [(row["epoch"], row["batch"], row["total"]) for row in seen.report["sums"]]
    check_at_least_once(Counter(rows), seen)


def test_a_table_that_spark_appends_to_gets_each_record_at_least_once(seen: Seen) -> None:
    """Twice comes what was not committed at the kill, and what came after the cut."""
    check_at_least_once(rows_of(seen.place, "appended"), seen)


def test_with_a_transaction_for_each_micro_batch_a_record_counts_once(seen: Seen) -> None:
    """The sink of the page: after the kill, and after the restore."""
    check_once(rows_of(seen.place, "sums"), seen)
    with psycopg.connect(seen.place.address) as database:
        found = database.execute("select total from sums_that_count").fetchall()
    assert Counter(total for (total,) in found) == seen.purchases
    killed = seen.report["counted after the kill"]
    assert sorted(killed) == list(range(seen.report["produced before the kill"]))


def test_with_a_directory_for_each_micro_batch_a_file_counts_once(seen: Seen) -> None:
    """Spark's Parquet files: after the kill, and after the restore."""
    table = pq.read_table(seen.place.files, partitioning="hive")
    columns = [table[name].to_pylist() for name in ("epoch", "batch", "total")]
    check_once(Counter(zip(*columns, strict=True)), seen)


def test_the_sink_of_the_page_refuses_to_go_on_after_a_restore(seen: Seen, tmp_path: Path) -> None:
    """A program that began before it would put records under the wrong epoch."""
    copy = seen.pipeline.fork(str(seen.manifest.snapshot), tmp_path / "copy.pipeline")
    sink = runpy.run_path(str(seen.place.root / "database.py"))["into_table"]
    each_batch = sink(copy, "ends", seen.place.address)
    copy.restore()
    with pytest.raises(RuntimeError, match="was restored meanwhile: start this program again"):
        each_batch(None, 7)
