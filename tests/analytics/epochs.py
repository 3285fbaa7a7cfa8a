"""Stores with the snapshots of many simulated executions, each of which is an epoch."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec

from stillframe.model import Snapshot, SnapshotId
from stillframe.sim.network import Fifo
from stillframe.sim.scheduler import Load, RandomScheduler, draw_faults
from stillframe.sim.world import World
from stillframe.store.store import Store
from stillframe.topology import Topology


def make_store(
    path: Path, topology: Topology, reference: str | None, *, snapshot_count: int
) -> Path:
    """Make a store with so many snapshots, in as many epochs as it takes."""
    store = Store.create(path, description=topology.description, reference=reference)
    left = snapshot_count
    for taken in _executions(topology):
        epoch = store.raise_epoch(None)
        for snapshot in taken[:left]:
            number = snapshot_count - left + 1
            snapshot_id = SnapshotId(snapshot.id.initiator, number)
            store.publish(msgspec.structs.replace(snapshot, id=snapshot_id, epoch=epoch))
            left -= 1
        if not left:
            break
    store.close()
    return path


def _executions(topology: Topology) -> Iterator[list[Snapshot]]:
    """Yield the snapshots of one execution after the other, with faults and without restores."""
    seed = 0
    while True:
        seed += 1
        chance = Random(seed)
        world = World(topology, timeout_s=0.5, batch_count_max=2)
        RandomScheduler(world, chance, draw_faults(chance, Fifo), Load(safety_ms=150.0)).run()
        outcomes = world.epochs[0].outcomes.values()
        if taken := [outcome for outcome in outcomes if isinstance(outcome, Snapshot)]:
            yield taken
