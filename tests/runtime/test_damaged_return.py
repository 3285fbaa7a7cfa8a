"""A death when the snapshot that the system would go back to is damaged."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from stillframe.errors import Damaged
from stillframe.runtime.supervisor import Supervisor
from tests.runtime.watch import Watch, new_store, program, take

pytestmark = pytest.mark.slow


def test_the_system_stops_and_goes_on_from_an_earlier_snapshot(tmp_path: Path) -> None:
    """The error names the file, and nothing is begun from it; an earlier snapshot is as good as
    it was."""
    store, watch = new_store(tmp_path, "rally"), Watch()

    async def main() -> None:
        async with asyncio.timeout(60):
            system = Supervisor(program("rally"), store, emit=watch.emit)
            await system.__aenter__()
            try:
                earlier, last = [await take(system) for _ in range(2)]
                states = store.entry(last.id).directory / "processes.parquet"
                states.write_bytes(states.read_bytes()[:-1])
                os.kill(system.children["B"].pid, signal.SIGKILL)
                with pytest.raises(Damaged, match=r"processes\.parquet"):
                    await system.finished
            finally:
                with contextlib.suppress(Damaged):
                    await system.__aexit__()
            async with Supervisor(
                program("rally"), store, emit=watch.emit, restore=earlier.id
            ) as again:
                assert (await take(again)).id.number > last.id.number

    try:
        asyncio.run(main())
    finally:
        store.close()
