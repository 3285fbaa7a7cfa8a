"""Compacted tables in an object store: the same rows, and of two writers at once one wins."""

import contextlib
import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stillframe.analytics import compact_store, compacted_tables
from stillframe.analytics.compaction import (
    INDEX,
    Compacted,
    TablePart,
    TablesWriter,
    exclusive_writer,
    read_catalog,
    version_path,
)
from stillframe.analytics.verified_parquet import write_here
from stillframe.errors import Damaged, StoreError, Unavailable, UsageError
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import read_hashed
from stillframe.store.store import Store
from stillframe.topology import Column
from tests.analytics import bank
from tests.storage.faulty import DEATHS, ONCE, Died, Fault, faulty, nth


def add(store: Path, number: int) -> None:
    """Publish one more snapshot."""
    writer = Store.open_writer(store)
    writer.publish(bank.snapshot(number))
    writer.close()


def rows(spark: SparkSession, out: Location) -> dict[str, list[str]]:
    """Return the rows of all tables as text."""
    return {
        name: sorted(map(str, frame.collect()))
        for name, frame in compacted_tables(spark, str(out)).items()
    }


def names_in(out: ObjectPath) -> set[str]:
    """Return the names of all objects."""
    found = set()
    for one in storage_of(out).files_below(out):
        assert isinstance(one.location, ObjectPath)
        found.add(one.location.relative_to(out))
    return found


def listed(out: ObjectPath) -> set[str]:
    """Return the names of the objects that the catalog lists."""
    catalog = read_catalog(out)
    return {
        f"v{catalog.version:06}/{table}/{file.name}"
        for table in ("snapshots", *catalog.columns)
        for file in catalog.files(table)
    }


@pytest.mark.spark
def test_tables_are_made_added_to_and_cut(
    spark: SparkSession, tmp_path: Path, spark_bucket: ObjectPath
) -> None:
    """As in a directory. The version before stays, and nothing else. A changed byte is found."""
    store, local = bank.make_store(tmp_path / "s", snapshot_count=2), tmp_path / "t"
    remote = spark_bucket / "tables"
    for number in (0, 3, 4):
        if number:
            add(store, number)
        for out in (local, str(remote)):
            done = compact_store(spark, store, out, keep=3)
        assert len(done.removed) == (number == 4)
    assert read_catalog(remote).version == read_catalog(local).version == 3
    assert read_catalog(remote).snapshots == read_catalog(local).snapshots
    assert rows(spark, remote) == rows(spark, local)
    found = names_in(remote)
    assert {name.partition("/")[0] for name in found} == {"tables.json", "v000002", "v000003"}
    assert {name for name in found if name.startswith("v000003")} == listed(remote)
    again = compact_store(spark, store, str(remote), keep=3)
    assert (again.added, again.removed, names_in(remote)) == ((), (), found)
    path = next(remote / name for name in sorted(found) if "v000003/processes" in name)
    content, _ = storage_of(path).read(path, bytes_max=2**20)
    storage_of(path).put(path, content[:-1] + b"x")
    with pytest.raises(Damaged, match=rf"{path} was changed since it was written"):
        compact_store(spark, store, str(remote), keep=1)


@pytest.fixture
def place(tmp_path: Path, empty_place: ObjectPath) -> ObjectPath:
    """An empty place for tables, next to a store in a directory."""
    bank.make_store(tmp_path / "s", snapshot_count=1)
    return empty_place


def written(writer: TablesWriter, name: str) -> Compacted:
    """Write the next version: what is there is kept, and a table has one row more."""
    writer.begin()
    table = pa.table({"snapshot": [name]})
    parts = writer.catalog.parts
    writer.keep("channels", [file for part in parts for file in part.files["channels"]])
    files = {
        own: writer.name_files(
            own, [write_here(table, writer.directory(own) / f"{name}.parquet")], 1
        )
        for own in ("channels", INDEX)
    }
    part = TablePart(len(parts) + 1, (), {"channels": files["channels"]})
    number = writer.catalog.version + 1
    columns: dict[str, tuple[Column, ...]] = {"channels": ()}
    return Compacted(version=number, columns=columns, parts=(*parts, part), index=files[INDEX][0])


def check_all_there(out: ObjectPath) -> None:
    """Check that each file that the catalog lists is what was written."""
    for name in listed(out):
        assert names_in(out) >= {name}
    catalog = read_catalog(out)
    for table in (INDEX, "channels"):
        for file in catalog.files(table):
            place = version_path(out, catalog.version) / table / file.name
            read_hashed(place, file.bytes, file.hash)


