"""Deadlock: processes that wait for each other, and no message in transit will end that.

A process is blocked if it says so (``Process.waits_for``). A process that is not blocked may still
send anything; so may one whose wait can end. The processes left when that is followed to its end
are deadlocked, in the AND model, the OR model, and any mixture (Knapp 1987, section 2). It is
stable: none of these sends before another of them has.
"""

import msgspec

from stillframe.detect.view import View, waits_for
from stillframe.detect.wait_for_graph import Graph, blocked_for_ever, ring_text, rings
from stillframe.errors import UsageError
from stillframe.model import Channel, ProcessId
from stillframe.waiting import Waiting


class Ring(msgspec.Struct, frozen=True):
    """Processes that keep each other blocked, whatever all others do.

    `is_cycle`: each waits for the next, and the last for the first. Otherwise they are a knot, of
    processes that wait for several others. `waits` are the processes that each one waits for, less
    those whose message is in transit.
    """

    processes: tuple[ProcessId, ...]
    is_cycle: bool
    waits: dict[ProcessId, Waiting]

    def __str__(self) -> str:
        words = None if self.is_cycle else {name: str(self.waits[name]) for name in self.processes}
        return ring_text(self.processes, words)


class Deadlock(msgspec.Struct, frozen=True):
    """The deadlocked processes, and the rings among them; all others wait for these rings."""

    processes: tuple[ProcessId, ...]
    rings: tuple[Ring, ...]


def find_deadlock(view: View) -> Deadlock | None:
    """Return the deadlock in a snapshot, or None if there is none.

    A message in transit ends the wait that it would end when it arrives; so does one from a process
    that is not blocked itself. A request in transit to a blocked process changes nothing: a blocked
    process sends nothing. Raises as ``open_waits``.
    """
    waits = open_waits(view)
    names = sorted(set(waits).union(*(waiting.processes for waiting in waits.values())))
    numbers = {name: number for number, name in enumerate(names)}
    graph = Graph(
        [
            sorted(numbers[other] for other in waits[n].processes) if n in waits else []
            for n in names
        ],
        [n in waits and waits[n].needs_all for n in names],
    )
    blocked = blocked_for_ever(graph)
    if not any(blocked):
        return None
    found = []
    for ring in rings(graph, blocked):
        processes = tuple(names[number] for number in ring.processes)
        found.append(Ring(processes, ring.is_cycle, {name: waits[name] for name in processes}))
    deadlocked = tuple(name for name, is_blocked in zip(names, blocked, strict=True) if is_blocked)
    return Deadlock(deadlocked, tuple(found))


def open_waits(view: View) -> dict[ProcessId, Waiting]:
    """Return the waits of all processes, less those that messages in transit end.

    Raises a UsageError if a process waits for one that does not exist, or that cannot send to it;
    an ApplicationError if a process gives an invalid answer.
    """
    waits = {}
    for name, process in view.processes.items():
        waiting = waits_for(process, f"process {name}", view.snapshot)
        if waiting is None:
            continue
        strangers = sorted(other for other in waiting.processes if other not in view.processes)
        if strangers:
            raise UsageError(
                f"process {name} waits for {strangers[0]!r}, and there is no such process; there "
                f"are {', '.join(view.processes)}"
            )
        for source in sorted(waiting.processes):
            if Channel(source, name) not in view.channels:
                raise UsageError(
                    f"process {name} waits for {source}, and there is no channel from {source} to "
                    f"{name} on which something could come"
                )
        granted = _granted(view, name, waiting)
        if granted is not None:
            waits[name] = msgspec.structs.replace(waiting, processes=waiting.processes - granted)
    return waits


def _granted(view: View, name: ProcessId, waiting: Waiting) -> set[ProcessId] | None:
    """Return the processes whose message in transit ends a part of a wait; None if the messages in
    transit end all of it."""
    kinds = waiting.ended_by or (object,)
    granted = {
        source
        for source in waiting.processes
        if any(isinstance(message, kinds) for message in view.channels[Channel(source, name)])
    }
    is_over = granted == waiting.processes if waiting.needs_all else bool(granted)
    return None if is_over else granted
