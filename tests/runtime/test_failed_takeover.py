"""A supervisor that was to take the place of a dead one cannot, and leaves that to another one."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from stillframe.errors import StillframeError, StoreError, Unavailable, UsageError
from stillframe.runtime import events
from stillframe.runtime.network.addresses import LOOPBACK, Address
from stillframe.runtime.os_process import is_alive
from stillframe.runtime.run_file import read_run_file
from stillframe.runtime.supervisor import recovery
from stillframe.runtime.supervisor.config import Placement, SupervisorConfig
from stillframe.runtime.supervisor.recovery import check_placement
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.store import Store
from tests.runtime.certificate_dirs import everybody
from tests.runtime.test_takeover import kill_a_supervisor, resumed
from tests.runtime.watch import program, take

pytestmark = pytest.mark.slow


def test_a_supervisor_that_cannot_begin_leaves_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, the history cannot be written, or a process does not end: who comes next
    still knows what runs, and takes it over as it is."""

    def cannot(*_: object) -> None:
        raise StoreError("there is no room")

    async def cannot_end(*_: object) -> None:
        raise Unavailable("process 1 does not end")

    async def fails(what: str, *, takes_over: bool = True) -> None:
        store = Store.open_writer(tmp_path / "store")
        with contextlib.closing(store), pytest.raises(StillframeError, match=what):
            async with Supervisor(program("rally"), store, SupervisorConfig(takes_over=takes_over)):
                pass

    async def main() -> None:
        pids = await kill_a_supervisor(tmp_path, "rally", "waits")
        in_the_way = tmp_path / "store" / ".running.json.partial"
        in_the_way.mkdir()
        await fails("running.json could not be written: Is a directory: check that")
        in_the_way.rmdir()
        with monkeypatch.context() as patch:
            patch.setattr(recovery, "abandon_unfinished", cannot)
            await fails("there is no room")
        with monkeypatch.context() as patch:
            patch.setattr(recovery, "kill_all", cannot_end)
            await fails("process 1 does not end", takes_over=False)
        async with asyncio.timeout(60), resumed(tmp_path, "rally") as (system, watch):
            assert watch.of(events.TakenOver)
            left = read_run_file(tmp_path / "store")
            assert left is not None
            assert {name: known.pid for name, known in left.children.items()} == pids
            await take(system)
        assert read_run_file(tmp_path / "store") is None

    asyncio.run(main())


def test_what_runs_is_not_ended_for_options_that_were_forgotten(tmp_path: Path) -> None:
    """Other options than those of the start are refused as long as something runs: it goes on, and
    is taken over with the right ones. When nothing runs any more they are as good as any."""

    async def main() -> None:
        await kill_a_supervisor(tmp_path, "rally", "waits")
        left = read_run_file(tmp_path / "store")
        assert left is not None
        port = 1 + left.coordinator.port % 65535
        for site, what in (
            (Placement(elsewhere=("B",)), "the processes of this machine are now A, and were A, B"),
            (Placement(Address(LOOPBACK, port)), f"the coordinator is now at {LOOPBACK}:{port}"),
            (Placement(certificates=str(everybody())), "they run without TLS"),
        ):
            with (
                contextlib.closing(Store.open_writer(tmp_path / "store")) as store,
                pytest.raises(UsageError, match=f"{what}; give the options --listen, --tls"),
            ):
                async with Supervisor(
                    program("rally"), store, SupervisorConfig(takes_over=True, placement=site)
                ):
                    pass
        async with asyncio.timeout(60), resumed(tmp_path, "rally") as (_, watch):
            assert watch.of(events.TakenOver)
            now = read_run_file(tmp_path / "store")
            assert now is not None
            assert now.children == left.children
        assert not any(map(is_alive, left.children.values()))
        check_placement(left, Placement(elsewhere=("B",)), ("A",))

    asyncio.run(main())
