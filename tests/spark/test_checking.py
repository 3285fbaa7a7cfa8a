"""What the pipeline knows of a query is held against its checkpoint before the query starts."""

import json
from pathlib import Path

import pytest

from stillframe.errors import Damaged
from stillframe.pipeline import Pipeline, channel, join
from stillframe.pipeline.head import read_head
from stillframe.pipeline.published import Manifest
from stillframe.spark.requirements import check_checkpoint
from tests.pipeline.money import SCHEMA, Account, changed, records


def commit(checkpoint: Path, batch: int, position: int) -> None:
    """Commit a micro-batch as Spark does."""
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text('{"id":"one"}')
    offset = json.dumps({"stillframe": {"coins": position}})
    (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offset}")
    (checkpoint / "commits" / str(batch)).write_text("v1\n{}")


def test_a_damaged_manifest_keeps_no_query_from_starting(tmp_path: Path) -> None:
    """The others still show that the checkpoint was taken back."""
    pipeline = Pipeline.create(
        tmp_path / "run",
        queries=["sum"],
        services={"mint": Account},
        channels=[channel("coins", SCHEMA, source="mint", targets=["sum"])],
    )
    checkpoint = pipeline.path / "checkpoints/epoch-1/sum"
    for batch in range(3):
        with join("mint", pipeline=pipeline.path, state=Account()) as mint:
            mint.append("coins", records(1))
        commit(checkpoint, batch, batch + 1)
        assert isinstance(pipeline.snapshot("unaligned"), Manifest)
    changed(pipeline.path / "snapshots/run-3/manifest.json")
    check_checkpoint(pipeline.path, read_head(pipeline.path), "sum")
    for name in ("offsets", "commits"):
        for batch in (1, 2):
            (checkpoint / name / str(batch)).unlink()
    with pytest.raises(Damaged, match="snapshot run-2 has micro-batch 1"):
        check_checkpoint(pipeline.path, read_head(pipeline.path), "sum")
