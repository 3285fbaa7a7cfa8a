"""What a service leaves on the disk when it joins."""

from pathlib import Path

import pytest

from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.stopped import ServiceRecord, has_joined, write_service_record
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
    metadata = read_metadata(pipeline.path)
    assert has_joined(pipeline.path, metadata, "left")
    assert has_joined(pipeline.path, metadata, "right")
