"""Where a process of a system begins to read the logs of its pipeline; no system runs here."""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillframe.errors import Refused, Unavailable, UsageError
from stillframe.pipeline import Pipeline
from stillframe.pipeline.service import join
from stillframe.pipeline.stopped import NotAtRest
from stillframe.runtime.process.pipeline_logs import PipelineLogs
from stillframe.runtime.supervisor.pipeline_binding import PipelineBinding
from stillframe.storage.location import Location, ObjectPath
from stillframe.store.store import Store
from tests.pipeline.faulty_store import Faults, faults
from tests.pipeline.money import Account, leave_behind, line, records
from tests.runtime.mixed import CHANNELS, SERVICES, Bank, Mint, Till, system

__all__ = ["faults"]
RAN_BY_ITSELF = "till ran alone in the current epoch .* and left: .* restore"


@pytest.fixture(params=["directory", "object store"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """Where a pipeline is made."""
    if request.param == "directory":
        return tmp_path / "run"
    return ObjectPath(f"memory://{secrets.token_hex(8)}", "run")


def process(pipeline: Pipeline, name: str) -> PipelineLogs:
    """Begin as a process of a system that starts now."""
    return PipelineLogs(pipeline.path, name, system="till", epoch=pipeline.epoch)


def polled(logs: PipelineLogs) -> list[int]:
    """Return the amounts of the next item."""
    while (found := logs.poll(lambda snapshot: None, may_read=True)) is None:
        pass
    return found[1]["amount"].to_pylist()  # type: ignore[no-any-return]


def received(pipeline: Pipeline, count: int) -> list[int]:
    """Return the amounts of so many items that a till by itself receives next."""
    found = []
    with join("till", pipeline=pipeline.path, state=Account()) as till:
        for _ in range(count):
            received = till.receive(timeout_s=10)
            assert received is not None
            found += received[1]["amount"].to_pylist()
    return found


def test_a_service_that_left_is_not_begun_again_as_a_process(root: Location) -> None:
    """It would read everything a second time. Refused, it is as it was: by itself it goes on."""
    pipeline = line(root)
    leave_behind(pipeline, 5, 7, 11, received_count=1)
    with pytest.raises(UsageError, match=RAN_BY_ITSELF):
        process(pipeline, "till")
    assert received(pipeline, 1) == [7]


def test_a_process_begins_where_a_restore_put_it(root: Location) -> None:
    """Unless it ran by itself since then, even if it only changed its state and read nothing."""
    pipeline = line(root)
    leave_behind(pipeline, 5, 7, received_count=1)
    pipeline.snapshot("unaligned")
    pipeline.restore()
    logs = process(pipeline, "till")
    assert polled(logs) == [7]
    logs._lock.release()  # as when its program ends
    with pytest.raises(NotAtRest, match="till died"):
        process(pipeline, "till")
    pipeline.restore()
    with join("mint", pipeline=pipeline.path, state=(state := Account())):
        state.balance += 1
    with pytest.raises(UsageError, match="mint ran alone"):
        process(pipeline, "mint")
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


def test_a_restore_while_a_system_starts_is_noticed(root: Location) -> None:
    """The state of a process, from the snapshot of its system, would not fit the logs."""
    pipeline = line(root)
    leave_behind(pipeline, 5, 7, received_count=1)
    pipeline.snapshot("unaligned")
    pipeline.restore()
    epoch = pipeline.epoch  # with the state of this epoch a process is started
    pipeline.restore()
    with pytest.raises(Refused, match=r"in epoch 2 of the pipeline .* and is in epoch 3"):
        PipelineLogs(pipeline.path, "till", system="till", epoch=epoch)
    assert received(pipeline, 1) == [7]


def test_of_two_processes_that_start_at_once_one_begins(faults: Faults) -> None:
    """Whatever their leases are worth: the other one was frozen before it took its place."""
    pipeline = line(ObjectPath(f"memory://{secrets.token_hex(8)}", "run"))

    def come_between(write: Callable[[], Any]) -> Any:
        with faults.paused():
            process(pipeline, "till")
        return write()

    # The first write is that of the lease.
    with (
        pytest.raises(Unavailable, match="has taken the place of service till"),
        faults.at(1, come_between),
    ):
        process(pipeline, "till")


def test_a_process_that_lost_its_lease_ends() -> None:
    """Another program may have taken its place."""
    pipeline = line(ObjectPath(f"memory://{secrets.token_hex(8)}", "run"))
    logs = process(pipeline, "till")
    logs._lock._lease._lost()  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match="did not renew its lease in time"):
        logs.poll(lambda snapshot: None, may_read=True)
    logs._lock.release()


def test_a_process_does_not_wait_for_the_object_store(faults: Faults) -> None:
    """It serves its other channels while a request has no answer, and runs on after an error."""
    pipeline = line(ObjectPath(f"memory://{secrets.token_hex(8)}", "run"))
    mint = process(pipeline, "mint")
    mint.append("coins", records(5))
    logs, answered = process(pipeline, "till"), threading.Event()

    def wait(read: Callable[[], Any]) -> Any:
        answered.wait(5)
        raise OSError("it does not answer")

    faults.with_reads = True
    with faults.at(0, wait):
        for _ in range(3):
            assert logs.poll(lambda snapshot: None, may_read=True) is None
        answered.set()
        assert polled(logs) == [5]


def test_a_system_of_an_older_epoch_takes_no_part(tmp_path: Path) -> None:
    """It was frozen meanwhile: it notifies no process of what was published before a restore."""
    root = ObjectPath(f"memory://{secrets.token_hex(8)}", "run")
    pipeline = Pipeline.create(root, services=SERVICES, channels=CHANNELS)
    for name, state in {"till": Till(), "bank": Bank(), "mint": Mint()}.items():
        with join(name, pipeline=root, state=state):
            pass
    published = pipeline.snapshot("unaligned").snapshot
    reference = "tests.runtime.mixed:system"
    with contextlib.closing(
        Store.create(tmp_path / "store", description=system.description, reference=reference)
    ) as store:
        binding = PipelineBinding(root, store)
        assert asyncio.run(binding._look(published)) == (True, None)
        pipeline.restore()
        assert asyncio.run(binding._look(published)) == (False, None)
