"""Files that a forger made: every hash is right, and what is in them is not."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from stillframe.errors import Damaged, UsageError
from stillframe.model import SnapshotId
from stillframe.store import parquet
from stillframe.store.manifest import CHANNELS, MANIFEST, MESSAGES, PROCESSES
from stillframe.store.store import Store
from tests.soak.hostile_files import Sample, sealed

FIRST = SnapshotId("A", 1)


def forged(tmp_path: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> Store:
    """Return a store in which one table was changed, and the manifest says so."""
    sample = Sample(tmp_path)
    path = sample.store / "snapshots" / str(FIRST) / name
    table = change(parquet.read_parquet(path.read_bytes()))
    sample.forge(path, parquet.to_parquet(table))
    return Store.open(sample.store)


def without_values(table: pa.Table, name: str) -> pa.Table:
    """Return a table with one column empty."""
    at = table.column_names.index(name)
    return table.set_column(at, name, pa.nulls(table.num_rows, table.schema.field(name).type))


def as_numbers(table: pa.Table, name: str) -> pa.Table:
    """Return a table with one column of another type."""
    at = table.column_names.index(name)
    return table.set_column(at, name, pa.array([7] * table.num_rows))


@pytest.mark.parametrize("change", [without_values, as_numbers])
@pytest.mark.parametrize(
    ("name", "column"),
    [(PROCESSES, "_encoded"), (PROCESSES, "_kind"), (CHANNELS, "source"), (CHANNELS, "encoded")],
)
def test_columns_that_are_not_those_of_the_store_are_named(
    tmp_path: Path, change: Callable[[pa.Table, str], pa.Table], name: str, column: str
) -> None:
    """Empty places and other types are refused before anything is made of them."""
    store = forged(tmp_path, name, lambda table: change(table, column))
    for read in (store.load, store.verify):
        with pytest.raises(Damaged, match=f"is not a table of a store: column {column} "):
            read(FIRST)


def test_counts_that_are_none_are_refused(tmp_path: Path) -> None:
    """A channel without its count is damaged, not a crash."""
    store = forged(tmp_path, CHANNELS, lambda table: without_values(table, "sent_count"))
    with pytest.raises(Damaged, match="column sent_count has a missing value"):
        store.load(FIRST)


@pytest.mark.parametrize("name", [PROCESSES, CHANNELS, MESSAGES])
def test_bytes_that_are_no_table_are_refused(tmp_path: Path, name: str) -> None:
    """Arrow's own errors of what is within a file are said of that file."""
    sample = Sample(tmp_path)
    path = sample.store / "snapshots" / str(FIRST) / name
    content = path.read_bytes()
    sample.forge(path, content[:40] + bytes(20) + content[60:])
    store = Store.open(sample.store)
    for read in (store.verify, store.tables):
        with pytest.raises(Damaged, match=f"{name}.* is not a table of a store"):
            read(FIRST)


def test_a_state_that_is_no_map_is_refused(tmp_path: Path) -> None:
    """A state is put together with its keyed fields only if it can be."""

    def broken(table: pa.Table) -> pa.Table:
        at = table.column_names.index("_encoded")
        return table.set_column(at, "_encoded", pa.array([b"\x83"] * table.num_rows, pa.binary()))

    store = forged(tmp_path, PROCESSES, broken)
    with pytest.raises(Damaged, match="is not a table of a store: "):
        store.load(FIRST)
    with pytest.raises(UsageError, match="its state is not a MessagePack map"):
        store.verify(FIRST)


def test_a_footer_that_ends_whoever_looks_at_its_columns_is_refused() -> None:
    """Arrow ends the operating-system process that asks what a column says of itself in a footer
    like this one; it is never asked."""
    content = Path(__file__).with_name("forged_footer.parquet").read_bytes()
    with pytest.raises(Damaged), parquet.as_written(Path("a")):
        parquet.read_parquet(content)


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_a_small_file_cannot_become_much_in_memory(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """What it says that it would be is looked at first, and then what it is, piece by piece."""
    table = pa.table({"a": [b"x" * size], "b": [b"y" * size]})
    content = parquet.to_parquet(table)
    assert len(content) < size / 50
    assert parquet.read_parquet(content).num_rows == 1
    monkeypatch.setattr(parquet, "_UNPACKED_BYTES_MIN", size // 2)
    monkeypatch.setattr(parquet, "_UNPACKED_PER_BYTE", 1)
    with pytest.raises(ValueError, match="bytes in memory, more than the limit of"):
        parquet.read_parquet(content)
    written = parquet.to_parquet(table)
    assert parquet.read_parquet(written) == table, "what is written must be readable"


def test_text_that_is_repeated_cannot_become_much_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither can a file whose dictionary says a thing once and means it a million times."""
    repeated = parquet.repeated([("x" * 1_000, 100_000)])
    content = parquet.to_parquet(pa.table({"a": repeated}))
    monkeypatch.setattr(parquet, "_UNPACKED_BYTES_MIN", 2**20)
    with pytest.raises(ValueError, match="bytes in memory, more than the limit of"):
        parquet.read_parquet(content)


OUTSIDE = ("../A", "../../store/snapshots/A", "A" * 300, "A\0", "", ".")


@pytest.mark.parametrize("initiator", OUTSIDE)
def test_an_id_that_is_none_makes_no_path(tmp_path: Path, initiator: str) -> None:
    """However a snapshot is called by whoever asks, nothing is looked for outside of the store."""
    store = Store.open(Sample(tmp_path).store)
    for read in (store.entry, store.load, store.verify, store.tables, store.description_of):
        with pytest.raises(UsageError, match=r"there is no snapshot .* there are A-1, A-2"):
            read(SnapshotId(initiator, 1))


def test_a_base_that_is_no_id_is_missing(tmp_path: Path) -> None:
    """What a forged manifest is based on is not looked for outside of the store."""
    sample = Sample(tmp_path)
    manifest = sample.store / "snapshots" / str(FIRST) / MANIFEST
    document = msgspec.json.decode(manifest.read_bytes())["content"]
    document["bases"] = {"A": {"initiator": "../" + "x" * 300, "number": 1}}
    manifest.write_bytes(sealed(msgspec.json.encode(document)))
    with pytest.raises(Damaged):
        Store.open(sample.store).load(FIRST)
