"""What a system says of its part in a snapshot of a pipeline."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe.errors import Damaged, Fenced
from stillframe.model import SnapshotId
from stillframe.pipeline.pending_snapshot import (
    SYSTEMS,
    CutReport,
    Outcome,
    SystemCut,
    request_path,
    system_cut,
)
from stillframe.storage.files import remove_tree
from stillframe.storage.location import Location, ObjectPath
from tests.pipeline.faulty_store import Faults, faults

__all__ = ["faults"]
SNAPSHOT = SnapshotId("shop", 1)


def test_a_system_that_has_not_begun_has_said_nothing(tmp_path: Path) -> None:
    """That is no error: it is asked again."""
    assert system_cut(tmp_path, SNAPSHOT, "till") is None


def test_what_it_said_and_was_changed_is_damaged(tmp_path: Path) -> None:
    """Unlike what is gone because the snapshot is over."""
    path = request_path(tmp_path, SNAPSHOT) / SYSTEMS / "till.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{}")
    with pytest.raises(Damaged, match=r"till\.json"):
        system_cut(tmp_path, SNAPSHOT, "till")


@pytest.mark.parametrize("is_remote", [False, True])
def test_the_outcome_is_the_last_thing_it_says(
    tmp_path: Path, faults: Faults, *, is_remote: bool
) -> None:
    """A late duplicate of a request does not undo it."""
    request_path(tmp_path, SNAPSHOT).mkdir(parents=True)
    remote = ObjectPath(f"memory://{secrets.token_hex(8)}", "shop")
    root: Location = remote if is_remote else tmp_path
    cut = SystemCut(name="till", store="s3://bucket/store", snapshot=SnapshotId("till", 4))
    late: list[Callable[[], Any]] = []

    def remembered(write: Callable[[], Any]) -> Any:
        late.append(write)
        return write()

    report = CutReport(root, SNAPSHOT, "till")
    with faults.at(0, remembered):
        report.write(cut)
    assert system_cut(root, SNAPSHOT, "till") == cut
    ended = msgspec.structs.replace(cut, outcome=Outcome.PUBLISHED)
    report.write(ended)
    for write in late:
        with pytest.raises(FileExistsError):
            write()
    assert len(late) == is_remote
    assert system_cut(root, SNAPSHOT, "till") == ended


@pytest.mark.parametrize("is_remote", [False, True])
def test_an_outcome_after_the_end_of_the_snapshot_is_no_error(
    tmp_path: Path, *, is_remote: bool
) -> None:
    """Its coordinator has abandoned it, and removed the system's report. So the next report finds
    none, and that does not mean that another program has taken over."""
    request_path(tmp_path, SNAPSHOT).mkdir(parents=True)
    remote = ObjectPath(f"memory://{secrets.token_hex(8)}", "shop")
    root: Location = remote if is_remote else tmp_path
    cut = SystemCut(name="till", store="s3://bucket/store", snapshot=SnapshotId("till", 4))
    report = CutReport(root, SNAPSHOT, "till")
    report.write(cut)
    remove_tree(request_path(root, SNAPSHOT))
    report.write(msgspec.structs.replace(cut, outcome=Outcome.ABANDONED))
    assert system_cut(root, SNAPSHOT, "till") is None


def test_who_reports_in_place_of_another_is_told() -> None:
    """Two programs run as one system: the second one has overwritten nothing."""
    root = ObjectPath(f"memory://{secrets.token_hex(8)}", "shop")
    first, second = (
        SystemCut(name="till", store=store, snapshot=SnapshotId("till", 4))
        for store in ("s3://bucket/first", "s3://bucket/second")
    )
    CutReport(root, SNAPSHOT, "till").write(first)
    with pytest.raises(Fenced, match="another program has taken over"):
        CutReport(root, SNAPSHOT, "till").write(second)
    assert system_cut(root, SNAPSHOT, "till") == first
