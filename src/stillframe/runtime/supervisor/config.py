"""The configuration of a run: the settings of its supervisor, and the processes of each machine."""

from pathlib import Path

import msgspec

from stillframe.model import ProcessId, SnapshotId
from stillframe.runtime.control import NO_OUTPUT, ORPHANED_S, OutputDirs
from stillframe.runtime.coordinator.membership import CoordinatorConfig
from stillframe.runtime.network.addresses import ANY_PORT, Address
from stillframe.runtime.network.certificates import check_own
from stillframe.storage.location import Location
from stillframe.topology import Description, ExternalProcess, Topology


class Placement(msgspec.Struct, frozen=True):
    """The part of a system on the machine of the coordinator. The coordinator listens at `listen`,
    and the processes started here on other ports of that host. `certificates` is the directory of
    theirs, None for no TLS: on a loopback address only. The processes `elsewhere` are not started
    here but join later, like those that the topology has as ``ExternalProcess``."""

    listen: Address = ANY_PORT
    certificates: str | None = None
    elsewhere: tuple[ProcessId, ...] = ()

    def local_processes(self, topology: Topology) -> tuple[ProcessId, ...]:
        """Return the processes of `topology` that are started on this machine. Raises a UsageError
        if one that is `elsewhere` does not exist, or our certificate cannot speak for the
        coordinator and for all that are here."""
        for process in self.elsewhere:
            topology.description.check_process(process)
        here = tuple(
            name
            for name, process in topology.processes.items()
            if not isinstance(process, ExternalProcess) and name not in self.elsewhere
        )
        if self.certificates is not None:
            for speaker in (None, *here):
                check_own(Path(self.certificates), speaker)
        return here


LOCAL = Placement()
"""A system on one machine that no other machine can reach."""


class SupervisorConfig(CoordinatorConfig, frozen=True, kw_only=True):
    """The settings for running a system.

    `restore` is the snapshot to start from, None for the store's current one or a fresh start; with
    `may_migrate` one that was taken with other code. The `pipeline` is the place of that in
    which some processes are services, and then determines the snapshot. `tolerated_count` is how
    many consecutive abandoned snapshots are tolerated: one more stops the system; None: any number.
    If it `takes_over`, it continues with what an earlier supervisor left running if that is
    possible; otherwise that is killed. `orphaned_s` is how many seconds processes keep running
    without a supervisor.
    """

    restore: SnapshotId | None = None
    may_migrate: bool = False
    pipeline: Location | None = None
    outputs: OutputDirs = NO_OUTPUT
    tolerated_count: int | None = None
    placement: Placement = LOCAL
    takes_over: bool = False
    orphaned_s: float = ORPHANED_S


DEFAULT_CONFIG = SupervisorConfig()


class RunConfig(SupervisorConfig, frozen=True, kw_only=True):
    """The settings of a program that runs a system.

    It takes a periodic snapshot every `every_s` seconds, if any, initiated by `initiators` in turn
    (none: the first process). The newest `keep_count` are kept, or all.
    """

    every_s: float | None = None
    initiators: tuple[ProcessId, ...] = ()
    keep_count: int | None = None

    def check_initiators(self, description: Description) -> None:
        """Raise a UsageError if there is an initiator that `description` does not have."""
        for initiator in self.initiators:
            description.check_process(initiator)
