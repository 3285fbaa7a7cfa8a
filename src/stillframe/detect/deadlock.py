"""Deadlock: processes that wait for each other, and no message on its way will end that.

A process is blocked if it says so (``Process.waits_for``). Whoever is not blocked may still send
anything; so may a process once its wait can end. What is left when that is followed to its end is
deadlocked, in the AND model, the OR model, and any mixture (Knapp 1987, section 2). It is stable:
none of these sends before another of them has.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stillframe.detect.asked import waits_for
from stillframe.detect.view import View
from stillframe.errors import UsageError
from stillframe.model import Channel, ProcessId
from stillframe.waiting import Waiting


class Ring(msgspec.Struct, frozen=True):
    """Processes that keep each other blocked, whatever all others do.

    `is_cycle`: each waits for the next, and the last for the first. Else they are a knot, of
    processes that wait for several others. `waits` says for whom each waits, less those from whom
    what it waits for is on its way.
    """

    processes: tuple[ProcessId, ...]
    is_cycle: bool
    waits: dict[ProcessId, Waiting]

    def __str__(self) -> str:
        if self.is_cycle:
            return " waits for ".join((*self.processes, self.processes[0]))
        return "; ".join(f"{name} waits for {self.waits[name]}" for name in self.processes)


class Deadlock(msgspec.Struct, frozen=True):
    """Which processes are deadlocked, and who keeps whom: the others wait for these rings."""

    processes: tuple[ProcessId, ...]
    rings: tuple[Ring, ...]


def find_deadlock(view: View) -> Deadlock | None:
    """Return the deadlock in a snapshot, or None if there is none.

    A message that is in transit ends the wait that it would end when it arrives; so does one from
    a process that is not blocked itself. A request that is in transit to a blocked process changes
    nothing: who is blocked sends nothing.

    Raises:
        UsageError: a process waits for one that there is not, or that cannot send to it.
        ApplicationError: a process does not say for whom it waits.
    """
    waits = _waits_of(view)
    open_waits = {
        name: _without_granted(waiting, granted)
        for name, waiting in waits.items()
        if (granted := _granted(view, name, waiting)) is not None
    }
    deadlocked = blocked_for_ever(open_waits)
    if not deadlocked:
        return None
    among = {name: open_waits[name] for name in deadlocked}
    return Deadlock(tuple(sorted(deadlocked)), tuple(_rings(among)))


def blocked_for_ever(waits: Mapping[ProcessId, Waiting]) -> set[ProcessId]:
    """Return which processes stay blocked, whatever those that are not in `waits` send."""
    blocked = set(waits)
    while True:
        freed = {name for name in blocked if _may_end(waits[name], blocked)}
        if not freed:
            return blocked
        blocked -= freed


def _may_end(waiting: Waiting, blocked: set[ProcessId]) -> bool:
    if waiting.needs_all:
        return waiting.processes.isdisjoint(blocked)
    return not waiting.processes <= blocked


def _waits_of(view: View) -> dict[ProcessId, Waiting]:
    """Return who waits, and for whom."""
    waits = {}
    for name, process in view.processes.items():
        waiting = waits_for(process, f"process {name}", view.snapshot)
        if waiting is None:
            continue
        strangers = sorted(waiting.processes - view.processes.keys())
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
        waits[name] = waiting
    return waits


def _granted(view: View, name: ProcessId, waiting: Waiting) -> set[ProcessId] | None:
    """Return from whom a message that ends a part of a wait is on its way; None if it will end with
    what is on its way."""
    kinds = waiting.ended_by or (object,)
    granted = {
        channel.source
        for channel, messages in view.channels.items()
        if channel.target == name
        and channel.source in waiting.processes
        and any(isinstance(message, kinds) for message in messages)
    }
    is_over = granted == waiting.processes if waiting.needs_all else bool(granted)
    return None if is_over else granted


def _without_granted(waiting: Waiting, granted: set[ProcessId]) -> Waiting:
    return msgspec.structs.replace(waiting, processes=waiting.processes - granted)


def _rings(waits: Mapping[ProcessId, Waiting]) -> Iterable[Ring]:
    """Yield sets of deadlocked processes that keep each other blocked, whatever all others do."""
    for names in _components(waits):
        inside = {name: waits[name] for name in names}
        core = blocked_for_ever(inside)
        if not core:
            continue  # these wait for another ring
        # Whoever needs just this one is as blocked as one who needs all.
        needing = {
            name: sorted(waits[name].processes & core)
            for name in sorted(core)
            if waits[name].needs_all or len(waits[name].processes) == 1
        }
        cycle = _shortest_cycle(needing)
        ring = cycle or tuple(sorted(core))
        yield Ring(ring, bool(cycle), {name: waits[name] for name in ring})


def _components(waits: Mapping[ProcessId, Waiting]) -> list[list[ProcessId]]:
    """Return the strongly connected components of the wait-for graph, each sorted."""
    reached = {name: _reached(waits, name) for name in waits}
    components: list[list[ProcessId]] = []
    placed: set[ProcessId] = set()
    for name in sorted(waits):
        if name not in placed and name in reached[name]:
            component = sorted(other for other in reached[name] if name in reached[other])
            placed.update(component)
            components.append(component)
    return components


def _reached(waits: Mapping[ProcessId, Waiting], start: ProcessId) -> set[ProcessId]:
    """Return for whom `start` waits, for whom those wait, and so on, among the keys of `waits`."""
    reached: set[ProcessId] = set()
    frontier = [start]
    while frontier:
        for name in waits[frontier.pop()].processes:
            if name in waits and name not in reached:
                reached.add(name)
                frontier.append(name)
    return reached


def _shortest_cycle(waits: Mapping[ProcessId, Sequence[ProcessId]]) -> tuple[ProcessId, ...]:
    """Return a shortest cycle, from its smallest name on; nothing if there is none."""
    cycles = [cycle for start in sorted(waits) if (cycle := _way_back(waits, start))]
    return min(cycles, key=len, default=())


def _way_back(
    waits: Mapping[ProcessId, Sequence[ProcessId]], start: ProcessId
) -> tuple[ProcessId, ...]:
    """Return a shortest cycle through `start`, or nothing."""
    ways: deque[tuple[ProcessId, ...]] = deque([(start,)])
    seen: set[ProcessId] = set()
    while ways:
        way = ways.popleft()
        for name in waits.get(way[-1], ()):
            if name == start:
                return way
            if name not in seen:
                seen.add(name)
                ways.append((*way, name))
    return ()
