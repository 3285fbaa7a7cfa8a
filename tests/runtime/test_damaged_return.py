"""A death when the snapshot that the system would go back to is damaged."""

import asyncio
import contextlib
import os
import re
import signal
from pathlib import Path

import pytest

from stillframe.errors import Damaged
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.store import Store
from stillframe.store.writer import local
from tests.runtime.watch import Watch, new_store, program, take

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("file", ["processes.parquet", "manifest.json"])
def test_the_system_stops_and_resumes_from_an_earlier_snapshot(tmp_path: Path, file: str) -> None:
    """The error names the file, and nothing is begun from it; an earlier snapshot is as good as
    it was, also for whoever opens the store anew."""
    store, watch = new_store(tmp_path, "rally"), Watch()

    async def main() -> None:
        async with asyncio.timeout(60):
            system = Supervisor(program("rally"), store, emit=watch.emit)
            await system.__aenter__()
            try:
                earlier, last = [await take(system) for _ in range(2)]
                damaged = local(store.entry(last.id).directory) / file
                damaged.write_bytes(damaged.read_bytes()[:-1])
                os.kill(system.children["B"].pid, signal.SIGKILL)
                with pytest.raises(Damaged, match=re.escape(file)):
                    await system.finished
            finally:
                with contextlib.suppress(Damaged):
                    await system.__aexit__()
                store.close()
            with contextlib.closing(Store.open_writer(store.path)) as anew:
                async with Supervisor(
                    program("rally"), anew, SupervisorConfig(restore=earlier.id), emit=watch.emit
                ) as again:
                    assert (await take(again)).id.number > last.id.number

    asyncio.run(main())
