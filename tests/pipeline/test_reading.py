"""``Pipeline.records``: the log of a channel without Spark, from a position or at a snapshot."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillframe.errors import Damaged, UsageError
from stillframe.pipeline import LogBatch, Manifest
from stillframe.pipeline.log import BATCH_ROW_COUNT, LogWriter
from stillframe.pipeline.metadata import read_metadata
from tests.cli.pipelines import Till, add_up, make_shop, sell
from tests.pipeline.money import leave_behind, line, records


def rows(found: list[LogBatch]) -> list[int]:
    """Return the amounts of all batches."""
    return [amount for one in found for amount in one.records["amount"].to_pylist()]


def test_a_channel_is_read_from_any_position(tmp_path: Path) -> None:
    """Batches say where they are, so that a program can read on after the last one."""
    shop = make_shop(tmp_path / "shop")
    sell(shop, 1, 2)
    first = list(shop.records("sales"))
    assert rows(first) == [1, 2]
    assert [(one.position, one.partition, one.offset) for one in first] == [(0, 0, 0), (1, 0, 1)]
    assert list(shop.records("totals")) == []
    add_up(shop, 2)
    assert rows(list(shop.records("totals"))) == [1, 3]
    begun = shop.records("sales", start=first[-1].position + 1)
    assert rows(list(begun)) == []
    with shop.join_service("till", state=Till()) as me:
        me.append("sales", records(7, 8))
        later = shop.records("sales", start=first[-1].position + 1)
        me.append("sales", records(9))
        assert rows(list(later)) == [7, 8]  # what is there when it is called


def test_a_snapshot_has_what_was_appended_before_it_and_what_was_in_flight(tmp_path: Path) -> None:
    """On its own timeline, whatever was appended since."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5, 6, 7, received_count=1)
    taken = pipeline.snapshot("unaligned")
    assert isinstance(taken, Manifest), taken
    before = rows(list(pipeline.records("coins")))
    leave_behind(pipeline, 40, received_count=1)
    assert rows(list(pipeline.records("coins"))) == [*before, 40]
    name = str(taken.snapshot)
    assert rows(list(pipeline.records("coins", snapshot=name))) == before == [5, 6, 7]
    in_flight = pipeline.records("coins", snapshot=name, target="till")
    assert rows(list(in_flight)) == [6, 7]
    pipeline.restore(name)
    assert rows(list(pipeline.records("coins"))) == before


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A channel, a snapshot or a target that does not exist, and one without its snapshot."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5, received_count=1)
    assert isinstance(pipeline.snapshot("unaligned"), Manifest)
    for words, arguments in (
        ("there is no channel 'coin'", {"channel": "coin"}),
        ("run-99", {"snapshot": "run-99"}),
        ("'mint' does not read channel 'coins'", {"snapshot": "run-1", "target": "mint"}),
        ("target requires snapshot: give both", {"target": "till"}),
    ):
        with pytest.raises(UsageError, match=words):
            pipeline.records(**{"channel": "coins", **arguments})  # type: ignore[arg-type]


def test_damage_is_named_and_nothing_after_it_is_read(tmp_path: Path) -> None:
    """As everywhere, by its file."""
    shop = make_shop(tmp_path / "shop")
    sell(shop, 1, 2, 3)
    second = sorted((shop.path / "channels" / "sales" / "epoch-1").glob("*.json"))[1]
    content = second.read_bytes()
    second.write_bytes(content[:-1])
    found = shop.records("sales")
    assert rows([next(found)]) == [1]
    with pytest.raises(Damaged) as caught:
        next(found)
    assert caught.value.path == str(second)
    second.unlink()
    with pytest.raises(Damaged, match="is missing"):
        shop.records("sales")


def test_what_was_trimmed_is_no_damage(tmp_path: Path) -> None:
    """The error says where to start instead, also if it happens while the log is read."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 1, 2, received_count=2)
    assert isinstance(pipeline.snapshot("unaligned"), Manifest)
    begun = pipeline.records("coins")
    assert rows([next(begun)]) == [1]
    for _ in range(2):
        leave_behind(pipeline, 3, 4, received_count=2)
        assert isinstance(pipeline.snapshot("unaligned"), Manifest)
    pipeline.keep(1)
    with pytest.raises(UsageError, match=r"entry 1 .* was trimmed: start at entry \d+ or later"):
        next(begun)
    with pytest.raises(UsageError, match="was trimmed"):
        next(pipeline.records("coins", start=0))
    leave_behind(pipeline, 9, received_count=0)
    assert rows(list(pipeline.records("coins")))[-1] == 9


def test_memory_holds_one_batch_at_a_time(tmp_path: Path) -> None:
    """However large an entry is, and however many there are."""
    pipeline = line(tmp_path / "run")
    writer = LogWriter(pipeline.path, pipeline.dataflow.log("coins"), read_metadata(pipeline.path))
    count = 20 * BATCH_ROW_COUNT
    writer.append(records(*range(count)))
    (file,) = pipeline.path.rglob("*.parquet")
    table = pq.read_table(file)
    assert table.num_rows == count
    largest = read = 0
    before = pa.total_allocated_bytes()
    for one in pipeline.records("coins"):
        assert one.offset == read
        read += one.records.num_rows
        largest = max(largest, pa.total_allocated_bytes() - before)
    assert read == count
    assert largest < table.nbytes / 2
