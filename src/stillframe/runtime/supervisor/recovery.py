"""With what the processes of an epoch begin: a snapshot as it is, or as the code is now."""

import asyncio
from pathlib import Path

import msgspec

from stillframe.errors import ApplicationError, StillframeError, UsageError
from stillframe.migration.migrate import migrate
from stillframe.migration.topology_diff import Change, differences, listed
from stillframe.model import ProcessId, SnapshotId
from stillframe.protocol.wire import check_version
from stillframe.restore import Start, start_states
from stillframe.runtime.os_process import is_alive, kill
from stillframe.runtime.run_file import RunFile, remove_socket
from stillframe.runtime.supervisor.config import Placement
from stillframe.store.store import Store
from stillframe.topology import Description, Topology


class RecoveryPlan(msgspec.Struct, frozen=True):
    """What each process begins with.

    `changes` say what the code of now made of the snapshot, if it was taken of other code.
    """

    snapshot: SnapshotId
    starts: dict[ProcessId, Start]
    changes: tuple[Change, ...]


def plan_recovery(
    store: Store, snapshot: SnapshotId, topology: Topology, *, may_migrate: bool
) -> RecoveryPlan:
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
        return RecoveryPlan(snapshot, starts, ())
    migration = migrate(store.load(snapshot), recorded, topology)
    # Nothing in the store has exactly these states, so there is no base.
    starts = start_states(migration.snapshot, topology.description)
    return RecoveryPlan(snapshot, starts, migration.changes)


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


FAILURE_COUNT_MAX = 3
"""So many failures of the application in a row are too many, if each comes soon after a start:
a snapshot may have been taken between them, and the program fails all the same."""
FAILURE_WITHIN_S = 10.0
DEATH_COUNT_MAX = 20
"""So many deaths of any kind in a row, with no new snapshot, are too many."""
STABLE_S = 60.0
"""A system that ran for so long before a death is not failing in a row."""
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0


class RestartStrategy:
    """Counts deaths that follow each other without progress; each is reported to `next_delay_s`."""

    def __init__(self) -> None:
        self._sequence = -1
        self._death_count = 0
        self._failure_count = 0

    def next_delay_s(
        self, *, sequence: int, where: str, ran_s: float, failure: str | None
    ) -> float:
        """Return how many seconds to wait before the system is taken back.

        Args:
            sequence: of the snapshot that it goes back to, 0 for the start.
            where: that snapshot, in words.
            ran_s: how long the epoch lasted, in seconds.
            failure: what the process said of its end, None if it said nothing.

        Raises:
            ApplicationError: the application has failed too often in a row.
            StillframeError: processes have died too often in a row.
        """
        if sequence != self._sequence or ran_s >= STABLE_S:
            self._death_count = 0
        if ran_s >= FAILURE_WITHIN_S:
            self._failure_count = 0
        self._sequence = sequence
        self._death_count += 1
        self._failure_count = self._failure_count + 1 if failure is not None else 0
        if failure is not None and self._failure_count >= FAILURE_COUNT_MAX:
            raise ApplicationError(
                f"{failure}\nIt failed {FAILURE_COUNT_MAX} times in a row, the last time from "
                f"{where}. Mend the program, then go on with 'stillframe restore'."
            )
        if self._death_count >= DEATH_COUNT_MAX:
            raise StillframeError(
                f"processes died {DEATH_COUNT_MAX} times in a row after going back to {where}, "
                "with no new snapshot; nothing is lost, and 'stillframe restore' goes on from there"
            )
        if self._death_count == 1:
            return 0.0
        return min(PAUSE_S_MAX, float(PAUSE_S_MIN * 2 ** (self._death_count - 2)))


REQUESTED: str | None = "the system is to begin a new epoch"


def takeover_obstacle(
    left: RunFile, store: Store, site: Placement, started_here: tuple[ProcessId, ...]
) -> str | None:
    """Return why another supervisor cannot go on with what is `left`; None if it can.

    Args:
        left: what an earlier supervisor left.
        store: of the system, open for writing.
        site: where the new one is to listen, and with which certificates.
        started_here: the processes that it would start on this machine.
    """
    if left.pipeline is not None:
        return f"the system is part of the pipeline {left.pipeline} and goes back with it alone"
    if left.epoch != store.epoch:
        return f"they are of epoch {left.epoch}, and epoch {store.epoch} had begun"
    if left.topology_hash != store.description.hash:
        return "they run another topology than the store is for now"
    if (other := _other_placement(left, site, started_here)) is not None:
        return other
    if left.children and not any(map(is_alive, left.children.values())):
        return "none of them runs any more"
    return None


def check_release(left: RunFile, store: Store) -> None:
    """Check that who wants to take over speaks with what runs of the system, or may run elsewhere.

    Raises:
        Refused: it could not let anybody in: everybody would end, and lose what no snapshot has.
    """
    elsewhere = store.description.processes.keys() - left.children.keys()
    if elsewhere or any(map(is_alive, left.children.values())):
        check_version(left.protocol_version, f"what runs of the system of {store.path}")


def check_placement(left: RunFile, site: Placement, started_here: tuple[ProcessId, ...]) -> None:
    """Check that who wants to take over runs the system where it ran, as long as it runs.

    Raises:
        UsageError: it would have to be ended instead.
    """
    reason = _other_placement(left, site, started_here)
    if reason is not None and any(map(is_alive, left.children.values())):
        raise UsageError(
            f"what runs of the system cannot be taken over: {reason}; give the options --listen, "
            "--tls and --elsewhere that it was started with, or end it and go back to its last "
            "snapshot with 'stillframe restore'"
        )


def _other_placement(
    left: RunFile, site: Placement, started_here: tuple[ProcessId, ...]
) -> str | None:
    """Return what `site` has otherwise than what is `left`; None if nothing."""
    if left.has_tls != (site.certificates is not None):
        return f"they run {'with' if left.has_tls else 'without'} TLS"
    if site.listen.port and site.listen != left.coordinator:
        return f"they come back to {left.coordinator}, and the coordinator is at {site.listen} now"
    if left.children.keys() != set(started_here):
        now, then = ", ".join(started_here) or "none", ", ".join(left.children) or "none"
        return f"{now} are the processes of this machine now, and {then} were"
    return None


async def kill_all(left: RunFile) -> tuple[str, ...]:
    """End what runs on this machine of the system that is `left`; return its processes.

    Those that joined by themselves hear that the epoch is over when they come back, and end without
    that when they have waited for long enough.

    Raises:
        Unavailable: a process cannot be ended.
    """
    running = {process: known for process, known in left.children.items() if is_alive(known)}
    await asyncio.gather(*(asyncio.to_thread(kill, known) for known in running.values()))
    remove_socket(left)
    return tuple(running)
