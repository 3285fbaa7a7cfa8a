"""Recovery of a system: from a snapshot or by taking over its running processes, and how often.

Only the coordinator writes to the store, and that needs the store's lock, which dies with it: so
the owner of the lock decides. Either every process that ran continues in the same epoch, or each of
them is killed before the next one starts.
"""

import asyncio

import msgspec

from stillframe.durable_files import shell_command
from stillframe.errors import ApplicationError, StillframeError, UsageError
from stillframe.migration import Change, differences, listed, migrate
from stillframe.model import Abandoned, ProcessId, Reason, SnapshotId
from stillframe.protocol.wire import check_version
from stillframe.restore import Start, start_states
from stillframe.runtime.os_process import apart_error, is_alive, is_apart, kill
from stillframe.runtime.run_file import RunFile, remove_socket, run_file_path
from stillframe.runtime.supervisor.config import Placement
from stillframe.storage.location import Location
from stillframe.store.history import SnapshotPublished
from stillframe.store.layout import is_published
from stillframe.store.store import Store
from stillframe.topology import Description, Topology

FAILURE_COUNT_MAX = 3
"""Consecutive failures of the application that stop the system, if each comes soon after a start.
Snapshots may have been taken between them, and the program fails all the same."""
FAILURE_WITHIN_S = 10.0
DEATH_COUNT_MAX = 20
"""Deaths of any kind in a row, with no new snapshot, that stop the system."""
STABLE_S = 60.0
"""A system that ran for this time before a death is not failing in a row."""
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0


class RecoveryPlan(msgspec.Struct, frozen=True):
    """The initial state of each process, and how the snapshot was migrated, if it was taken with
    other code."""

    snapshot: SnapshotId
    starts: dict[ProcessId, Start]
    changes: tuple[Change, ...]


def plan_recovery(
    store: Store, snapshot: SnapshotId, topology: Topology, *, may_migrate: bool
) -> RecoveryPlan:
    """Return the initial states of the processes of `topology` from a snapshot. Raises as
    ``Store.load``, and a UsageError if it was taken with other code, and `may_migrate` is false or
    it cannot be migrated."""
    recorded = store.description_of(snapshot)
    if not may_migrate and needs_agreement(store, snapshot, topology):
        raise changed_code(store.path, snapshot, recorded, topology)
    if recorded.hash == topology.description.hash:
        starts = start_states(store.load(snapshot), recorded, base=snapshot)
        return RecoveryPlan(snapshot, starts, ())
    migration = migrate(store.load(snapshot), recorded, topology)
    # Nothing in the store has exactly these states, so there is no base.
    starts = start_states(migration.snapshot, topology.description)
    return RecoveryPlan(snapshot, starts, migration.changes)


def needs_agreement(store: Store, snapshot: SnapshotId, topology: Topology) -> bool:
    """Return whether the user must agree to restore a snapshot with the code of `topology`. One
    agreement covers the restarts that follow, until there is a snapshot of that code."""
    now = topology.description.hash
    is_of_now = store.description_of(snapshot).hash == now or snapshot == store.restored_from
    return store.description.hash != now or not is_of_now


def changed_code(
    path: Location, snapshot: SnapshotId | None, recorded: Description, topology: Topology
) -> UsageError:
    """Return the error for code that differs from `recorded`, the topology of `snapshot`, or of the
    store if that is None."""
    what = f"snapshot {snapshot}" if snapshot else f"the store {path}"
    command = shell_command("restore", path, *filter(None, [snapshot]))
    return UsageError(
        f"the code differs from that of {what} ({listed(differences(recorded, topology))})",
        path=path,
        snapshot=snapshot,
        remedy=f"preview the migration with '{command} --dry-run', and continue with '{command} "
        "--migrate' (in Python: migrate=True), or use the old code",
    )


def abandon_unfinished(store: Store) -> list[Abandoned]:
    """Return the snapshots that a dead coordinator left pending, to be reported as abandoned;
    those that it had published are recorded as such."""
    abandoned = []
    for snapshot in store.history.pending:
        if is_published(store.path, snapshot):
            store.history.append(SnapshotPublished(snapshot, is_removal_noted=True))
        else:
            abandoned.append(Abandoned(snapshot, Reason.COORDINATOR_DIED))
    return abandoned


