"""What comes after a snapshot for which a part is missing, in systems that run."""

import asyncio
import os
import signal
import threading
from dataclasses import field
from pathlib import Path

import msgspec
import pytest

from stillframe import Keyed, Process, SnapshotId, Topology, every
from stillframe.errors import StillframeError
from stillframe.model import Abandoned, Reason, Snapshot
from stillframe.protocol.policy import TRY_COUNT_MAX, Policy
from stillframe.runtime import control, events
from stillframe.runtime.process.host import Host
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.state_codec import StateCodec
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from tests.runtime.local import LocalSystem
from tests.runtime.programs import Sink, Source
from tests.runtime.watch import Watch, new_store, program

TIMEOUT_S = 60
SHORT_S = 0.2
"""So long a snapshot may take that waits for a process that stands still."""


class Alone(Process):
    """Counts in long actions: each ends when it is let end."""

    gate = asyncio.Event()
    count: int = 0
    seen: Keyed[int, int] = field(default_factory=Keyed)
    told: list[str] = field(default_factory=list)

    @every(ms=1)
    async def act(self) -> None:
        """Count, and wait to be let go on."""
        self.count += 1
        self.seen[self.count] = self.count
        await Alone.gate.wait()

    def on_published(self, snapshot: SnapshotId) -> None:
        """Note it."""
        self.told.append(str(snapshot))


def loose(alone: Process) -> Topology:
    """Return a system in which A sends to B, and R is alone."""
    return Topology({"A": Source(limit=3), "B": Sink(), "R": alone}, [("A", "B")])


async def take_without_r(system: LocalSystem) -> SnapshotEntry:
    """Take a snapshot for which R is too late, once A and B are not."""
    config = system.coordinator._config
    system.coordinator._config = msgspec.structs.replace(config, timeout_s=SHORT_S)
    while isinstance(outcome := await system.try_to_take(), Abandoned):
        pass
    system.coordinator._config = config
    return outcome


def fields_of(system: LocalSystem, snapshot: SnapshotId) -> Alone:
    """Return R as the store has it."""
    state = system.store.load(snapshot).state.processes[2]
    alone = Alone()
    StateCodec(Alone).restore(alone, state.encoded)
    assert dict(alone.seen) == {number: number for number in range(1, alone.count + 1)}
    return alone


def test_a_process_without_channels_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    """Its state is the one that it recorded last, keyed fields and all; it is not told that its own
    cut is safe; and what changed meanwhile is in the next snapshot."""

    async def main() -> None:
        Alone.gate = asyncio.Event()
        Alone.gate.set()
        alone = Alone()
        async with (
            asyncio.timeout(TIMEOUT_S),
            LocalSystem(loose(alone), tmp_path, policy=Policy.EXCLUDE) as system,
        ):
            host = system.hosts["R"]
            first = await system.take()
            assert first.excluded == {}
            await system.until(lambda: alone.told == [str(first.id)])
            Alone.gate.clear()
            await system.until(lambda: is_in_action(host))
            second = await take_without_r(system)
            assert second.excluded == {"R": first.id}
            assert system.store.load(second.id).excluded == {"R": first.id}
            before, then = fields_of(system, first.id), fields_of(system, second.id)
            assert alone.count > then.count == before.count
            third = await take_without_r(system)
            assert third.excluded == {"R": first.id}
            Alone.gate.set()
            last = await system.take()
            assert last.excluded == {}
            assert fields_of(system, last.id).count > before.count
            await system.until(lambda: len(alone.told) == 2)
            assert alone.told == [str(first.id), str(last.id)]

    asyncio.run(main())


def is_in_action(host: Host) -> bool:
    """Return whether R is in the middle of an action."""
    return host.is_busy


class Spoilt(Process):
    """Holds what no snapshot can record, while it is spoilt."""

    count: int = 0

    def spoil(self) -> None:
        """Hold what is not declared."""
        self.hidden = 1

    def mend(self) -> None:
        """Let go of it."""
        del self.hidden


def test_one_that_cannot_record_is_left_out_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an earlier snapshot has a state of it; the reason says so if none has."""

    async def main() -> None:
        spoilt = Spoilt()
        async with (
            asyncio.timeout(TIMEOUT_S),
            LocalSystem(loose(spoilt), tmp_path, policy=Policy.EXCLUDE) as system,
        ):
            spoilt.spoil()
            outcome = await system.try_to_take()
            assert isinstance(outcome, Abandoned)
            assert outcome.reason is Reason.NOT_RECORDED
            assert "R cannot be excluded: no snapshot has its state yet" in outcome.detail
            spoilt.mend()
            first = await system.take()
            spoilt.spoil()
            told: list[control.ToProcess] = []
            connection = system.coordinator.membership._connections["R"]
            send_really = connection.send

            def send(message: control.ToProcess) -> None:
                told.append(message)
                send_really(message)

            monkeypatch.setattr(connection, "send", send)
            second = await system.take()
            assert second.excluded == {"R": first.id}
            # Of its own cut, if it records one yet, it must not think that it is in the store.
            assert [type(message) for message in told] == [control.Initiate, control.Abandon]
            # Nor when it comes back: it would be told of the newest that it may know.
            assert system.coordinator._announced == {"A": second.id, "B": second.id, "R": first.id}

    asyncio.run(main())


def test_a_process_never_goes_back_behind_what_it_was_told_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left out while a newer state of it is still being written: by the time that its older
    one would be published, it has been notified of the newer one."""
    gate = threading.Event()

    async def main() -> None:
        spoilt = Spoilt()
        async with (
            asyncio.timeout(TIMEOUT_S),
            LocalSystem(loose(spoilt), tmp_path, policy=Policy.EXCLUDE) as system,
        ):
            await system.take()
            publish, pending = system.store.publish, system.coordinator._assembler

            def publish_late(snapshot: Snapshot) -> SnapshotEntry:
                assert gate.wait(TIMEOUT_S)
                return publish(snapshot)

            monkeypatch.setattr(system.store, "publish", publish_late)
            second = system.coordinator.begin("A")
            await system.until(lambda: not pending.pending)
            spoilt.spoil()
            third = system.coordinator.begin("A")
            await system.until(lambda: not pending.pending)
            gate.set()
            await system.until(lambda: second.done() and third.done())
            assert isinstance(point := second.result(), SnapshotEntry)
            assert isinstance(outcome := third.result(), Abandoned)
            assert f"R was excluded with its state in A-1, before {point.id}" in outcome.detail
            fourth = await system.take()
            assert fourth.excluded == {"R": point.id}

    asyncio.run(main())


