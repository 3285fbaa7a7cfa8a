"""One cut through a system over TCP and the logs of a pipeline: nothing counted twice or lost."""

import asyncio
import contextlib
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from stillframe.errors import Unavailable, UsageError
from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.protocol.policy import Policy
from stillframe.runtime.control import OutputDirs
from stillframe.runtime.supervisor import pipeline_binding
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.storage.location import locate
from stillframe.store.store import Store
from tests.analytics.test_log_checks import faults_in, found_in
from tests.runtime.links import until
from tests.runtime.mixed import (
    CHANNELS,
    COINS,
    SERVICES,
    START,
    CarefulTill,
    Mint,
    WaitingTill,
    careful,
    system,
    tell,
    waiting,
)
from tests.runtime.test_event_logging import check_log

REFERENCE = "tests.runtime.mixed:system"
pytestmark = pytest.mark.slow


@contextlib.contextmanager
def minting(pipeline: Pipeline) -> Iterator[None]:
    """Run the mint in a thread: it holds the money of one item back until the next one comes."""
    ended = threading.Event()

    def go() -> None:
        mint = Mint()
        with join("mint", pipeline=pipeline.path, state=mint) as me:
            while not ended.is_set():
                if (received := me.receive(timeout_s=0.01)) is not None:
                    me.append("change", pa.table({"amount": [mint.held]}, schema=COINS))
                    mint.held = sum(received[1]["amount"].to_pylist())

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def new_pipeline(tmp_path: Path) -> Pipeline:
    """Make the pipeline that the system is part of."""
    return Pipeline.create(tmp_path / "coins.pipeline", services=SERVICES, channels=CHANNELS)


def money(pipeline: Pipeline, manifest: Manifest) -> int:
    """Return all money at the cut: in services, in logs, and on channels over TCP."""
    states = [part.service for part in manifest.fragments if part.service is not None]
    total = sum(sum(msgspec.msgpack.decode(state.encoded).values()) for state in states)
    for cut in manifest.channels:
        log = LogReader(pipeline.path, manifest.dataflow.log(cut.log), manifest.segments[cut.log])
        for item in log.entries(cut.position, cut.barrier):
            total += sum(log.table(item)["amount"].to_pylist())
    (part,) = manifest.systems
    snapshot = Store.open(locate(part.store)).load(part.snapshot)
    return total + snapshot.state.message_count


@pytest.mark.parametrize("mode", ["unaligned", "retained"])
def test_one_cut_through_tcp_and_logs(tmp_path: Path, mode: str) -> None:
    """Every snapshot holds all the money, some of it on the way over TCP or in a log; after a
    restore of both the system goes on, and still has all of it. Its event log says the same."""
    pipeline, event_log = new_pipeline(tmp_path), tmp_path / "event log"
    traces = OutputDirs(str(event_log))

    def take() -> Manifest:
        outcome = pipeline.snapshot(mode, timeout_s=30)
        assert isinstance(outcome, Manifest), outcome
        assert money(pipeline, outcome) == START
        return outcome

    async def epoch(store: Store) -> list[Manifest]:
        async with (
            asyncio.timeout(60),
            Supervisor(REFERENCE, store, SupervisorConfig(pipeline=pipeline.path, outputs=traces)),
        ):
            return [await asyncio.to_thread(take) for _ in range(8)]

    with contextlib.closing(
        Store.create(tmp_path / "store", description=system.description, reference=REFERENCE)
    ) as store:
        with minting(pipeline):
            taken = asyncio.run(epoch(store))
        assert any(manifest.record_count for manifest in taken)
        pipeline.restore(str(taken[3].snapshot))
        # What the channels over TCP hold is only in the system's store until it runs again.
        without_system = pipeline.snapshot(timeout_s=30)
        assert isinstance(without_system, Abandoned)
        assert re.search(
            r"process of a system that has not started.*stillframe restore \S+store --pipeline",
            str(without_system),
        ), str(without_system)
        with minting(pipeline):
            asyncio.run(epoch(store))
        assert store.restored_from == taken[3].systems[0].snapshot
    assert pipeline.epoch == 2
    for epoch_number in (1, 2):
        trace = check_log(event_log, tmp_path / "store", epoch_number)
        assert len(trace.snapshots) == 8
        assert any(not event.accepted and not event.sent for event in trace.lines["till"])
    assert faults_in(found_in(event_log).to_pylist()) == set()


