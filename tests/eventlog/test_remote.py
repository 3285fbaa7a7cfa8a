"""An event log in an object store is read as the same one in a directory."""

import io
import random
import secrets
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillframe.errors import Damaged, StoreError, UsageError
from stillframe.eventlog.reader import (
    Segment,
    epochs,
    list_segments,
    read_segment,
    schema_with,
    segment_of,
    segment_path,
)
from stillframe.eventlog.segments import SCHEMA, read_rows
from stillframe.eventlog.to_trace import read_trace
from stillframe.storage.location import Location, ObjectPath, locate
from stillframe.storage.object_store import ObjectStore
from stillframe.storage.opened import requests_to, storage_of
from tests.eventlogs import Execution, as_stream, write

SEED = 2611


def copied(log: Path, target: ObjectPath) -> ObjectPath:
    """Copy a log into an object store."""
    for path in sorted(log.rglob("*")):
        if path.is_file():
            place = target
            for part in path.relative_to(log).parts:
                place = place / part
            storage_of(target).put(place, path.read_bytes())
    return target


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A log of two epochs; one segment is still being written, and another exists twice."""
    chance = random.Random(SEED)
    for epoch in (1, 2):
        write(Execution(chance).log(), tmp_path / "log", epoch, chance)
    first, second = sorted((tmp_path / "log" / "e2").rglob("*.parquet"))[:2]
    content = second.read_bytes()
    for path in (first, second):
        as_stream(path)
    second.write_bytes(content)
    return tmp_path / "log"


@pytest.fixture
def remote(local: Path) -> ObjectPath:
    """The same in an object store."""
    found = locate(f"memory://test-{secrets.token_hex(8)}/the/log")
    assert isinstance(found, ObjectPath)
    return copied(local, found)


def test_the_same_is_read(local: Path, remote: ObjectPath) -> None:
    """Segments, rows and traces; names that begin with a point are left out."""
    storage_of(remote).put(remote / "e1" / "P1" / ".events-000009.parquet.partial", b"half")
    here, there = list_segments(local), list_segments(remote)
    assert len({path.suffix for path in (part.path for part in there)}) == 2

    def described(part: Segment, log: Location) -> tuple[object, ...]:
        return part.header, part.row_count, part.groups, str(part.path).removeprefix(str(log))

    assert [described(p, local) for p in here] == [described(p, remote) for p in there]
    for ours, other in zip(here, there, strict=True):
        tables = [list(read_segment(part)) for part in (ours, other)]
        assert tables[0] == tables[1]
    assert epochs(remote) == (1, 2)
    assert {segment_of(part.path) for part in list_segments(remote, 2)} == {
        segment_of(part.path) for part in here if part.header.epoch == 2
    }
    assert read_trace(remote, 1).steps == read_trace(local, 1).steps


def test_a_listing_takes_one_request_for_each_segment(remote: ObjectPath) -> None:
    """And two for their names."""
    before = requests_to(remote)
    found = list_segments(remote)
    after = requests_to(remote)
    assert before is not None
    assert after is not None
    assert after.requests - before.requests == len(found) + 2


def test_where_no_log_is_the_reader_says_how_to_get_one(remote: ObjectPath) -> None:
    """An empty prefix is no log."""
    assert epochs(remote / "none") == ()
    with pytest.raises(UsageError, match=r"the/log/none holds no event log.*--event-log"):
        list_segments(remote / "none")


@pytest.mark.parametrize(
    "name", ["notes.txt", "e0/P1/x", "e2/notes.txt", "e2/P1/events-1.parquet", "e2/P1/x/y"]
)
def test_foreign_objects_are_named(remote: ObjectPath, name: str) -> None:
    """The error names an object that belongs to no event log."""
    storage_of(remote).put(ObjectPath(remote.root, f"{remote.key}/{name}"), b"foreign")
    with pytest.raises(Damaged, match=rf"the/log/{name.partition('/')[0]}.*move it out"):
        list_segments(remote)


def test_a_changed_byte_is_damage(local: Path, remote: ObjectPath) -> None:
    """A page, a footer or a stream: as for local files, the object is named."""
    for part in list_segments(remote)[:3]:
        content, _ = storage_of(remote).read(part.path, bytes_max=2**20)
        changed = bytearray(content)
        changed[8 : len(content) // 2] = bytes(len(content) // 2 - 8)
        storage_of(remote).put(part.path, bytes(changed))
        with pytest.raises(Damaged, match=rf"{part.path} is not an intact file of an event log"):
            list(read_segment(part))
        storage_of(remote).put(part.path, content[:-3])
        if part.path.suffix == ".parquet":
            with pytest.raises(Damaged, match=rf"{part.path} is not an intact file"):
                list_segments(remote)
        storage_of(remote).put(part.path, content)


def test_a_failing_storage_is_no_damage(
    remote: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error says what failed."""
    parts = list_segments(remote)

    def fail(*_: object, **__: object) -> bytes:
        raise OSError(5, "the object store failed")

    for name in ("read", "read_range", "read_end"):
        monkeypatch.setattr(ObjectStore, name, fail)
    for part in parts:
        with pytest.raises(StoreError, match=rf"{part.path} cannot be read: .* failed") as failed:
            list(read_segment(part))
        assert not isinstance(failed.value, Damaged)
    with pytest.raises(StoreError, match="the object store failed"):
        list_segments(remote)
    monkeypatch.setattr(ObjectStore, "files_below", fail)
    with pytest.raises(StoreError, match="the/log cannot be read: the object store failed: check"):
        list_segments(remote)
    monkeypatch.setattr(ObjectStore, "children", fail)
    with pytest.raises(StoreError, match="the/log cannot be read: the object store failed: check"):
        epochs(remote)


