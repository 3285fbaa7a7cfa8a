"""A handler that forks, and whose child returns as if it were the process."""

import asyncio
from pathlib import Path

import pytest

from stillframe.runtime import events
from stillframe.runtime.supervisor.supervisor import Supervisor
from tests.runtime.test_supervision import hits
from tests.runtime.watch import Watch, new_store, program, take


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "handler"),
    [
        ("forking", "receive() on channel A->B"),
        ("forking_async", "receive() on channel A->B"),
        ("forking_at_cut", "on_cut()"),
    ],
)
def test_a_child_that_returns_is_ended_and_the_system_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, handler: str
) -> None:
    """It says which process and handler forked, and what to do; nothing of it is on a channel."""

    async def main() -> None:
        watch, store = Watch(), new_store(tmp_path, name)
        async with asyncio.timeout(60), Supervisor(program(name), store, emit=watch.emit) as system:
            while hits(taken := await take(system)) < 20:
                pass
            assert sum(state.sent_count for state in taken.state.channels) == hits(taken) + 1
        assert watch.of(events.ProcessDied) == []
        store.close()

    asyncio.run(main())
    said = capfd.readouterr().err
    assert f"process B: {handler} called os.fork(), and the child" in said
    assert "use the module subprocess" in said
    assert said.count("os.fork()") == 1
