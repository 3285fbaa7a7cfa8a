"""With what the processes of an epoch begin: a snapshot as it is, or as the code is now."""

from pathlib import Path

import msgspec

from stillframe.errors import UsageError
from stillframe.migration.migrate import migrate
from stillframe.migration.topology_diff import Change, differences, listed
from stillframe.model import ProcessId, ProcessState, SnapshotId
from stillframe.protocol.exclusion import LastRecorded
from stillframe.restore import Start, start_states
from stillframe.store.store import Store
from stillframe.topology import Description, Topology


class Beginning(msgspec.Struct, frozen=True):
    """What each process begins with.

    `changes` say what the code of now made of the snapshot, if it was taken of other code.
    """

    snapshot: SnapshotId
    starts: dict[ProcessId, Start]
    changes: tuple[Change, ...]


def beginning(
    store: Store, snapshot: SnapshotId, topology: Topology, *, may_migrate: bool
) -> Beginning:
    """Read a snapshot and return how the processes of `topology` go on from it.

    Args:
        store: which holds it.
        snapshot: where to begin.
        topology: of the code as it is now.
        may_migrate: whether somebody agreed to go on with other code than it was taken of.

    Raises:
        UsageError: it is of other code, and nobody agreed; or it cannot go on with this.
        StoreError, NotConsistent: as ``Store.load``.
    """
    recorded = store.description_of(snapshot)
    if not may_migrate and needs_agreement(store, snapshot, topology):
        raise changed_code(store.path, snapshot, recorded, topology)
    if recorded.hash == topology.description.hash:
        starts = start_states(store.load(snapshot), recorded, base=snapshot)
        return Beginning(snapshot, starts, ())
    migration = migrate(store.load(snapshot), recorded, topology)
    # Nothing in the store has exactly these states, so there is no base.
    starts = start_states(migration.snapshot, topology.description)
    return Beginning(snapshot, starts, migration.changes)


def needs_agreement(store: Store, snapshot: SnapshotId, topology: Topology) -> bool:
    """Return whether somebody must agree to go on from a snapshot with the code of `topology`.

    Who did so once has done so for the deaths that follow, until there is a snapshot of that code.
    """
    now = topology.description.hash
    is_of_now = store.description_of(snapshot).hash == now or snapshot == store.restored_from
    return store.description.hash != now or not is_of_now


def changed_code(
    path: Path, snapshot: SnapshotId | None, recorded: Description, topology: Topology
) -> UsageError:
    """Return the error for code that is not what a snapshot, or a store, is of.

    Args:
        path: of the store.
        snapshot: which was to be restored; None for the store's present one.
        recorded: the topology of that.
        topology: of the code as it is now.
    """
    what = f"snapshot {snapshot} was" if snapshot else f"the store {path} was"
    command = f"stillframe restore {path}{f' {snapshot}' if snapshot else ''}"
    return UsageError(
        f"the code is not what {what} taken of ({listed(differences(recorded, topology))}): see "
        f"what it would make of it with '{command} --dry-run', and go on with '{command} "
        "--migrate', or with the old code"
    )


def last_recorded(
    store: Store, starts: dict[ProcessId, Start] | None
) -> dict[ProcessId, LastRecorded]:
    """Return with what each process begins, and from which snapshot; nothing if afresh."""
    origin = store.restored_from
    if starts is None or origin is None:
        return {}
    return {
        process: LastRecorded(ProcessState(process, start.kind, start.encoded), origin)
        for process, start in starts.items()
    }


def told_before(store: Store) -> dict[ProcessId, SnapshotId]:
    """Return of what each process may know that went on without a coordinator: the newest restore
    point of the epoch, if its cut is in there."""
    current = store.current()
    if current is None or current.epoch != store.epoch:
        return {}
    processes = store.description.processes
    return {process: current.id for process in processes if process not in current.excluded}
