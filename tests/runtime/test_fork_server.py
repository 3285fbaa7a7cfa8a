"""Processes that are forked from one program: what they have of it, and what becomes of both."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.measure import core_seconds
from bench.start import private_bytes
from stillframe.imports import load_topology
from stillframe.runtime import events
from stillframe.runtime.os_process import (
    OsProcess,
    current_process,
    identify,
    is_alive,
    kill,
    wait_for,
)
from stillframe.runtime.process.fork_server import Footprint, footprint, why_not_shared
from stillframe.runtime.run_file import find_running
from stillframe.runtime.supervisor.child_processes import UNTOLD_END
from stillframe.runtime.supervisor.fork_client import ForkServer, WatchedProcess
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.store import Store
from stillframe.store.writer import local
from tests.runtime.test_takeover import doomed, processes_of, resumed
from tests.runtime.watch import Watch, new_store, program, take

TIMEOUT_S = 60
SOURCE = """
import asyncio, atexit, gc, json, os, random, resource, secrets, signal, socket, subprocess, sys
import tempfile, threading, time, uuid
from pathlib import Path
import stillframe

LOADED_BY = os.getpid()
if "pytest" not in sys.modules:
    {at_import}

class Idle(stillframe.Process):
    count: int = 0

    def start(self):
        found = {{}}
        for descriptor in Path("/proc/self/fd").iterdir():
            try:
                found[int(descriptor.name)] = os.readlink(descriptor).partition(":")[0]
            except OSError:
                pass
        report = dict(
            pid=os.getpid(),
            loaded_by=LOADED_BY,
            standard=[found.pop(number, None) for number in (0, 1, 2)],
            others=sorted(found.values()),
            threads=threading.active_count(),
            tasks=len(os.listdir("/proc/self/task")),
            handlers=[str(signal.getsignal(n)) for n in sorted(signal.valid_signals())
                      if n not in (signal.SIGINT,)],
            interrupt=str(signal.getsignal(signal.SIGINT)),
            blocked=[str(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
            timers=[signal.getitimer(t) for t in (0, 1, 2)],
            session=os.getsid(0) == os.getpid() == os.getpgid(0),
            directory=os.getcwd(),
            mask=os.umask(0o022),
            arguments=sys.argv,
            path=sys.path,
            environment=dict(os.environ),
            encodings=[f.encoding for f in (sys.stdin, sys.stdout, sys.stderr)],
            collecting=gc.isenabled(),
            limits=[resource.getrlimit(n) for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],
            chance=[random.random(), uuid.uuid4().hex, secrets.token_hex(8),
                    Path(tempfile.mktemp()).name],
        )
        Path({where!r}, self.id).write_text(json.dumps(report))

idle = stillframe.Topology({{"A": Idle(), "B": Idle()}}, [])
"""

Make = Callable[..., Store]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Write the module ``inheriting``, whose processes say what they have, and make its store."""

    def make(at_import: str = "pass") -> Store:
        (tmp_path / "inheriting.py").write_text(
            SOURCE.format(where=str(tmp_path), at_import=at_import)
        )
        if str(tmp_path) not in sys.path:
            monkeypatch.syspath_prepend(tmp_path)
        reference = "inheriting:idle"
        description = load_topology(reference).description
        return Store.create(tmp_path / "store", description=description, reference=reference)

    yield make
    sys.modules.pop("inheriting", None)


async def reports(store: Store) -> dict[str, dict[str, Any]]:
    """Run the module, and return what each process says that it has."""
    async with asyncio.timeout(TIMEOUT_S), Supervisor("inheriting:idle", store) as system:
        await take(system)  # `start` is over then
        where = local(store.path).parent
        return {name: json.loads((where / name).read_text()) for name in system.children}


@pytest.mark.slow
def test_a_forked_process_has_what_one_has_that_was_started_by_itself(
    made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same descriptors, threads, timers, signals, environment and arguments; other chance."""
    store = made()
    forked = asyncio.run(reports(store))
    store.close()
    (tmp_path / "store").rename(tmp_path / "first")

    async def start(server: ForkServer) -> WatchedProcess:
        return WatchedProcess.start(
            (sys.executable, "-P", "-m", "stillframe.runtime.process.process_main")
        )

    monkeypatch.setattr(ForkServer, "fork", start)
    store = made()
    started = asyncio.run(reports(store))
    store.close()
    one, other = forked["A"], forked["B"]
    # It was loaded once, by neither of them.
    assert one["loaded_by"] == other["loaded_by"]
    assert one["loaded_by"] not in {one["pid"], other["pid"]}
    assert started["A"]["loaded_by"] == started["A"]["pid"]
    assert not set(one["chance"]) & set(other["chance"])
    assert one["session"]
    assert one["standard"][0] == "pipe"
    for report in (*forked.values(), *started.values()):
        for name in ("pid", "loaded_by", "chance"):
            del report[name]
    for name, value in started["A"].items():
        assert forked["A"][name] == value, name
    assert forked == started


@pytest.mark.slow
@pytest.mark.parametrize(
    "at_import",
    [
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
        "opened = open(os.devnull)",
        "made = random.Random()",
        "random.seed(7)",
        # Should the timer outlive the program that loaded the topology, it ends the next one.
        "signal.signal(14, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])",
        "os.environ['TWICE'] = os.environ.get('TWICE', '') + '1'; random.seed(7)",
        "os.chdir('tests'); random.seed(7)",
    ],
)
def test_a_topology_that_cannot_be_shared_is_loaded_by_each_process(
    made: Make, at_import: str
) -> None:
    """It has then what it made there, for itself."""
    store = made(at_import)
    found = asyncio.run(reports(store))
    store.close()
    assert [report["loaded_by"] for report in found.values()] == [
        report["pid"] for report in found.values()
    ]
    if "Thread" in at_import:
        assert found["A"]["threads"] > 1
    if "TWICE" in at_import:
        assert found["A"]["environment"]["TWICE"] == "1"


UNSHARED = "every process imports the topology separately, which is slower"


@pytest.mark.slow
def test_why_a_topology_is_not_shared_is_reported_once(made: Make, tmp_path: Path) -> None:
    """As an event before the first epoch, and not again when the system goes back; also if the
    reason names a file whose name is long and no text."""
    directory = tmp_path.joinpath(*["\udcff" + 254 * "x"] * 8)
    directory.mkdir(parents=True)
    store, watch = made(f"opened = open({str(directory / 'file')!a}, 'w')"), Watch()

    async def main() -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor("inheriting:idle", store, emit=watch.emit) as system,
        ):
            await take(system)
            await system.restore()

    asyncio.run(main())
    store.close()
    shown = str(directory).replace("\udcff", "\ufffd")
    assert watch.of(events.NotShared) == [events.NotShared(f"{UNSHARED}: it opened {shown}/file")]
    assert isinstance(watch.events[0], events.NotShared)
    assert len(watch.of(events.SystemRunning)) == 2


@pytest.mark.slow
def test_a_shared_topology_is_not_reported(made: Make) -> None:
    """There is nothing to say."""
    store, watch = made(), Watch()

    async def main() -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor("inheriting:idle", store, emit=watch.emit),
        ):
            pass

    asyncio.run(main())
    store.close()
    assert watch.of(events.SystemRunning)
    assert not watch.of(events.NotShared)


@pytest.mark.slow
def test_a_topology_is_shared_again_after_an_import_that_failed(made: Make, tmp_path: Path) -> None:
    """A process dies while its module is half saved. The next epoch meets the half; the one after
    it imports the whole module once, as the first one did."""
    module = tmp_path / "inheriting.py"

    class Mending(Watch):
        def emit(self, event: events.Event) -> None:
            if isinstance(event, events.ProcessDied) and "SyntaxError" in event.cause:
                module.write_text(whole)
            super().emit(event)

    store, watch = made(), Mending()
    whole = module.read_text()

    async def main() -> dict[str, dict[str, Any]]:
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor("inheriting:idle", store, emit=watch.emit) as system,
        ):
            module.write_text("def half(")
            system.children["A"].kill()
            await watch.until(lambda: len(watch.of(events.SystemRunning)) == 2)
            await take(system)
            return {name: json.loads((tmp_path / name).read_text()) for name in system.children}

    found = asyncio.run(main())
    store.close()
    assert len(watch.of(events.ProcessDied)) == 2
    assert found["A"]["loaded_by"] == found["B"]["loaded_by"]
    assert found["A"]["loaded_by"] not in (found["A"]["pid"], found["B"]["pid"])
    assert watch.of(events.NotShared) == [events.NotShared(f"{UNSHARED}: its import failed")]


@pytest.mark.slow
def test_a_file_that_is_changed_while_it_is_imported_is_imported_again(made: Make) -> None:
    """A process runs the code that was there when it started, not what was read before. A module
    that writes its own file at each import is imported twice, and shared."""
    store = made(
        "os.environ['CODE'] = 'first'; own = Path(__file__); "
        "own.write_text(own.read_text().replace('fir' + 'st', 'second'))"
    )
    found = asyncio.run(reports(store))
    store.close()
    one, other = found["A"], found["B"]
    assert [report["environment"]["CODE"] for report in found.values()] == ["second", "second"]
    assert one["loaded_by"] == other["loaded_by"]
    assert one["loaded_by"] not in {one["pid"], other["pid"]}


def inherited_from(pid: int) -> list[str]:
    """Return the lines of what a process hands on to its children: file mode mask, and signals."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [line for line in lines if line.startswith(("Umask:", "SigIgn:", "SigBlk:"))]


@pytest.mark.slow
def test_a_process_meets_nothing_that_another_import_left(made: Make) -> None:
    """A file mode mask, or ignored signals, which a program keeps when it begins again."""
    made("os.umask(0o077); signal.signal(signal.SIGUSR1, signal.SIG_IGN)").close()

    async def found(reference: str) -> list[str]:
        server = ForkServer(reference)
        process = await server.fork()
        lines = inherited_from(parent_of(process.pid).pid)
        process.kill()
        await process.terminated()
        await server.close()
        return lines

    async def main() -> tuple[list[str], list[str]]:
        async with asyncio.timeout(TIMEOUT_S):
            return await found("inheriting:idle"), await found(program("rally"))

    left, untouched = asyncio.run(main())
    assert len(left) == 3
    assert left == untouched


FOOTPRINTS = """
import json, os, random, signal, socket, subprocess, sys, threading, time
from stillframe.runtime.process.fork_server import footprint
from stillframe.runtime.process.fork_server import why_not_shared
for act in json.loads(sys.argv[1]):
    read, write = os.pipe()
    if os.fork() == 0:
        before = footprint()
        kept = {}
        exec(act, globals(), kept)
        os.write(write, json.dumps(why_not_shared(before, footprint())).encode())
        os._exit(0)
    os.close(write)
    print(os.read(read, 1000).decode())
    os.close(read)
"""


@pytest.mark.slow
def test_what_keeps_a_topology_from_being_shared_is_named() -> None:
    """Whatever a copy would lack, or have in common with the others; and nothing else."""
    acts = {
        "x = {number: str(number) for number in range(1000)}": None,
        "with open(os.devnull) as file: file.read()": None,
        "chance = random.SystemRandom(); chance.random()": "created a random number generator",
        "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()": "has 2 threads",
        "file = open(os.devnull)": "opened /dev/null",
        "one, other = socket.socketpair()": "opened socket:",
        "os.dup2(os.open('/dev/zero', 0), 1)": "opened /dev/zero",
        "sleeping = subprocess.Popen(['sleep', '1'])": "started process",
        "signal.setitimer(signal.ITIMER_REAL, 1000)": "set a timer",
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)": "changed a signal handler",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])": "blocked a signal",
        "import mmap; memory = mmap.mmap(-1, 64)": "created shared memory",
        "random.random()": "used or seeded",
        "chance = random.Random(7)": "created a random number generator",
        "import numpy.random; chance = numpy.random.default_rng(7)": "it ",
    }
    told = subprocess.run(
        [sys.executable, "-c", FOOTPRINTS, json.dumps(list(acts))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for (act, wanted), line in zip(acts.items(), told.splitlines(), strict=True):
        reason = json.loads(line)
        assert reason == wanted if wanted is None or reason is None else wanted in reason, act


def test_a_generator_of_numpy_is_seen_where_numpy_has_no_threads() -> None:
    """Its own is one of them: numpy never seeds it anew in a copy."""
    program = (
        "import sys; from stillframe.runtime.process.fork_server import footprint, why_not_shared\n"
        "before = footprint(); import numpy.random; print(why_not_shared(before, footprint()))"
    )
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == "it created a random number generator\n"


UNTOUCHED = Footprint(
    thread_count=1,
    descriptors={0: "/dev/null"},
    children=(7,),
    timers=(0.0, 0.0, 0.0),
    handlers=(None,),
    blocked=frozenset(),
    shared_memory=frozenset(),
    random_state=(1, 2),
    generator_count=1,
)


def test_a_topology_that_did_nothing_can_be_shared() -> None:
    """The reason is made of two footprints and nothing else."""
    assert why_not_shared(UNTOUCHED, UNTOUCHED) is None
    assert (
        why_not_shared(UNTOUCHED, msgspec.structs.replace(UNTOUCHED, descriptors={}, children=()))
        is None
    )
    assert footprint().descriptors.keys() >= {0, 1, 2}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"thread_count": 3}, "it has 3 threads"),
        ({"descriptors": {0: "/dev/null", 5: "socket:[9]"}}, "it opened socket:[9]"),
        ({"descriptors": {0: "/tmp/new"}}, "it opened /tmp/new"),
        ({"children": (7, 9, 8)}, "it started process 8"),
        ({"timers": (0.0, 2.5, 0.0)}, "it set a timer"),
        ({"handlers": (print,)}, "it changed a signal handler"),
        ({"blocked": frozenset({17})}, "it blocked a signal"),
        ({"shared_memory": frozenset({"7f00"})}, "it created shared memory"),
        ({"random_state": (1, 3)}, "it used or seeded the generator of the module random"),
        ({"generator_count": 2}, "it created a random number generator"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_topology_did_is_the_reason_not_to_share_it(
    changes: dict[str, Any], reason: str
) -> None:
    """Each thing that copies must not have is named."""
    assert why_not_shared(UNTOUCHED, msgspec.structs.replace(UNTOUCHED, **changes)) == reason


@contextlib.asynccontextmanager
async def rally(directory: Path) -> AsyncIterator[tuple[Supervisor, Watch]]:
    """Run a small system."""
    store, watch = new_store(directory, "rally"), Watch()
    try:
        async with Supervisor(program("rally"), store, emit=watch.emit) as system:
            yield system, watch
    finally:
        store.close()


def parent_of(pid: int) -> OsProcess:
    """Return the process that `pid` was forked from."""
    status = Path(f"/proc/{pid}/stat").read_text()
    found = identify(int(status.rpartition(")")[2].split()[1]))
    assert found is not None
    return found


def server_of(system: Supervisor) -> OsProcess:
    """Return what the processes of `system` are forked from: none of them, and not we."""
    parents = {parent_of(child.pid) for child in system.children.values()}
    (server,) = parents
    assert server.pid != os.getpid()
    return server


def memory_of(pid: int) -> bytes:
    """Return all that a process has in memory that can be read."""
    found = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            begin, end = (int(part, 16) for part in span.split("-"))
            if rights.startswith("rw"):
                with contextlib.suppress(OSError, ValueError, OverflowError):
                    memory.seek(begin)
                    found.append(memory.read(end - begin))
    return b"".join(found)


def shown_of(pid: int) -> bytes:
    """Return what tools show of a process."""
    return b"".join(Path(f"/proc/{pid}/{what}").read_bytes() for what in ("cmdline", "environ"))


def children_of(process: OsProcess) -> list[OsProcess]:
    """Return the processes that `process` forked and has not let go of."""
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    found = [identify(int(word)) for word in text.split()]
    return [child for child in found if child is not None]


@pytest.mark.slow
def test_the_secret_is_told_to_each_process_and_is_nowhere_else(tmp_path: Path) -> None:
    """Neither in what forks them, nor in anything that other users may look at."""

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), rally(tmp_path) as (system, _):
            secret = find_running(tmp_path / "store").secret
            server = server_of(system)
            for child in system.children.values():
                assert secret in memory_of(child.pid)
            held = memory_of(server.pid)
            assert len(held) > 2**20
            assert secret not in held
            pids = [server.pid, *(child.pid for child in system.children.values())]
            shown = [shown_of(pid) for pid in pids]
            assert not any(secret in text or secret.hex().encode() in text for text in shown)

    asyncio.run(main())


PRIVATE_BYTES_MAX = 10_000_000


@pytest.mark.slow
def test_a_plain_process_has_little_memory_to_itself(tmp_path: Path) -> None:
    """What is only read is shared with all others: that is most."""

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), rally(tmp_path) as (system, _):
            await take(system)
            found = [private_bytes(child.pid) for child in system.children.values()]
        assert 0 < max(found) < PRIVATE_BYTES_MAX

    asyncio.run(main())


@pytest.mark.slow
def test_a_system_outlives_what_its_processes_are_forked_from(tmp_path: Path) -> None:
    """They go on; a death is noticed all the same, and the next processes come from another one.
    In the end nothing is left of any."""

    async def main() -> list[OsProcess]:
        async with asyncio.timeout(TIMEOUT_S), rally(tmp_path) as (system, watch):
            server = server_of(system)
            before = {child.pid for child in system.children.values()}
            os.kill(server.pid, signal.SIGKILL)
            await asyncio.to_thread(wait_for, server)
            await take(system)
            assert {child.pid for child in system.children.values()} == before
            assert not watch.of(events.ProcessDied)
            os.kill(system.children["A"].pid, signal.SIGKILL)
            await watch.until_epoch(2)
            (died,) = watch.of(events.ProcessDied)
            assert (died.process, died.cause) == ("A", UNTOLD_END)
            other = server_of(system)
            assert other != server
            # From now on it is known again how a process ends.
            os.kill(system.children["B"].pid, signal.SIGKILL)
            await watch.until_epoch(3)
            assert watch.of(events.ProcessDied)[-1].cause == "it was killed by SIGKILL"
            assert server_of(system) == other
            children = [identify(child.pid) for child in system.children.values()]
            return [server, other, *(child for child in children if child is not None)]

    assert not any(map(is_alive, asyncio.run(main())))


@pytest.mark.slow
def test_an_end_between_two_requests_is_made_good(tmp_path: Path) -> None:
    """The next request finds it before the event loop does: another one forks the process."""

    async def main() -> None:
        server = ForkServer(program("rally"))
        first = await server.fork()
        parent = parent_of(first.pid)
        first.write_line(b"no launch")
        assert await first.wait() == 1  # until it begins it holds the connection, too
        kill(parent)
        second = await server.fork()
        assert parent_of(second.pid) not in (parent, current_process())
        second.kill()
        assert await second.wait() == -signal.SIGKILL
        await server.close()

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


@pytest.mark.slow
def test_an_end_is_noticed_though_the_connection_is_held_open(made: Make) -> None:
    """By a process that importing the topology forked: it has all descriptors."""
    made("os.fork() or time.sleep(1000)").close()

    async def main() -> None:
        server, forked = ForkServer("inheriting:idle"), []
        try:
            first = await server.fork()
            parent = parent_of(first.pid)
            forked += children_of(parent)
            assert len(forked) == 2
            kill(parent)
            second = await server.fork()
            forked += children_of(parent_of(second.pid))
            first.kill()
            assert await first.wait() is None
        finally:
            for process in forked:
                kill(process)
            await server.close()

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


@pytest.mark.slow
def test_the_processor_time_of_all_is_counted(tmp_path: Path) -> None:
    """When the system has ended, what its processes used is known here as that of our children."""

    async def main() -> float:
        async with asyncio.timeout(TIMEOUT_S), rally(tmp_path) as (system, _):
            await take(system)
            return core_seconds([child.pid for child in system.children.values()])

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = asyncio.run(main())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    counted_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert 0 < used_s <= counted_s


@pytest.mark.slow
def test_a_death_is_noticed_while_what_forks_processes_stands_still(tmp_path: Path) -> None:
    """It is the kernel that tells; how the process ended is told later."""

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), rally(tmp_path) as (system, watch):
            server = server_of(system)
            child = system.children["A"]
            os.kill(server.pid, signal.SIGSTOP)
            child.kill()
            await child.terminated()
            assert child.returncode is None
            await watch.until(lambda: bool(watch.of(events.ProcessDied)))
            os.kill(server.pid, signal.SIGCONT)
            assert await child.wait() == -signal.SIGKILL
            await watch.until_epoch(2)

    asyncio.run(main())


