"""Promises at their edges: what must not stand still, be lost in silence, or be said too early."""

import asyncio
import functools
import shutil
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest

from stillframe import Channel, Message, Process, Topology, every
from stillframe.errors import Damaged, StillframeError, StoreError, Unavailable
from stillframe.model import Abandoned, Reason
from stillframe.restore import start_states
from stillframe.runtime import events
from stillframe.runtime.coordinator.coordinator import PENDING_COUNT_MAX
from stillframe.runtime.run_file import find_running
from stillframe.runtime.supervisor.supervisor import Supervisor, trigger_periodically
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.writer import local
from tests.runtime.local import LocalSystem
from tests.runtime.watch import Watch, new_store, program

TIMEOUT_S = 60


class Crate(Message):
    """Much at once."""

    content: str


class Flooder(Process):
    """Sends crates as fast as it can, and a heap of them at the start."""

    received_count: int = 0

    def start(self) -> None:
        """Send more than any window holds."""
        for _ in range(60):
            self.send(self.outgoing[0], Crate("x" * 100_000))

    def receive(self, channel: Channel, message: Crate) -> None:
        """Count it."""
        self.received_count += 1

    @every(ms=0)
    def flood(self) -> None:
        """Send one more."""
        self.send(self.outgoing[0], Crate("x" * 100_000))


def test_two_that_flood_each_other_do_not_hold_each_other_up(tmp_path: Path) -> None:
    """On a cycle a full channel stops actions, never the handling of messages."""

    async def main() -> None:
        topology = Topology.mesh({"A": Flooder(), "B": Flooder()})
        async with asyncio.timeout(TIMEOUT_S), LocalSystem(topology, tmp_path) as system:
            for _ in range(3):
                snapshot = await system.take()
                await system.until(
                    lambda: all(h.recorder is not None for h in system.hosts.values())
                )
            assert all(c.received_count > 60 for c in snapshot.state.channels)

    asyncio.run(main())


class Note(Message):
    """Something to react to."""

    text: str


class Writer(Process):
    """Writes a note now and then."""

    written_count: int = 0

    @every(ms=5)
    def write(self) -> None:
        """Write to everybody."""
        self.written_count += 1
        for target in self.outgoing:
            self.send(target, Note("news"))


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as decorators do, so that nobody sees that it is a coroutine function."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call


class Disguised(Process):
    """Its coroutine function is hidden behind a decorator."""

    def receive(self, channel: Channel, message: Note) -> Any:
        """Return what nobody will await."""
        coroutine = self._later()
        coroutine.close()
        return coroutine

    async def _later(self) -> None:
        """Would do the work."""


class Interrupted(Process):
    """Waits for something that is cancelled."""

    async def receive(self, channel: Channel, message: Note) -> None:
        """Meet a cancellation that is not ours."""
        raise asyncio.CancelledError


class Quitter(Process):
    """Wants to leave in the middle of a message."""

    def receive(self, channel: Channel, message: Note) -> None:
        """Exit."""
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("reader", "found"),
    [
        (Disguised(), "it returned a value.*async def"),
        (Interrupted(), "raised CancelledError"),
        (Quitter(), "raised on message 1 of channel A->B.*SystemExit: 3"),
    ],
)
def test_a_message_that_was_not_handled_is_never_passed_over(
    tmp_path: Path, reader: Process, found: str
) -> None:
    """Neither a coroutine that nobody awaits nor a cancellation that nobody expected."""

    async def main() -> None:
        topology = Topology({"A": Writer(), "B": reader}, [("A", "B")])
        async with (
            asyncio.timeout(TIMEOUT_S),
            LocalSystem(topology, tmp_path, may_fail=True) as system,
        ):
            await system.until(lambda: bool(system.failures))
            with pytest.raises(StillframeError, match=found):
                raise system.failures[0]

    asyncio.run(main())


