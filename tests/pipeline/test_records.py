"""Records keep their values and their order, whatever partition and file they go through."""

import datetime
import decimal
from pathlib import Path

import pyarrow as pa
import pytest

from stillframe.durable_files import checksum_of
from stillframe.errors import Damaged
from stillframe.pipeline.dataflow import Log, channel
from stillframe.pipeline.log import partition_of, read_records, spread, write_records

NOON = datetime.datetime(2020, 2, 29, 12, tzinfo=datetime.UTC)
SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("ns")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("parts", pa.list_(pa.struct([("x", pa.float64()), ("seen", pa.timestamp("ms"))]))),
        ("tags", pa.map_(pa.string(), pa.int32())),
    ]
)
ROW = {
    "number": 7,
    "at": NOON,
    "local": 1_582_977_600_000_000_001,
    "day": NOON.date(),
    "price": decimal.Decimal("12.30"),
    "name": "\U0001fae8",
    "raw": b"\x00\xff",
    "parts": [{"x": 0.5, "seen": NOON.replace(tzinfo=None)}, None],
    "tags": [("a", 1), ("b", None)],
}
TABLE = pa.Table.from_pylist([ROW, dict.fromkeys(ROW), {**ROW, "number": 8}], schema=SCHEMA)


def keyed(*key: str, partition_count: int = 4) -> Log:
    """Return a channel of all kinds of columns."""
    return channel("all", SCHEMA, source="a", key=key, partition_count=partition_count)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """Times, decimals, nested values and nulls come back as they were."""
    path = tmp_path / "file.parquet"
    write_records(path, TABLE)
    assert read_records(path, SCHEMA, checksum_of(path)).equals(TABLE)


@pytest.mark.slow
def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    """Whichever byte is changed, cut off or added, the file is refused by name."""
    path = tmp_path / "file.parquet"
    write_records(path, TABLE)
    checksum, whole = checksum_of(path), path.read_bytes()
    changed = [
        whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :]
        for place in range(len(whole))
    ]
    for content in (*changed, whole[:-1], whole + b"\0", b""):
        path.write_bytes(content)
        with pytest.raises(Damaged, match=r"file\.parquet was changed since it was written"):
            read_records(path, SCHEMA, checksum)


def test_a_file_that_is_missing_or_of_other_columns_is_refused(tmp_path: Path) -> None:
    """The error names the file and the column."""
    path = tmp_path / "file.parquet"
    with pytest.raises(Damaged, match=r"file\.parquet"):
        read_records(path, SCHEMA, 0)
    write_records(path, pa.table({"number": ["text"]}))
    with pytest.raises(Damaged, match=r"file\.parquet.*'number'"):
        read_records(path, pa.schema([("number", pa.int64())]), checksum_of(path))


@pytest.mark.parametrize("key", [(), ("number",), ("name", "at"), ("price", "day", "local", "raw")])
def test_every_record_goes_to_one_partition_in_its_order(key: tuple[str, ...]) -> None:
    """Partitions hold all records once, each in the order in which they were given."""
    rows = [{**ROW, "number": number % 7, "name": f"n{number % 3}"} for number in range(50)]
    rows += [dict.fromkeys(ROW), {**ROW, "at": None}]
    table = pa.Table.from_pylist(rows, schema=SCHEMA).append_column(
        "place", pa.array(range(len(rows)))
    )
    parts = spread(table, keyed(*key))
    places = [part["place"].to_pylist() for _, part in parts]
    assert all(found == sorted(found) for found in places)
    assert sorted(place for found in places for place in found) == list(range(len(rows)))
    where = {
        place: number for (number, _), found in zip(parts, places, strict=True) for place in found
    }
    by_key: dict[object, set[int]] = {}
    for place, row in enumerate(rows):
        by_key.setdefault(repr([row[name] for name in key]) if key else place, set()).add(
            where[place]
        )
    assert all(len(found) == 1 for found in by_key.values())


def test_a_key_has_its_partition_for_ever() -> None:
    """The same in every process and in every version, and whatever stands beside it."""
    assert [partition_of(key, 8) for key in ((1,), ("x",), (None, b"y"), ())] == [0, 3, 1, 1]
    for table in (TABLE, TABLE.slice(2), pa.concat_tables([TABLE.slice(1), TABLE])):
        for number, part in spread(table, keyed("number", partition_count=8)):
            assert {partition_of((value,), 8) for value in part["number"].to_pylist()} == {number}


def test_no_records_go_nowhere() -> None:
    """An empty table has no partition, with and without a key."""
    for log in (keyed(), keyed("name"), keyed(partition_count=1)):
        assert spread(SCHEMA.empty_table(), log) == []
