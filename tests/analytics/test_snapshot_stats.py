"""How the snapshots of a store went: what manifests say, and the channels over time."""

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from stillframe import analytics
from stillframe.analytics import snapshot_stats, verified_parquet
from stillframe.analytics.full_snapshots import CHANNELS_SCHEMA
from stillframe.analytics.manifests import read_published
from stillframe.errors import Damaged
from stillframe.model import ChannelState, SnapshotId
from stillframe.store.store import Store
from tests.analytics import bank
from tests.store import keyed_samples as keyed

pytestmark = pytest.mark.spark


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three snapshots that took one second, and the second of which is a savepoint; the third
    paused for 10 ms, encoded for 40 ms, and caught nothing."""
    path = bank.make_store(tmp_path / "store", snapshot_count=2)
    writer = Store.open_writer(path)
    third = bank.snapshot(3)
    channels = tuple(ChannelState(c.channel, 9, 9, ()) for c in third.state.channels)
    state = msgspec.structs.replace(third.state, channels=channels)
    writer.publish(
        msgspec.structs.replace(
            third, initiated_at=2.0, completed_at=2.1, pause_s=0.01, capture_s=0.04, state=state
        )
    )
    writer.save(SnapshotId("P1", 2), "payday")
    writer.close()
    return path


def test_each_snapshot_says_where_its_time_went(spark: SparkSession, store: Path) -> None:
    """What was no pause and no encoding was waiting; publishing is by itself."""
    rows = analytics.snapshot_history(spark, store).orderBy("sequence").collect()
    assert [row["snapshot"] for row in rows] == ["P1-1", "P1-2", "P1-3"]
    assert [row["savepoints"] for row in rows] == [[], ["payday"], []]
    assert [row["message_count"] for row in rows] == [5, 5, 0]
    third, entry = rows[2], Store.open(store).entries()[2]
    assert (third["pause_s"], third["capture_s"]) == (0.01, 0.04)
    assert third["waiting_s"] == pytest.approx(0.05)
    assert third["publishing_s"] == pytest.approx(entry.published_at - 2.1)
    assert third["total_s"] == pytest.approx(entry.published_at - 2.0)
    assert (third["bytes"], third["initiator"]) == (entry.bytes, "P1")
    assert third["initiated_at"].timestamp() == 2.0


def test_chains_and_their_lengths_are_told(spark: SparkSession, tmp_path: Path) -> None:
    """A snapshot with changes says since which, and how many it takes to read it."""
    writer = Store.create(tmp_path / "store", description=keyed.DESCRIPTION)
    writer.raise_epoch(None)
    empty = keyed.nothing()
    for number, base in ((1, None), (2, SnapshotId("P", 1)), (3, SnapshotId("P", 2))):
        parts = [keyed.part(name, empty, empty, base) for name in keyed.BANKS]
        writer.publish(keyed.snapshot_of(number, parts))
    writer.close()
    rows = snapshot_stats.snapshot_history(spark, tmp_path / "store").orderBy("sequence").collect()
    assert [(row["bases"], row["chain_length"]) for row in rows] == [
        ([], 0),
        (["P-1"], 1),
        (["P-2"], 2),
    ]


def test_of_equal_maxima_always_the_same_snapshot_is_named(spark: SparkSession) -> None:
    """In whatever order Spark sees them; and a figure that is nowhere has none."""
    rows = [("A-1", 5, None), ("A-2", 5, None)]
    for order in (rows, rows[::-1]):
        frame = spark.createDataFrame(order, "snapshot STRING, bytes INT, pause_s DOUBLE")
        found = snapshot_stats.spread(frame.coalesce(1), ("bytes", "pause_s")).collect()
        assert {row["figure"]: row["snapshot"] for row in found} == {
            "bytes": "A-2",
            "pause_s": None,
        }


def test_figures_are_spread_over_all_snapshots(spark: SparkSession, store: Path) -> None:
    """Median, nine tenths, the most, and which snapshot that was."""
    found = snapshot_stats.spread(snapshot_stats.snapshot_history(spark, store))
    rows = {row["figure"]: row for row in found.collect()}
    assert rows.keys() == set(snapshot_stats.FIGURES)
    assert rows["capture_s"].asDict() == {
        "figure": "capture_s",
        "median": 0.0,
        "p90": pytest.approx(0.032),
        "max": 0.04,
        "snapshot": "P1-3",
    }
    assert (rows["message_count"]["median"], rows["message_count"]["max"]) == (5, 5)


def test_channels_are_followed_over_time(spark: SparkSession, store: Path) -> None:
    """A row for each channel and snapshot, with what went along it since the one before."""
    published = read_published(store)
    snapshots = snapshot_stats.snapshots(spark, published)
    found = snapshot_stats.channel_history(
        snapshot_stats.channel_counts(spark, published), snapshots
    )
    busy = found.where("source = 'P1' AND target = 'P2'").orderBy("sequence").collect()
    assert [
        (row["snapshot"], row["message_count"], row["sent_since"], row["received_since"])
        for row in busy
    ] == [("P1-1", 5, None, None), ("P1-2", 5, 1, 1), ("P1-3", 0, 2, 7)]
    files = [str(store / "snapshots" / f"P1-{number}" / "channels.parquet") for number in (1, 2, 3)]
    plain = spark.read.schema(from_arrow_schema(CHANNELS_SCHEMA)).parquet(*files)
    same = snapshot_stats.channel_history(plain, snapshots)
    assert sorted(same.collect()) == sorted(found.collect())
    first, *rest = snapshot_stats.channel_spread(found).collect()
    assert (first["source"], first["target"], first["median"], first["max"]) == ("P1", "P2", 5, 5)
    assert [row["max"] for row in rest] == [0] * 5


def test_a_damaged_manifest_is_named_and_left_out(spark: SparkSession, store: Path) -> None:
    """The others have their rows all the same."""
    path = store / "snapshots" / "P1-2" / "manifest.json"
    path.write_bytes(path.read_bytes() + b" ")
    published = read_published(store)
    assert list(published.damages) == [SnapshotId("P1", 2)]
    assert "manifest.json was changed" in published.damages[SnapshotId("P1", 2)]
    with pytest.raises(Damaged, match=r"manifest\.json was changed"):
        published.find("payday")
    rows = snapshot_stats.snapshots(spark, published).collect()
    assert sorted(row["snapshot"] for row in rows) == ["P1-1", "P1-3"]


def test_a_changed_byte_stops_the_task_that_reads_it(spark: SparkSession, store: Path) -> None:
    """What Spark says is turned back into our own error, which names the file."""
    path = store / "snapshots" / "P1-2" / "channels.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    counts = snapshot_stats.channel_counts(spark, read_published(store))
    with (
        pytest.raises(Damaged, match=r"^/.*P1-2/channels\.parquet was changed since it .*: put"),
        verified_parquet.spark_errors(store),
    ):
        counts.collect()


def test_what_a_sealed_file_says_wrongly_is_found(spark: SparkSession, store: Path) -> None:
    """Other columns than a table of the store has are damage, too, not a stack of Spark's."""
    bank.spoil(
        store / "snapshots" / "P1-2", "channels.parquet", lambda table: table.drop(["sent_count"])
    )
    with (
        pytest.raises(Damaged, match=r"P1-2/channels\.parquet is not a table of a store"),
        verified_parquet.spark_errors(store),
    ):
        snapshot_stats.channel_counts(spark, read_published(store)).collect()


def test_an_empty_store_has_an_empty_history(spark: SparkSession, tmp_path: Path) -> None:
    """No snapshot is no error for a function of DataFrames."""
    published = read_published(bank.make_store(tmp_path / "store", snapshot_count=0))
    assert published.is_empty
    snapshots = snapshot_stats.snapshots(spark, published)
    assert snapshots.count() == 0
    counts = snapshot_stats.channel_counts(spark, published)
    assert snapshot_stats.channel_history(counts, snapshots).count() == 0
