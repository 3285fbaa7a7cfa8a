"""Processes whose connection to the coordinator ends, and who come back."""

import asyncio
import errno
import socket
import threading
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest

from stillframe import Channel, Process, SnapshotId, Topology
from stillframe.model import Abandoned, Reason, Snapshot
from stillframe.protocol.recorder import Phase
from stillframe.runtime import control
from stillframe.runtime.coordinator.membership import CoordinatorConfig
from stillframe.runtime.network.connection import DEAD_AFTER_S
from stillframe.runtime.process.process_runtime import CoordinatorConnection
from stillframe.store.manifest import SnapshotEntry
from tests.runtime.local import LocalSystem
from tests.runtime.programs import Ball, Player


class AsyncPlayer(Process):
    """Returns the ball, and is driven by turns."""

    hit_count: int = 0
    published: list[str] = field(default_factory=list)

    async def receive(self, channel: Channel, message: Ball) -> None:
        """Return the ball."""
        self.hit_count += 1
        await asyncio.sleep(0)
        self.send(channel.source, Ball(message.hits + 1))

    async def on_published(self, snapshot: SnapshotId) -> None:
        """Note the snapshot."""
        self.published.append(str(snapshot))


def rally() -> tuple[Topology, Player, AsyncPlayer]:
    """Return a fresh rally between processes of both kinds, and both."""
    a, b = Player(serves=True), AsyncPlayer()
    return Topology.mesh({"A": a, "B": b}), a, b


def cut(system: LocalSystem, process: str) -> CoordinatorConnection:
    """End the connection of `process` to the coordinator, as a fault would; return it."""
    line = system.members[process]._connection
    line.abort()
    return line


async def until_back(system: LocalSystem, process: str, former: CoordinatorConnection) -> None:
    """Wait until `process` has another connection to the coordinator than the `former` one."""
    member = system.members[process]
    await system.until(lambda: member._connection is not former and member._connection.is_open)
    await system.until(lambda: system.coordinator.membership.is_there(process))


@pytest.mark.parametrize("process", ["A", "B"])
def test_a_process_goes_on_while_it_is_cut_off_and_comes_back(tmp_path: Path, process: str) -> None:
    """No epoch ends; snapshots are taken again, and each is told of once."""
    topology, a, b = rally()

    async def main() -> None:
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path, survives=True) as system:
            first = await system.take()
            await system.until(lambda: a.published == b.published == [str(first.id)])
            before = a.hit_count
            for _ in range(3):
                await until_back(system, process, cut(system, process))
            second = await system.take("B")
            await system.until(lambda: len(a.published) == len(b.published) == 2)
            assert a.published == b.published == [str(first.id), str(second.id)]
            assert a.hit_count > before
            assert system.departed == []

    asyncio.run(main())


def test_who_comes_back_hears_how_long_markers_may_wait_now(tmp_path: Path) -> None:
    """The coordinator that it comes back to can have been started with another wait."""
    topology, _, _ = rally()

    async def main() -> None:
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path, survives=True) as system:
            system.coordinator._config = CoordinatorConfig(marker_wait_s=0.005)
            await until_back(system, "A", cut(system, "A"))
            await system.until(lambda: system.hosts["A"].marker_wait_s == 0.005)
            assert system.hosts["B"].marker_wait_s == 0.0
            await system.take("B")

    asyncio.run(main())


@pytest.mark.parametrize("process", ["A", "B"])
def test_a_snapshot_under_way_is_abandoned_when_a_process_comes_back(
    tmp_path: Path, process: str
) -> None:
    """Some of its part may be lost; nobody goes on recording it, and the next one is whole."""
    topology, _, _ = rally()

    async def main() -> None:
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path, survives=True) as system:
            result = system.coordinator.begin("A")
            await until_back(system, process, cut(system, process))
            outcome = await result
            assert isinstance(outcome, Abandoned)
            assert outcome.reason is Reason.CONNECTION_BROKE
            assert process in outcome.missing
            assert f"{process} reconnected with a new one" in str(outcome)
            await system.take("B")
            for host in system.hosts.values():
                assert host.recorder.phase(outcome.snapshot) is not Phase.RECORDING

    asyncio.run(main())


