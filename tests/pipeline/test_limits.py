"""What is too large to be read back is not written, and whoever asked is told."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from stillframe.errors import StoreError
from stillframe.model import Abandoned, Reason
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.pipeline.stopped import NotAtRest
from stillframe.store import sealed_json as sealing

LIMIT = 20_000


@dataclass
class Blob:
    """A state of any size."""

    content: bytes = b""


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A pipeline of two services, where a sealed file may have only `LIMIT` bytes."""
    monkeypatch.setattr(sealing, "SEALED_BYTES_MAX", LIMIT)
    return Pipeline.create(
        tmp_path / "run",
        services={"a": Blob, "b": Blob},
        channels=[channel("ab", pa.schema([("v", pa.int64())]), source="a", targets=["b"])],
    )


def rest(pipeline: Pipeline, service: str, size: int) -> None:
    """Let a service join and leave with a state of `size` bytes."""
    with join(service, pipeline=pipeline.path, state=(state := Blob())):
        state.content = b"x" * size


def test_states_that_do_not_fit_into_one_manifest_give_the_snapshot_up(pipeline: Pipeline) -> None:
    """Each fits by itself: the largest is named, nothing is published, and the next one works."""
    rest(pipeline, "a", 9_000)
    rest(pipeline, "b", 10_000)
    outcome = pipeline.snapshot()
    assert isinstance(outcome, Abandoned)
    assert outcome.reason is Reason.NOT_RECORDED
    assert outcome.missing == ("b",)
    assert str(LIMIT) in outcome.detail
    assert pipeline.snapshots() == []
    rest(pipeline, "b", 10)
    assert isinstance(pipeline.snapshot(), Manifest)
    pipeline.restore()


def test_a_running_service_with_too_large_a_state_gives_the_snapshot_up(pipeline: Pipeline) -> None:
    """The service is named and goes on; once its state is smaller, a snapshot is taken."""
    rest(pipeline, "b", 10)
    with join("a", pipeline=pipeline.path, state=(state := Blob(b"x" * LIMIT))) as me:
        outcome = pipeline.snapshot(progress=lambda progress: me.boundary())
        assert isinstance(outcome, Abandoned)
        assert (outcome.reason, outcome.missing) == (Reason.NOT_RECORDED, ("a",))
        assert "service a" in outcome.detail
        assert str(LIMIT) in outcome.detail
        state.content = b"small"
        assert isinstance(pipeline.snapshot(progress=lambda progress: me.boundary()), Manifest)


def test_a_service_that_leaves_with_too_large_a_state_is_told(pipeline: Pipeline) -> None:
    """The error names the file, and what says that the service joined stays as it was."""
    with pytest.raises(StoreError, match=rf"a\.json could not be written.* limit of {LIMIT}$"):
        rest(pipeline, "a", LIMIT)
    with pytest.raises(NotAtRest, match="service a died"):
        rest(pipeline, "a", 10)
