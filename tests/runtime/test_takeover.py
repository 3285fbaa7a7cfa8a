"""A supervisor is killed, its processes go on, and another one takes its place, or none does."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe import join
from stillframe.errors import Unavailable
from stillframe.model import Reason, Snapshot
from stillframe.runtime import events
from stillframe.runtime.control import NO_OUTPUT, OutputDirs
from stillframe.runtime.coordinator import coordinator
from stillframe.runtime.os_process import is_alive
from stillframe.runtime.process.join import JoinedProcess
from stillframe.runtime.run_file import find_running, read_run_file, write_run_file
from stillframe.runtime.supervisor.child_processes import UNKNOWN_END
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.history import (
    EpochBegan,
    ProcessDied,
    SnapshotAbandoned,
    SnapshotBegan,
    SnapshotPublished,
    TakenOver,
    read_history,
)
from stillframe.store.store import Store
from tests.nightly import by_night
from tests.runtime.links import until
from tests.runtime.programs import Books, joining
from tests.runtime.test_join import check_books, pass_on
from tests.runtime.watch import Watch, program, take

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent


@contextlib.contextmanager
def doomed(place: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``doomed.py``; what it leaves has its standard output too, which is not waited for."""
    command = [sys.executable, "-m", "tests.runtime.doomed", str(place), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as program:
        try:
            yield program
        finally:
            program.kill()


async def processes_of(supervisor: subprocess.Popen[str]) -> dict[str, int]:
    """Return the processes of a supervisor that says them when its system runs."""
    assert supervisor.stdout is not None
    words = (await asyncio.to_thread(supervisor.stdout.readline)).split()
    return {name: int(pid) for name, _, pid in (word.partition("=") for word in words)}


async def kill_a_supervisor(place: Path, *arguments: str, waits: bool = True) -> dict[str, int]:
    """Run ``doomed.py`` until it is dead; return the processes that it left, by name."""
    with doomed(place, *arguments) as supervisor:
        pids = await processes_of(supervisor)
        if waits:
            supervisor.kill()
        assert await asyncio.to_thread(supervisor.wait) == -signal.SIGKILL
    return pids


@contextlib.asynccontextmanager
async def resumed(
    place: Path, name: str, *, return_s: float = 15.0, traces: OutputDirs = NO_OUTPUT
) -> AsyncIterator[tuple[Supervisor, Watch]]:
    """Take over what runs on the store in `place`."""
    watch, store = Watch(), Store.open_writer(place / "store")
    options: dict[str, Any] = {"timeout_s": 30.0, "takes_over": True, "return_s": return_s}
    system = Supervisor(
        program(name), store, SupervisorConfig(outputs=traces, **options), emit=watch.emit
    )
    try:
        async with system:
            yield system, watch
    finally:
        store.close()


def hits(snapshot: Snapshot) -> int:
    """Return how often the ball was hit; there is one ball, and every hit sent it once."""
    states = [msgspec.msgpack.decode(state.encoded) for state in snapshot.state.processes]
    hit_count = sum(int(state["hit_count"]) for state in states)
    assert sum(state.sent_count for state in snapshot.state.channels) == hit_count + 1
    return hit_count


def told(snapshot: Snapshot) -> list[list[str]]:
    """Return which snapshots each process was told of."""
    states = [msgspec.msgpack.decode(state.encoded) for state in snapshot.state.processes]
    return [state["published"] for state in states]


def check_history(path: Path) -> None:
    """Check that each snapshot got a number of its own and ended once, and that those which were
    published are those in the store."""
    happened = [line.what for line in read_history(path)]
    begun = [what.snapshot for what in happened if isinstance(what, SnapshotBegan)]
    assert len({snapshot.number for snapshot in begun}) == len(begun)
    published = [what.snapshot for what in happened if isinstance(what, SnapshotPublished)]
    abandoned = [what.snapshot for what in happened if isinstance(what, SnapshotAbandoned)]
    assert sorted(published + abandoned) == sorted(begun)
    assert [entry.id for entry in Store.open(path).entries()] == published


@pytest.mark.parametrize(
    ("moment", "is_published"),
    [
        ("numbered", False),
        ("begun", False),
        ("a part is in", False),
        ("is written", False),
        ("published", True),
        ("said", True),
    ],
)
def test_a_system_goes_on_when_its_supervisor_dies_in_a_snapshot(
    tmp_path: Path, moment: str, is_published: bool
) -> None:
    """The same processes, the same epoch, nothing lost; the snapshot was published, and everybody
    is told of it then, or it is abandoned; the next one has another number."""

    async def main() -> None:
        pids = await kill_a_supervisor(tmp_path, "rally", moment, waits=False)
        async with asyncio.timeout(60), resumed(tmp_path, "rally") as (system, watch):
            (taken_over,) = watch.of(events.TakenOver)
            assert taken_over.epoch == 1
            left = read_run_file(tmp_path / "store")
            assert left is not None
            assert {name: known.pid for name, known in left.children.items()} == pids
            abandoned = [event.abandoned for event in watch.of(events.SnapshotAbandoned)]
            assert [(str(a.snapshot), a.reason) for a in abandoned] == (
                [] if is_published else [("A-2", Reason.COORDINATOR_DIED)]
            )
            after = await take(system)
            assert (str(after.id), after.epoch) == ("A-3", 1)
            known = ["A-1", "A-2"] if is_published else ["A-1"]
            assert told(after) == [known, known]
            first = system.store.load(system.store.entries()[0].id)
            assert hits(after) > hits(first)
            assert not watch.of(events.EpochBegan)
            assert not watch.of(events.ProcessDied)
        check_history(tmp_path / "store")
        kinds = [type(line.what) for line in read_history(tmp_path / "store")]
        assert kinds.count(TakenOver) == kinds.count(EpochBegan) == 1

    asyncio.run(main())


def test_a_clock_that_was_set_back_does_not_keep_new_snapshots_from_being_restore_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new supervisor's clock goes on from what the store has of this epoch."""

    async def main() -> None:
        await kill_a_supervisor(tmp_path, "rally", "waits")
        a_day_ago = types.SimpleNamespace(
            time=lambda: time.time() - 86_400, monotonic=time.monotonic
        )
        monkeypatch.setattr(coordinator, "time", a_day_ago)
        async with asyncio.timeout(60), resumed(tmp_path, "rally") as (system, _):
            await take(system)
            first, second = system.store.entries()
            assert second.is_restore_point
            assert first.completed_at <= second.initiated_at <= second.completed_at

    asyncio.run(main())


def resume_and_be_killed(path: Path) -> list[str]:
    """Resume by the command line, kill that after a few events, and return them."""
    command = [sys.executable, "-m", "stillframe", "resume", str(path)]
    options = ["--every", "20ms", "--json"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as successor:
        assert successor.stdout is not None
        lines = [successor.stdout.readline() for _ in range(6)]
        successor.kill()
    return lines


@pytest.mark.nightly(part="soak")
def test_a_system_outlives_one_supervisor_after_another(tmp_path: Path) -> None:
    """Each is killed while snapshots are taken; the processes never notice, and the history has
    every snapshot once."""

    async def main() -> None:
        pids = await kill_a_supervisor(tmp_path, "rally", "waits")
        hit_count = 0
        for _ in range(by_night(10, check=2)):
            lines = await asyncio.to_thread(resume_and_be_killed, tmp_path / "store")
            assert any("TakenOver" in line for line in lines)
            assert not any("EpochBegan" in line for line in lines)
        async with asyncio.timeout(60), resumed(tmp_path, "rally") as (system, _):
            left = read_run_file(tmp_path / "store")
            assert left is not None
            assert {name: known.pid for name, known in left.children.items()} == pids
            for entry in system.store.entries():
                now = hits(system.store.load(entry.id))
                assert now > hit_count
                hit_count = now
        check_history(tmp_path / "store")

    asyncio.run(main())


def test_a_process_that_died_meanwhile_takes_all_back(tmp_path: Path) -> None:
    """Those that still run are ended first; the event says what is known of the death."""

    async def main() -> None:
        pids = await kill_a_supervisor(tmp_path, "rally", "waits")
        left = read_run_file(tmp_path / "store")
        assert left is not None
        os.kill(pids["A"], signal.SIGKILL)
        async with asyncio.timeout(60), resumed(tmp_path, "rally") as (system, watch):
            running = await watch.until_epoch(2)
            assert str(running.restored_from) == "A-1"
            (died,) = watch.of(events.ProcessDied)
            assert (died.process, died.cause) == ("A", UNKNOWN_END)
            assert watch.of(events.TakenOver) == []
            assert not is_alive(left.children["B"])
            await take(system)
        deaths = [line.what for line in read_history(tmp_path / "store")]
        assert ProcessDied("A", UNKNOWN_END) in deaths
        check_history(tmp_path / "store")

    asyncio.run(main())


def test_a_system_of_which_nothing_runs_any_more_goes_back(tmp_path: Path) -> None:
    """Without a word about deaths: everything is gone, as after a restart of the machine."""

    async def main() -> None:
        for pid in (await kill_a_supervisor(tmp_path, "rally", "waits")).values():
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(until_ended, pid)
        async with asyncio.timeout(60), resumed(tmp_path, "rally") as (_, watch):
            assert str((await watch.until_epoch(2)).restored_from) == "A-1"
            assert not watch.of(events.TakenOver)
            assert not watch.of(events.ProcessDied)
            assert not watch.of(events.OrphansKilled)

    asyncio.run(main())


def test_processes_end_when_nobody_takes_over(tmp_path: Path) -> None:
    """Also one whose handler never returns; who asks for the system hears how to bring it back."""

    async def main() -> None:
        for name in ("rally", "stubborn"):
            place = tmp_path / name
            place.mkdir()
            pids = await kill_a_supervisor(place, name, "", "0.3")
            for pid in pids.values():
                await asyncio.to_thread(until_ended, pid)
            with pytest.raises(Unavailable, match="start a new one with 'stillframe resume "):
                find_running(place / "store")

    asyncio.run(main())


def until_ended(pid: int) -> None:
    """Wait until a process that need not be our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([descriptor], [], [], 20)
        assert ready, f"process {pid} did not end"
    finally:
        os.close(descriptor)


def test_a_new_epoch_begins_only_when_the_old_processes_are_ended(tmp_path: Path) -> None:
    """A restore that is no takeover ends what still runs, and says so."""

    async def main() -> None:
        await kill_a_supervisor(tmp_path, "rally", "waits")
        left = read_run_file(tmp_path / "store")
        assert left is not None
        assert all(map(is_alive, left.children.values()))
        watch, store = Watch(), Store.open_writer(tmp_path / "store")
        async with (
            asyncio.timeout(60),
            Supervisor(program("rally"), store, emit=watch.emit) as system,
        ):
            kinds = [type(event) for event in watch.events]
            assert kinds == [events.OrphansKilled, events.EpochBegan, events.SystemRunning]
            assert not any(map(is_alive, left.children.values()))
            assert not Path(left.commands).parent.exists()
            await take(system)
        store.close()

    asyncio.run(main())


def test_a_port_in_strange_hands_ends_what_would_come_back_to_it(tmp_path: Path) -> None:
    """The system goes back to its last snapshot, at another port, and the event says why."""

    async def main() -> None:
        await kill_a_supervisor(tmp_path, "rally", "waits")
        left = read_run_file(tmp_path / "store")
        assert left is not None
        where = ("127.0.0.1", left.coordinator.port)
        with socket.create_server(where):
            async with asyncio.timeout(60), resumed(tmp_path, "rally") as (_, watch):
                (ended,) = watch.of(events.OrphansKilled)
                assert ended.processes == ("A", "B")
                assert f"('127.0.0.1', {left.coordinator.port})" in ended.reason
                assert str((await watch.until_epoch(2)).restored_from) == "A-1"
                assert find_running(tmp_path / "store").coordinator.port != left.coordinator.port

    asyncio.run(main())


def is_announced(place: Path) -> bool:
    """Return whether a supervisor runs that has said where it can be reached."""
    with contextlib.suppress(FileNotFoundError):
        left = read_run_file(place)
        return left is not None and is_alive(left.supervisor)
    return False


@contextlib.asynccontextmanager
async def joined_to_a_dead(directory: Path, books: Books) -> AsyncIterator[JoinedProcess]:
    """Join a system whose supervisor is dead by the time that the body begins."""
    place = directory / "store"
    with doomed(directory, "joining") as supervisor:
        await until(lambda: is_announced(place))
        async with join("J", topology=joining, store=place, state=books) as me:
            await processes_of(supervisor)
            supervisor.kill()
            await asyncio.to_thread(supervisor.wait)
            yield me


def test_a_joined_program_goes_on_and_comes_back(tmp_path: Path) -> None:
    """Its coordinator dies and another one comes: the loop of the program does not notice. When the
    epoch then ends it is told so."""
    place, books = tmp_path / "store", Books()

    async def main() -> None:
        async with joined_to_a_dead(tmp_path, books) as me:
            passing = asyncio.get_running_loop().create_task(pass_on(me, books))
            before = books.received
            await until(lambda: books.received > before)
            async with resumed(tmp_path, "joining") as (system, watch):
                assert len(watch.of(events.TakenOver)) == 1
                check_books(await take(system))
                os.kill(find_running(place).children["S"].pid, signal.SIGKILL)
                with pytest.raises(Unavailable, match="this epoch of the system has ended"):
                    await passing
                await watch.until(lambda: len(watch.of(events.EpochBegan)) == 1)
                async with join("J", topology=joining, store=place, state=books) as again:
                    await system.until_running()
                    assert again.id == "J"

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_joined_program_whose_epoch_has_ended_can_join_the_next(tmp_path: Path) -> None:
    """Its coordinator dies, and the system is restored instead of taken over: what a program does
    when an epoch ends, it does now too. The same if what it has read of the system is old."""
    place = tmp_path / "store"

    async def main() -> None:
        async with joined_to_a_dead(tmp_path, Books()) as me:
            passing = asyncio.get_running_loop().create_task(pass_on(me, Books()))
            old = read_run_file(place)
            assert old is not None
            store = Store.open_writer(place)
            system = Supervisor(program("joining"), store)
            starting = asyncio.get_running_loop().create_task(system.__aenter__())
            with pytest.raises(Unavailable, match="epoch 1 has ended: this is epoch 2"):
                await passing
        await until(lambda: read_run_file(place) != old)
        new = read_run_file(place)
        assert new is not None
        write_run_file(place, msgspec.structs.replace(old, supervisor=new.supervisor))
        with pytest.raises(Unavailable, match="epoch 1 has ended: this is epoch 2"):
            async with join("J", topology=joining, store=place, state=Books()):
                raise AssertionError("it joined")
        write_run_file(place, new)
        async with join("J", topology=joining, store=place, state=Books()):
            await starting
        await system.__aexit__()
        store.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_joined_program_that_begins_anew_ends_the_epoch(tmp_path: Path) -> None:
    """What it was is gone, so the system goes back; the program is told to join again."""
    place = tmp_path / "store"

    async def main() -> None:
        async with joined_to_a_dead(tmp_path, Books()):
            pass
        watch, store = Watch(), Store.open_writer(place)
        system = Supervisor(
            program("joining"), store, SupervisorConfig(takes_over=True), emit=watch.emit
        )
        starting = asyncio.get_running_loop().create_task(system.__aenter__())
        await until(lambda: is_announced(place))
        with pytest.raises(Unavailable, match="'J' started again: join again"):
            async with join("J", topology=joining, store=place, state=Books()):
                raise AssertionError("it joined")
        await watch.until(lambda: bool(watch.of(events.AwaitingProcesses)))
        async with join("J", topology=joining, store=place, state=Books()):
            await starting
        await system.__aexit__()
        store.close()

    asyncio.run(asyncio.wait_for(main(), 60))
