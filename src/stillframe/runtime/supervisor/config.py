"""What of a system is on this machine: where it listens, and which processes are started here."""

from pathlib import Path

import msgspec

from stillframe.model import ProcessId
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

    def started_here(self, topology: Topology) -> tuple[ProcessId, ...]:
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