def test_a_segment_that_was_replaced_by_its_parquet(remote: ObjectPath) -> None:
    """Between the listing and the reading, as in a directory."""
    part = next(part for part in list_segments(remote) if part.path.suffix == ".arrows")
    rows = list(read_segment(part))
    twin = part.path.with_name(f"{part.path.stem}.parquet")
    other = next(one for one in list_segments(remote) if one.path.suffix == ".parquet")
    storage_of(remote).delete([part.path])
    with pytest.raises(FileNotFoundError):
        list(read_segment(part))
    content, _ = storage_of(remote).read(other.path, bytes_max=2**20)
    storage_of(remote).put(twin, content)
    assert list(read_segment(part)) == list(read_segment(other)) != rows


def test_a_row_group_takes_one_request(remote: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one for the end of the file; and an error in the middle of it keeps its words."""
    header = list_segments(remote)[0].header
    place = segment_path(remote, msgspec.structs.replace(header, number=9), is_complete=True)
    numbers = random.Random(SEED).sample(range(2**40), 2**16)
    rows = pa.table({"event": numbers, "kind": ["internal"] * len(numbers)})
    columns = [
        rows.column(name).cast(pa.string()).dictionary_encode().cast(field.type)
        if name == "kind"
        else rows.column(name)
        if name in rows.column_names
        else pa.nulls(len(rows), field.type)
        for name, field in zip(SCHEMA.names, SCHEMA, strict=True)
    ]
    made = io.BytesIO()
    schema = schema_with(msgspec.structs.replace(header, number=9))
    pq.write_table(pa.table(columns, schema=schema), made, row_group_size=2**15)
    storage_of(remote).put(place, made.getvalue())
    before = requests_to(remote)
    (table,) = read_rows(place, [1], SCHEMA.names)
    after = requests_to(remote)
    assert table.column("event").to_pylist() == numbers[2**15 :]
    assert before is not None
    assert after is not None
    assert after.requests - before.requests == 2

    def fail(*_: object) -> bytes:
        raise OSError(5, "the object store failed")

    monkeypatch.setattr(ObjectStore, "read_range", fail)
    with pytest.raises(StoreError, match=rf"^{place} cannot be read: the object store failed: "):
        list(read_rows(place, [0], SCHEMA.names))
