"""``join`` from another machine: over TLS, by the coordinator's address."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stillframe import Topology, join
from stillframe.errors import Unavailable, UsageError
from stillframe.runtime import events
from stillframe.runtime.network.addresses import ANY_PORT
from stillframe.runtime.run_file import find_running
from stillframe.runtime.supervisor.config import Placement, SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.writer import local
from tests.runtime.certificate_dirs import everybody, make
from tests.runtime.programs import Books, Tick, joining
from tests.runtime.watch import Watch, new_store, program, take

SYSTEM: Topology = joining


@pytest.mark.slow
def test_a_program_joins_by_the_address_of_the_coordinator(tmp_path: Path) -> None:
    """It needs no store: its certificate says who it is, and the coordinator which epoch it is.
    After a restore it joins again; by the store it is told to join otherwise."""
    make(tmp_path / "papers", "J")

    async def main() -> None:
        watch, store, books = Watch(), new_store(tmp_path, "joining"), Books()
        site = Placement(ANY_PORT, str(tmp_path / "papers" / "coordinator"))
        system = Supervisor(
            program("joining"), store, SupervisorConfig(placement=site), emit=watch.emit
        )
        starting = asyncio.get_running_loop().create_task(system.__aenter__())
        await watch.until(lambda: bool(watch.of(events.AwaitingProcesses)))
        coordinator = str(find_running(store.path).coordinator)
        with pytest.raises(UsageError, match=f"join it with coordinator='{coordinator}'"):
            async with join("J", topology=SYSTEM, store=local(store.path), state=books):
                raise AssertionError("it joined")

        async def take_part() -> None:
            async with join(
                "J",
                topology=SYSTEM,
                state=books,
                coordinator=coordinator,
                listen="127.0.0.1",
                tls=tmp_path / "papers" / "J",
            ) as me:
                async for _, message in me:
                    books.received += 1
                    assert message == Tick(books.received)

        for epoch in (1, 2):
            passing = asyncio.get_running_loop().create_task(take_part())
            await system.until_running()
            snapshot = await take(system)
            assert snapshot.epoch == epoch
            restoring = asyncio.get_running_loop().create_task(system.restore())
            with pytest.raises(Unavailable, match="this epoch of the system has ended"):
                await passing
            restoring.cancel()
            await watch.until(
                lambda: (
                    watch.of(events.EpochBegan)[-1].epoch == len(watch.of(events.SystemRunning)) + 1
                )
            )
        await asyncio.wait([starting])
        await system.__aexit__()
        store.close()

    async def limited() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(limited())


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"coordinator": "127.0.0.1"},
        {"coordinator": "127.0.0.1", "listen": "127.0.0.1"},
        {"coordinator": "127.0.0.1", "listen": "127.0.0.1", "tls": "t", "store": "s"},
        {"store": "s", "tls": "t"},
    ],
)
def test_half_an_address_is_refused(where: dict[str, Any]) -> None:
    """A store, or coordinator, listen and tls together: nothing else is enough."""

    async def main() -> None:
        with pytest.raises(UsageError, match=r"store=\.\.\. if it runs on this machine, or"):
            async with join("J", topology=SYSTEM, state=Books(), **where):
                raise AssertionError("it joined")

    asyncio.run(main())


def test_a_coordinator_that_is_away_is_unavailable() -> None:
    """The error names the address; whoever joins tries again."""

    async def main() -> None:
        where: dict[str, Any] = {"coordinator": "127.0.0.1:1", "listen": "127.0.0.1"}
        with pytest.raises(Unavailable, match=r"does not answer at 127\.0\.0\.1:1: "):
            async with join("J", topology=SYSTEM, state=Books(), tls=everybody(), **where):
                raise AssertionError("it joined")

    asyncio.run(main())
