"""Which micro-batches of a query count, after restores to and fro."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from stillframe.errors import UsageError
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.metadata import checkpoint_path
from stillframe.pipeline.snapshot_manifest import Manifest

OPEN = 2**63 - 1


def reporting(path: Path) -> Pipeline:
    """Make a pipeline of one query, which reads something else than channels."""
    out = channel("out", pa.schema([("n", pa.int64())]), source="report")
    return Pipeline.create(path, queries=["report"], channels=[out], name="run")


def commit_up_to(pipeline: Pipeline, last: int) -> None:
    """Leave what a query leaves that has committed micro-batches in the present epoch."""
    path = checkpoint_path(pipeline.path, pipeline.epoch, "report")
    for folder, content in (("offsets", 'v1\n{}\n{"in":{"0":7}}'), ("commits", "v1\n{}")):
        (path / folder).mkdir(parents=True, exist_ok=True)
        for number in range(last + 1):
            (path / folder / str(number)).write_text(content)
    (path / "metadata").write_text(json.dumps({"id": "one"}))


def snapshot(pipeline: Pipeline) -> str:
    """Take a snapshot of the stopped pipeline; return its id."""
    manifest = pipeline.snapshot()
    assert isinstance(manifest, Manifest)
    return str(manifest.snapshot)


def test_micro_batches_count_up_to_the_cut_of_each_restore(tmp_path: Path) -> None:
    """An epoch counts up to the cut from which another one went on; one that was left by a restore
    counts again when the pipeline goes back to a snapshot of it."""
    pipeline = reporting(tmp_path / "run")
    assert pipeline.timeline("report") == {1: range(OPEN)}
    commit_up_to(pipeline, 2)
    early = snapshot(pipeline)
    commit_up_to(pipeline, 5)
    late = snapshot(pipeline)
    pipeline.restore(early)
    assert pipeline.timeline("report") == {1: range(3), 2: range(3, OPEN)}
    commit_up_to(pipeline, 4)
    second = snapshot(pipeline)
    pipeline.restore(late)
    assert pipeline.timeline("report") == {1: range(6), 3: range(6, OPEN)}
    pipeline.restore(second)
    assert pipeline.timeline("report") == {1: range(3), 2: range(3, 5), 4: range(5, OPEN)}
    idle = snapshot(pipeline)
    fork = pipeline.fork(idle, tmp_path / "fork")
    assert fork.timeline("report") == {1: range(3), 2: range(3, 5), 5: range(5, OPEN)}


def test_nothing_counts_of_an_epoch_before_its_first_micro_batch(tmp_path: Path) -> None:
    """A snapshot may be older than the first micro-batch of a query."""
    pipeline = reporting(tmp_path / "run")
    first = snapshot(pipeline)
    commit_up_to(pipeline, 3)
    pipeline.restore(first)
    assert pipeline.timeline("report") == {2: range(OPEN)}


def test_the_timeline_of_a_query_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The error says which queries there are."""
    with pytest.raises(UsageError, match="no query 'ledger' in this pipeline; there are: report"):
        reporting(tmp_path / "run").timeline("ledger")
