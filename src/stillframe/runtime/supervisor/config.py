"""The settings of a running system: where its processes run, and how it takes snapshots."""

from pathlib import Path

import msgspec

from stillframe.model import ProcessId, SnapshotId
from stillframe.runtime.control import NO_OUTPUT, ORPHANED_S, OutputDirs
from stillframe.runtime.coordinator.membership import CoordinatorConfig
from stillframe.runtime.network.addresses import ANY_PORT, Address
from stillframe.runtime.network.certificates import check_own
from stillframe.topology import Joined, Topology


class Placement(msgspec.Struct, frozen=True):
    """The machine of the coordinator.

    Attributes:
        listen: where the coordinator listens, and, on other ports, the processes started here.
        certificates: the directory of theirs, None for no TLS: on a loopback address only.
        elsewhere: the processes that are not started here but wait to join, besides those that the
            topology has as ``Joined``.
    """

    listen: Address = ANY_PORT
    certificates: str | None = None
    elsewhere: tuple[ProcessId, ...] = ()

    def local_processes(self, topology: Topology) -> tuple[ProcessId, ...]:
        """Return the processes of `topology` that are started on this machine.

        Raises:
            UsageError: there is no such process as one that is `elsewhere`, or our certificate
                cannot speak for the coordinator and for all that are here.
        """
        for process in self.elsewhere:
            topology.description.check_process(process)
        here = tuple(
            name
            for name, process in topology.processes.items()
            if not isinstance(process, Joined) and name not in self.elsewhere
        )
        if self.certificates is not None:
            for speaker in (None, *here):
                check_own(Path(self.certificates), speaker)
        return here


LOCAL = Placement()
"""A system on one machine that no other machine can reach."""


class SupervisorConfig(CoordinatorConfig, frozen=True, kw_only=True):
    """How to run a system.

    Attributes:
        restore: the snapshot to start from; None for the store's current one, or a fresh start.
        may_migrate: whether it may start from a snapshot that was taken with other code.
        pipeline: the directory of the pipeline in which some processes are services; that then
            determines the snapshot to start from.
        outputs: where the processes write their event logs and fragments.
        tolerated_count: how many abandoned snapshots in a row are tolerated; one more stops the
            system. None for any number.
        placement: what of the system is on this machine.
        takes_over: whether to continue with what an earlier supervisor left running, if that is
            possible; otherwise it is killed.
        orphaned_s: how long processes keep running without a supervisor, in seconds.
    """

    restore: SnapshotId | None = None
    may_migrate: bool = False
    pipeline: Path | None = None
    outputs: OutputDirs = NO_OUTPUT
    tolerated_count: int | None = None
    placement: Placement = LOCAL
    takes_over: bool = False
    orphaned_s: float = ORPHANED_S


DEFAULT_CONFIG = SupervisorConfig()