@pytest.mark.slow
def test_what_forks_processes_ends_with_its_supervisor_and_they_do_not(tmp_path: Path) -> None:
    """The next supervisor takes them over, notices when one ends, and forks from one of its own."""

    async def main() -> None:
        with doomed(tmp_path, "rally") as supervisor:
            pids = await processes_of(supervisor)
            (server,) = {parent_of(pid) for pid in pids.values()}
            assert server.pid != supervisor.pid
            assert parent_of(server.pid).pid == supervisor.pid
            supervisor.kill()
        await asyncio.to_thread(wait_for, server)
        async with asyncio.timeout(TIMEOUT_S), resumed(tmp_path, "rally") as (system, watch):
            assert {
                name: known.pid for name, known in find_running(system.store.path).children.items()
            } == (pids)
            os.kill(pids["A"], signal.SIGKILL)
            await watch.until_epoch(2)
            assert server_of(system) != server
            assert parent_of(server_of(system).pid).pid == os.getpid()

    asyncio.run(main())


@pytest.mark.slow
def test_a_process_whose_start_is_called_off_ends(tmp_path: Path) -> None:
    """At whatever step: it is told nothing, and who called it off hears no other error; others can
    be started as before."""

    async def main() -> None:
        server = ForkServer(program("rally"))
        server.warm()
        first = await server.fork()
        parent = parent_of(first.pid)
        for step_count in range(1, 4):
            forking = asyncio.ensure_future(server.fork())
            for _ in range(step_count):
                await asyncio.sleep(0)
            forking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await forking).kill()
        second = await server.fork()
        second.write_line(b"no launch")
        assert await second.wait() == 1
        first.kill()
        assert await first.wait() == -signal.SIGKILL
        for child in children_of(parent):
            await asyncio.to_thread(wait_for, child)
        await server.close()
        assert not is_alive(parent)

    async def timed() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await main()

    asyncio.run(timed())
