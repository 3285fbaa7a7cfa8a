"""What a service leaves on the disk when it joins."""

from pathlib import Path

import pytest

from stillframe.pipeline.head import read_head
from stillframe.pipeline.resting import ServiceRecord, has_joined, write_service_record
from tests.pipeline.money import diamond


def test_services_that_join_at_once_do_not_trip_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first two in an epoch both may find no directory for their records: both make it."""
    pipeline = diamond(tmp_path / "p.pipeline")
    monkeypatch.setattr(Path, "exists", lambda _: False)
    for name in ("left", "right"):
        write_service_record(pipeline.path, name, ServiceRecord(epoch=1))
    monkeypatch.undo()
    head = read_head(pipeline.path)
    assert has_joined(pipeline.path, head, "left")
    assert has_joined(pipeline.path, head, "right")