def test_who_comes_back_records_no_snapshot_that_ended_meanwhile(tmp_path: Path) -> None:
    """Their markers may still come, of those too that it has not seen."""
    topology, _, _ = rally()

    async def main() -> None:
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path, survives=True) as system:
            number = (await system.take()).id.number
            recorder = system.hosts["B"].recorder
            unseen = [SnapshotId("B", number), SnapshotId("B", number + 1)]
            assert [recorder.phase(one) for one in unseen] == [Phase.IDLE, Phase.IDLE]
            await until_back(system, "B", cut(system, "B"))
            await system.until(lambda: recorder.phase(unseen[0]) is Phase.ABANDONED)
            assert recorder.phase(unseen[1]) is Phase.IDLE

    asyncio.run(main())


def test_what_was_published_meanwhile_is_told_to_who_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest restore point, once, to the one that did not hear of it."""
    topology, a, b = rally()
    gone, told = threading.Event(), asyncio.Event()

    async def main() -> None:
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path, survives=True) as system:
            publish, dial = system.store.publish, system.members["B"]._dial

            def publish_late(snapshot: Snapshot) -> SnapshotEntry:
                assert gone.wait(30)
                return publish(snapshot)

            async def dial_late(*arguments: Any) -> Any:
                await told.wait()
                return await dial(*arguments)

            monkeypatch.setattr(system.store, "publish", publish_late)
            monkeypatch.setattr(system.members["B"], "_dial", dial_late)
            result = system.coordinator.begin("A")
            await system.until(lambda: not system.coordinator._assembler.pending)
            former = cut(system, "B")
            await system.until(lambda: not system.coordinator.membership.is_there("B"))
            gone.set()
            entry = await result
            told.set()
            await until_back(system, "B", former)
            assert not isinstance(entry, Abandoned)
            await system.until(lambda: a.published == b.published == [str(entry.id)])
            await until_back(system, "B", cut(system, "B"))
            names = [str(entry.id), str((await system.take()).id)]
            await system.until(lambda: a.published == b.published == names)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "survives", "is_waited_for"),
    [
        (None, False, False),
        (ConnectionResetError(errno.ECONNRESET, "reset"), False, False),
        (None, True, True),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), False, True),
        (OSError(errno.EHOSTUNREACH, "no route"), False, True),
    ],
)
def test_only_who_may_be_there_still_is_waited_for(
    tmp_path: Path, error: OSError | None, survives: bool, is_waited_for: bool
) -> None:
    """A connection that the other machine's kernel closed tells of a death; one that the network
    broke does not, nor one of a process that is known to run."""
    topology, _, _ = rally()

    async def main() -> None:
        async with (
            asyncio.timeout(30),
            LocalSystem(topology, tmp_path, survives=survives, may_fail=True) as system,
        ):
            line = system.coordinator.membership._connections["B"]
            line.connection_lost(error)
            assert system.departed == ([] if is_waited_for else [("B", None)])
            system.members["B"]._connection.abort()

    asyncio.run(main())


def test_who_does_not_come_back_in_time_is_taken_for_dead(tmp_path: Path) -> None:
    """The last words say for how long it was waited for."""
    topology, _, _ = rally()

    async def main() -> None:
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path, survives=True) as system:
            membership = system.coordinator.membership
            membership._config = CoordinatorConfig(return_s=0.01)
            membership._connections["B"].connection_lost(None)
            await system.until(lambda: bool(system.departed))
            ((process, failure),) = system.departed
            assert process == "B"
            assert failure == control.Failure("process B: it did not reconnect within 0 s", "")

    asyncio.run(main())


def test_a_silent_cut_is_noticed_in_a_bounded_time(tmp_path: Path) -> None:
    """The kernel is told so at both ends of the connection to the coordinator."""
    topology, _, _ = rally()

    async def main() -> None:
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path) as system:
            ends = [
                system.members["B"]._connection,
                system.coordinator.membership._connections["B"],
            ]
            for end in ends:
                assert isinstance(end.transport, asyncio.Transport)
                tcp = end.transport.get_extra_info("socket")
                limit_ms = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert limit_ms == DEAD_AFTER_S * 1000
                assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1

    asyncio.run(main())
