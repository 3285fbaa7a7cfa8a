"""Where a process of a system begins to read the logs of its pipeline; no system runs here."""

import contextlib
from pathlib import Path

import pytest

from stillframe.errors import UsageError
from stillframe.pipeline import Pipeline
from stillframe.pipeline.service import join
from stillframe.pipeline.stopped import NotAtRest
from stillframe.runtime.process.pipeline_logs import PipelineLogs
from stillframe.runtime.supervisor.pipeline_binding import PipelineBinding
from stillframe.store.store import Store
from tests.pipeline.money import Account, leave_behind, line, records
from tests.runtime.mixed import CHANNELS, SERVICES, Till, system

RAN_BY_ITSELF = "till ran alone in the current epoch .* and left: .* restore"


def received(pipeline: Pipeline, count: int) -> list[int]:
    """Return the amounts of so many items that a till by itself receives next."""
    found = []
    with join("till", pipeline=pipeline.path, state=Account()) as till:
        for _ in range(count):
            received = till.receive(timeout_s=10)
            assert received is not None
            found += received[1]["amount"].to_pylist()
    return found


def test_a_service_that_left_is_not_begun_again_as_a_process(tmp_path: Path) -> None:
    """It would read everything a second time. Refused, it is as it was: by itself it goes on."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5, 7, 11, received_count=1)
    with pytest.raises(UsageError, match=RAN_BY_ITSELF):
        PipelineLogs(pipeline.path, "till", system="till")
    assert received(pipeline, 1) == [7]


def test_a_process_begins_where_a_restore_put_it(tmp_path: Path) -> None:
    """Unless it ran by itself since then, even if it only changed its state and read nothing."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5, 7, received_count=1)
    pipeline.snapshot("unaligned")
    pipeline.restore()
    logs = PipelineLogs(pipeline.path, "till", system="till")
    found = logs.poll(lambda snapshot: None, may_read=True)
    assert found is not None
    assert found[1]["amount"].to_pylist() == [7]
    logs._lock.release()  # as when its program ends
    with pytest.raises(NotAtRest, match="till died"):
        PipelineLogs(pipeline.path, "till", system="till")
    pipeline.restore()
    with join("mint", pipeline=pipeline.path, state=(state := Account())):
        state.balance += 1
    with pytest.raises(UsageError, match="mint ran alone"):
        PipelineLogs(pipeline.path, "mint", system="till")
    with join("mint", pipeline=pipeline.path, state=Account()) as mint:
        mint.append("coins", records(13))
    assert received(pipeline, 2) == [7, 13]


def test_a_system_with_a_service_that_left_does_not_start(tmp_path: Path) -> None:
    """It is refused before any process is started, and the service is named."""
    pipeline = Pipeline.create(tmp_path / "coins.pipeline", services=SERVICES, channels=CHANNELS)
    reference = "tests.runtime.mixed:system"
    with contextlib.closing(
        Store.create(tmp_path / "store", description=system.description, reference=reference)
    ) as store:
        assert PipelineBinding(pipeline.path, store).initial_snapshot() is None
        with join("till", pipeline=pipeline.path, state=Till()):
            pass
        with pytest.raises(UsageError, match=RAN_BY_ITSELF):
            PipelineBinding(pipeline.path, store).initial_snapshot()
