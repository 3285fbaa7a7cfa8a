"""The processes that a process waits for: ``Process.waits_for`` returns it, deadlock detection
reads it."""

import msgspec

from stillframe.errors import UsageError
from stillframe.model import ProcessId


class Waiting(msgspec.Struct, frozen=True):
    """A process is blocked: it sends nothing to any process before a message ends that.

    Such a message comes from one of `processes`. If `needs_all`, the process is blocked until one
    has arrived from each of them (the AND model), else until one has arrived from any (the OR
    model; Knapp, *Deadlock Detection in Distributed Databases*, ACM Computing Surveys 1987, section
    2). `ended_by` are the classes of such messages; none of them: any message.
    """

    processes: frozenset[ProcessId]
    needs_all: bool
    ended_by: tuple[type, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an impossible wait, with a UsageError."""
        if not self.processes:
            raise UsageError("no process to wait for is given: name at least one, or return None")
        for kind in self.ended_by:
            if not isinstance(kind, type):
                raise UsageError(f"ended_by holds {kind!r}: give message classes, as a tuple")

    def __str__(self) -> str:
        return (" and " if self.needs_all else " or ").join(sorted(self.processes))


def for_all(*processes: ProcessId, ended_by: type | tuple[type, ...] = ()) -> Waiting:
    """Return that a process is blocked until a message has arrived from each of `processes`.

    Name only those from which no message has arrived yet.

    Raises:
        UsageError: there is no process to wait for.
    """
    return _waiting(processes, ended_by, needs_all=True)


def for_any(*processes: ProcessId, ended_by: type | tuple[type, ...] = ()) -> Waiting:
    """Return that a process is blocked until a message has arrived from any of `processes`.

    Raises:
        UsageError: there is no process to wait for.
    """
    return _waiting(processes, ended_by, needs_all=False)


def _waiting(
    processes: tuple[ProcessId, ...], ended_by: type | tuple[type, ...], *, needs_all: bool
) -> Waiting:
    for name in processes:
        if not isinstance(name, str):
            raise UsageError(f"a process cannot wait for {name!r}: give names, one by one")
    kinds = ended_by if isinstance(ended_by, tuple) else (ended_by,)
    return Waiting(frozenset(processes), needs_all, kinds)
