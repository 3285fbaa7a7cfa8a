"""What a system does with snapshots: who may ask, who is told, and what one may look like."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stillframe import Topology, every
from stillframe.errors import UsageError
from stillframe.model import Abandoned, Reason
from stillframe.runtime import events
from stillframe.store.manifest import SnapshotEntry
from tests.runtime.local import LocalSystem
from tests.runtime.programs import Player, Relay, Sink, Source


def test_a_process_can_ask_for_a_snapshot(tmp_path: Path) -> None:
    """``self.snapshot()`` begins one that this process initiates, after the current action; what is
    asked meanwhile is answered by one more."""

    class Asker(Source):
        asked_count: int = 0

        @every(ms=1)
        def ask(self) -> None:
            if self.asked_count < 3:
                self.snapshot()
                self.asked_count += 1

    async def main() -> None:
        topology = Topology({"A": Source(), "B": Asker(), "C": Sink()}, [("A", "C"), ("B", "C")])
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path) as system:
            await system.until(lambda: len(system.store.entries()) >= 2)
            assert {entry.id.initiator for entry in system.store.entries()} == {"B"}

    asyncio.run(main())


def test_everybody_is_told_of_a_published_snapshot(tmp_path: Path) -> None:
    """``on_published`` is called at every process, in the order of publishing."""
    players = {"A": Player(serves=True), "B": Player()}

    async def main() -> None:
        async with asyncio.timeout(30), LocalSystem(Topology.mesh(players), tmp_path) as system:
            taken = [str((await system.take("AB"[number % 2])).id) for number in range(4)]
            await system.until(lambda: all(p.published == taken for p in players.values()))

    asyncio.run(main())


def test_snapshots_of_what_is_not_connected_are_whole(tmp_path: Path) -> None:
    """Markers reach everybody from whoever begins, also against the stream and across gaps."""
    topology = Topology(
        {"A": Source(), "B": Relay(), "C": Relay(), "D": Sink(), "E": Source(), "F": Sink()},
        [("A", "B"), ("B", "C"), ("C", "D"), ("A", "D"), ("E", "D")],
    )

    async def main() -> None:
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path) as system:
            for initiator in topology.processes:
                snapshot = await system.take(initiator)
                assert len(snapshot.state.processes) == 6
                assert len(snapshot.state.channels) == 5

    asyncio.run(main())


def test_overlapping_snapshots_are_all_published(tmp_path: Path) -> None:
    """Several initiators at once; each snapshot is whole, and has an id of its own."""

    async def main() -> None:
        players = Topology.mesh({"A": Player(serves=True), "B": Player(), "C": Source(limit=0)})
        async with asyncio.timeout(30), LocalSystem(players, tmp_path) as system:
            begun = [system.coordinator.begin("ABC"[number % 3]) for number in range(12)]
            assert len(system.coordinator.under_way) == 12
            outcomes = await asyncio.gather(*begun)
            assert all(isinstance(outcome, SnapshotEntry) for outcome in outcomes)
            assert (
                len({str(outcome.id) for outcome in outcomes if isinstance(outcome, SnapshotEntry)})
                == 12
            )

    asyncio.run(main())


def test_a_snapshot_by_nobody_or_one_too_many_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error lists the processes, or says to wait; what is under way goes on."""
    monkeypatch.setattr("stillframe.runtime.coordinator.coordinator.PENDING_COUNT_MAX", 3)

    async def main() -> None:
        players = Topology.mesh({"A": Player(serves=True), "B": Player()})
        async with asyncio.timeout(30), LocalSystem(players, tmp_path) as system:
            with pytest.raises(UsageError, match="no process 'Z'; there are A, B"):
                _ = system.coordinator.begin("Z")
            begun = [system.coordinator.begin("A") for _ in range(3)]
            with pytest.raises(UsageError, match="3 snapshots are pending: wait"):
                _ = system.coordinator.begin("B")
            await asyncio.gather(*begun)
            assert len(system.store.entries()) == 3

    asyncio.run(main())


def test_a_system_that_stops_abandons_what_is_under_way(tmp_path: Path) -> None:
    """Whoever waits for a snapshot hears that there will be none."""

    async def main() -> None:
        players = Topology.mesh({"A": Player(serves=True), "B": Player()})
        async with asyncio.timeout(30), LocalSystem(players, tmp_path) as system:
            result = system.coordinator.begin("A")
        outcome = await result
        assert isinstance(outcome, Abandoned)
        assert outcome.reason is Reason.STOPPED
        assert outcome.missing == ("A", "B")
        assert events.SnapshotAbandoned(outcome) in system.events

    asyncio.run(main())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with hardly any room."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_up(path: Path) -> None:
    """Write into a file until there is no room any more."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1024)) == 1024:
            pass
    assert os.statvfs(path).f_bavail == 0


def test_a_full_disk_abandons_the_snapshot_only(small_disk: Path) -> None:
    """The snapshot is abandoned and says which path could not be written and what to do; the
    system goes on, and when there is room again the next is published."""
    player = Player(serves=True)

    async def main() -> None:
        players = Topology.mesh({"A": player, "B": Player()})
        async with asyncio.timeout(30), LocalSystem(players, small_disk) as system:
            await system.take()
            filler = small_disk / "filler"
            fill_up(filler)
            outcome = await system.try_to_take()
            assert isinstance(outcome, Abandoned)
            assert outcome.reason is Reason.NOT_PUBLISHED
            assert str(small_disk / "store" / "snapshots" / str(outcome.snapshot)) in outcome.detail
            assert "make room on that disk" in outcome.detail
            filler.unlink()
            count = player.hit_count
            snapshot = await system.take()
            await system.until(lambda: player.hit_count > count)
            assert [str(entry.id) for entry in system.store.entries()] == ["A-1", str(snapshot.id)]
            system.store.verify(snapshot.id)

    asyncio.run(main())
