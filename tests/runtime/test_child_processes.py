"""Children that cannot be started, or end before they are told anything."""

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from stillframe.errors import Unavailable
from stillframe.imports import load_topology
from stillframe.runtime import events
from stillframe.runtime.control import LaunchSpec
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.network.connection import Credentials
from stillframe.runtime.os_process import current_process, identify, kill
from stillframe.runtime.process.fork_server import Setup
from stillframe.runtime.supervisor import fork_client
from stillframe.runtime.supervisor.child_processes import ChildProcesses, run_until_stopped
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.fork_client import WatchedProcess
from stillframe.runtime.supervisor.supervisor import Epoch, Supervisor
from stillframe.store.store import Store
from tests.runtime.links import children, until
from tests.runtime.watch import Watch, new_store, program

pytestmark = pytest.mark.slow
TIMEOUT_S = 60
Run = Callable[[Coroutine[None, None, None]], None]

UNFORTUNATE = """
import os, sys
import stillframe

class Idle(stillframe.Process):
    count: int = 0

idle = stillframe.Topology({{"A": Idle(), "B": Idle()}}, [])
if "stillframe.runtime.process.fork_server" in sys.orig_argv:
    {misfortune}
"""
END_AT_ONCE = "os.register_at_fork(after_in_child=lambda: os._exit(1))"
FORK_ONCE = """
    fork, forked = os.fork, []
    def fork_once():
        if forked:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        pid = fork()
        forked.append(pid)
        return pid
    os.fork = fork_once
"""


@pytest.fixture
def unfortunate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Store]]:
    """Make the store of the topology ``unfortunate:idle``, whose module does something when it is
    loaded where processes are forked."""

    def make(misfortune: str) -> Store:
        (tmp_path / "unfortunate.py").write_text(UNFORTUNATE.format(misfortune=misfortune))
        monkeypatch.syspath_prepend(tmp_path)
        description = load_topology("unfortunate:idle").description
        return Store.create(tmp_path / "store", description=description)

    yield make
    del sys.modules["unfortunate"]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_one_that_ends_at_once_is_named_with_its_exit_code(
    run: Run, unfortunate: Callable[..., Store]
) -> None:
    """Also if it has ended before it was told what it is."""
    store, watch = unfortunate(END_AT_ONCE), Watch()

    async def main() -> None:
        async def begin() -> None:
            async with Supervisor("unfortunate:idle", store, emit=watch.emit):
                raise AssertionError("it runs")

        async with asyncio.timeout(TIMEOUT_S):
            beginning = asyncio.ensure_future(begin())
            await watch.until(lambda: len(watch.of(events.ProcessDied)) >= 3)
            beginning.cancel()
            await asyncio.wait({beginning})

    run(main())
    store.close()
    causes = {death.cause for death in watch.of(events.ProcessDied)}
    assert causes == {"it exited with code 1 and did not say why; see its standard error"}


def test_one_that_cannot_say_it_to_the_coordinator_is_named_with_its_cause_too(
    unfortunate: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it never reached the coordinator."""
    store, watch, launch = unfortunate("pass"), Watch(), Epoch._launch

    def astray(self: Epoch, process: str, secret: bytes) -> LaunchSpec:
        nowhere = Address("127.0.0.1", 1)
        return msgspec.structs.replace(launch(self, process, secret), coordinator=nowhere)

    monkeypatch.setattr(Epoch, "_launch", astray)

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            system = Supervisor("unfortunate:idle", store, emit=watch.emit)
            beginning = asyncio.ensure_future(system.__aenter__())
            await watch.until(lambda: bool(watch.of(events.ProcessDied)))
            beginning.cancel()
            await asyncio.wait({beginning})

    asyncio.run(main())
    store.close()
    died = watch.of(events.ProcessDied)[0]
    assert died.cause.startswith("the coordinator does not answer at 127.0.0.1:1: Connection")


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_if_one_cannot_be_started_none_is_left(
    run: Run, unfortunate: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever it is: those that were started are ended, and so is what forks them."""
    begun: list[WatchedProcess] = []

    class Noted(WatchedProcess):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            begun.append(self)

    monkeypatch.setattr("stillframe.runtime.supervisor.fork_client.WatchedProcess", Noted)
    store = unfortunate(FORK_ONCE)

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            with pytest.raises(OSError, match="temporarily unavailable"):
                async with Supervisor("unfortunate:idle", store):
                    pass

    run(main())
    store.close()
    assert [started.has_terminated for started in begun] == [True, True]


def test_what_forks_them_must_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it ends at once, again and again, the system cannot start, and says so."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    store = new_store(tmp_path, "rally")

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            async with Supervisor(program("rally"), store):
                pass

    with pytest.raises(Unavailable, match="exited at once with 1"):
        asyncio.run(main())
    store.close()


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "SIGTERM"), (35, "signal 35")])
def test_one_that_a_signal_ends_is_named_with_it(number: int, name: str) -> None:
    """Also if it is a real-time signal, most of which have no name."""

    async def main() -> str:
        async with asyncio.timeout(TIMEOUT_S):
            server = fork_client.ForkServer(program("rally"))
            begun = ChildProcesses(server, lambda _: None)
            await begun.spawn("A")
            os.kill(begun.running["A"].pid, number)
            try:
                return await begun.describe_end("A")
            finally:
                await begun.stop()
                await server.close()

    assert asyncio.run(main()) == f"it was killed by {name}"


