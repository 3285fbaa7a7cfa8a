"""Without an executor, the files of a snapshot are written in the thread that asks for it."""

import threading
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from stillframe.durable_files import partial_path
from stillframe.store.manifest import MANIFEST, FileRecord
from stillframe.store.snapshot_directory import new_directory


class Listing(msgspec.Struct):
    """A manifest that is a list of files."""

    files: tuple[FileRecord, ...]


def test_files_are_written_in_this_thread(tmp_path: Path) -> None:
    """All of them are there when the call returns."""
    threads = set()

    def encode(name: str, table: pa.Table) -> bytes:
        threads.add(threading.get_ident())
        return name.encode()

    tables = {name: pa.table({}) for name in ("a", "b")}
    with new_directory(tmp_path / "x", None) as new:
        listing = Listing(new.write_tables(tables, encode))
        new.publish(listing)
    assert [record.name for record in listing.files] == ["a", "b"]
    assert threads == {threading.get_ident()}
    assert {path.name for path in (tmp_path / "x").iterdir()} == {"a", "b", MANIFEST}


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), KeyboardInterrupt()])
def test_an_error_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    """It is raised in the thread that asks, also if it ends that thread."""

    def fail(name: str, table: pa.Table) -> bytes:
        raise error

    with pytest.raises(type(error)), new_directory(tmp_path / "x", None) as new:
        new.write_tables({"a": pa.table({})}, fail)
    assert not (tmp_path / "x").exists()
    assert not partial_path(tmp_path / "x").exists()
