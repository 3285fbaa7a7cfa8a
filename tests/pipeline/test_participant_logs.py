"""What a participant decides between two actions, at the moments that are hard to meet."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from stillframe.errors import NotConsistent
from stillframe.model import SnapshotId
from stillframe.pipeline import Pipeline, channel, checkpoint, participant_logs, pending_snapshot
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.pending_snapshot import Request
from stillframe.protocol.aligner import Mode


@dataclass
class Feed:
    """A service that begins every snapshot."""

    sent_count: int = 0


def test_nothing_is_recorded_for_a_snapshot_that_was_just_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was read just before its snapshot was over is not carried out again: there is
    one barrier of a snapshot on a log."""
    root = tmp_path / "shop.pipeline"
    described = channel("numbers", pa.schema([("n", pa.int64())]), source="feed")
    Pipeline.create(root, services={"feed": Feed}, channels=[described])
    over = Request(
        snapshot=SnapshotId("shop", 1),
        epoch=1,
        mode=Mode.ALIGNED,
        name=None,
        initiated_at=0.0,
        deadline_at=1e12,
    )
    monkeypatch.setattr(pending_snapshot, "pending_request", lambda root: over)
    recorded: list[Request] = []
    logs = participant_logs.ServiceLogs(root, "feed", read_metadata(root), {})
    ends = logs.at_boundary(recorded.append)
    assert (ends, recorded) == ({}, [])


def test_a_query_that_reads_a_channel_twice_is_refused(tmp_path: Path) -> None:
    """Two sources on one channel may stand at two positions, and a part has room for one."""
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    (tmp_path / "offsets").mkdir()
    lines = ["v1", "{}", checkpoint.encode_offset({"in": 3}), checkpoint.encode_offset({"in": 5})]
    (tmp_path / "offsets" / "0").write_text("\n".join(lines))
    with pytest.raises(NotConsistent, match="reads channel in twice"):
        checkpoint.last_committed(tmp_path)
