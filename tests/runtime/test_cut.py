"""``on_cut``: a process is told of its cut in the step in which its state is recorded."""

import asyncio
from dataclasses import field
from pathlib import Path

import msgspec
import pytest

from stillframe import Channel, Message, Process, Topology, every
from stillframe.model import SnapshotId
from stillframe.sim import choices
from stillframe.sim.campaign import RunConfig, run_seed
from stillframe.sim.scheduler import Load
from stillframe.sim.world import World
from tests.runtime.local import LocalSystem


class Beat(Message):
    """One."""


class Counter(Process):
    """Counts what it receives, and knows how far it was at each cut."""

    count: int = 0
    _cuts: dict[SnapshotId, int] = field(default_factory=dict)

    @every(ms=0)
    def beat(self) -> None:
        """Send to everybody."""
        for target in self.outgoing:
            self.send(target, Beat())

    def receive(self, channel: Channel, message: Beat) -> None:
        """Count."""
        self.count += 1

    def on_cut(self, snapshot: SnapshotId) -> None:
        """Note the count."""
        assert snapshot not in self._cuts
        self._cuts[snapshot] = self.count


class AsyncCounter(Counter):
    """The same with a handler that may wait."""

    async def receive(self, channel: Channel, message: Beat) -> None:  # type: ignore[override]
        """Count."""
        super().receive(channel, message)


class Sends(Counter):
    """Does what it must not."""

    def on_cut(self, snapshot: SnapshotId) -> None:
        """Send."""
        self.send(self.outgoing[0], Beat())


class Raises(Counter):
    """Does not know what to do."""

    def on_cut(self, snapshot: SnapshotId) -> None:
        """Raise."""
        raise OSError("no notebook")


@pytest.mark.parametrize("kind", [Counter, AsyncCounter])
def test_at_a_cut_the_fields_hold_what_is_recorded(tmp_path: Path, kind: type[Counter]) -> None:
    """Everybody is told once of each snapshot, initiator or not, with the state that it has."""
    counters = {name: kind() for name in "ABC"}

    async def main() -> None:
        async with asyncio.timeout(30), LocalSystem(Topology.mesh(counters), tmp_path) as system:
            for initiator in "ABCA":
                taken = await system.take(initiator)
                for state in taken.state.processes:
                    noted = counters[state.process]._cuts[taken.id]
                    assert msgspec.msgpack.decode(state.encoded) == {"count": noted}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [(Sends, "it sent a message: a snapshot must not"), (Raises, "raised OSError: no notebook")],
)
def test_who_acts_at_its_cut_is_named(tmp_path: Path, kind: type[Counter], sentence: str) -> None:
    """What is sent or raised there ends the process, and says what it did."""
    topology = Topology({"A": Counter(), "B": kind()}, [("A", "B"), ("B", "A")])

    async def main() -> None:
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path, may_fail=True) as system:
            _ = system.coordinator.begin("A")
            await system.until(lambda: bool(system.failures))
            assert "process B: on_cut()" in str(system.failures[0])
            assert sentence in str(system.failures[0])

    asyncio.run(main())


def test_simulated_processes_are_told_of_their_cuts() -> None:
    """As in the runtime, with what was recorded."""
    world = World(Topology.mesh({"A": Counter(), "B": Counter()}))
    world.take(choices.Act("A", "beat"))
    world.take(choices.Deliver((Channel("A", "B"),)))
    snapshot = SnapshotId("B", 1)
    world.take(choices.Initiate("B", snapshot))
    world.take(choices.Deliver((Channel("B", "A"),)))
    told = [runner.process for runner in world.runners.values()]
    assert [p._cuts for p in told if isinstance(p, Counter)] == [{snapshot: 0}, {snapshot: 1}]


class Settles(Counter):
    """Records up to where it was told that the system will not go back."""

    safe_count: int = 0

    def on_published(self, snapshot: SnapshotId) -> None:
        """What was counted before that cut is safe."""
        self.safe_count = self._cuts.get(snapshot, 0)


def test_who_acts_on_its_cuts_keeps_every_promise() -> None:
    """The judge performs the actions again, white before red too, and comes to the same states."""
    config = RunConfig(
        topology=Topology.mesh({name: Settles() for name in "ABC"}), load=Load(safety_ms=40.0)
    )
    runs = [run_seed(seed, config) for seed in range(10)]
    assert [str(run.violation) for run in runs if run.violation is not None] == []
    ended = [p.process for run in runs for p in run.world.runners.values()]
    assert any(process.safe_count for process in ended if isinstance(process, Settles))