def test_a_death_ends_a_system_that_cannot_go_back_alone(tmp_path: Path) -> None:
    """The error says how to go on; what the system must not do alone is refused; started again
    without a restore of the pipeline, it is refused as well."""
    pipeline = new_pipeline(tmp_path)

    async def main(store: Store) -> None:
        running = Supervisor(REFERENCE, store, SupervisorConfig(pipeline=pipeline.path))
        async with asyncio.timeout(60), running:
            with pytest.raises(UsageError, match="not possible for this system alone"):
                await running.snapshot()
            with pytest.raises(UsageError, match="not possible for this system alone"):
                await running.restore()
            os.kill(running.children["till"].pid, signal.SIGKILL)
            with pytest.raises(Unavailable, match=r"died.*SIGKILL.*stillframe pipeline restore"):
                await running.finished

    async def again(store: Store) -> None:
        async with Supervisor(REFERENCE, store, SupervisorConfig(pipeline=pipeline.path)):
            pass

    with contextlib.closing(
        Store.create(tmp_path / "store", description=system.description, reference=REFERENCE)
    ) as store:
        asyncio.run(main(store))
        with pytest.raises(Exception, match="died, and its state is lost: restore"):
            asyncio.run(again(store))


def test_processes_are_notified_when_the_pipeline_has_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when their own part is in the store: twice the snapshot of the pipeline is abandoned
    after that, and a death would take back what is before the cut. Outboxes commit no earlier
    either, and the name of the pipeline's snapshot is forced to the disk before."""
    told = tmp_path / "told"
    monkeypatch.setenv("TOLD", str(told))
    monkeypatch.setattr(pipeline_binding, "sync", lambda path: tell(f"forced {path.name}"))
    services = {**SERVICES, "till": CarefulTill}
    pipeline = Pipeline.create(tmp_path / "coins.pipeline", services=services, channels=CHANNELS)
    reference = "tests.runtime.mixed:careful"

    async def main(store: Store) -> list[Manifest | Abandoned]:
        taken = []
        running = Supervisor(reference, store, SupervisorConfig(pipeline=pipeline.path))
        async with asyncio.timeout(60), running:
            for count in (1, 3):
                with join("mint", pipeline=pipeline.path, state=Mint()):  # and it records nothing
                    outcome = await asyncio.to_thread(pipeline.snapshot, "unaligned", timeout_s=1.0)
                    assert isinstance(outcome, Abandoned)
                await until(lambda count=count: len(store.entries()) == count)  # type: ignore[misc]
                with minting(pipeline):
                    take = pipeline.snapshot
                    taken.append(await asyncio.to_thread(take, "unaligned", timeout_s=30))
                    await until(
                        lambda count=count: (
                            told.exists()  # type: ignore[misc]
                            and told.read_text().count("committed\n") > count // 2
                        )
                    )
        return taken

    with contextlib.closing(
        Store.create(tmp_path / "store", description=careful.description, reference=reference)
    ) as store:
        taken = asyncio.run(main(store))
    expected = []
    for manifest in taken:
        assert isinstance(manifest, Manifest)
        expected += ["forced snapshots", f"published {manifest.systems[0].snapshot}", "committed"]
    assert told.read_text().splitlines() == expected


def test_a_service_that_commits_with_an_async_function_is_refused(tmp_path: Path) -> None:
    """It reads its logs between two actions, never while it waits; the error says what to do."""
    services = {**SERVICES, "till": WaitingTill}
    pipeline = Pipeline.create(tmp_path / "coins.pipeline", services=services, channels=CHANNELS)
    reference = "tests.runtime.mixed:waiting"

    async def main(store: Store) -> None:
        async with Supervisor(reference, store, SupervisorConfig(pipeline=pipeline.path)):
            raise AssertionError("it runs")

    with (
        contextlib.closing(
            Store.create(tmp_path / "store", description=waiting.description, reference=reference)
        ) as store,
        pytest.raises(Unavailable, match="till has async handlers or commit functions and is a"),
    ):
        asyncio.run(main(store))


def test_a_system_without_a_service_of_the_pipeline_is_refused(tmp_path: Path) -> None:
    """Processes and services are joined by equal names; the error says which there are."""
    other = Pipeline.create(tmp_path / "p", services={"mint": Mint}, channels=())
    with (
        contextlib.closing(
            Store.create(tmp_path / "store", description=system.description, reference=REFERENCE)
        ) as store,
        pytest.raises(UsageError, match=r"no process of the system \(bank, till\).*\(mint\)"),
    ):
        Supervisor(REFERENCE, store, SupervisorConfig(pipeline=other.path))


def test_a_system_in_a_pipeline_has_no_policy_of_its_own(tmp_path: Path) -> None:
    """A try that the pipeline has not asked for would belong to none of its snapshots."""

    async def main(store: Store) -> None:
        pipeline = new_pipeline(tmp_path)
        system = Supervisor(
            REFERENCE, store, SupervisorConfig(pipeline=pipeline.path, policy=Policy.RETRY)
        )
        with pytest.raises(
            UsageError, match="the policy 'retry' is not possible for this system alone"
        ):
            await system.__aenter__()

    with contextlib.closing(
        Store.create(tmp_path / "store", description=system.description, reference=REFERENCE)
    ) as store:
        asyncio.run(main(store))
