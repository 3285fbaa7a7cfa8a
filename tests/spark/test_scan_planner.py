"""Which records of a log are planned to be read; no Spark runs here."""

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillframe.durable_files import checksum_of
from stillframe.errors import Damaged, UsageError
from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.log import entry_name, epoch_directory
from stillframe.pipeline.service import join
from stillframe.spark.scan_planner import plan_log_scan
from stillframe.spark.slices import RecordsSlice

NUMBERS = pa.schema([("n", pa.int64())])


@dataclass
class Counting:
    """How many numbers a service has sent."""

    count: int = 0


def count_on(pipeline: Pipeline) -> None:
    """Append two items of two numbers each, let them be read, and take a snapshot."""
    state = Counting()
    with join("counting", pipeline=pipeline.path, state=state) as me:
        for _ in range(2):
            me.append("numbers", pa.table([[state.count, state.count + 1]], schema=NUMBERS))
            state.count += 2
            me.boundary()
    with join("reading", pipeline=pipeline.path, state=Counting()) as me:
        while me.receive(timeout_s=0) is not None:
            pass
    assert not isinstance(pipeline.snapshot(), Abandoned)


def planned(pipeline: Pipeline, **options: str) -> list[tuple[int, int]]:
    """Return offset and first number of each row that a task would read of the log."""
    plan = plan_log_scan({"pipeline": str(pipeline.path), "channel": "numbers", **options})
    assert plan.schema.names == ["n", "_partition", "_offset"]
    found = []
    for part in plan.slices:
        assert isinstance(part, RecordsSlice)
        for batch in part.batches():
            found += [(row["_offset"], row["n"]) for row in batch.to_pylist()]
    return found


def test_a_trimmed_log_is_read_from_where_it_begins(tmp_path: Path) -> None:
    """Offsets say what is missing; before a snapshot's barrier, and on a restored timeline."""
    pipeline = Pipeline.create(
        tmp_path / "counts",
        services={"counting": Counting, "reading": Counting},
        channels=[channel("numbers", NUMBERS, source="counting", targets=["reading"])],
    )
    assert planned(pipeline) == []
    count_on(pipeline)
    count_on(pipeline)
    assert planned(pipeline, snapshot="counts-1") == [(n, n) for n in range(4)]
    assert planned(pipeline) == [(n, n) for n in range(8)]
    pipeline.keep(1)
    kept = planned(pipeline)
    assert kept == [(n, n) for n in range(8 - len(kept), 8)]
    assert len(kept) < 8
    pipeline.restore("counts-2")
    assert planned(pipeline) == kept
    count_on(pipeline)
    assert planned(pipeline) == [*kept, *((n, n) for n in range(8, 12))]
    assert planned(pipeline, snapshot="counts-2") == kept


@pytest.mark.parametrize("missing", [0, 1])
def test_a_log_with_a_missing_item_is_not_read_in_part(tmp_path: Path, missing: int) -> None:
    """The item is named, as it is now and up to the barrier of a snapshot; a log without targets
    is never trimmed, so there the first item is missed as well."""
    pipeline = Pipeline.create(
        tmp_path / "counts",
        services={"counting": Counting},
        channels=[channel("numbers", NUMBERS, source="counting")],
    )
    with join("counting", pipeline=pipeline.path, state=Counting()) as me:
        for n in range(3):
            me.append("numbers", pa.table([[n]], schema=NUMBERS))
    pipeline.snapshot()
    assert planned(pipeline) == [(n, n) for n in range(3)]
    path = epoch_directory(pipeline.path, "numbers", 1) / entry_name(missing)
    path.unlink()
    for options in ({}, {"snapshot": "counts-1"}):
        with pytest.raises(Damaged, match=f"{path} is missing"):
            planned(pipeline, **options)


@pytest.mark.slow
def test_a_task_needs_arrow_and_pyspark_alone(tmp_path: Path) -> None:
    """An executor without this package's other requirements reads records and their places."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table([[7, 8]], schema=NUMBERS), path)
    place = [("_partition", pa.int32()), ("_offset", pa.int64())]
    schema = pa.schema([*NUMBERS, *place]).serialize().to_pybytes()
    program = (
        "import sys; sys.modules['msgspec'] = None\n"
        "import pyarrow as pa\n"
        "from stillframe.spark.slices import RecordsSlice, SlicesReader\n"
        f"schema = pa.ipc.read_schema(pa.py_buffer({schema!r}))\n"
        f"part = RecordsSlice(1, [({str(path)!r}, {checksum_of(path)}, 5)], schema)\n"
        "print([row for batch in SlicesReader([]).read(part) for row in batch.to_pylist()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert ast.literal_eval(done.stdout) == [
        {"n": 7, "_partition": 1, "_offset": 5},
        {"n": 8, "_partition": 1, "_offset": 6},
    ]


@pytest.mark.parametrize("name", ["_partition", "_Offset"])
def test_names_of_our_own_columns_are_refused(tmp_path: Path, name: str) -> None:
    """A channel cannot have columns that would clash with the place of a record, in any case."""
    with pytest.raises(UsageError, match=f"a column cannot be called '{name}'"):
        Pipeline.create(
            tmp_path / "counts",
            services={"counting": Counting},
            channels=[channel("x", pa.schema([(name, pa.int64())]), source="counting")],
        )