class RestartStrategy:
    """Counts failures without progress, delays restarts, and stops retrying."""

    def __init__(self) -> None:
        self._sequence = -1
        self._death_count = 0
        self._failure_count = 0

    def next_delay_s(
        self, *, sequence: int, where: str, ran_s: float, failure: str | None
    ) -> float:
        """Record a failure, and return the delay in seconds before the restart, which is from the
        snapshot number `sequence` (0 for a fresh start). The epoch started from `where`, in words,
        and lasted `ran_s` seconds; `failure` is what the process reported, if it did.
        StillframeError after too many failures in a row, ApplicationError if the application
        failed."""
        if sequence != self._sequence or ran_s >= STABLE_S:
            self._death_count = 0
        if ran_s >= FAILURE_WITHIN_S:
            self._failure_count = 0
        self._sequence = sequence
        self._death_count += 1
        self._failure_count = self._failure_count + 1 if failure is not None else 0
        if failure is not None and self._failure_count >= FAILURE_COUNT_MAX:
            raise ApplicationError(
                f"{failure}\nIt failed {FAILURE_COUNT_MAX} times in a row, the last time after a "
                f"start from {where}. Fix the program, then continue with 'stillframe restore'."
            )
        if self._death_count >= DEATH_COUNT_MAX:
            raise StillframeError(
                f"processes died {DEATH_COUNT_MAX} times in a row after a start from {where}, "
                "with no new snapshot; nothing is lost, and 'stillframe restore' continues "
                "from there"
            )
        if self._death_count == 1:
            return 0.0
        return min(PAUSE_S_MAX, float(PAUSE_S_MIN * 2 ** (self._death_count - 2)))


REQUESTED: str | None = "a new epoch was requested"


def takeover_obstacle(
    stale: RunFile, store: Store, placement: Placement, local_processes: tuple[ProcessId, ...]
) -> str | None:
    """Return why a supervisor with this placement, which would start `local_processes` on this
    machine, cannot take over a system; None if it can. The store is open for writing."""
    if stale.pipeline is not None:
        return (
            f"the system is part of the pipeline {stale.pipeline} and can only be restored with it"
        )
    if stale.epoch != store.epoch:
        return f"they belong to epoch {stale.epoch}, and epoch {store.epoch} had started"
    if stale.topology_hash != store.description.hash:
        return "their topology differs from that of the store"
    if (other := _other_placement(stale, placement, local_processes)) is not None:
        return other
    if stale.children and not any(map(is_alive, stale.children.values())):
        return "none of them runs any more"
    return None


def check_visible(stale: RunFile, store: Store) -> None:
    """Raise Unavailable if a process of this machine may still run in another PID namespace.

    This program cannot see whether it does, and no epoch must begin while it runs. The store is
    open for writing.
    """
    # The kernel kills all processes of a PID namespace with its process 1. That the supervisor has
    # ended is known from the lock of a directory only: another coordinator may end a lease.
    has_ended = stale.supervisor.pid == 1 and not store.is_remote
    apart = [process for process, known in stale.children.items() if is_apart(known)]
    if apart and not has_ended:
        who = f"process {apart[0]} of the last run on the store {store.path}"
        raise apart_error(who, "runs", run_file_path(store.path), "start the system again")


def check_release(stale: RunFile, store: Store) -> None:
    """Raise Refused if this release does not speak the protocol of the processes to be taken over:
    all would terminate, and lose what no snapshot has."""
    elsewhere = store.description.processes.keys() - stale.children.keys()
    if elsewhere or any(map(is_alive, stale.children.values())):
        check_version(stale.protocol_version, f"the running system on the store {store.path}")


def check_placement(
    stale: RunFile, placement: Placement, local_processes: tuple[ProcessId, ...]
) -> None:
    """Raise a UsageError if what runs of a system runs at another place: it would have to be killed
    instead of being taken over."""
    reason = _other_placement(stale, placement, local_processes)
    if reason is not None and any(map(is_alive, stale.children.values())):
        raise UsageError(
            f"the running processes cannot be taken over: {reason}; give the options --listen, "
            "--tls and --external of their start, or terminate them and restore the last "
            "snapshot with 'stillframe restore'"
        )


def _other_placement(
    stale: RunFile, placement: Placement, local_processes: tuple[ProcessId, ...]
) -> str | None:
    """Return how `placement` differs from that of the system; None if it does not."""
    if stale.has_tls != (placement.certificates is not None):
        return f"they run {'with' if stale.has_tls else 'without'} TLS"
    if placement.listen.port and placement.listen != stale.coordinator:
        now = f"the coordinator is now at {placement.listen}"
        return f"they reconnect to {stale.coordinator}, and {now}"
    if stale.children.keys() != set(local_processes):
        now, then = ", ".join(local_processes) or "none", ", ".join(stale.children) or "none"
        return f"the processes of this machine are now {now}, and were {then}"
    return None


async def kill_all(stale: RunFile) -> tuple[str, ...]:
    """Kill the processes of a stale system that run on this machine; return them. Processes that
    joined by themselves are dismissed when they reconnect, or terminate when they have waited long
    enough."""
    running = {process: known for process, known in stale.children.items() if is_alive(known)}
    await asyncio.gather(*(asyncio.to_thread(kill, known) for known in running.values()))
    remove_socket(stale)
    return tuple(running)
