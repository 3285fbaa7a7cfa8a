"""What the pipeline knows of a query is held against its checkpoint before the query starts."""

import json
from pathlib import Path

import pytest

from stillframe.errors import Damaged
from stillframe.model import SnapshotId
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.metadata import checkpoint_path, read_metadata
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import Manifest, read_manifest
from stillframe.spark.queries import check_checkpoint
from tests.pipeline.money import SCHEMA, Account, changed, records


def commit(place: Path, batch: int, position: int) -> None:
    """Commit a micro-batch as Spark does: no file is ever changed in place."""
    offset = json.dumps({"stillframe": {"coins": position}})
    for name, text in {
        "metadata": '{"id":"one"}',
        f"offsets/{batch}": f"v1\n{{}}\n{offset}",
        f"commits/{batch}": "v1\n{}",
    }.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """A pipeline at rest whose query has run three micro-batches, with a snapshot after each."""
    made = Pipeline.create(
        tmp_path / "run",
        queries=["sum"],
        services={"mint": Account},
        channels=[channel("coins", SCHEMA, source="mint", targets=["sum"])],
    )
    for batch in range(3):
        with join("mint", pipeline=made.path, state=Account()) as mint:
            mint.append("coins", records(1))
        commit(checkpoint_path(made.path, 1, "sum"), batch, batch + 1)
        snapshot(made)
    return made


def snapshot(pipeline: Pipeline) -> Manifest:
    """Take a snapshot of a pipeline at rest."""
    taken = pipeline.snapshot("unaligned")
    assert isinstance(taken, Manifest)
    return taken


def check(pipeline: Pipeline) -> None:
    """Check the checkpoint of the present epoch, as the start of the query does."""
    path = checkpoint_path(pipeline.path, pipeline.epoch, "sum")
    check_checkpoint(pipeline.path, read_metadata(pipeline.path), "sum", path)


def take_back(pipeline: Pipeline) -> None:
    """Delete by hand the last two micro-batches of the first epoch."""
    for name in ("offsets", "commits"):
        for batch in (1, 2):
            (checkpoint_path(pipeline.path, 1, "sum") / name / str(batch)).unlink()


def test_a_damaged_manifest_keeps_no_query_from_starting(pipeline: Pipeline) -> None:
    """The others still show that the checkpoint was taken back."""
    changed(pipeline.path / "snapshots/run-3/manifest.json")
    check(pipeline)
    take_back(pipeline)
    with pytest.raises(Damaged, match="snapshot run-2 has micro-batch 1"):
        check(pipeline)


def test_the_snapshot_that_was_restored_may_be_gone(pipeline: Pipeline) -> None:
    """Once the new epoch has one of its own, the one from which it began can be dropped."""
    pipeline.restore()
    snapshot(pipeline)
    pipeline.keep(1)
    assert [str(one.snapshot) for one in pipeline.snapshots()] == ["run-4"]
    check(pipeline)


@pytest.mark.parametrize("is_read", [False, True], ids=["before-it-is-read", "after"])
def test_a_snapshot_may_be_dropped_meanwhile(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    """Dropped while the checkpoint is held against it, it is passed over; the others still show
    that the checkpoint was taken back."""

    def dropped_meanwhile(root: Path, one: SnapshotId) -> Manifest:
        found = read_manifest(root, one) if is_read and one.number == 3 else None
        if one.number == 3:
            pipeline.delete(str(one))
        return found or read_manifest(root, one)

    place = "stillframe.spark.queries.read_manifest"
    monkeypatch.setattr(place, dropped_meanwhile)
    check(pipeline)
    assert [str(one.snapshot) for one in pipeline.snapshots()] == ["run-1", "run-2"]
    commit(checkpoint_path(pipeline.path, 1, "sum"), 1, 7)
    with pytest.raises(Damaged, match="snapshot run-2 has a different micro-batch 1"):
        check(pipeline)


def test_a_plan_that_spark_deleted_contradicts_nothing(pipeline: Pipeline) -> None:
    """Spark keeps the last hundred; snapshots may be older."""
    (checkpoint_path(pipeline.path, 1, "sum") / "offsets" / "0").unlink()
    check(pipeline)