class Mislabelled(Process):
    """Keeps words where numbers were declared."""

    seen: list[int] = field(default_factory=list)

    def receive(self, channel: Channel, message: Note) -> None:
        """Keep the wrong thing."""
        self.seen.append(message.text)  # type: ignore[arg-type]


def test_a_state_that_could_not_be_restored_is_not_published(tmp_path: Path) -> None:
    """It is abandoned with the process and the field, while the error is still harmless."""

    async def main() -> None:
        keeper = Mislabelled()
        topology = Topology({"A": Writer(), "B": keeper}, [("A", "B")])
        async with asyncio.timeout(TIMEOUT_S), LocalSystem(topology, tmp_path) as system:
            await system.until(lambda: bool(keeper.seen))
            outcome = await system.try_to_take()
            assert isinstance(outcome, Abandoned)
            assert outcome.reason is Reason.NOT_RECORDED
            assert "B: Mislabelled.seen[0] cannot be recorded: it holds a str" in outcome.detail
            assert system.store.entries() == []

    asyncio.run(main())


class Diary(Process):
    """Writes down what it does, in order."""

    lines: list[str] = field(default_factory=list)

    def receive(self, channel: Channel, message: Note) -> None:
        """Note a message."""
        self.lines.append("message")

    @every(ms=0)
    def act(self) -> None:
        """Note an action."""
        if len(self.lines) < 10_000:
            self.lines.append("action")


class AsyncDiary(Diary):
    """The same, with a coroutine function."""

    async def receive(self, channel: Channel, message: Note) -> None:  # type: ignore[override]
        """Note a message, after a while."""
        await asyncio.sleep(0)
        self.lines.append("message")


class Burst(Process):
    """Sends many notes at once, and nothing more."""

    def start(self) -> None:
        """Send them."""
        for number in range(3000):
            self.send(self.outgoing[0], Note(f"number {number}"))


@pytest.mark.parametrize("kind", [Diary, AsyncDiary])
def test_recorded_messages_come_before_any_action(tmp_path: Path, kind: type[Diary]) -> None:
    """After a restore a process first receives what was on its channels."""

    async def main() -> None:
        topology = Topology({"A": Burst(), "B": kind()}, [("A", "B")])
        async with asyncio.timeout(TIMEOUT_S), LocalSystem(topology, tmp_path / "1") as system:
            host = system.hosts["B"]
            await system.until(lambda: host.recorder is not None)
            snapshot = await system.take()
        states = start_states(snapshot, topology.description)
        recorded_count = snapshot.state.message_count
        again = Topology({"A": Burst(), "B": kind()}, [("A", "B")])
        before = kind()
        again.codecs["B"].restore(before, states["B"].encoded)
        async with (
            asyncio.timeout(TIMEOUT_S),
            LocalSystem(again, tmp_path / "2", starts=states) as system,
        ):
            diary = again.processes["B"]
            assert isinstance(diary, Diary)
            await system.until(lambda: len(diary.lines) > len(before.lines) + recorded_count)
        replayed = diary.lines[len(before.lines) :][:recorded_count]
        assert replayed == ["message"] * recorded_count

    asyncio.run(main())


def test_a_listener_that_raises_ends_the_system_with_its_error(tmp_path: Path) -> None:
    """It would go on unseen otherwise; whoever waits for a snapshot still gets it."""
    store = new_store(tmp_path, "rally")

    def emit(event: events.Event) -> None:
        if isinstance(event, events.SnapshotPublished):
            raise BrokenPipeError("nobody reads this any more")

    async def main() -> None:
        with pytest.raises(BrokenPipeError, match="nobody reads"):  # noqa: PT012 - one block
            async with (
                asyncio.timeout(TIMEOUT_S),
                Supervisor(program("rally"), store, emit=emit) as system,
            ):
                assert isinstance(await system.snapshot(), SnapshotEntry)
                await asyncio.wait([system.finished])
                await system.until_running()

    try:
        asyncio.run(main())
    finally:
        store.close()


