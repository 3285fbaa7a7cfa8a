"""A supervisor that was to take the place of a dead one cannot, and leaves that to another one."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from stillframe.errors import StillframeError, StoreError, Unavailable
from stillframe.runtime import chronicle, events
from stillframe.runtime import supervisor as supervisor_module
from stillframe.runtime.running import left_behind
from stillframe.runtime.supervisor import Supervisor
from stillframe.store.store import Store
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
            async with Supervisor(program("rally"), store, takes_over=takes_over):
                pass

    async def main() -> None:
        pids = await kill_a_supervisor(tmp_path, "rally", "waits")
        in_the_way = tmp_path / "store" / ".running.json.partial"
        in_the_way.mkdir()
        await fails("running.json could not be written: .*: see to the space")
        in_the_way.rmdir()
        with monkeypatch.context() as patch:
            patch.setattr(chronicle, "settle", cannot)
            await fails("there is no room")
        with monkeypatch.context() as patch:
            patch.setattr(supervisor_module, "end_all", cannot_end)
            await fails("process 1 does not end", takes_over=False)
        async with asyncio.timeout(60), resumed(tmp_path, "rally") as (system, watch):
            assert watch.of(events.TakenOver)
            left = left_behind(tmp_path / "store")
            assert left is not None
            assert {name: known.pid for name, known in left.children.items()} == pids
            await take(system)
        assert left_behind(tmp_path / "store") is None

    asyncio.run(main())
