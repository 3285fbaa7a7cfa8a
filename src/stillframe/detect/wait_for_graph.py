"""Wait-for graphs of numbers: the processes that stay blocked, and their rings, in linear time.

Processes are numbers from 0, in the order of their names. Only plain Python is needed: ``deadlock``
uses this for one snapshot, and tasks of Spark for thousands of snapshots.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

STEP_COUNT_MAX = 2_000_000
"""Maximum waits followed in each search: for short cycles, then for longer ones, then for any. The
shortest cycle found by then is reported; among many thousands a shorter one may exist."""


class Graph(NamedTuple):
    """The processes that each process waits for, in order, without repetition; none: it is not
    blocked. `needs_all`: whether it waits for all of them, or for any."""

    targets: Sequence[Sequence[int]]
    needs_all: Sequence[bool]


class NumberedRing(NamedTuple):
    """A cycle, from its first process on; or a knot, in order."""

    processes: list[int]
    is_cycle: bool


def blocked_for_ever(graph: Graph) -> list[bool]:
    """Return whether each process stays blocked, whatever the others send."""
    waiters: list[list[int]] = [[] for _ in graph.targets]
    for process, targets in enumerate(graph.targets):
        for target in targets:
            waiters[target].append(process)
    needed_counts = [
        len(targets) if needs_all else 1
        for targets, needs_all in zip(graph.targets, graph.needs_all, strict=True)
    ]
    blocked = [bool(targets) for targets in graph.targets]
    free = [process for process, is_blocked in enumerate(blocked) if not is_blocked]
    while free:
        for waiter in waiters[free.pop()]:
            needed_counts[waiter] -= 1
            if blocked[waiter] and needed_counts[waiter] <= 0:
                blocked[waiter] = False
                free.append(waiter)
    return blocked


def rings(graph: Graph, blocked: Sequence[bool]) -> Iterator[NumberedRing]:
    """Yield sets of blocked processes that keep each other so, whatever all others do. `blocked` is
    the result of `blocked_for_ever`."""
    among = [
        [target for target in targets if blocked[target]] if is_blocked else []
        for targets, is_blocked in zip(graph.targets, blocked, strict=True)
    ]
    parts = components(among)
    inside = [
        [target for target in targets if parts[target] == part]
        for targets, part in zip(among, parts, strict=True)
    ]
    for process, targets in enumerate(graph.targets):
        if not graph.needs_all[process] and len(inside[process]) < len(targets):
            inside[process] = []  # one from outside is enough
    core = blocked_for_ever(Graph(inside, graph.needs_all))
    members: dict[int, list[int]] = {}
    for process, part in enumerate(parts):
        members.setdefault(part, [])
        if core[process]:
            members[part].append(process)
    # A process that needs just this one is as blocked as one that needs all.
    needing = [
        [target for target in targets if core[target]]
        if core[process] and (graph.needs_all[process] or len(graph.targets[process]) == 1)
        else []
        for process, targets in enumerate(inside)
    ]
    shortest_cycle = _CycleSearch(needing)
    for knot in members.values():
        if knot:  # else these wait for another ring
            cycle = shortest_cycle.among(knot)
            yield NumberedRing(cycle or knot, bool(cycle))


def components(targets: Sequence[Sequence[int]]) -> list[int]:
    """Return the number of each process's strongly connected component (Tarjan, *Depth-First Search
    and Linear Graph Algorithms*, 1972)."""
    unseen = -1
    order, lowest, parts = ([unseen] * len(targets) for _ in range(3))
    seen_count = 0
    open_: list[int] = []
    for start in range(len(targets)):
        if order[start] != unseen:
            continue
        way, ahead = [start], [iter(targets[start])]
        order[start] = lowest[start] = seen_count
        seen_count += 1
        open_.append(start)
        while way:
            process = way[-1]
            for target in ahead[-1]:
                if order[target] == unseen:
                    order[target] = lowest[target] = seen_count
                    seen_count += 1
                    open_.append(target)
                    way.append(target)
                    ahead.append(iter(targets[target]))
                    break
                if parts[target] == unseen:
                    lowest[process] = min(lowest[process], order[target])
            else:
                way.pop()
                ahead.pop()
                if way:
                    lowest[way[-1]] = min(lowest[way[-1]], lowest[process])
                while lowest[process] == order[process] and parts[process] == unseen:
                    parts[open_.pop()] = process
    return parts


class _CycleSearch:
    """Finds a shortest cycle among processes that each need every one they lead to."""

    def __init__(self, needing: Sequence[Sequence[int]]) -> None:
        self._needing = needing
        self._parts = components(needing)
        self._sizes = Counter(self._parts)
        self._wait_counts = Counter(
            part
            for process, part in enumerate(self._parts)
            for target in needing[process]
            if self._parts[target] == part
        )

    def among(self, processes: Sequence[int]) -> list[int]:
        """Return a shortest cycle, from its smallest number on; empty if there is none."""
        # Short ones first: in a large graph they are found by looking a few steps far from each.
        return next(filter(None, (self._search(processes, below) for below in (3, 9, 0))), [])

    def _search(self, processes: Sequence[int], below: int) -> list[int]:
        """Return a shortest cycle that is shorter than `below` (0: any length), if there is one and
        it is found before too many waits were followed."""
        shortest: list[int] = []
        step_count = 0
        searched: set[int] = set()
        for start in processes:
            part = self._parts[start]
            if not self._wait_counts[part] or part in searched:
                continue
            if self._wait_counts[part] == self._sizes[part]:
                searched.add(part)  # a single cycle: every start finds it
                if 0 < below <= self._sizes[part]:
                    continue
            cycle, steps = self._way_back(start, len(shortest) or below)
            shortest = cycle or shortest
            step_count += steps
            if step_count > STEP_COUNT_MAX:
                break
        return shortest

    def _way_back(self, start: int, length: int) -> tuple[list[int], int]:
        """Return a shortest cycle through `start` that is shorter than `length` (0: any length), if
        there is one; and how many waits were followed."""
        came_from: dict[int, int] = {}
        frontier, depth, step_count = [start], 1, 0
        while frontier and (depth < length or not length):
            reached = []
            for process in frontier:
                for target in self._needing[process]:
                    step_count += 1
                    if target == start:
                        way = [process]
                        while way[-1] != start:
                            way.append(came_from[way[-1]])
                        return way[::-1], step_count
                    if target not in came_from and self._parts[target] == self._parts[start]:
                        came_from[target] = process
                        reached.append(target)
            frontier, depth = reached, depth + 1
        return [], step_count


def ring_text(names: Sequence[str], waits: Mapping[str, str] | None) -> str:
    """Return a sentence about a ring; `waits` says what each process waits for, None for a
    cycle."""
    if waits is None:
        return " waits for ".join((*names, names[0]))
    return "; ".join(f"{name} waits for {waits[name]}" for name in names)


def deadlock_text(ring_texts: Sequence[str], behind: Sequence[str]) -> str:
    """Return a sentence about a deadlock: its rings, and the processes that wait for them."""
    ring_words = "; ".join(ring_texts)
    return f"{ring_words}; waiting for them: {', '.join(behind)}" if behind else ring_words
