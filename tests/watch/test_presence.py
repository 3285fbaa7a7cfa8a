"""A system that says nothing may be starting, stand still or be gone: each is told apart."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import msgspec
import pytest
import uvloop

from stillframe.errors import StillframeError
from stillframe.protocol import wire
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.os_process import OsProcess, current_process, identify, is_stopped
from stillframe.runtime.run_file import RunFile, identity, write_run_file
from stillframe.runtime.supervisor.admin_socket import SystemStatus
from stillframe.store.store import Store
from stillframe.watch import system_target, target
from stillframe.watch.metrics import MetricSet, exposition
from stillframe.watch.predicate_status import PredicateMonitor
from stillframe.watch.system_target import SystemTarget
from tests.watch.published import REFERENCE, new_store
from tests.watch.scraping import OPEN_METRICS, Scrape
from tests.watch.servers import until


@pytest.fixture
def supervisor() -> Iterator[OsProcess]:
    """A process that lives as long as the test wants."""
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    found = identify(process.pid)
    assert found is not None
    yield found
    process.kill()
    process.communicate()


def target_of(directory: Path, supervisor: OsProcess) -> SystemTarget:
    """Return what observes a system whose supervisor has announced it, and takes no commands."""
    new_store(directory).close()
    store = Store.open(directory / "store")
    system = RunFile(
        supervisor=supervisor,
        directory=identity(store.path),
        epoch=1,
        topology_hash=store.description.hash,
        coordinator=Address("127.0.0.1", 1),
        has_tls=False,
        secret=b"",
        commands=str(directory / "commands"),
        children={},
        pipeline=None,
        protocol_version=wire.VERSION,
    )
    write_run_file(store.path, system)
    return SystemTarget(store, PredicateMonitor(store, (), REFERENCE), None)


def scraped(watched: SystemTarget) -> Scrape:
    """Return what it tells whoever scrapes."""
    text, _ = exposition(asyncio.run(watched.metrics()), OPEN_METRICS)
    return Scrape(text.decode(), is_open=True)


def test_a_system_that_starts_is_not_silent_and_one_that_stands_still_is(
    tmp_path: Path, supervisor: OsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait long for processes to join: nothing is wrong then."""
    monkeypatch.setattr(target, "FRESH_S", 0.0)
    watched = target_of(tmp_path, supervisor)
    scrape = scraped(watched)
    assert scrape.of("processes", status="starting") == 2
    assert scrape.of("process_silent", process="A") == 0
    assert scrape.of("watch_error", about="system") == 0
    assert "waits for processes to join" in watched.explanation
    os.kill(supervisor.pid, signal.SIGSTOP)
    until(lambda: is_stopped(supervisor), "it stands still")
    scrape = scraped(watched)
    assert scrape.of("processes", status="silent") == 2
    assert scrape.of("watch_error", about="system") == 1
    os.kill(supervisor.pid, signal.SIGKILL)
    until(lambda: scraped(watched).of("processes", status="stopped") == 2, "it is gone")
    assert scraped(watched).of("watch_error", about="system") == 0


def test_a_system_of_another_container_is_silent(tmp_path: Path) -> None:
    """This program cannot see whether it runs, so it is not called stopped."""
    apart = msgspec.structs.replace(current_process(), space=1)
    scrape = scraped(target_of(tmp_path, apart))
    assert scrape.of("processes", status="silent") == 2


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_system_that_takes_no_more_connections_is_silent(
    run: Callable[[Coroutine[None, None, MetricSet]], MetricSet],
    tmp_path: Path,
    supervisor: OsProcess,
) -> None:
    """It has not answered those who asked before, and does not start."""
    watched = target_of(tmp_path, supervisor)
    with contextlib.ExitStack() as stack:
        nobody = stack.enter_context(socket.socket(socket.AF_UNIX))
        nobody.bind(str(tmp_path / "commands"))
        nobody.listen(0)
        is_full = False
        while not is_full:
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            try:
                waiting.connect(str(tmp_path / "commands"))
            except BlockingIOError:
                is_full = True
        text, _ = exposition(run(watched.metrics()), OPEN_METRICS)
    scrape = Scrape(text.decode(), is_open=True)
    assert scrape.of("processes", status="silent") == 2
    assert scrape.of("watch_error", about="system") == 1
    assert "hangs, or too many clients are connected" in watched.explanation


def test_who_scrapes_while_somebody_looks_is_told_what_was_seen_last(
    tmp_path: Path, supervisor: OsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing that is half of it, half of the look before."""
    watched = target_of(tmp_path, supervisor)
    read = watched._read

    async def fails(*_: object) -> SystemStatus:
        raise StillframeError("what it says cannot be read")

    async def hangs(*_: object) -> SystemStatus:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> Scrape:
        async def read_while_somebody_looks() -> None:
            monkeypatch.setattr(system_target, "query_status", hangs)
            looking.append(asyncio.ensure_future(watched.poll()))
            await asyncio.sleep(0)
            await read()

        looking: list[asyncio.Future[None]] = []
        monkeypatch.setattr(system_target, "query_status", fails)
        monkeypatch.setattr(watched, "_read", read_while_somebody_looks)
        text, _ = exposition(await watched.metrics(), OPEN_METRICS)
        looking[0].cancel()
        return Scrape(text.decode(), is_open=True)

    scrape = asyncio.run(main())
    assert scrape.of("processes", status="silent") == 2
    assert scrape.of("watch_error", about="system") == 1
