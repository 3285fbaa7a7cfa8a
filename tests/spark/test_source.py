"""The streaming source without a JVM: what its sources agree on between micro-batches."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from stillframe.durable_files import replace_durably
from stillframe.errors import Damaged
from stillframe.model import SnapshotId
from stillframe.pipeline.dataflow import channel
from stillframe.pipeline.locks import participant_lock
from stillframe.pipeline.log import LogWriter, entry_name, epoch_directory
from stillframe.pipeline.metadata import read_metadata, write_metadata
from stillframe.pipeline.pending_snapshot import (
    REQUEST,
    ParticipantFragment,
    Request,
    fragment_path,
    read_fragment,
    request_path,
    submit_fragment,
)
from stillframe.pipeline.pipeline import Pipeline
from stillframe.protocol.aligner import Mode
from stillframe.spark.scan_planner import ChannelStreamReader
from stillframe.spark.source import ChannelSource
from stillframe.store.sealed_json import seal

SCHEMA = pa.schema([("n", pa.int64())])
OLD, NEW = SnapshotId("p", 1), SnapshotId("p", 2)


@dataclass
class Feed:
    """A service that feeds one channel."""

    sent_count: int = 0


def joined(root: Path) -> None:
    """Make a pipeline whose query stands, on both of its logs, before an old barrier and a new one;
    what it has read before is trimmed."""
    feeds = ("left", "right")
    Pipeline.create(
        root,
        name="p",
        queries=["both"],
        services=dict.fromkeys(feeds, Feed),
        channels=[channel(f"{name}s", SCHEMA, source=name, targets=["both"]) for name in feeds],
    )
    request = Request(
        snapshot=NEW, epoch=1, mode=Mode.ALIGNED, name=None, initiated_at=0.0, deadline_at=1e12
    )
    fragment_path(root, NEW, "both").parent.mkdir(parents=True)
    replace_durably(request_path(root, NEW) / REQUEST, seal(request))
    head = read_metadata(root)
    for name in feeds:
        log = f"{name}s"
        writer = LogWriter(root, head.dataflow.log(log), head)
        for number in range(3):
            writer.append(pa.table({"n": [number]}, schema=SCHEMA))
        writer.append_barrier(OLD, Mode.ALIGNED)
        barriers = {log: writer.append_barrier(NEW, Mode.ALIGNED)}
        part = ParticipantFragment(
            snapshot=NEW, participant=name, recorded_at=0.0, positions={}, barriers=barriers
        )
        submit_fragment(root, part)
        for number in range(2):
            (epoch_directory(root, log, 1) / entry_name(number)).unlink()
    starts = head.starts | {"both": {"lefts": 3, "rights": 3}}
    write_metadata(root, msgspec.structs.replace(head, starts=starts))


def test_a_source_knows_where_the_other_logs_of_its_query_end(tmp_path: Path) -> None:
    """Each source of a join sees the barriers of both logs, also where the beginning of the other
    log is trimmed away and only barriers are left to read."""
    root = tmp_path / "p.pipeline"
    joined(root)
    driver = participant_lock(root, "both")
    assert driver.try_acquire()
    source = ChannelStreamReader({"pipeline": str(root), "query": "both", "channels": "lefts"})
    source.latestOffset({"stillframe": {"lefts": 3}}, ReadAllAvailable())
    driver.release()
    part = read_fragment(root, NEW, "both")
    assert part is not None
    assert part.positions == {"lefts": 3, "rights": 3}


def first_micro_batch(
    root: Path, item_counts: dict[str, int], rows_max: int, row_counts: dict[str, int] | None = None
) -> dict[str, int]:
    """Return where the first micro-batch ends of a query whose logs have so many items, of two
    records each if nothing else is said."""
    Pipeline.create(
        root,
        name="p",
        queries=["one"],
        services={"feed": Feed},
        channels=[channel(log, SCHEMA, source="feed", targets=["one"]) for log in item_counts],
    )
    head = read_metadata(root)
    for log, count in item_counts.items():
        writer = LogWriter(root, head.dataflow.log(log), head)
        for _ in range(count):
            rows = range((row_counts or {}).get(log, 2))
            writer.append(pa.table({"n": list(rows)}, schema=SCHEMA))
    options = {
        "pipeline": str(root),
        "query": "one",
        "channels": ",".join(item_counts),
        "maxRowsPerTrigger": str(rows_max),
    }
    reader = ChannelSource(CaseInsensitiveDict(options)).streamReader(StructType())
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(rows_max)
    lock = participant_lock(root, "one")
    assert lock.try_acquire()
    offset = reader.latestOffset(reader.initialOffset(), limit)
    lock.release()
    positions: dict[str, int] = offset["stillframe"]
    return positions


def test_a_micro_batch_has_about_as_many_records_as_it_may(tmp_path: Path) -> None:
    """``maxRowsPerTrigger`` reaches the reader, although Spark writes the names of options in small
    letters; a micro-batch then has as few items as that takes, and at least one."""
    assert first_micro_batch(tmp_path / "a", {"log": 5}, 3) == {"log": 2}
    assert first_micro_batch(tmp_path / "b", {"log": 5}, 1) == {"log": 1}


def test_less_than_half_a_micro_batch_is_not_left_over(tmp_path: Path) -> None:
    """What is left of at most half a micro-batch is taken along, and no more than that."""
    assert first_micro_batch(tmp_path / "a", {"log": 3}, 4) == {"log": 3}
    assert first_micro_batch(tmp_path / "b", {"log": 4}, 4) == {"log": 2}
    assert first_micro_batch(tmp_path / "c", {"log": 2}, 1) == {"log": 1}


def test_logs_share_a_micro_batch(tmp_path: Path) -> None:
    """A full log does not keep another from being read, and gets what a shorter one leaves."""
    assert first_micro_batch(tmp_path / "a", {"x": 9, "y": 9}, 4) == {"x": 1, "y": 1}
    assert first_micro_batch(tmp_path / "b", {"x": 9, "y": 1}, 8) == {"x": 3, "y": 1}
    assert first_micro_batch(tmp_path / "c", {"x": 9, "y": 0, "z": 9}, 8) == {
        "x": 2,
        "y": 0,
        "z": 2,
    }
    assert first_micro_batch(tmp_path / "d", {"x": 9, "y": 9}, 1) == {"x": 1, "y": 1}
    # A few large items do not make many small ones wait.
    counts = {"large": 2, "small": 40}
    found = first_micro_batch(tmp_path / "e", counts, 20, {"large": 20, "small": 1})
    assert found == {"large": 1, "small": 10}


def test_a_run_with_available_now_does_not_end_at_a_gap(tmp_path: Path) -> None:
    """It would end well, as if it had read everything: the missing item is named, also if it went
    missing after the source had begun."""
    root = tmp_path / "p.pipeline"
    joined(root)
    driver = participant_lock(root, "both")
    assert driver.try_acquire()
    source = ChannelStreamReader({"pipeline": str(root), "query": "both", "channels": "lefts"})
    source.prepareForTriggerAvailableNow()
    path = epoch_directory(root, "lefts", 1) / entry_name(3)
    path.unlink()
    with pytest.raises(Damaged, match=f"{path} is missing"):
        source.prepareForTriggerAvailableNow()
    driver.release()
