"""A store in an object store is analyzed as the same one in a directory."""

import contextlib
import secrets
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stillframe.analytics.audit import audit
from stillframe.analytics.full_snapshots import store_tables
from stillframe.analytics.log_verification import published_cuts
from stillframe.analytics.manifests import expected_of, read_published
from stillframe.analytics.predicate_history import detect
from stillframe.analytics.snapshot_verdicts import verdict_for
from stillframe.analytics.store_diff import diff_store
from stillframe.analytics.verdict_stream import follow
from stillframe.model import SnapshotId
from stillframe.storage.location import Location, ObjectPath, locate
from stillframe.storage.opened import requests_to, storage_of
from stillframe.store.store import Store
from tests.analytics import bank
from tests.analytics.chains import make_chains
from tests.store.samples import publish_while_read

MONEY = {"states_sql": "sum(balance)", "messages_sql": "sum(amount)"}
QUERY = "select _snapshot, sum(balance) > 200 from processes group by _snapshot"


def damage(path: Location) -> None:
    """Change a byte of a file."""
    content, _ = storage_of(path).read(path, bytes_max=2**20)
    half = len(content) // 2
    storage_of(path).put(path, content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :])


def followed(spark: SparkSession, store: Location, place: Path) -> list[Any]:
    """Return the verdicts of the stream on all snapshots."""
    query = (
        follow(spark, str(store), timeout_s=0.0)  # no history says how they ended
        .writeStream.format("parquet")
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(place / "verdicts"))
    )
    query.awaitTermination()
    found = spark.read.parquet(str(place / "verdicts")).select("snapshot", "verdict", "why")
    return sorted(found.collect())


@pytest.mark.spark
def test_a_store_is_audited_compared_and_followed(
    spark: SparkSession, tmp_path: Path, spark_bucket: ObjectPath
) -> None:
    """Every byte is verified by the tasks, which read the object store themselves."""
    store = bank.make_store(spark_bucket / "bank", snapshot_count=3)
    found = audit(spark, str(store), **MONEY)
    assert found.ok, found.verdict
    assert [(row.message_count, row.total) for row in found.snapshots] == [(5, bank.TOTAL)] * 3
    counts = diff_store(spark, str(store), "P1-1", "P1-3").channels.collect()
    assert {(row["sent_count_before"], row["sent_count_after"]) for row in counts} == {
        (1, 3),
        (6, 8),
    }
    cuts = published_cuts(spark, str(store)).where("source = 'P1' and target = 'P2'").collect()
    assert min(cuts[0]["markers"]) == ("P1-1", 6, 1, [(2, 5)])
    assert [row["holds"] for row in detect(spark, str(store), QUERY).collect()] == [True] * 3
    damage(store / "snapshots" / "P1-2" / "messages.parquet")
    _, changed, _ = audit(spark, store).snapshots
    assert str(changed.damage).startswith("messages.parquet was changed since it was written")
    verdicts = followed(spark, store, tmp_path)
    assert [row["verdict"] for row in verdicts] == ["consistent", "inconsistent", "consistent"]
    assert f"{store}/snapshots/P1-2/messages.parquet was changed" in verdicts[1]["why"]


@pytest.mark.spark
def test_keyed_fields_are_merged(
    spark: SparkSession, tmp_path: Path, spark_bucket: ObjectPath
) -> None:
    """Incremental snapshots have their full state."""
    stores: tuple[Location, Location] = (tmp_path / "chains", spark_bucket / "chains")
    for store in stores:
        make_chains(store, 4, snapshot_count=4)
    ours, other = (store_tables(spark, str(store))["Bank_accounts"] for store in stores)
    assert sorted(map(str, ours.collect())) == sorted(map(str, other.collect()))


def test_manifests_are_found_by_one_listing(tmp_path: Path) -> None:
    """And each is read once. What is unfinished, or never comes, is left out."""
    store = locate(f"memory://{tmp_path.name}/bank")
    bank.make_store(store, snapshot_count=20)
    storage = storage_of(store)
    storage.put(store / "snapshots" / "P1-98" / "processes.parquet", b"half")
    before = requests_to(store)
    found = read_published(store)
    after = requests_to(store)
    assert [snapshot.number for snapshot in found.manifests] == list(range(1, 21))
    assert found.damages == {}
    assert before is not None
    assert after is not None
    # The head, whether it is there, the listing, and the history in two objects; and the unfinished
    # one is asked for twice.
    assert after.requests - before.requests <= 3 + 4 + 20 + 2
    damage(store / "snapshots" / "P1-7" / "manifest.json")
    changed = read_published(store)
    assert [*changed.damages] == [SnapshotId("P1", 7)]
    assert "P1-7/manifest.json was changed" in changed.damages[SnapshotId("P1", 7)]


def test_a_manifest_that_came_back_is_none() -> None:
    """A late duplicate of a request has written it again, after the snapshot was removed."""
    store = bank.make_store(ObjectPath(f"memory://{secrets.token_hex(8)}", "b"), snapshot_count=3)
    path = store / "snapshots" / "P1-2" / "manifest.json"
    content, _ = storage_of(path).read(path, bytes_max=2**20)
    with contextlib.closing(Store.open_writer(store)) as writer:
        writer.drop("P1-2")
    storage_of(path).put(path, content)
    found = read_published(store)
    assert [snapshot.number for snapshot in found.manifests] == [1, 3]
    assert found.damages == {}


def test_a_snapshot_that_was_deleted_meanwhile_is_incomplete(tmp_path: Path) -> None:
    """Its manifest is missing then; and of a damaged one it is not."""
    store = locate(f"memory://{tmp_path.name}/bank")
    bank.make_store(store, snapshot_count=3)
    expected = expected_of(read_published(store).head)
    directories = [store / "snapshots" / f"P1-{number}" for number in (1, 2)]
    damage(directories[0] / "channels.parquet")
    writer = Store.open_writer(store)
    writer.drop("P1-2")
    writer.close()
    found = [verdict_for(directory, expected) for directory in directories]
    assert [row["verdict"] for row in found] == ["inconsistent", "incomplete"]
    assert found[1]["why"] == "it was deleted before it could be read"


def test_a_snapshot_that_is_published_meanwhile_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest came after a reader had found none: there were only its tables."""
    store = locate(f"memory://{tmp_path.name}/bank")
    bank.make_store(store, snapshot_count=2)
    publish_while_read(store / "snapshots" / "P1-2" / "manifest.json", monkeypatch)
    found = read_published(store)
    assert (len(found.manifests), found.damages) == (2, {})
