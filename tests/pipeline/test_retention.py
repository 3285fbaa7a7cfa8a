"""Trimming never takes what a live snapshot, or the way on from here, needs."""

from pathlib import Path

import msgspec
import pytest

from stillframe.errors import StoreError, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline import Pipeline, channel, restore, snapshot_manifest
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.pending_snapshot import SystemCut
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import MANIFEST, Manifest, snapshot_path
from stillframe.store.sealed_json import seal
from tests.pipeline.money import (
    SCHEMA,
    TOTAL,
    Account,
    account,
    amounts,
    leave_behind,
    line,
    money_in,
    money_now,
    records,
)


def entries(pipeline: Pipeline) -> list[Path]:
    """Return every entry file of every epoch."""
    return sorted(pipeline.path.glob("channels/coins/epoch-*/*.json"))


def ids(pipeline: Pipeline) -> list[str]:
    """Return the ids of the live snapshots."""
    return [str(manifest.snapshot) for manifest in pipeline.snapshots()]


def test_every_live_snapshot_can_be_restored_after_trimming(tmp_path: Path) -> None:
    """Also those of an abandoned timeline, and savepoints; logs get shorter; the oldest counts."""
    pipeline = line(tmp_path / "run")
    for sent in (1, 2, 3):
        leave_behind(pipeline, sent, sent, received_count=1)
        assert isinstance(pipeline.snapshot("unaligned"), Manifest)
    assert isinstance(pipeline.savepoint("keep-me", "unaligned"), Manifest)
    pipeline.restore("run-2")
    for sent in (4, 5, 6):
        leave_behind(pipeline, sent, sent, received_count=2)
        assert isinstance(pipeline.snapshot("unaligned"), Manifest)
    before = entries(pipeline)
    pipeline.keep(1)
    live = [str(manifest.name or manifest.snapshot) for manifest in pipeline.snapshots()]
    assert live == ["keep-me", "run-7"]
    assert set(entries(pipeline)) < set(before)
    for name in live:
        assert money_in(pipeline, pipeline.find(name)) == TOTAL
        pipeline.restore(name)
        leave_behind(pipeline, 9, received_count=1)
        assert money_now(pipeline) == TOTAL


def test_the_snapshot_from_which_the_epoch_began_goes_once_there_is_another(tmp_path: Path) -> None:
    """Without one of this epoch that stays there would be nothing to go back to."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 1)
    assert money_now(pipeline) == TOTAL
    pipeline.restore("run-1")
    with pytest.raises(UsageError, match="the current epoch started from snapshot run-1"):
        pipeline.delete("run-1")
    pipeline.keep(0)
    assert ids(pipeline) == ["run-1"]
    assert money_now(pipeline) == TOTAL
    with pytest.raises(UsageError, match="which stays"):
        pipeline.delete("run-1", "run-2")
    pipeline.delete("run-1")
    assert ids(pipeline) == ["run-2"]
    # Neither service has joined since the restore.
    leave_behind(pipeline, 2)
    assert money_now(pipeline) == TOTAL


def test_logs_stay_short_also_after_a_restore(tmp_path: Path) -> None:
    """What the snapshot from which the epoch began needs is not kept for ever."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 1, received_count=1)
    assert money_now(pipeline) == TOTAL
    pipeline.restore("run-1")
    for sent in range(2, 8):
        leave_behind(pipeline, sent, received_count=1)
        assert money_now(pipeline) == TOTAL
        pipeline.keep(1)
    assert ids(pipeline) == ["run-7"]
    assert len(entries(pipeline)) <= 4


def test_a_restore_that_fails_leaves_the_services_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the new head is there, how they left in the old epoch is what counts."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 1)
    assert money_now(pipeline) == TOTAL
    leave_behind(pipeline, 2)

    def fail(*arguments: object) -> None:
        raise StoreError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(restore, "write_metadata", fail)
        with pytest.raises(StoreError):
            pipeline.restore("run-1")
    found = pipeline.snapshot("unaligned")
    assert isinstance(found, Manifest)
    assert (found.epoch, account(found, "mint").balance) == (1, TOTAL - 3)


def test_what_a_system_of_processes_begins_with_cannot_go(tmp_path: Path) -> None:
    """Its store says nothing of the pipeline: only the snapshot knows which of its own belongs."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 1)
    first = pipeline.snapshot()
    pipeline.restore("run-1")
    assert money_now(pipeline) == TOTAL
    assert isinstance(first, Manifest)
    cut = SystemCut(name="till", store="store", snapshot=SnapshotId("till", 1))
    path = snapshot_path(pipeline.path, first.snapshot) / MANIFEST
    path.write_bytes(seal(msgspec.structs.replace(first, systems=(cut,))))
    with pytest.raises(UsageError, match="the system of processes till"):
        pipeline.delete("run-1")
    pipeline.keep(1)
    assert ids(pipeline) == ["run-1", "run-2"]


def test_what_the_pipeline_makes_is_kept_whole(tmp_path: Path) -> None:
    """A log that nobody reads but its users is not trimmed behind the oldest snapshot."""
    pipeline = Pipeline.create(
        tmp_path / "run",
        services={"mint": Account},
        channels=[channel("out", SCHEMA, source="mint")],
    )
    for amount in range(3):
        with join("mint", pipeline=pipeline.path, state=Account()) as mint:
            mint.append("out", records(amount))
        assert isinstance(pipeline.snapshot(), Manifest)
    pipeline.keep(1)
    metadata = read_metadata(pipeline.path)
    reader = LogReader(pipeline.path, metadata.dataflow.log("out"), metadata.segments["out"])
    assert amounts(reader, 0, reader.tail(0)) == [0, 1, 2]


def test_each_manifest_is_read_once_if_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a long list of pinned files in each, more would be felt every second."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 1)
    for _ in range(4):
        assert money_now(pipeline) == TOTAL
    read: list[str] = []
    once = snapshot_manifest.read_manifest

    def counted(root: Path, snapshot: SnapshotId, *, is_known: bool = False) -> Manifest:
        read.append(str(snapshot))
        return once(root, snapshot, is_known=is_known)

    monkeypatch.setattr(snapshot_manifest, "read_manifest", counted)
    pipeline.keep(4)
    assert read == []

    pipeline.keep(3)
    assert read == ["run-1", "run-2", "run-3", "run-4"]


def test_a_micro_batch_that_is_being_written_stays(tmp_path: Path) -> None:
    """A directory that no entry names yet may be one into which Spark is writing."""
    pipeline = line(tmp_path / "run")
    for sent in (1, 2, 3):
        leave_behind(pipeline, sent, received_count=1)
        assert money_now(pipeline) == TOTAL
    writing = pipeline.path / "channels/coins/epoch-1/data/batch-7-abc/_temporary"
    writing.mkdir(parents=True)
    before = entries(pipeline)
    pipeline.keep(1)
    assert set(entries(pipeline)) < set(before)
    assert writing.exists()
