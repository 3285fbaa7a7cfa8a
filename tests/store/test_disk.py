"""Files are new or replaced as a whole, and reading is bounded."""

from pathlib import Path

import pytest

from stillframe.errors import Damaged
from stillframe.store.disk import partial_path, read_file, replace_durably, sync, write_new


def test_a_new_file_is_never_an_old_one(tmp_path: Path) -> None:
    """Writing a new file over an existing one is refused; the old content stays."""
    write_new(tmp_path / "x", b"old")
    sync(tmp_path / "x")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "x", b"new")
    assert read_file(tmp_path / "x", bytes_max=3) == b"old"


def test_replacing_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    """The file has the new content, also if an earlier attempt left its partial file."""
    path = tmp_path / "x"
    partial_path(path).write_bytes(b"left by a crash")
    replace_durably(path, b"one")
    replace_durably(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_partial_name_begins_with_a_dot(tmp_path: Path) -> None:
    """Spark, DuckDB and our own lists pass over what is being written."""
    assert partial_path(tmp_path / "P1-17") == tmp_path / ".P1-17.partial"


def test_reading_is_bounded(tmp_path: Path) -> None:
    """A file over the bound is refused; one at the bound is read."""
    (tmp_path / "x").write_bytes(b"1234")
    assert read_file(tmp_path / "x", bytes_max=4) == b"1234"
    with pytest.raises(Damaged, match="more than the 3 bytes"):
        read_file(tmp_path / "x", bytes_max=3)
