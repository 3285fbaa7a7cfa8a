"""Snapshots as DataFrames are what the store itself reads, whatever they are based on."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stillframe.analytics import verified_parquet
from stillframe.analytics.full_snapshots import FullSnapshots, store_tables
from stillframe.analytics.manifests import read_published
from stillframe.errors import Damaged, NotConsistent, UsageError
from stillframe.model import SnapshotId
from stillframe.store.store import Store
from tests.analytics import bank
from tests.analytics.chains import make_chains
from tests.store import samples

pytestmark = pytest.mark.spark


def rows_of(table: Any) -> list[str]:
    """Return the rows of an Arrow table, as text, in an order of their own."""
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_snapshot_is_as_the_store_reads_it(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """All snapshots at once, and each table: what changed since which does not matter."""
    snapshots = make_chains(tmp_path / "store", seed)
    store, published = Store.open(tmp_path / "store"), read_published(tmp_path / "store")
    assert any(entry.chain_length > 1 for entry in store.entries())
    every = FullSnapshots(spark, published, list(snapshots))
    expected = {snapshot: store.tables(snapshot) for snapshot in snapshots}
    assert set(every.keyed_names) == {"Bank_accounts", "Bank_seats", "Bank_days"}
    for name in ("processes", "messages", *every.keyed_names):
        found = every.table(name).toArrow()
        assert rows_of(found) == sorted(
            text for tables in expected.values() for text in rows_of(tables[name])
        )


def test_one_snapshot_needs_only_its_chain(spark: SparkSession, tmp_path: Path) -> None:
    """What it is not based on may be gone."""
    make_chains(tmp_path / "store", 4)
    published = read_published(tmp_path / "store")
    wanted = SnapshotId("P", 8)
    needed = set(Store.open(tmp_path / "store").entry(wanted).bases) | {wanted}
    for _ in range(8):
        needed |= {
            base for one in needed for base in (published.manifests[one].bases or {}).values()
        }
    for snapshot in published.manifests.keys() - needed:
        shutil.rmtree(str(published.directory(snapshot)))
    left = read_published(tmp_path / "store")
    found = FullSnapshots(spark, left, [wanted]).table("Bank_accounts").toArrow()
    expected = Store.open(tmp_path / "store").tables(wanted)["Bank_accounts"]
    assert rows_of(found) == rows_of(expected)


def test_what_it_is_based_on_must_be_there(spark: SparkSession, tmp_path: Path) -> None:
    """A link that is missing, or whose manifest was changed, is named."""
    make_chains(tmp_path / "store", 4)
    published = read_published(tmp_path / "store")
    based = max(s for s, manifest in published.manifests.items() if manifest.bases)
    base = min((published.manifests[based].bases or {}).values())
    manifest = Path(str(published.directory(base))) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b" ")
    with pytest.raises(Damaged, match=rf"snapshot {based} is based on .*manifest.json was changed"):
        FullSnapshots(spark, read_published(tmp_path / "store"), [based])
    shutil.rmtree(str(published.directory(base)))
    with pytest.raises(Damaged, match=f"is based on snapshot .*{base} is missing"):
        FullSnapshots(spark, read_published(tmp_path / "store"), [based])


def test_columns_of_every_kind_come_back(spark: SparkSession, tmp_path: Path) -> None:
    """Also where classes disagree about a field."""
    store = Store.create(tmp_path / "store", description=samples.DESCRIPTION)
    store.raise_epoch(None)
    samples.publish(store, 1, 2)
    store.close()
    snapshots = [SnapshotId("A", number) for number in (1, 2)]
    every = FullSnapshots(spark, read_published(tmp_path / "store"), snapshots)
    for name in ("processes", "messages"):
        expected = [text for one in snapshots for text in rows_of(store.tables(one)[name])]
        assert rows_of(every.table(name).toArrow()) == sorted(expected)


def test_a_topology_that_changed_has_one_table_for_both(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A column is there if either has it; where both have it otherwise, it is float or JSON."""
    store = Store.create(tmp_path / "store", description=bank.TOPOLOGY.description)
    store.raise_epoch(None)
    store.publish(bank.snapshot(1))
    store.raise_epoch(SnapshotId("P1", 1), description=samples.DESCRIPTION)
    samples.publish(store, 2)
    store.close()
    published = read_published(tmp_path / "store")
    every = FullSnapshots(spark, published, list(published.manifests))
    kinds = {column.name: column.kind for column in every.columns("processes")}
    assert kinds["balance"] == "float"
    rows = every.table("processes").orderBy("_snapshot", "_process").collect()
    assert [(row["_process"], row["balance"], row["rate"]) for row in rows] == [
        ("A", 100.0, None),
        ("B", 100.0, None),
        ("T", 0.5, None),
        ("P1", 90.0, 0.1),
        ("P2", 100.0, 0.1),
        ("P3", 100.0, 0.1),
    ]
    assert every.table("channels").count() == 9
    with pytest.raises(UsageError, match="there is no table 'keys'; there are processes, channels"):
        every.table("keys")


def test_a_changed_byte_in_a_link_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """No row is made of bytes that are not what was written."""
    make_chains(tmp_path / "store", 4)
    published = read_published(tmp_path / "store")
    path = next(Path(str(published.directory(SnapshotId("P", 1)))).glob("Bank_accounts.*"))
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    every = FullSnapshots(spark, published, list(published.manifests))
    with (
        pytest.raises(Damaged, match=r"Bank_accounts\.\w+\.parquet was changed since"),
        verified_parquet.spark_errors(published.path),
    ):
        every.table("Bank_accounts").collect()


def test_all_tables_of_a_store_are_frames(spark: SparkSession, tmp_path: Path) -> None:
    """Of every snapshot, by name, as the store reads them; a store without any has none."""
    snapshots = make_chains(tmp_path / "store", 2, snapshot_count=3)
    store, tables = Store.open(tmp_path / "store"), store_tables(spark, tmp_path / "store")
    expected = [store.tables(snapshot) for snapshot in snapshots]
    assert tables.keys() == expected[0].keys()
    for name, frame in tables.items():
        rows = frame.toArrow()
        assert rows.num_rows == sum(one[name].num_rows for one in expected)
        assert set(rows.column(0).to_pylist()) <= set(map(str, snapshots))
    Store.create(tmp_path / "empty", description=samples.DESCRIPTION).close()
    with pytest.raises(UsageError, match="holds no snapshot yet"):
        store_tables(spark, tmp_path / "empty")


@pytest.mark.parametrize("name", ["processes", "channels", "messages"])
def test_a_row_that_was_written_twice_is_no_success(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """No table has more rows than the manifest promises, though its hash be right."""
    store = bank.make_store(tmp_path / "store", snapshot_count=1)
    directory = store / "snapshots" / "P1-1"
    bank.spoil(directory, f"{name}.parquet", lambda t: pa.concat_tables([t, t.slice(0, 1)]))
    with (
        pytest.raises(
            NotConsistent, match=rf"{name}\.parquet holds \d+ rows, and its manifest lists \d+"
        ),
        verified_parquet.spark_errors(store),
    ):
        store_tables(spark, store)[name].collect()
