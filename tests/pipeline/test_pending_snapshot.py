"""What a system says of its part in a snapshot of a pipeline."""

from pathlib import Path

import pytest

from stillframe.errors import Damaged
from stillframe.model import SnapshotId
from stillframe.pipeline.pending_snapshot import SYSTEMS, request_path, system_cut

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
