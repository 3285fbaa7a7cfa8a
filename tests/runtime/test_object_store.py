"""A system whose store is in an object store: outages, restores, and a second supervisor."""

import asyncio
import contextlib
import os
import secrets
import signal

import pytest

from stillframe.errors import Fenced, StillframeError
from stillframe.imports import load_topology
from stillframe.model import Abandoned, Reason
from stillframe.runtime import events
from stillframe.runtime.os_process import current_process, identify, is_alive
from stillframe.runtime.run_file import find_running, run_file_path
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.storage import lease
from stillframe.storage.location import ObjectPath
from stillframe.store.store import Store
from tests.runtime.watch import Watch, program, take
from tests.storage.faulty import Fault, Request, faulty, restarted

pytestmark = pytest.mark.slow


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> ObjectPath:
    """An empty place in an object store; what belongs to this machine is in a test's directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return ObjectPath(f"memory://{secrets.token_hex(8)}", "store")


def made(place: ObjectPath) -> Store:
    """Make a store for the system."""
    description = load_topology(program("rally")).description
    return Store.create(place, description=description, reference=program("rally"))


def test_it_recovers_from_a_death(place: ObjectPath) -> None:
    """And is found by commands of this machine, whose run file only its user may read."""
    watch = Watch()

    async def main() -> None:
        with contextlib.closing(made(place)) as store:
            async with (
                asyncio.timeout(60),
                Supervisor(program("rally"), store, emit=watch.emit) as system,
            ):
                assert find_running(place).supervisor == current_process()
                assert run_file_path(place).stat().st_mode & 0o777 == 0o600
                first = await take(system)
                os.kill(system.children["B"].pid, signal.SIGKILL)
                await watch.until_epoch(2)
                second = await take(system)
                assert (first.epoch, second.epoch) == (1, 2)
            assert not run_file_path(place).exists()
            assert Store.open(place).restored_from == first.id
        reader = Store.open(place)
        assert reader.verify_all(lambda *_: None) == 2

    asyncio.run(main())


class Outage:
    """A plan of faults: while it `is_on`, every request is refused."""

    is_on = False

    def __call__(self, _: Request) -> Fault | None:
        """Return the fault of a request."""
        return Fault.REFUSED if self.is_on else None


def test_an_outage_costs_snapshots_and_nothing_else(place: ObjectPath) -> None:
    """They are abandoned with the cause; the system runs on, and the next one is published."""
    watch, outage = Watch(), Outage()

    async def main() -> None:
        with contextlib.closing(made(place)) as store, faulty(place, outage, repeat_s=3600.0):
            async with (
                asyncio.timeout(60),
                Supervisor(
                    program("rally"), store, SupervisorConfig(timeout_s=0.5), emit=watch.emit
                ) as system,
            ):
                first = await take(system)
                outage.is_on = True
                running = {name: known.pid for name, known in system.children.items()}
                lost = await system.snapshot()
                assert isinstance(lost, Abandoned)
                assert lost.reason is Reason.NOT_PUBLISHED
                assert "the object store answered with status 503 (SlowDown)" in lost.detail
                outage.is_on = False
                second = await take(system)
                assert {name: known.pid for name, known in system.children.items()} == running
                assert store.epoch == 1
        assert [e.id for e in Store.open(place).entries()] == [first.id, second.id]

    asyncio.run(main())


def test_a_death_in_an_outage_waits_for_its_end(place: ObjectPath) -> None:
    """The system says what it waits for, and continues from the last snapshot."""
    watch, outage = Watch(), Outage()

    async def main() -> None:
        with contextlib.closing(made(place)) as store, faulty(place, outage, repeat_s=0.0):
            async with (
                asyncio.timeout(60),
                Supervisor(program("rally"), store, emit=watch.emit) as system,
            ):
                first = await take(system)
                outage.is_on = True
                os.kill(system.children["B"].pid, signal.SIGKILL)
                await watch.until(lambda: bool(watch.of(events.StoreUnavailable)))
                outage.is_on = False
                await watch.until_epoch(2)
                assert store.restored_from == first.id

    asyncio.run(main())


@pytest.mark.parametrize("key", ["history.ndjson", "processes.parquet", "manifest.json"])
def test_a_request_that_is_denied_costs_one_snapshot(place: ObjectPath, key: str) -> None:
    """Whichever of those for a snapshot it is; the user learns which file, and why."""
    watch = Watch()
    denied = ""

    def plan(request: Request) -> Fault | None:
        is_it = denied and request.key.endswith(denied) and request.method == "put"
        return Fault.DENIED if is_it else None

    async def main() -> None:
        nonlocal denied
        with contextlib.closing(made(place)) as store, faulty(place, plan):
            async with (
                asyncio.timeout(60),
                Supervisor(program("rally"), store, emit=watch.emit) as system,
            ):
                denied = key
                lost = await system.snapshot()
                assert isinstance(lost, Abandoned)
                assert lost.reason is Reason.NOT_PUBLISHED
                assert "the credentials do not allow it" in lost.detail
                denied = ""
                published = await take(system)
        assert [entry.id for entry in Store.open(place).entries()] == [published.id]

    asyncio.run(main())


def test_a_supervisor_that_lost_its_store_stops(
    place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It publishes nothing, notifies no process, ends all of them, and says why; the other one goes
    on from the last snapshot."""
    watch, other = Watch(), Watch()
    monkeypatch.setattr(lease.Lease, "_renew", lambda _: None)

    async def main() -> None:
        async with asyncio.timeout(60):
            store = made(place)
            system = Supervisor(program("rally"), store, emit=watch.emit)
            await system.__aenter__()
            first = await take(system)
            children = [one for c in system.children.values() if (one := identify(c.pid))]
            with restarted():
                successor = await asyncio.to_thread(Store.open_writer, place)
            with contextlib.closing(successor):
                outcome = await system.snapshot()
                assert isinstance(outcome, Abandoned)
                with pytest.raises(Fenced, match="another program has taken over the store"):
                    await system.finished
                with contextlib.suppress(StillframeError):
                    await system.__aexit__()
                store.close()
                published = [one.entry.id for one in watch.of(events.SnapshotPublished)]
                assert published == [first.id]
                assert not any(map(is_alive, children))
                async with Supervisor(
                    program("rally"), successor, SupervisorConfig(restore=first.id), emit=other.emit
                ) as again:
                    second = await take(again)
        assert second.epoch == 2
        assert [e.id for e in Store.open(place).entries()] == [first.id, second.id]

    asyncio.run(main())
