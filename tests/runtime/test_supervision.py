"""Operating-system processes that raise, die or stand still, and a system that comes back."""

import asyncio
import itertools
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from stillframe.errors import ApplicationError, Unavailable, UsageError
from stillframe.model import Abandoned, Reason, Snapshot
from stillframe.runtime import events
from stillframe.runtime.run_file import find_running
from stillframe.runtime.supervisor import supervisor
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.recovery import FAILURE_COUNT_MAX, RestartStrategy
from stillframe.runtime.supervisor.supervisor import Supervisor, trigger_periodically
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from tests.runtime.watch import Watch, new_store, program, take

ROOT = Path(__file__).parent.parent.parent


def hits(snapshot: Snapshot) -> int:
    """Return how often the ball was hit in a rally."""
    states = [msgspec.msgpack.decode(state.encoded) for state in snapshot.state.processes]
    return sum(int(state["hit_count"]) for state in states)


@pytest.mark.slow
def test_a_killed_process_takes_all_back_to_the_last_snapshot(tmp_path: Path) -> None:
    """The event names the process and the signal; the rally goes on from where it was."""

    async def main() -> None:
        watch, store = Watch(), new_store(tmp_path, "rally")
        async with (
            asyncio.timeout(60),
            Supervisor(program("rally"), store, emit=watch.emit) as system,
        ):
            before = await take(system)
            left = system.socket.parent / str(system.children["A"].pid)
            left.touch()
            os.kill(system.children["B"].pid, signal.SIGKILL)
            running = await watch.until_epoch(2)
            assert running.restored_from == before.id
            # The next process with this number is not reported with what one of them wrote there.
            assert not left.exists()
            (died,) = watch.of(events.ProcessDied)
            assert (died.process, died.cause) == ("B", "it was killed by SIGKILL")
            after = await take(system)
            assert hits(after) > hits(before)
            # There is one ball, in the air or not yet taken up, and every hit sent it once.
            assert sum(state.sent_count for state in after.state.channels) == hits(after) + 1
            assert after.state.message_count == 1
        store.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_listener_that_raises_when_a_process_dies_stops_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error ends the system at once, and nothing else fails on the way."""
    failures: list[object] = []
    monkeypatch.setattr(RestartStrategy, "next_delay_s", lambda *_, **__: failures.append("a wait"))

    def refuse(event: events.Event) -> None:
        if isinstance(event, events.SnapshotAbandoned):
            raise OSError("nobody can be told")

    async def lose_one(store: Store) -> None:
        async with asyncio.timeout(60), Supervisor(program("rally"), store, emit=refuse) as system:
            os.kill(system.children["A"].pid, signal.SIGSTOP)
            _ = await system.begin_snapshot("A")
            os.kill(system.children["B"].pid, signal.SIGKILL)
            await asyncio.shield(system.finished)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
        store = new_store(tmp_path, "rally")
        with pytest.raises(OSError, match="nobody can be told"):
            await lose_one(store)
        assert failures == []
        store.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_death_after_going_back_does_not_return_to_what_was_left(tmp_path: Path) -> None:
    """After a restore to an older snapshot the newer ones are history: a process that dies takes
    the system to the older one again."""

    async def main() -> None:
        watch, store = Watch(), new_store(tmp_path, "rally")
        async with (
            asyncio.timeout(60),
            Supervisor(program("rally"), store, emit=watch.emit) as system,
        ):
            old, _, newest = [await take(system) for _ in range(3)]
            await system.restore(old.id)
            assert (await watch.until_epoch(2)).restored_from == old.id
            os.kill(system.children["A"].pid, signal.SIGKILL)
            assert (await watch.until_epoch(3)).restored_from == old.id
            next_one = await take(system)
            assert next_one.id.number > newest.id.number
            os.kill(system.children["A"].pid, signal.SIGKILL)
            assert (await watch.until_epoch(4)).restored_from == next_one.id
        store.close()

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "process", "words"),
    [
        (
            "raising",
            "B",
            (
                "process B: receive() raised on message 7 of channel A->B, Tick(serial=7): "
                "ValueError: seven is too much"
            ),
        ),
        ("raising_at_start", "A", "process A: start() raised LookupError: nowhere to begin"),
        ("raising_in_callback", "A", "process A: IndexError: pop from empty list"),
        (
            "cancelling_all",
            "A",
            (
                "process A: its code cancelled a task of Stillframe, or called sys.exit() in a "
                "task: CancelledError"
            ),
        ),
    ],
)
def test_a_program_that_keeps_failing_is_given_up_with_the_cause(
    tmp_path: Path, name: str, process: str, words: str
) -> None:
    """Three times in a row the system is taken back; then the error says what failed, and where
    it went back to, and what to do."""

    async def main() -> None:
        watch, store = Watch(), new_store(tmp_path, name)
        with pytest.raises(ApplicationError) as caught:
            async with asyncio.timeout(60), Supervisor(program(name), store, emit=watch.emit) as it:
                await it.finished
        assert str(caught.value).startswith(words)
        last = "It failed 3 times in a row, the last time after a start from the initial states"
        assert last in str(caught.value)
        assert "then continue with 'stillframe restore'" in str(caught.value)
        deaths = watch.of(events.ProcessDied)
        assert [(death.process, death.cause) for death in deaths] == (
            [(process, words)] * FAILURE_COUNT_MAX
        )
        assert "Traceback" in deaths[0].story
        assert words.rpartition(": ")[2] in deaths[0].story
        with pytest.raises(Unavailable, match="no system is running"):
            find_running(store.path)
        store.close()

    asyncio.run(main())


@pytest.mark.slow
def test_the_snapshot_that_the_last_failure_started_from_is_named(tmp_path: Path) -> None:
    """Not the one that was published after that start, which a restore goes back to."""

    async def main() -> None:
        watch, store = Watch(), new_store(tmp_path, "raising_when_published")
        system = Supervisor(program("raising_when_published"), store, emit=watch.emit)
        async with asyncio.timeout(60), system:
            for epoch in range(1, FAILURE_COUNT_MAX + 1):
                await watch.until_epoch(epoch)
                await system.snapshot()
            with pytest.raises(ApplicationError) as caught:
                await system.finished
        origins = [running.restored_from for running in watch.of(events.SystemRunning)]
        assert [str(origin) for origin in origins] == ["None", "Z-1", "Z-2"]
        assert "the last time after a start from snapshot Z-2." in str(caught.value)
        store.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_process_that_stands_still_is_named_at_the_deadline(tmp_path: Path) -> None:
    """The snapshot is abandoned and says who was missing; later ones are published again."""

    async def main() -> None:
        watch, store = Watch(), new_store(tmp_path, "pipeline")
        reference = program("pipeline")
        async with (
            asyncio.timeout(60),
            Supervisor(
                reference, store, SupervisorConfig(timeout_s=0.5), emit=watch.emit
            ) as system,
        ):
            still = system.children["C"]
            os.kill(still.pid, signal.SIGSTOP)
            outcome = await system.snapshot()
            assert isinstance(outcome, Abandoned)
            assert (outcome.reason, outcome.missing) == (Reason.DEADLINE, ("C",))
            os.kill(still.pid, signal.SIGCONT)
            while isinstance(await system.snapshot(), Abandoned):
                pass
            assert watch.of(events.ProcessDied) == []
        store.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_process_that_is_slow_to_start_is_awaited_and_not_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor names the process once and continues the first epoch, after any time."""
    hours = itertools.count(step=3600.0)
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: next(hours)))

    async def main() -> None:
        watch, store = Watch(), new_store(tmp_path, "rally")

        def emit(event: events.Event) -> None:
            watch.emit(event)
            if isinstance(event, events.EpochBegan):
                os.kill(system.children["B"].pid, signal.SIGSTOP)

        system = Supervisor(program("rally"), store, SupervisorConfig(timeout_s=0.01), emit=emit)
        starting = asyncio.ensure_future(system.__aenter__())
        async with asyncio.timeout(60):
            only_b = events.AwaitingProcesses((), ("B",))
            await watch.until(lambda: only_b in watch.events)
            os.kill(system.children["B"].pid, signal.SIGCONT)
            await starting
        assert watch.of(events.ProcessDied) == []
        assert watch.events.count(only_b) == 1
        await system.__aexit__()
        store.close()

    asyncio.run(main())


