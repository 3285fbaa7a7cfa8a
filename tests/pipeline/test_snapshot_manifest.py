"""A file of a snapshot that was changed or lost is named, and a restore then does nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stillframe.errors import Damaged, NotConsistent, StillframeError, UsageError
from stillframe.pipeline import Pipeline
from stillframe.pipeline.snapshot_manifest import Manifest
from tests.pipeline.money import TOTAL, changed, leave_behind, line, money_now
from tests.pipeline.test_forged import rewritten

KINDS = {
    "manifest": "snapshots/run-1/manifest.json",
    "item": "channels/coins/epoch-1/00000000000000000001.json",
    "item before the first": "channels/coins/epoch-1/00000000000000000000.json",
    "records": "channels/coins/epoch-1/data/*.parquet",
    "head": "pipeline.json",
}


def shop(path: Path) -> Pipeline:
    """Return a pipeline with a snapshot that has two records on its channel."""
    pipeline = line(path, name="run")
    leave_behind(pipeline, 5, 7, 11, received_count=1)
    assert isinstance(pipeline.snapshot("unaligned"), Manifest)
    return pipeline


def truncated(path: Path) -> None:
    """Leave nothing of a file but its name."""
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [changed, Path.unlink])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_named_and_nothing_is_restored(
    tmp_path: Path, kind: str, damage: Callable[[Path], None]
) -> None:
    """Whatever a restore rests on is looked at before anything is changed."""
    pipeline = shop(tmp_path / "run")
    paths = list(pipeline.path.glob(KINDS[kind]))
    kept = {path: path.read_bytes() for path in paths}
    for path in paths:
        damage(path)
    before = sorted(pipeline.path.rglob("*"))
    with pytest.raises(StillframeError) as caught:
        pipeline.restore("run-1")
    assert any(str(path) in str(caught.value) for path in (*paths, pipeline.path))
    assert sorted(pipeline.path.rglob("*")) == before
    for path, content in kept.items():
        path.write_bytes(content)
    assert pipeline.epoch == 1
    pipeline.restore("run-1")
    assert money_now(pipeline) == TOTAL


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("manifest", "or delete the directory of that snapshot and use another one"),
        ("item", "or restore the pipeline from a snapshot that does not need it"),
        ("head", "copy made since the last restore"),
    ],
)
@pytest.mark.parametrize("damage", [changed, truncated])
def test_what_can_be_done_about_a_damaged_file_is_said(
    tmp_path: Path, kind: str, advice: str, damage: Callable[[Path], None]
) -> None:
    """Only the manifest is a file of a snapshot alone, which can be deleted with it."""
    pipeline = shop(tmp_path / "run")
    path = pipeline.path / KINDS[kind]
    damage(path)
    with pytest.raises(Damaged, match=f"{path}.*put the file back from a.*{advice}") as caught:
        pipeline.restore("run-1")
    assert ("delete" in str(caught.value)) == (kind == "manifest")


def test_a_damaged_snapshot_keeps_no_other_from_being_used(tmp_path: Path) -> None:
    """One can be taken beside it, and restored by its id; only the damaged one is refused."""
    pipeline = shop(tmp_path / "run")
    changed(pipeline.path / KINDS["manifest"])
    assert money_now(pipeline) == TOTAL
    savepoint = pipeline.savepoint("gold", "unaligned")
    assert savepoint == pipeline.find("gold")
    with pytest.raises(UsageError, match=r"'silver'.* there are: run-1, run-2, gold"):
        pipeline.find("silver")
    pipeline.restore("run-2")
    with pytest.raises(Damaged, match="run-1"):
        pipeline.restore("run-1")
    assert pipeline.epoch == 2


def test_a_stranger_among_the_snapshots_is_named(tmp_path: Path) -> None:
    """A file that is no snapshot is refused with its path."""
    pipeline = shop(tmp_path / "run")
    (pipeline.path / "snapshots" / "notes.txt").touch()
    with pytest.raises(Damaged, match=r"notes\.txt is not a snapshot"):
        pipeline.snapshots()


def test_a_damaged_snapshot_can_be_dropped_and_stays_until_then(tmp_path: Path) -> None:
    """It may be a savepoint, and nobody knows what of the logs it needs: they are not trimmed."""
    pipeline = shop(tmp_path / "run")
    for _ in range(2):
        leave_behind(pipeline, 1, received_count=1)
        assert money_now(pipeline) == TOTAL
    changed(pipeline.path / "snapshots/run-1/manifest.json")
    logs = pipeline.path / "channels"
    before = sorted(logs.rglob("*"))
    pipeline.keep(1)
    assert sorted(path.name for path in (pipeline.path / "snapshots").iterdir()) == [
        "run-1",
        "run-3",
    ]
    assert sorted(logs.rglob("*")) == before
    pipeline.delete("run-1")
    assert [str(manifest.snapshot) for manifest in pipeline.snapshots()] == ["run-3"]
    assert set(logs.rglob("*")) < set(before)
    pipeline.restore()
    assert money_now(pipeline) == TOTAL


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ({"sent_counts": [2]}, "2 sent - 1 received = 1, but 2 records were recorded"),
        ({"sent_counts": [0]}, "had received 1 records at its cut, the source had sent 0"),
        (
            {"received_counts": [0]},
            "records should continue with number 1, but a batch of 0 begins",
        ),
    ],
)
def test_a_snapshot_whose_books_do_not_balance_is_not_restored(
    tmp_path: Path, counts: dict[str, list[int]], found: str
) -> None:
    """The channel, the partition and the figures are named, and nothing is changed."""
    pipeline = shop(tmp_path / "run")
    manifest = pipeline.path / KINDS["manifest"]
    rewritten(manifest, lambda content: content["channels"][0].update(counts))
    with pytest.raises(NotConsistent, match="channel coins to till, partition 0: ") as caught:
        pipeline.restore("run-1")
    assert found in str(caught.value)
    assert pipeline.epoch == 1