def test_of_two_compactions_at_once_one_wins(tmp_path: Path, place: ObjectPath) -> None:
    """Whatever the other one wrote meanwhile. What lost is removed with its version."""
    for version in range(1, 5):
        with exclusive_writer(place, tmp_path / "s") as slow:
            late = written(slow, f"late{version}")
            with exclusive_writer(place, tmp_path / "s") as fast:
                fast.publish(written(fast, f"fast{version}"))
            check_all_there(place)
            with pytest.raises(Unavailable, match="another program has compacted into"):
                slow.publish(late)
            slow.abandon()
        assert read_catalog(place).version == version
        check_all_there(place)
        written(slow, f"later{version}")  # by a task that was taken for dead
        check_all_there(place)
        versions = {name.partition("/")[0] for name in names_in(place)} - {"tables.json"}
        assert versions == {f"v{number:06}" for number in (version - 1, version) if number}


def test_a_crash_leaves_the_old_tables(tmp_path: Path, place: ObjectPath) -> None:
    """Even before the first version. What it left goes with the version of the next one."""
    for version in range(3):
        with exclusive_writer(place, tmp_path / "s") as crashed:
            written(crashed, f"crashed{version}")
        if version:
            assert read_catalog(place).version == version
            check_all_there(place)
        with exclusive_writer(place, tmp_path / "s") as writer:
            writer.publish(written(writer, f"good{version}"))
        check_all_there(place)
        assert not [name for name in names_in(place) if "crashed" in name]


@pytest.mark.parametrize("fault", [*DEATHS, *ONCE])
def test_whatever_request_fails_the_catalog_lists_what_is_there(
    tmp_path: Path, place: ObjectPath, fault: Fault
) -> None:
    """The program dies there, or the request is repeated."""
    for number in itertools.count(1):
        out = place / str(number)
        with exclusive_writer(out, tmp_path / "s") as writer:
            writer.publish(written(writer, "first"))
        with faulty(out, nth(number, fault)) as requests, contextlib.suppress(Died):
            with exclusive_writer(out, tmp_path / "s") as writer:
                writer.publish(written(writer, "second"))
            assert fault in ONCE or not requests.is_dead
        version = read_catalog(out).version
        assert version == 2 or (fault in DEATHS and version == 1)
        check_all_there(out)
        with exclusive_writer(out, tmp_path / "s") as writer:
            writer.publish(written(writer, "third"))
        check_all_there(out)
        if len(requests.sent) < number:
            break
    assert number > 6


@pytest.mark.parametrize("method", ["list", "delete"])
def test_tables_are_published_although_nothing_can_be_deleted(
    tmp_path: Path, place: ObjectPath, method: str
) -> None:
    """The credentials may not allow it. That is no failure, and the next one deletes it."""
    with exclusive_writer(place, tmp_path / "s") as crashed:
        written(crashed, "crashed")
    with (
        faulty(place, lambda request: Fault.DENIED if request.method == method else None),
        exclusive_writer(place, tmp_path / "s") as writer,
    ):
        writer.publish(written(writer, "good"))
    check_all_there(place)
    for name in ("next", "last"):
        with exclusive_writer(place, tmp_path / "s") as writer:
            writer.publish(written(writer, name))
    assert not [name for name in names_in(place) if "crashed" in name]


def test_a_file_that_cannot_be_written_says_what_to_do(place: ObjectPath) -> None:
    """In an object store that is no advice about a disk."""
    with (
        faulty(place, lambda _: Fault.DENIED),
        pytest.raises(StoreError, match=r"do not allow it.*: check the credentials in the env"),
    ):
        write_here(pa.table({"x": [1]}), place / "x.parquet")


def test_what_else_is_there_is_refused(tmp_path: Path, place: ObjectPath) -> None:
    """Other objects, and tables whose catalog is missing."""
    storage = storage_of(place)
    for path, error, says in (
        (place / "mine" / "letter.txt", UsageError, r"is not empty; it contains letter\.txt"),
        (place / "store" / "store.json", UsageError, "is a store: give a separate directory"),
        (place / "lost" / "v000002", Damaged, r"tables\.json is missing"),
    ):
        storage.put(path, b"x")
        with pytest.raises(error, match=says), exclusive_writer(path.parent, tmp_path / "s"):
            pass
    with pytest.raises(UsageError, match="holds no tables"):
        read_catalog(place / "none")
    with (
        pytest.raises(UsageError, match="contains the store or is inside it"),
        exclusive_writer(place / "store" / "snapshots", place / "store"),
    ):
        pass
