"""Large tables of all snapshots: the same rows as in the store, added to, cut, and never half."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from stillframe.analytics import compact_store, compacted_tables, compaction, verified_parquet
from stillframe.analytics.compaction import exclusive_writer, read_catalog, version_path
from stillframe.analytics.manifests import read_published
from stillframe.analytics.snapshot_stats import snapshot_table
from stillframe.analytics.verified_parquet import write
from stillframe.durable_files import partial_path
from stillframe.errors import Damaged, StoreError, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.store.sealed_json import FORMAT
from stillframe.store.store import Store
from tests.analytics import bank
from tests.analytics.chains import make_chains
from tests.store import samples
from tests.store.format_reader import NotReadable, read_compacted

pytestmark = pytest.mark.spark


def texts(table: pa.Table) -> list[str]:
    """Return the rows of an Arrow table, as text, in an order of their own."""
    return sorted(map(repr, table.to_pylist()))


def here(out: Path, name: str) -> pa.Table:
    """Read a table as anybody would, by the files of the present version."""
    directory = version_path(out, read_catalog(out).version) / name
    return pa.concat_tables(
        [pq.read_table(path, partitioning=None) for path in sorted(directory.glob("*.parquet"))]
    )


def snapshots_of(out: Path, name: str = "snapshots") -> list[str]:
    """Return which snapshots a table has rows of."""
    return sorted(set(here(out, name).column(0).to_pylist()))


def expected_rows(store: Path, names: list[str]) -> dict[str, list[str]]:
    """Return the rows of each table, as the store reads these snapshots one by one."""
    expected: dict[str, list[str]] = {}
    for snapshot in map(SnapshotId.parse, names):
        for name, rows in Store.open(store).tables(snapshot).items():
            kept = rows.drop_columns(["first"]) if name == "channels" else rows
            expected[name] = sorted(expected.get(name, []) + texts(kept))
    return expected


def check_same(out: Path, store: Path, names: list[str]) -> None:
    """Check that the tables are what the store says of these snapshots."""
    catalog, expected = read_catalog(out), expected_rows(store, names)
    assert catalog.columns.keys() == expected.keys()
    of_document = {table: sorted(map(repr, rows)) for table, rows in read_compacted(out).items()}
    assert of_document == expected | {"snapshots": texts(here(out, "snapshots"))}
    for name, rows in expected.items():
        assert texts(here(out, name)) == rows
    for name in (*expected, "snapshots"):
        directory = version_path(out, catalog.version) / name
        listed = {file.name: file for file in catalog.files(name)}
        assert {path.name for path in directory.iterdir()} == listed.keys()
        for path in directory.iterdir():
            file = listed[path.name]
            assert hashlib.sha256(path.read_bytes()).hexdigest() == file.hash
            assert pq.read_metadata(path).num_rows == file.row_count
    assert snapshots_of(out) == sorted(names) == sorted(catalog.snapshots)
    assert {path.name for path in out.iterdir()} <= {
        *("tables.json", "lock"),
        *(version_path(out, catalog.version - back).name for back in (0, 1)),
    }


@pytest.fixture(scope="module")
def compacted_chains(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[SnapshotId]]:
    """A store of keyed snapshots, the last two of which are beside it, and the tables of the
    others; and which were added."""
    made = tmp_path_factory.mktemp("chains")
    make_chains(made / "store", 1)
    for number in (7, 8):
        shutil.move(made / "store" / "snapshots" / f"P-{number}", made / f"P-{number}")
    return made, list(compact_store(spark, made / "store", made / "out").added)


@pytest.fixture
def chains(compacted_chains: tuple[Path, list[SnapshotId]], tmp_path: Path) -> Path:
    """The same for one test."""
    return Path(shutil.copytree(compacted_chains[0], tmp_path / "chains"))


@pytest.fixture(scope="module")
def compacted_bank(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of three snapshots, and the tables of the first two."""
    made = tmp_path_factory.mktemp("bank")
    store = bank.make_store(made / "store", snapshot_count=2)
    compact_store(spark, store, made / "out")
    writer = Store.open_writer(store)
    writer.publish(bank.snapshot(3))
    writer.close()
    return made