HANG = "import time; time.sleep(1000)"


def test_a_start_is_stopped_while_what_forks_them_hangs(
    unfortunate: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import may take long: the processes are awaited and named. It does not hold up who stops
    the system, and is not left behind."""
    others = children()
    monkeypatch.setattr(fork_client, "END_S", 0.1)
    store, watch = unfortunate(HANG), Watch()
    config = SupervisorConfig(timeout_s=0.01)

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            system = Supervisor("unfortunate:idle", store, config, emit=watch.emit)
            starting = asyncio.ensure_future(system.__aenter__())
            await watch.until(lambda: bool(watch.of(events.AwaitingProcesses)))
            starting.cancel()
            await asyncio.wait({starting})
            assert starting.cancelled()

    asyncio.run(main())
    store.close()
    assert children() <= others


SUPERVISOR = """
import asyncio
from stillframe.runtime.supervisor.fork_client import ForkServer
async def main():
    await ForkServer("unfortunate:idle").fork()
asyncio.run(main())
"""


def test_what_hangs_in_an_import_ends_with_its_supervisor(
    unfortunate: Callable[..., Store], tmp_path: Path
) -> None:
    """Also if that is killed."""
    unfortunate(f"print(os.getpid(), flush=True); {HANG}").close()
    search_path = os.pathsep.join((str(tmp_path), *sys.path))
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": search_path},
    ) as supervisor:
        assert supervisor.stdout is not None
        hanging = identify(int(supervisor.stdout.readline()))
        assert hanging is not None
        supervisor.kill()
        try:
            # Only it has the other end of that yet.
            ready, _, _ = select.select([supervisor.stdout], [], [], TIMEOUT_S)
        finally:
            kill(hanging)
    assert ready


def test_an_import_whose_supervisor_has_ended_does_not_begin(
    unfortunate: Callable[..., Store],
) -> None:
    """It may have ended before the kernel was asked to tell that."""
    unfortunate(HANG).close()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        setup = Setup(theirs.fileno(), "unfortunate:idle", sys.path, supervisor=2**22)
        done = subprocess.run(
            [sys.executable, "-m", "stillframe.runtime.process.fork_server"],
            input=msgspec.json.encode(setup) + b"\n",
            pass_fds=(theirs.fileno(),),
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 1


def test_what_forks_them_ends_without_a_warning(unfortunate: Callable[..., Store]) -> None:
    """Also if Python is to report each file that is left open."""
    unfortunate("pass").close()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        setup = Setup(theirs.fileno(), "unfortunate:idle", sys.path, supervisor=os.getpid())
        ours.close()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "stillframe.runtime.process.fork_server"],
            input=msgspec.json.encode(setup) + b"\n",
            pass_fds=(theirs.fileno(),),
            env=os.environ | {"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"},
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def joining() -> LaunchSpec:
    """Return what process A of ``unfortunate:idle`` must know to join from elsewhere."""
    nowhere = Address("127.0.0.1", 1)
    return LaunchSpec(
        me=Credentials("A", 0, "", b""),
        reference="unfortunate:idle",
        search_path=sys.path,
        coordinator=nowhere,
        listen=nowhere,
        supervisor=current_process(),
        orphaned_s=1.0,
        is_elsewhere=True,
    )


def test_a_process_that_joins_is_stopped_while_what_forks_it_hangs(
    unfortunate: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends as stopped, with 0, and leaves nothing behind."""
    others, told = children(), []
    monkeypatch.setattr(fork_client, "END_S", 0.1)
    unfortunate(HANG).close()

    async def main() -> int:
        async with asyncio.timeout(TIMEOUT_S):
            stop = asyncio.get_running_loop().create_future()
            running = run_until_stopped(joining(), stop, lambda what, words: told.append(what))
            ending = asyncio.ensure_future(running)
            await until(lambda: bool(children() - others))
            stop.set_result(None)
            return await ending

    assert asyncio.run(main()) == 0
    assert told == ["Started", "Stopped"]
    assert children() <= others


def test_a_process_that_joins_reports_why_its_topology_is_not_shared(
    unfortunate: Callable[..., Store],
) -> None:
    """As the supervisor does."""
    told: list[tuple[str, str]] = []
    unfortunate("import random; random.seed(7)").close()

    async def main() -> int:
        async with asyncio.timeout(TIMEOUT_S):
            stop = asyncio.get_running_loop().create_future()

            def emit(what: str, words: str) -> None:
                told.append((what, words))
                if what == "NotShared":
                    stop.set_result(None)

            return await run_until_stopped(joining(), stop, emit)

    assert asyncio.run(main()) == 0
    assert [what for what, _ in told] == ["Started", "NotShared", "Stopped"]
    assert told[1][1].endswith(": it used or seeded the generator of the module random")


def test_nothing_is_started_to_fork_from_if_all_processes_join(tmp_path: Path) -> None:
    """It would have nothing to do."""
    others = children()
    store, watch = new_store(tmp_path, "only_joining"), Watch()

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            system = Supervisor(program("only_joining"), store, emit=watch.emit)
            starting = asyncio.ensure_future(system.__aenter__())
            await watch.until(lambda: bool(watch.of(events.AwaitingProcesses)))
            assert children() <= others
            starting.cancel()
            await asyncio.wait({starting})

    asyncio.run(main())
    store.close()
