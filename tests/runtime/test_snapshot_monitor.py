"""Who holds a snapshot up is told while it waits and when it is given up."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from stillframe import Channel, Process, Topology
from stillframe.model import Abandoned, Reason
from stillframe.protocol.stragglers import Cause, PendingSnapshot, Straggler
from stillframe.runtime.coordinator.coordinator import Coordinator
from stillframe.runtime.coordinator.snapshot_monitor import UNANSWERED_COUNT_MAX
from stillframe.runtime.network.addresses import LOOPBACK, Address
from stillframe.runtime.process.link import keep_connected
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from tests.runtime.links import carrier
from tests.runtime.local import LocalSystem
from tests.runtime.programs import Sink, Source, Tick
from tests.runtime.watch import Watch, new_store, program

TIMEOUT_S = 60


async def held_up(coordinator: Coordinator, *causes: Cause) -> PendingSnapshot:
    """Look until the one snapshot under way is held up by `causes`, and return that."""
    while True:
        (under_way,) = await coordinator.monitor.poll_pending()
        if {straggler.cause for straggler in under_way.stragglers} == set(causes):
            return under_way


@pytest.mark.slow
def test_a_stopped_process_is_named_with_its_channels_while_the_snapshot_waits(
    tmp_path: Path,
) -> None:
    """In a mesh all parts are missing, but one process is named; when it goes on so does the
    snapshot, and nothing of it was lost."""

    async def main() -> None:
        watch, store = Watch(), new_store(tmp_path, "trio")
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(
                program("trio"), store, SupervisorConfig(timeout_s=50), emit=watch.emit
            ) as system,
        ):
            assert system.coordinator is not None
            assert await system.coordinator.monitor.poll_pending() == ()
            os.kill(system.children["C"].pid, signal.SIGSTOP)
            result = await system.begin_snapshot("A")
            found = await held_up(system.coordinator, Cause.SILENT)
            assert found.missing == ("A", "B", "C")
            (straggler,) = found.stragglers
            assert (straggler.process, straggler.channels) == (
                "C",
                (Channel("C", "A"), Channel("C", "B")),
            )
            assert found.initiated_at <= straggler.since < found.deadline
            for _ in range(UNANSWERED_COUNT_MAX):
                await system.coordinator.monitor.poll_pending()
            os.kill(system.children["C"].pid, signal.SIGCONT)
            assert not isinstance(await result, Abandoned)
            assert await system.coordinator.monitor.poll_pending() == ()
        store.close()

    asyncio.run(main())


@pytest.mark.slow
def test_who_held_an_abandoned_snapshot_up_is_told_with_its_end(tmp_path: Path) -> None:
    """The words name the process that stood still, not only all whose parts were missing."""

    async def main() -> None:
        store = new_store(tmp_path, "trio")
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(program("trio"), store, SupervisorConfig(timeout_s=1.0)) as system,
        ):
            os.kill(system.children["C"].pid, signal.SIGSTOP)
            outcome = await system.snapshot("A")
            assert isinstance(outcome, Abandoned)
            assert outcome.reason is Reason.DEADLINE
            assert "C does not answer, and has sent nothing for" in outcome.detail
            assert "markers are awaited on C->A, C->B" in outcome.detail
        store.close()

    asyncio.run(main())


class Thinker(Process):
    """Thinks about the first message until it is let go on."""

    go_on = asyncio.Event()
    taken_count: int = 0

    async def receive(self, channel: Channel, message: Tick) -> None:
        """Think."""
        self.taken_count += 1
        await Thinker.go_on.wait()


def test_a_process_in_a_long_action_is_told_from_one_that_is_stopped(tmp_path: Path) -> None:
    """It answers, but can record its state only at the end of the action."""

    async def main() -> None:
        Thinker.go_on = asyncio.Event()
        topology = Topology({"A": Source(limit=3), "B": Thinker()}, [("A", "B")])
        async with asyncio.timeout(TIMEOUT_S), LocalSystem(topology, tmp_path) as system:
            thinker = topology.processes["B"]
            assert isinstance(thinker, Thinker)
            await system.until(lambda: thinker.taken_count == 1)
            result = system.coordinator.begin("A")
            found = await held_up(system.coordinator, Cause.BUSY)
            assert [(h.process, h.channels) for h in found.stragglers] == [
                ("B", (Channel("A", "B"),))
            ]
            Thinker.go_on.set()
            await system.until(result.done)

    asyncio.run(main())


def test_a_channel_that_is_cut_is_named_while_it_is(tmp_path: Path) -> None:
    """When it is connected again the marker comes."""

    async def main() -> None:
        topology = Topology({"A": Source(limit=3), "B": Sink()}, [("A", "B")])
        async with asyncio.timeout(TIMEOUT_S), LocalSystem(topology, tmp_path) as system:
            (keeping, *_) = system.members["A"]._tasks
            keeping.remove_done_callback(system.members["A"]._on_task_done)
            keeping.cancel()
            outgoing = system.hosts["A"].outgoing["B"]
            transport = carrier(outgoing)
            assert transport is not None
            transport.abort()
            await system.until(lambda: not outgoing.is_connected)
            result = system.coordinator.begin("A")
            found = await held_up(system.coordinator, Cause.DISCONNECTED)
            assert found.missing == ("B",)
            since = found.initiated_at
            expected = Straggler("B", Cause.DISCONNECTED, since, (Channel("A", "B"),))
            assert found.stragglers == (expected,)
            member = system.members["A"]
            again = keep_connected(
                system.hosts["A"],
                outgoing,
                member.me,
                address=Address(LOOPBACK, system.members["B"].port),
                warn=member._warn,
                connected=lambda channel: None,
            )
            member._spawn(again)
            await system.until(result.done)
            assert not isinstance(result.result(), Abandoned)

    asyncio.run(main())


class Heap(Process):
    """Sends much at once."""

    def start(self) -> None:
        """Send what takes the target hundreds of turns of its loop."""
        for serial in range(10_000):
            self.send("B", Tick(serial))


class Slow(Process):
    """Takes its time for every message."""

    taken_count: int = 0

    def receive(self, channel: Channel, message: Tick) -> None:
        """Be slow."""
        time.sleep(0.00005)
        self.taken_count += 1


@pytest.mark.slow
def test_a_marker_behind_messages_tells_how_many_bytes(tmp_path: Path) -> None:
    """What the source has sent ahead is in front of the marker."""

    async def main() -> None:
        topology = Topology({"A": Heap(), "B": Slow()}, [("A", "B")])
        async with asyncio.timeout(TIMEOUT_S), LocalSystem(topology, tmp_path) as system:
            _ = system.coordinator.begin("A")
            found = await held_up(system.coordinator, Cause.BEHIND)
            (straggler,) = found.stragglers
            assert (straggler.process, straggler.channels) == ("B", (Channel("A", "B"),))
            assert straggler.unhandled_bytes > 10_000

    asyncio.run(main())
