"""A system and a pipeline in one object store: each may die or be overtaken at any step.

The system is in one event loop; the coordinator of the pipeline and the restores run in threads, as
the other programs. So the object store can be in memory.
"""

import asyncio
import contextlib
import functools
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

import stillframe
from stillframe.errors import StillframeError, StoreError, Unavailable
from stillframe.model import Abandoned, ProcessId, SnapshotId
from stillframe.pipeline import Pipeline, coordinator, locks
from stillframe.pipeline.pending_snapshot import CutReport, Outcome, SystemCut
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.runtime.process.pipeline_logs import PipelineLogs
from stillframe.runtime.supervisor import pipeline_binding
from stillframe.runtime.supervisor.pipeline_binding import PipelineBinding
from stillframe.runtime.supervisor.recovery import plan_recovery
from stillframe.storage import files, lease
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.store.store import Store
from tests.nightly import by_night
from tests.pipeline.faulty_store import Faults, before, faults
from tests.runtime.local import LocalSystem
from tests.runtime.mixed import CHANNELS, SERVICES, START, Bank, Mint, Till
from tests.runtime.test_pipeline_binding import money

__all__ = ["faults"]
STEP = by_night(1, check=2)
"""By day something happens at every other write."""
pytestmark = pytest.mark.slow
OTHER = "other"
"""The name of the threads of the other programs."""
_Result = TypeVar("_Result")


class BoundSystem(LocalSystem):
    """The system of ``mixed`` as a part of a pipeline, from the snapshot with which the epoch of
    the pipeline begins."""

    is_bound = True

    def __init__(self, pipeline: Pipeline, store: Store) -> None:
        self.till, self.bank = Till(), Bank()
        topology = stillframe.Topology({"till": self.till, "bank": self.bank}, [("till", "bank")])
        self.binding = PipelineBinding(pipeline.path, store)
        self.restored_from = self.binding.initial_snapshot()
        self.logs: list[PipelineLogs] = []
        starts = None
        if self.restored_from is not None:
            plan = plan_recovery(store, self.restored_from, topology, may_migrate=False)
            starts = dict(plan.starts)
        super().__init__(topology, store, starts=starts, may_fail=True)

    def logs_of(self, process: ProcessId) -> PipelineLogs:
        """See ``LocalSystem``."""
        binding = self.binding
        logs = PipelineLogs(binding.root, process, system=binding.name, epoch=binding.epoch)
        self.logs.append(logs)
        return logs

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run it until the body has ended, and let its services leave nothing."""
        try:
            async with self:
                follow = self.binding.follow(self.coordinator, self.events.append)
                following = asyncio.ensure_future(follow)
                try:
                    yield
                finally:
                    following.cancel()
        finally:
            for logs in self.logs:
                logs._lock.release()


class World:
    """What happens to one of the programs."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self._ended: set[str] = set()
        self.dies = True
        self.test_system()

    def test_system(self) -> None:
        """Let faults happen to the system."""
        self.faults.is_tested = lambda thread: thread not in ("lease", OTHER)

    def test_coordinator(self) -> None:
        """Let faults happen to the coordinator of the pipeline."""
        self.faults.is_tested = lambda thread: thread == OTHER

    def lapse(self, place: Location, *names: str) -> None:
        """Let the leases below a place lapse: all of these names, or all."""
        storage = storage_of(place)
        for one in storage.files_below(place):
            name = one.location.name
            if name.endswith(".lease") and (not names or name in names):
                content, _ = storage.read(one.location, bytes_max=4096)
                self._ended.add(msgspec.json.decode(content)["token"])

    def has_ended(self, holder: Any) -> bool:
        """Return whether the holder of a lease has released it, died or lost it."""
        is_dead = self.dies and self.faults.is_down
        return holder.released or is_dead or holder.token in self._ended


