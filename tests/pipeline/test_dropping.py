"""Trimming never takes what a live snapshot, or the way on from here, needs."""

from pathlib import Path

import pytest

from stillframe.errors import UsageError
from stillframe.pipeline import Pipeline
from stillframe.pipeline.published import Manifest
from tests.pipeline.money import TOTAL, leave_behind, line, money_in, money_now


def items(pipeline: Pipeline) -> list[Path]:
    """Return every item file of every epoch."""
    return sorted(pipeline.path.glob("channels/coins/epoch-*/*.json"))


def test_every_live_snapshot_can_be_restored_after_trimming(tmp_path: Path) -> None:
    """Also those of an abandoned course and savepoints; logs get shorter; the oldest one counts."""
    pipeline = line(tmp_path / "run")
    for sent in (1, 2, 3):
        leave_behind(pipeline, sent, sent, received_count=1)
        assert isinstance(pipeline.snapshot("unaligned"), Manifest)
    assert isinstance(pipeline.savepoint("keep-me", "unaligned"), Manifest)
    pipeline.restore("run-2")
    for sent in (4, 5, 6):
        leave_behind(pipeline, sent, sent, received_count=2)
        assert isinstance(pipeline.snapshot("unaligned"), Manifest)
    before = items(pipeline)
    pipeline.keep(1)
    live = [str(manifest.name or manifest.snapshot) for manifest in pipeline.snapshots()]
    assert live == ["run-2", "keep-me", "run-7"]
    assert set(items(pipeline)) < set(before)
    for name in live:
        assert money_in(pipeline, pipeline.find(name)) == TOTAL
        pipeline.restore(name)
        leave_behind(pipeline, 9, received_count=1)
        assert money_now(pipeline) == TOTAL


def test_the_snapshot_from_which_the_epoch_began_cannot_go(tmp_path: Path) -> None:
    """Services read their state there."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 1)
    assert money_now(pipeline) == TOTAL
    pipeline.restore("run-1")
    with pytest.raises(UsageError, match="the present epoch began from snapshot run-1"):
        pipeline.drop("run-1")
    assert [str(manifest.snapshot) for manifest in pipeline.snapshots()] == ["run-1"]


def test_a_micro_batch_that_is_being_written_stays(tmp_path: Path) -> None:
    """A directory that no item names yet may be one into which Spark is writing."""
    pipeline = line(tmp_path / "run")
    for sent in (1, 2, 3):
        leave_behind(pipeline, sent, received_count=1)
        assert money_now(pipeline) == TOTAL
    writing = pipeline.path / "channels/coins/epoch-1/data/batch-7-abc/_temporary"
    writing.mkdir(parents=True)
    before = items(pipeline)
    pipeline.keep(1)
    assert set(items(pipeline)) < set(before)
    assert writing.exists()
