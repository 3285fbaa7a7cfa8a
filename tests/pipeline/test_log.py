"""A log: entries without a gap, one writer that wins, barriers, and what an older epoch writes."""

import secrets
from pathlib import Path

import pyarrow as pa
import pytest

from stillframe.errors import Damaged, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.log import LogReader, LogWriter, entry_name
from stillframe.pipeline.metadata import read_metadata
from stillframe.protocol.aligner import Mode
from stillframe.storage.location import ObjectPath
from tests.pipeline.money import SCHEMA, Account, amounts, leave_behind, line, records


def writer_of(pipeline: Pipeline) -> LogWriter:
    """Return a new writer of the line's channel."""
    return LogWriter(pipeline.path, pipeline.dataflow.log("coins"), read_metadata(pipeline.path))


def reader_of(pipeline: Pipeline) -> LogReader:
    """Return a new reader of the line's channel."""
    metadata = read_metadata(pipeline.path)
    return LogReader(pipeline.path, metadata.dataflow.log("coins"), metadata.segments["coins"])


def test_items_are_numbered_without_a_gap(tmp_path: Path) -> None:
    """Numbers, offsets and the tail agree, wherever a reader begins to look."""
    pipeline = line(tmp_path / "run")
    writer = writer_of(pipeline)
    assert [writer.append(records(*range(size))) for size in range(1, 12)] == list(range(11))
    for position in range(12):
        reader = reader_of(pipeline)
        assert reader.tail(position) == 11
        assert reader.offsets_at(position) == (position * (position + 1) // 2,)
    assert writer_of(pipeline).append(records(1)) == 11


def test_small_appends_are_spread_over_the_partitions(tmp_path: Path) -> None:
    """Without a key, partitions take turns from one append to the next, also by another writer."""
    pipeline = Pipeline.create(
        tmp_path / "run",
        services={"mint": Account},
        channels=[channel("coins", SCHEMA, source="mint", partition_count=3)],
    )
    for sizes in ((1, 1), (2, 1, 3, 1)):
        writer = writer_of(pipeline)
        for size in sizes:
            writer.append(records(*range(size)))
    assert reader_of(pipeline).offsets_at(6) == (3, 3, 3)


def test_two_writers_never_both_win(tmp_path: Path) -> None:
    """Of two that write the same entry, one is refused and has changed nothing."""
    pipeline = line(tmp_path / "run")
    first, second = writer_of(pipeline), writer_of(pipeline)
    second.reader.tail = lambda position: 0  # type: ignore[method-assign] # it looked before
    first.append(records(1))
    with pytest.raises(Unavailable, match="another program has just written entry 0"):
        second.append(records(2))
    reader = reader_of(pipeline)
    assert amounts(reader, 0, reader.tail(0)) == [1]


def test_a_micro_batch_is_in_the_log_once(tmp_path: Path) -> None:
    """Two writers ask for the last one and find none; who appends second is refused."""
    pipeline = line(tmp_path / "run")
    first, second = writer_of(pipeline), writer_of(pipeline)
    assert first.last_batch() is second.last_batch() is None
    first.append_files([], batch=0)
    with pytest.raises(Unavailable, match="another program has just written entry 0"):
        second.append_files([], batch=0)
    assert second.last_batch() == 0
    assert second.append_files([], batch=1) == 1
    assert reader_of(pipeline).tail(0) == 2


def test_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    """The error names channel and column, and nothing was appended."""
    pipeline = line(tmp_path / "run")
    writer = writer_of(pipeline)
    with pytest.raises(UsageError, match=r"channel coins .*'amount' \(string\)"):
        writer.append(pa.table({"amount": ["5"]}))
    assert writer.tail() == 0


def test_a_changed_or_missing_item_is_named(tmp_path: Path) -> None:
    """An entry with another byte, or none at all, is refused with its path."""
    pipeline = line(tmp_path / "run")
    writer = writer_of(pipeline)
    writer.append(records(1))
    path = writer.reader.entry_path(0)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"number":0', b'"number":1'))
    with pytest.raises(Damaged, match=entry_name(0)):
        reader_of(pipeline).entry(0)
    path.unlink()
    with pytest.raises(Damaged, match=entry_name(0)):
        reader_of(pipeline).entry(0)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_position_far_behind_the_end_costs_no_time(tmp_path: Path, *, is_local: bool) -> None:
    """A file that another program wrote may name any: what is missing first is found at once."""
    place = tmp_path / "p" if is_local else ObjectPath(f"memory://{secrets.token_hex(8)}", "p")
    pipeline = line(place)
    writer = writer_of(pipeline)
    for _ in range(3):
        writer.append(records(1))
    reader, end = reader_of(pipeline), 2**62
    assert reader.first_missing(0, end) == 3
    with pytest.raises(Damaged, match=entry_name(3)):
        list(reader.entries(0, end))
    reader.forget(end)
    reader.forget(2 * end)


def test_a_barrier_is_put_once_and_found(tmp_path: Path) -> None:
    """Put again before anything else it is the same; a reader finds it as the log grows."""
    pipeline = line(tmp_path / "run")
    writer, reader = writer_of(pipeline), reader_of(pipeline)
    old, new = SnapshotId("run", 1), SnapshotId("run", 2)
    assert writer.append_barrier(old, Mode.ALIGNED) == 0
    assert writer.append_files([], batch=4) == 1
    assert reader.find_barrier(new, 0, reader.tail(0)) is None
    assert writer.append_barrier(new, Mode.ALIGNED, batch=4) == 2
    assert writer.append_barrier(new, Mode.ALIGNED, batch=4) == 2
    assert writer.last_batch() == 4
    assert [reader.find_barrier(new, 0, end) for end in (2, 3)] == [None, 2]
    assert reader.find_barrier(old, 0, 3) == 0
    assert reader.find_barrier(old, 1, 3) is None


def test_a_writer_of_an_older_epoch_changes_nothing_that_is_read(tmp_path: Path) -> None:
    """It can append as much as it likes after a restore: nobody reads it."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5, 7)
    pipeline.snapshot("unaligned")
    stale = writer_of(pipeline)
    pipeline.restore()
    stale.append(records(1000))
    reader = reader_of(pipeline)
    assert amounts(reader, 0, reader.tail(0)) == [5, 7]
    writer_of(pipeline).append(records(1))
    reader = reader_of(pipeline)
    assert amounts(reader, 0, reader.tail(0)) == [5, 7, 1]