def test_one_with_channels_is_never_left_out(tmp_path: Path) -> None:
    """The snapshot is abandoned, and the reason says why it would lie."""

    async def main() -> None:
        spoilt = Spoilt()
        topology = Topology({"A": Source(limit=3), "B": spoilt}, [("B", "A")])
        async with (
            asyncio.timeout(TIMEOUT_S),
            LocalSystem(topology, tmp_path, policy=Policy.EXCLUDE) as system,
        ):
            await system.take()
            spoilt.spoil()
            outcome = await system.try_to_take()
            assert isinstance(outcome, Abandoned)
            assert "B cannot be excluded: it has channels (B->A)" in outcome.detail

    asyncio.run(main())


@pytest.mark.slow
def test_after_a_restore_the_state_is_the_one_that_the_epoch_began_with(tmp_path: Path) -> None:
    """Nothing has been published in this epoch, and yet there is a recorded state."""

    async def main() -> None:
        store = new_store(tmp_path, "separate")
        async with asyncio.timeout(TIMEOUT_S):
            async with Supervisor(program("separate"), store) as system:
                first = await system.snapshot()
            assert isinstance(first, SnapshotEntry)
            async with Supervisor(
                program("separate"),
                store,
                SupervisorConfig(timeout_s=1.0, restore=first.id, policy=Policy.EXCLUDE),
            ) as system:
                os.kill(system.children["R"].pid, signal.SIGSTOP)
                while isinstance(outcome := await system.snapshot(), Abandoned):
                    pass
            assert outcome.excluded == {"R": first.id}
            loaded, began = store.load(outcome.id), store.load(first.id)
            assert loaded.state.processes[2] == began.state.processes[2]
        store.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_snapshot_is_tried_again_from_another_initiator(tmp_path: Path) -> None:
    """Not from the one that held it up; who asked gets the outcome of the last try."""

    async def main() -> None:
        watch, store = Watch(), new_store(tmp_path, "trio")
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(
                program("trio"),
                store,
                SupervisorConfig(timeout_s=1.0, policy=Policy.RETRY),
                emit=watch.emit,
            ) as system,
        ):
            still = system.children["B"]
            os.kill(still.pid, signal.SIGSTOP)
            outcome = await system.snapshot("A")
            assert isinstance(outcome, Abandoned)
            told = watch.of(events.SnapshotAbandoned)
            tries = [str(event.abandoned.snapshot) for event in told]
            assert tries == ["A-1", "C-2", "A-3"]
            assert len(tries) == TRY_COUNT_MAX
            assert [str(event.retried_as) for event in told] == ["C-2", "A-3", "None"]
            assert outcome == told[-1].abandoned
            result = await system.begin_snapshot("A")
            await watch.until(lambda: len(watch.of(events.SnapshotAbandoned)) == 4)
            os.kill(still.pid, signal.SIGCONT)
            entry = await result
            assert isinstance(entry, SnapshotEntry)
            assert str(entry.id) in {"C-5", "A-6"}
        store.close()

    asyncio.run(main())


@pytest.mark.slow
def test_too_many_abandoned_in_a_row_end_the_system(tmp_path: Path) -> None:
    """The error names the last of them with who was missing; tries of one count once."""

    async def run(store: Store, watch: Watch) -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(
                program("separate"),
                store,
                SupervisorConfig(timeout_s=0.3, policy=Policy.RETRY, tolerated_count=1),
                emit=watch.emit,
            ) as system,
        ):
            os.kill(system.children["R"].pid, signal.SIGSTOP)
            for _ in range(2):
                await system.snapshot("A")
            await system.finished

    watch, store = Watch(), new_store(tmp_path, "separate")
    with pytest.raises(StillframeError) as caught:
        asyncio.run(run(store, watch))
    assert "2 snapshots in a row were abandoned, and 1 are tolerated" in str(caught.value)
    assert "missing: R; R does not answer" in str(caught.value)
    assert "then continue with 'stillframe restore'" in str(caught.value)
    assert len(watch.of(events.SnapshotAbandoned)) == 2 * TRY_COUNT_MAX
    store.close()