@pytest.fixture
def world(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> World:
    """An object store whose requests may fail, and programs that look often."""
    found = World(faults)
    # In the thread that asks for it, whose name tells whose it is.
    monkeypatch.setattr(files, "side_by_side", lambda function, items, _: map(function, items))
    # One that is frozen renews no lease.
    monkeypatch.setattr(lease, "LEASE_S", 60.0)
    monkeypatch.setattr(
        lease.Lease,
        "_has_lapsed",
        lambda self, holder, _, is_taken: found.has_ended(holder),
    )
    for module in (coordinator, locks, pipeline_binding):
        monkeypatch.setattr(module, "OBJECT_POLL_S", 0.005)
    return found


async def elsewhere(act: Callable[[], _Result]) -> _Result:
    """Let another program do something."""
    done: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()

    def finish(set_it: Callable[[Any], None], found: Any) -> None:
        done.get_loop().call_soon_threadsafe(set_it, found)

    def run() -> None:
        try:
            finish(done.set_result, act())
        except Exception as error:  # noqa: BLE001 - raised again where it is awaited
            finish(done.set_exception, error)

    threading.Thread(target=run, name=OTHER, daemon=True).start()
    return await done


async def take(
    pipeline: Pipeline, timeout_s: float = 30.0, is_ended: threading.Event | None = None
) -> Manifest | Abandoned:
    """Take a snapshot of the pipeline, and say when it has ended."""

    def act() -> Manifest | Abandoned:
        try:
            return pipeline.snapshot("unaligned", timeout_s=timeout_s)
        finally:
            if is_ended is not None:
                is_ended.set()

    return await elsewhere(act)


def made(root: Location | None = None, place: Location | None = None) -> tuple[Pipeline, Store]:
    """Make a pipeline, whose mint has been there and left, and the store of the system: in places
    of this machine, or in an object store."""
    remote = ObjectPath(f"memory://{secrets.token_hex(8)}", "")
    root, place = root or remote / "coins", place or remote / "store"
    pipeline = Pipeline.create(root, services=SERVICES, channels=CHANNELS)
    with join("mint", pipeline=pipeline.path, state=Mint()):
        pass
    topology = stillframe.Topology({"till": Till(), "bank": Bank()}, [("till", "bank")])
    return pipeline, Store.create(place, description=topology.description)


async def whole(pipeline: Pipeline, total: int = START) -> None:
    """Check that a snapshot is published, which has all the money."""
    found = await take(pipeline)
    assert isinstance(found, Manifest), str(found)
    assert await elsewhere(lambda: money(pipeline, found)) == total


async def restored(pipeline: Pipeline, place: Location) -> None:
    """Restore both, and check that they run, and that every snapshot has all the money."""
    await elsewhere(pipeline.restore)
    with contextlib.closing(await elsewhere(lambda: Store.open_writer(place))) as store:
        system = BoundSystem(pipeline, store)
        async with system.running():
            await whole(pipeline)
    for manifest in pipeline.snapshots():
        assert money(pipeline, manifest) == START


@pytest.mark.parametrize("here", ["nothing", "the pipeline", "the store"])
def test_one_cut_through_tcp_and_an_object_store(world: World, tmp_path: Path, here: str) -> None:
    """Snapshots while money moves, and a restore of both from the last one, wherever each is."""
    root = tmp_path / "coins" if here == "the pipeline" else None
    place = tmp_path / "store" if here == "the store" else None

    async def main() -> None:
        pipeline, store = made(root, place)
        system = BoundSystem(pipeline, store)
        async with system.running():
            await system.until(lambda: system.till.balance < START - 30)
            for _ in range(3):
                await whole(pipeline)
        await restored(pipeline, store.path)

    assert world.faults.count == 0
    asyncio.run(asyncio.wait_for(main(), 15))


async def writes(world: World) -> range:
    """Return the numbers of the writes of a system in a snapshot, by day of every other one."""
    pipeline, store = made()
    system = BoundSystem(pipeline, store)
    async with system.running():
        await whole(pipeline)
        with world.faults.at(-1, before):
            await whole(pipeline)
    assert world.faults.count > 10
    return range(0, world.faults.count, STEP)


class Interlude:
    """What another program does while the one under test is frozen."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.is_over = asyncio.Event()
        self._act = act
        self._loop = asyncio.get_running_loop()
        self._error: Exception | None = None

    def __call__(self, write: Callable[[], Any]) -> Any:
        """Do it before a write."""
        other = threading.Thread(target=self._run, name=OTHER)
        other.start()
        other.join()
        self._loop.call_soon_threadsafe(self.is_over.set)
        return write()

    def _run(self) -> None:
        try:
            self._act()
        except Exception as error:  # noqa: BLE001 - raised again in ``check``
            self._error = error

    def check(self) -> None:
        """Raise what went wrong."""
        if self._error is not None:
            raise self._error


@pytest.mark.usefixtures("world")
def test_a_report_whose_answer_was_lost_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot of the pipeline is published with the part of the system, so its processes are
    told: what was held back for that must not wait for the next one."""
    write = CutReport.write

    def write_without_answer(report: CutReport, cut: SystemCut) -> None:
        write(report, cut)
        if cut.outcome is Outcome.PUBLISHED:
            raise StoreError("the object store failed: it does not answer")

    async def main() -> None:
        pipeline, store = made()
        system = BoundSystem(pipeline, store)
        async with system.running():
            monkeypatch.setattr(CutReport, "write", write_without_answer)
            await whole(pipeline)
            (snapshot,) = [entry.id for entry in store.entries()]
            told = system.coordinator._announced
            await system.until(lambda: set(told.values()) == {snapshot})

    asyncio.run(asyncio.wait_for(main(), 15))


@pytest.mark.nightly(part="storage")
def test_a_system_may_die_at_each_of_its_writes(world: World) -> None:
    """As when its supervisor is killed, with which its processes end: both are restored to the same
    snapshot, the old one or the new one."""

    async def dies_at(number: int) -> None:
        pipeline, store = made()
        system = BoundSystem(pipeline, store)
        with contextlib.ExitStack() as life, contextlib.suppress(StillframeError, OSError):
            async with system.running():
                await whole(pipeline)
                life.enter_context(world.faults.at(number, before, stays=True))
                await take(pipeline, timeout_s=0.3)
        await restored(pipeline, store.path)

    async def main() -> None:
        for number in await writes(world):
            await dies_at(number)

    asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.nightly(part="storage")
def test_a_system_that_wakes_up_does_no_harm(world: World) -> None:
    """It was frozen at any of its writes, for so long that the pipeline was restored, and a second
    supervisor took over its store: it publishes nothing, and its processes end."""

    async def wakes_at(number: int) -> None:
        pipeline, store = made()
        system = BoundSystem(pipeline, store)
        published: list[SnapshotId] = []

        is_ended = threading.Event()

        def take_over() -> None:
            is_ended.wait()
            world.lapse(store.path.parent)
            with world.faults.paused():
                asyncio.run(restored(pipeline, store.path))
            published.extend(one.id for one in Store.open(store.path).entries())

        interlude = Interlude(take_over)
        async with system.running():
            await whole(pipeline)
            with world.faults.at(number, interlude):
                await take(pipeline, timeout_s=0.3, is_ended=is_ended)
            is_late = world.faults.count <= number  # on a machine that is busy
            if not is_late:
                await interlude.is_over.wait()
                interlude.check()
                await system.until(lambda: len(system.failures) > 0)
        if not is_late:
            assert [one.id for one in Store.open(store.path).entries()] == published
        await restored(pipeline, store.path)

    async def main() -> None:
        for number in await writes(world):
            await wakes_at(number)

    asyncio.run(asyncio.wait_for(main(), 120))


def test_an_outage_costs_snapshots_and_nothing_else(world: World) -> None:
    """It begins at any write of the system in a snapshot, and lasts longer than that one."""
    world.dies = False

    async def main() -> None:
        numbers = await writes(world)
        pipeline, store = made()
        system = BoundSystem(pipeline, store)
        system.till.balance = 25
        async with system.running():
            # No append is in the way: without an answer, the action of the process fails.
            await system.until(lambda: system.bank.balance == 5 and system.till.balance == 0)
            for number in numbers:
                with world.faults.at(number, before, stays=True):
                    await take(pipeline, timeout_s=0.1)
                assert system.failures == []
                await whole(pipeline, 25)
        store.close()

    asyncio.run(asyncio.wait_for(main(), 60))


async def taken_at_each_write(
    world: World,
    pipeline: Pipeline,
    fault: Callable[[int], contextlib.AbstractContextManager[Any]],
    *failures: type[Exception],
) -> None:
    """Take snapshots with a fault at one write after the other, as long as there are any; after
    each the next snapshot is whole. `failures` are what those with a fault may raise."""
    number, is_late = 0, False
    while not is_late:
        with contextlib.suppress(*failures), fault(number):
            await take(pipeline)
        is_late = world.faults.count <= number
        await whole(pipeline)
        number += STEP
    assert number > 5


@pytest.mark.nightly(part="storage")
def test_the_coordinator_may_die_at_each_of_its_writes(world: World) -> None:
    """While the system runs on: the next one takes a snapshot."""
    world.test_coordinator()

    async def main() -> None:
        pipeline, store = made()
        system = BoundSystem(pipeline, store)
        async with system.running():
            dies = functools.partial(world.faults.at, happens=before, stays=True)
            await taken_at_each_write(world, pipeline, dies, StoreError, OSError)
        await restored(pipeline, store.path)

    asyncio.run(asyncio.wait_for(main(), 15))


@pytest.mark.nightly(part="storage")
def test_a_coordinator_that_wakes_up_does_no_harm(world: World) -> None:
    """It was frozen at any of its writes while another one took a snapshot."""
    world.test_coordinator()

    async def main() -> None:
        pipeline, store = made()
        system = BoundSystem(pipeline, store)

        def come_between(write: Callable[[], Any]) -> Any:
            world.lapse(pipeline.path, locks.COORDINATOR_LEASE, "mint.lease")
            with world.faults.paused():
                other = pipeline.snapshot("unaligned")
                assert isinstance(other, Manifest), str(other)
            return write()

        async with system.running():
            wakes = functools.partial(world.faults.at, happens=come_between)
            await taken_at_each_write(world, pipeline, wakes, Unavailable)
        await restored(pipeline, store.path)

    asyncio.run(asyncio.wait_for(main(), 15))