@pytest.fixture
def three(compacted_bank: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The store and the tables, for one test."""
    copy = Path(shutil.copytree(compacted_bank, tmp_path / "bank"))
    return copy / "store", copy / "out"


def test_all_snapshots_become_few_tables_and_more_are_added(
    spark: SparkSession, chains: Path, compacted_chains: tuple[Path, list[SnapshotId]]
) -> None:
    """What is there is not written again: its files get a second name."""
    store, out = chains / "store", chains / "out"
    names = [f"P-{number}" for number in range(1, 7)]
    assert list(map(str, compacted_chains[1])) == names
    check_same(out, store, names)
    for number in (7, 8):
        shutil.move(chains / f"P-{number}", store / "snapshots" / f"P-{number}")
    second = compact_store(spark, store, out)
    assert list(map(str, second.added)) == ["P-7", "P-8"]
    check_same(out, store, [*names, "P-7", "P-8"])
    assert [part.number for part in second.catalog.parts] == [1, 2]
    old = version_path(out, 1) / "processes" / "000001-000.parquet"
    assert old.samefile(version_path(out, 2) / "processes" / "000001-000.parquet")
    tables = compacted_tables(spark, out)
    for name, rows in expected_rows(store, [*names, "P-7", "P-8"]).items():
        assert texts(tables[name].toArrow()) == rows
    assert compact_store(spark, store, out) == compaction.Compaction((), (), second.catalog)


def test_the_document_says_how_to_find_damage_to_a_table(three: tuple[Path, Path]) -> None:
    """A changed byte of any file of this version is found."""
    _, out = three
    files = [out / "tables.json", *sorted(version_path(out, 1).rglob("*.parquet"))]
    assert len(files) > 4
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        with pytest.raises(NotReadable, match="changed"):
            read_compacted(out)
        path.write_bytes(content)
    assert {row["snapshot"] for row in read_compacted(out)["snapshots"]} == {"P1-1", "P1-2"}


def test_any_snapshot_can_be_taken_out_and_parts_become_one_before_they_are_many(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its id or as a savepoint; the next is added to it. However often rows are added, the files
    of a table stay few."""
    monkeypatch.setattr(compaction, "PART_COUNT_MAX", 2)
    store, out = tmp_path / "store", tmp_path / "out"
    make_chains(store, 2)
    writer = Store.open_writer(store)
    writer.save(SnapshotId("P", 3), "third")
    writer.close()
    compact_store(spark, store, out, of="P-6")
    check_same(out, store, ["P-6"])
    compact_store(spark, store, out, of="third")
    check_same(out, store, ["P-3", "P-6"])
    done = compact_store(spark, store, out, of="P-8")
    assert [len(part.snapshots) for part in done.catalog.parts] == [3]
    check_same(out, store, ["P-3", "P-6", "P-8"])


def test_relative_paths_begin_here(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the session was started."""
    make_chains(tmp_path / "store", 1)
    monkeypatch.chdir(tmp_path)
    compact_store(spark, Path("store"), Path("out"), of="P-6")
    tables = compacted_tables(spark, Path("out"))
    assert {row["_snapshot"] for row in tables["processes"].collect()} == {"P-6"}


def test_only_the_newest_and_savepoints_stay(spark: SparkSession, three: tuple[Path, Path]) -> None:
    """Rows of the others go; what the store has dropped meanwhile stays until then."""
    store, out = three
    writer = Store.open_writer(store)
    writer.save(SnapshotId("P1", 3), "payday")
    writer.drop("P1-2")
    for number in (4, 5):
        writer.publish(bank.snapshot(number))
    writer.close()
    compact_store(spark, store, out)
    assert snapshots_of(out) == ["P1-1", "P1-2", "P1-3", "P1-4", "P1-5"]
    done = compact_store(spark, store, out, keep=2)
    assert list(map(str, done.removed)) == ["P1-1", "P1-2"]
    check_same(out, store, ["P1-3", "P1-4", "P1-5"])
    assert [row["savepoints"] for row in here(out, "snapshots").to_pylist()] == [["payday"], [], []]
    assert compact_store(spark, store, out, keep=1, of="P1-1").added == ()
    assert snapshots_of(out, "processes") == snapshots_of(out) == ["P1-3", "P1-5"]


def test_after_a_change_of_code_the_columns_are_those_of_both(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What is there is written again with them: all files of a table have the same columns."""
    store, out = tmp_path / "store", tmp_path / "out"
    writer = Store.create(store, description=bank.TOPOLOGY.description)
    writer.raise_epoch(None)
    writer.publish(bank.snapshot(1))
    compact_store(spark, store, out)
    writer.raise_epoch(SnapshotId("P1", 1), description=samples.DESCRIPTION)
    samples.publish(writer, 2)
    writer.close()
    compact_store(spark, store, out)
    rows = here(out, "processes").sort_by("_process").to_pylist()
    assert [(row["_process"], row["balance"], row["rate"], row["is_open"]) for row in rows] == [
        ("A", 100.0, None, None),
        ("B", 100.0, None, None),
        ("P1", 90.0, 0.1, None),
        ("P2", 100.0, 0.1, None),
        ("P3", 100.0, 0.1, None),
        ("T", 0.5, None, True),
    ]
    assert texts(compacted_tables(spark, out)["processes"].toArrow()) == texts(
        here(out, "processes")
    )


def test_a_table_without_rows_is_there(spark: SparkSession, tmp_path: Path) -> None:
    """Its columns can be asked for all the same."""
    store = Store.create(tmp_path / "store", description=samples.DESCRIPTION)
    store.raise_epoch(None)
    store.publish(samples.snapshot_of(1, samples.global_state()))
    store.close()
    compact_store(spark, tmp_path / "store", tmp_path / "out")
    found = here(tmp_path / "out", "messages")
    assert (found.num_rows, "amount" in found.column_names) == (0, True)
    assert compacted_tables(spark, tmp_path / "out")["messages"].count() == 0


def test_the_table_of_snapshots_is_what_manifests_say(spark: SparkSession, chains: Path) -> None:
    """Chains and savepoints are as they are now, not as they were when rows were added."""
    store, out = chains / "store", chains / "out"
    writer = Store.open_writer(store)
    writer.save(SnapshotId("P", 3), "third")
    writer.close()
    done = compact_store(spark, store, out)
    assert (done.added, done.removed, done.catalog.version) == ((), (), 2)
    assert compacted_tables(spark, out)["snapshots"].toArrow().cast(
        snapshot_table(read_published(store)).schema
    ) == snapshot_table(read_published(store))


def test_a_crash_leaves_the_old_tables(
    spark: SparkSession, three: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it comes; the next time what it left is removed, and in the end all is done."""
    store, out = three
    before = read_catalog(out)

    class PowerFailed(BaseException):
        """Nothing can be done about it."""

    for step in ("write", "write_here", "publish", "replace_durably", "seal"):
        owner = compaction._LocalTables if step == "publish" else compaction
        with monkeypatch.context() as patched:

            def fail(*_: Any, patched: pytest.MonkeyPatch = patched, **__: Any) -> None:
                patched.setattr(shutil, "rmtree", lambda *_, **__: None)
                raise PowerFailed

            patched.setattr(owner, step, fail)
            with pytest.raises(PowerFailed):
                compact_store(spark, store, out)
        is_renamed = step in ("replace_durably", "seal")
        left = version_path(out, 2) if is_renamed else partial_path(version_path(out, 2))
        assert left.exists()
        assert read_catalog(out) == before
        assert snapshots_of(out) == ["P1-1", "P1-2"]
    assert compacted_tables(spark, out)["channels"].count() == 12
    compact_store(spark, store, out)
    check_same(out, store, ["P1-1", "P1-2", "P1-3"])


@pytest.mark.parametrize("file", ["processes.parquet", "messages.parquet", "manifest.json"])
def test_nothing_is_taken_over_that_was_changed(
    spark: SparkSession, three: tuple[Path, Path], tmp_path: Path, file: str
) -> None:
    """The file is named, and the tables stay as they were; none are made if none were there."""
    store, out = three
    path = store / "snapshots" / "P1-3" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for where in (tmp_path / "new", out):
        with pytest.raises(Damaged, match=rf"{file} was changed since it was written"):
            compact_store(spark, store, where)
    assert [item.name for item in (tmp_path / "new").iterdir()] == ["lock"]
    check_same(out, store, ["P1-1", "P1-2"])


def test_a_full_disk_leaves_what_was_there(spark: SparkSession, tmp_path: Path) -> None:
    """A task that cannot write says where and why, in our words."""
    with (
        pytest.raises(StoreError, match="could not be written: No such file or directory: check"),
        verified_parquet.spark_errors(tmp_path),
    ):
        write(spark.range(1), tmp_path / "nowhere")


def test_a_changed_table_is_found(spark: SparkSession, three: tuple[Path, Path]) -> None:
    """By whoever reads it, and before its rows are written again."""
    store, out = three
    path = version_path(out, 1) / "processes" / "000001-000.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with (
        pytest.raises(Damaged, match=r"000001-000\.parquet was changed"),
        verified_parquet.spark_errors(out),
    ):
        compacted_tables(spark, out)["processes"].collect()
    with pytest.raises(Damaged, match=r"000001-000\.parquet was changed"):
        compact_store(spark, store, out, keep=2)
    assert read_catalog(out).version == 1


def test_what_only_goes_is_not_read(spark: SparkSession, three: tuple[Path, Path]) -> None:
    """So that a table gets rid of a part that was damaged."""
    store, out = three
    compact_store(spark, store, out)
    path = version_path(out, 2) / "processes" / "000001-000.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    done = compact_store(spark, store, out, keep=1)
    assert list(map(str, done.removed)) == ["P1-1", "P1-2"]
    check_same(out, store, ["P1-3"])


def test_the_directory_must_be_its_own(
    spark: SparkSession, three: tuple[Path, Path], tmp_path: Path
) -> None:
    """Neither a store, nor in one, nor somebody else's; and one program at a time writes there."""
    store, out = three
    other = bank.make_store(tmp_path / "other", snapshot_count=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    for place, says in (
        (store / "snapshots" / "out", "which contains the store or is inside it:"),
        (tmp_path, "contains the store or is inside it"),
        (other, "is a store: give a separate directory"),
        (tmp_path / "mine", r"is not empty; it contains letter\.txt"),
    ):
        with pytest.raises(UsageError, match=says):
            compact_store(spark, store, place)
    with (
        exclusive_writer(tmp_path / "out", store),
        pytest.raises(Unavailable, match="another program is compacting into"),
    ):
        compact_store(spark, store, tmp_path / "out")
    with pytest.raises(UsageError, match="holds snapshot P1-1 of another store"):
        compact_store(spark, other, out)
    with pytest.raises(UsageError, match="does not exist: give the directory that"):
        compacted_tables(spark, tmp_path / "nowhere")


def as_version_1(out: Path) -> None:
    """Give the tables the names that 0.1.0 gave them."""
    sealed = json.loads((out / "tables.json").read_bytes())["content"]
    directory = version_path(out, sealed["version"])
    own = ("_snapshot", "_process", "_kind", "_encoded", "_source", "_target", "_number", "_key")
    for part in sealed["parts"]:
        for name, files in part["files"].items():
            for file in files:
                path = directory / name / file["name"]
                table = pq.read_table(path, partitioning=None)
                names = [one.removeprefix("_") if one in own else one for one in table.column_names]
                pq.write_table(table.rename_columns(names), path, store_schema=False)
                content = path.read_bytes()
                file |= {"bytes": len(content), "hash": hashlib.sha256(content).hexdigest()}
    for columns in sealed["columns"].values():
        if columns and columns[0]["name"] == "_key":
            columns[0]["name"] = "key"
    encoded = json.dumps(sealed | {"format": 1}, separators=(",", ":")).encode()
    digest = hashlib.sha256(encoded).hexdigest().encode()
    (out / "tables.json").write_bytes(b'{"content":%b,"hash":"%b"}' % (encoded, digest))


def test_tables_of_version_1_are_read_and_written_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """All files of a table have the same names after the next run, also of what the store lacks."""
    store, out = tmp_path / "store", tmp_path / "out"
    make_chains(store, 2)
    ids = [str(entry.id) for entry in Store.open(store).entries()]
    compact_store(spark, store, out, of=ids[0])
    before = {name: texts(table.toArrow()) for name, table in compacted_tables(spark, out).items()}
    as_version_1(out)
    assert here(out, "processes").column_names[0] == "snapshot"
    found = {name: texts(table.toArrow()) for name, table in compacted_tables(spark, out).items()}
    assert found == before
    assert {name: sorted(map(repr, rows)) for name, rows in read_compacted(out).items()} == before
    compact_store(spark, store, out)
    check_same(out, store, ids)
    assert read_catalog(out).format == FORMAT