def test_periodic_snapshots_outlive_a_crowd(tmp_path: Path) -> None:
    """When too many are under way, the one that is due is skipped, and said so."""
    store, watch = new_store(tmp_path, "rally"), Watch()

    async def main() -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(program("rally"), store, emit=watch.emit) as system,
        ):
            assert system.coordinator is not None
            first = next(iter(store.description.processes))
            crowd = [system.coordinator.begin(first) for _ in range(PENDING_COUNT_MAX)]
            periodic = asyncio.create_task(
                trigger_periodically(system, every_s=0.01, initiators=[first], emit=watch.emit)
            )
            await watch.until(lambda: bool(watch.of(events.SnapshotSkipped)))
            await asyncio.wait(crowd)
            await watch.until(lambda: len(watch.of(events.SnapshotPublished)) > len(crowd) + 1)
            assert not periodic.done()
            periodic.cancel()

    try:
        asyncio.run(main())
    finally:
        store.close()


def test_a_damaged_snapshot_does_not_cost_the_running_system(tmp_path: Path) -> None:
    """It is read before anything is ended: the wish is refused, and all goes on."""
    store, watch = new_store(tmp_path, "rally"), Watch()

    async def main() -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(program("rally"), store, emit=watch.emit) as system,
        ):
            taken = await system.snapshot()
            assert isinstance(taken, SnapshotEntry)
            damaged = local(taken.directory) / "processes.parquet"
            damaged.write_bytes(damaged.read_bytes()[:-1])
            with pytest.raises(Damaged, match=r"processes\.parquet"):
                await system.restore(taken.id)
            assert isinstance(await system.snapshot(), SnapshotEntry)
            assert store.epoch == 1

    try:
        asyncio.run(main())
    finally:
        store.close()


def test_a_copy_of_a_store_is_not_the_running_system(tmp_path: Path) -> None:
    """The file that says where the system runs is copied with the rest, and does not count."""
    store = new_store(tmp_path, "rally")

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), Supervisor(program("rally"), store):
            assert find_running(store.path).epoch == 1
            shutil.copytree(local(store.path), tmp_path / "copy")
            with pytest.raises(Unavailable, match=r"no system is running on the store .*copy"):
                find_running(tmp_path / "copy")

    try:
        asyncio.run(main())
    finally:
        store.close()


@pytest.mark.slow
def test_a_full_disk_makes_the_system_wait_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process dies while the next epoch cannot be written: it goes back when there is room."""
    store, watch = new_store(tmp_path, "rally"), Watch()
    raise_epoch = store.raise_epoch
    failing = 2

    def full_at_first(*arguments: Any) -> int:
        nonlocal failing
        if store.epoch and failing:
            failing -= 1
            raise StoreError("store.json could not be written: No space left on device")
        return raise_epoch(*arguments)

    monkeypatch.setattr(store, "raise_epoch", full_at_first)

    async def main() -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(program("rally"), store, emit=watch.emit) as system,
        ):
            await system.snapshot()
            next(iter(system.children.values())).kill()
            await watch.until_epoch(2)
        assert len(watch.of(events.StoreUnavailable)) == 2

    try:
        asyncio.run(main())
    finally:
        store.close()


def test_each_of_two_restores_at_once_is_carried_out(tmp_path: Path) -> None:
    """One after the other: nobody is told of a restore that did not happen."""
    store, watch = new_store(tmp_path, "rally"), Watch()

    async def main() -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(program("rally"), store, emit=watch.emit) as system,
        ):
            entries = [await system.snapshot(), await system.snapshot()]
            wanted = [entry.id for entry in entries if isinstance(entry, SnapshotEntry)]
            await asyncio.gather(*(system.restore(snapshot) for snapshot in wanted))
        begun = [event.restored_from for event in watch.of(events.EpochBegan)]
        assert begun == [None, *wanted]

    try:
        asyncio.run(main())
    finally:
        store.close()
