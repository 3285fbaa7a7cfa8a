"""Fragments of the sample systems of the store, whole or with changes, and what wrote them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from stillframe.model import Fragment, ProcessId, Snapshot, SnapshotId
from stillframe.storage.location import Location
from stillframe.store.fragments import FragmentSource, FragmentTopology, FragmentWriter
from stillframe.topology import Description
from tests.fragments import fragments_of
from tests.store import keyed_samples as keyed
from tests.store import samples

RECORDED_AT, COMPLETED_AT = 1e9, 1e9 + 2.0
TOPOLOGY = FragmentTopology(reference="shop:system", description=samples.DESCRIPTION)
KEYED_TOPOLOGY = FragmentTopology(reference=None, description=keyed.DESCRIPTION)


def fragment_of(snapshot: Snapshot, process: ProcessId) -> Fragment:
    """Return the part of a snapshot that one of its processes records."""
    return next(f for f in fragments_of(snapshot) if f.state.process == process)


@contextlib.contextmanager
def writer(
    directory: Location,
    process: ProcessId,
    *,
    epoch: int = 1,
    topology: FragmentTopology = TOPOLOGY,
) -> Iterator[FragmentWriter]:
    """Have a writer for a while."""
    yield FragmentWriter(directory, FragmentSource(process, epoch, "run", None), topology)


def put(by: FragmentWriter, fragment: Fragment) -> None:
    """Write a fragment, with the times of all of them."""
    by.write(fragment, moment_s=1.0, recorded_at=RECORDED_AT, completed_at=COMPLETED_AT)


def put_all(
    directory: Location, *numbers: int, topology: Description = samples.DESCRIPTION
) -> None:
    """Write what every process recorded of the sample snapshots with these numbers."""
    for process in topology.processes:
        with writer(directory, process) as by:
            for number in numbers:
                put(by, fragment_of(samples.snapshot_of(number), process))


def put_keyed(directory: Path) -> list[Snapshot]:
    """Write what a bank recorded of two snapshots, the second of which is based on the first;
    return those."""
    first = {"accounts": {"a": 1, "b": 2, "c": 3}, "seats": {}, "days": {}}
    second = {"accounts": {"a": 1, "b": 7}, "seats": {}, "days": {}}
    one = SnapshotId("P", 1)
    snapshots = [
        keyed.snapshot_of(1, [keyed.part(p, keyed.nothing(), first, None) for p in keyed.BANKS]),
        keyed.snapshot_of(2, [keyed.part(p, first, second, one) for p in keyed.BANKS]),
    ]
    with writer(directory, "P", topology=KEYED_TOPOLOGY) as by:
        for snapshot in snapshots:
            put(by, fragment_of(snapshot, "P"))
    return snapshots
