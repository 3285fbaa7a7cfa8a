"""Children that cannot be started, or end before they are told anything."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from stillframe.runtime import events
from stillframe.runtime.supervisor import Supervisor
from tests.runtime.watch import Watch, new_store, program

pytestmark = pytest.mark.slow
TIMEOUT_S = 60
Run = Callable[[Coroutine[None, None, None]], None]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_one_that_ends_at_once_is_named_with_its_exit_code(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it has ended before it was told what it is."""
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def main() -> None:
        store, watch = new_store(tmp_path, "rally"), Watch()

        async def begin() -> None:
            async with Supervisor(program("rally"), store, emit=watch.emit):
                raise AssertionError("it runs")

        async with asyncio.timeout(TIMEOUT_S):
            beginning = asyncio.ensure_future(begin())
            await watch.until(lambda: len(watch.of(events.ProcessDied)) >= 3)
            beginning.cancel()
            await asyncio.wait({beginning})
        store.close()
        causes = {death.cause for death in watch.of(events.ProcessDied)}
        assert causes == {"it exited with code 1"}

    run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_if_one_cannot_be_started_none_is_left(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever it is: those that were started are ended."""
    begun: list[subprocess.Popen[bytes]] = []

    class Few(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            if len(begun) == 1:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            super().__init__(*args, **options)
            begun.append(self)

    monkeypatch.setattr(subprocess, "Popen", Few)

    async def main() -> None:
        store = new_store(tmp_path, "rally")
        async with asyncio.timeout(TIMEOUT_S):
            with pytest.raises(OSError, match="temporarily unavailable"):
                async with Supervisor(program("rally"), store):
                    pass
        store.close()

    run(main())
    assert [child.poll() is not None for child in begun] == [True]
