"""Who waits for whom, at random, and a slow judge of it that tries everything."""

import itertools
from collections.abc import Mapping
from random import Random

from stillframe.waiting import Waiting

Waits = Mapping[str, Waiting]
Rings = list[tuple[bool, tuple[str, ...]]]
"""Of each ring whether it is a cycle, and its processes in order."""


def random_waits(chance: Random, *, process_count: int) -> dict[str, Waiting]:
    """Return waits of some of so many processes, in a mixture of both models."""
    names = [f"P{number}" for number in range(process_count)]
    target_count_max = chance.randint(1, 3)
    return {
        name: Waiting(
            frozenset(chance.choices(names, k=chance.randint(1, target_count_max))),
            chance.random() < 0.5,
        )
        for name in names
        if chance.random() < 0.9
    }


def judge(waits: Waits) -> tuple[list[str], Rings]:
    """Return who is deadlocked, and the rings."""
    deadlocked = _stuck(waits)
    among = {name: waits[name] for name in sorted(deadlocked)}
    found: Rings = []
    placed: set[str] = set()
    for name in among:
        part = {
            other
            for other in among
            if other in _reached(among, name) and name in _reached(among, other)
        }
        core = _stuck({other: among[other] for other in part})
        if core and name not in placed:
            cycle = _shortest_cycle(among, core)
            found.append((bool(cycle), cycle or tuple(sorted(core))))
        placed |= part
    return sorted(deadlocked), found


def _stuck(waits: Waits) -> set[str]:
    """Return the largest set in which each waits in vain if nobody in it sends."""
    for size in range(len(waits), 0, -1):
        for chosen in map(set, itertools.combinations(sorted(waits), size)):
            if all(_is_in_vain(waits[name], chosen) for name in chosen):
                return chosen
    return set()


def _is_in_vain(waiting: Waiting, silent: set[str]) -> bool:
    if waiting.needs_all:
        return bool(waiting.processes & silent)
    return waiting.processes <= silent


def _reached(waits: Waits, start: str) -> set[str]:
    reached: set[str] = set()
    frontier = [start]
    while frontier:
        for name in waits[frontier.pop()].processes & waits.keys() - reached:
            reached.add(name)
            frontier.append(name)
    return reached


def _shortest_cycle(waits: Waits, core: set[str]) -> tuple[str, ...]:
    """Return the first of the shortest cycles of those who need each that they lead to."""
    needing = {
        name: waits[name].processes & core
        for name in core
        if waits[name].needs_all or len(waits[name].processes) == 1
    }
    for length in range(1, len(needing) + 1):
        for way in itertools.permutations(sorted(needing), length):
            if all(b in needing[a] for a, b in zip(way, (*way[1:], way[0]), strict=True)):
                return way
    return ()
