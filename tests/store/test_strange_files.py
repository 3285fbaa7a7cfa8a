"""A directory of a stranger may hold pipes and links: no command waits at a pipe, and no link leads
a writer to a file of the user."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stillframe.durable_files import check_file
from stillframe.errors import Damaged, StoreError, Unavailable
from stillframe.eventlog.reader import list_segments
from stillframe.runtime.run_file import FILE, read_run_file
from stillframe.store import history

READERS: dict[str, tuple[str, Callable[[Path], object], type[Exception] | None]] = {
    "run file": (FILE, read_run_file, Unavailable),
    "history": (history.NEWER, history.first_record, None),
    "history, to write": (history.NEWER, history.History, StoreError),
    "segment": ("e1/P/events-000001.arrows", list_segments, Damaged),
    "records": ("r.parquet", lambda root: check_file(root / "r.parquet", 0), Damaged),
}


@pytest.mark.parametrize("case", READERS)
def test_a_pipe_does_not_block(tmp_path: Path, case: str) -> None:
    """It is empty, or refused with its name."""
    name, read, error = READERS[case]
    pipe = tmp_path / name
    pipe.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(pipe)
    if error is None:
        assert read(tmp_path) is None
    else:
        with pytest.raises(error, match=str(pipe)):
            read(tmp_path)


def test_a_link_in_place_of_the_history_is_not_followed(tmp_path: Path) -> None:
    """A writer neither appends to its target nor cuts it."""
    (tmp_path / "store").mkdir()
    target = tmp_path / "notes"
    target.write_bytes(b"without an end of line")
    (tmp_path / "store" / history.NEWER).symlink_to(target)
    with pytest.raises(StoreError, match="could not be written"):
        history.History(tmp_path / "store")
    assert target.read_bytes() == b"without an end of line"