class SlowStore(Store):
    """A store that writes when it is let."""

    def wait_for(self, gate: threading.Event) -> None:
        """Write only when `gate` is set."""
        self._gate = gate

    def publish(self, snapshot: Snapshot) -> SnapshotEntry:
        """Wait, and publish."""
        assert self._gate.wait(timeout=30)
        return super().publish(snapshot)


@pytest.mark.slow
def test_a_process_that_never_comes_out_of_its_start_is_named(tmp_path: Path) -> None:
    """It has no channel that it could keep waiting: the system runs, and its part does not come."""

    async def main() -> None:
        store = new_store(tmp_path, "immovable")
        async with (
            asyncio.timeout(60),
            Supervisor(program("immovable"), store, SupervisorConfig(timeout_s=1.5)) as system,
        ):
            abandoned = await system.snapshot("A")
            assert isinstance(abandoned, Abandoned)
            assert "B does not answer" in abandoned.detail
        store.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_periodic_snapshot_is_skipped_while_one_is_under_way(tmp_path: Path) -> None:
    """It is said which one is under way; when that has ended, the next begins, in turn."""

    async def main() -> None:
        watch = Watch()
        new_store(tmp_path, "rally").close()
        store, gate = SlowStore.open_writer(tmp_path / "store"), threading.Event()
        assert isinstance(store, SlowStore)
        store.wait_for(gate)
        async with (
            asyncio.timeout(60),
            Supervisor(program("rally"), store, emit=watch.emit) as system,
        ):
            periodic = asyncio.get_running_loop().create_task(
                trigger_periodically(system, every_s=0.02, initiators=["A", "B"], emit=watch.emit)
            )
            await watch.until(lambda: len(watch.of(events.SnapshotSkipped)) >= 3)
            assert watch.of(events.SnapshotPublished) == []
            assert {str(s.pending) for s in watch.of(events.SnapshotSkipped)} == {"A-1"}
            gate.set()
            await watch.until(lambda: len(watch.of(events.SnapshotPublished)) >= 4)
            published = [str(event.entry.id) for event in watch.of(events.SnapshotPublished)]
            assert published[:4] == ["A-1", "B-2", "A-3", "B-4"]
            periodic.cancel()
            await asyncio.wait([periodic])
        store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (
            "tests.runtime.nowhere:rally",
            "there is no module 'tests.runtime.nowhere' here: run from",
        ),
        (
            "tests.runtime.programs:nothing",
            "has no topology 'nothing'; it has all_joining, cancelling_all, forking",
        ),
        ("tests/runtime/programs.py:rally", "write MODULE:TOPOLOGY, for example"),
        ("tests.runtime.programs", "write MODULE:TOPOLOGY, for example"),
        ("tests.runtime.programs:pipeline", "the code differs from that of the store"),
    ],
)
def test_a_topology_that_cannot_be_run_is_refused(
    tmp_path: Path, reference: str, words: str
) -> None:
    """Before any process is started the error says what is wrong with the reference."""

    async def main() -> None:
        store = new_store(tmp_path, "rally")
        with pytest.raises(UsageError) as caught:
            async with Supervisor(reference, store):
                raise AssertionError("it runs")
        assert words in str(caught.value)
        store.close()

    asyncio.run(main())


def test_a_system_that_cannot_listen_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the machine has no port or descriptor left, that is what the error says."""

    async def main() -> None:
        async def none_left(*_: object, **__: object) -> None:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(asyncio.get_running_loop(), "create_server", none_left)
        store = new_store(tmp_path, "rally")
        with pytest.raises(Unavailable, match=r"cannot listen on 127\.0\.0\.1: .*Too many"):
            async with Supervisor(program("rally"), store):
                raise AssertionError("it runs")
        store.close()

    asyncio.run(main())
