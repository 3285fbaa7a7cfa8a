"""Wait-for graphs as numbers: the same as by trying everything, and linear in the waits."""

from collections.abc import Sequence
from random import Random

import pytest

from stillframe.detect import wait_for_graph as module
from stillframe.detect.wait_for_graph import Graph, blocked_for_ever, components, rings
from tests.detect.waits import Rings, Waits, judge, random_waits

GRAPH_COUNT = 3000
LARGE = 50_000


def graph_of(waits: Waits) -> tuple[list[str], Graph]:
    """Return the names in order, and the graph with their numbers."""
    names = sorted(set(waits).union(*(waiting.processes for waiting in waits.values())))
    targets = [
        sorted(names.index(other) for other in waits[name].processes) if name in waits else []
        for name in names
    ]
    return names, Graph(targets, [name in waits and waits[name].needs_all for name in names])


def found(waits: Waits) -> tuple[list[str], Rings]:
    """Return who is deadlocked, and the rings, as the slow judge does."""
    names, graph = graph_of(waits)
    blocked = blocked_for_ever(graph)
    named = [
        (ring.is_cycle, tuple(names[number] for number in ring.processes))
        for ring in rings(graph, blocked)
    ]
    return [name for name, is_blocked in zip(names, blocked, strict=True) if is_blocked], named


def test_it_says_what_trying_everything_says() -> None:
    """Of random graphs in which some wait for all and some for any; some have cycles, some knots,
    some both."""
    chance = Random(1)
    kinds = set()
    for _ in range(GRAPH_COUNT):
        waits = random_waits(chance, process_count=chance.randint(1, 6))
        expected = judge(waits)
        assert found(waits) == expected
        kinds.add(frozenset(is_cycle for is_cycle, _ in expected[1]))
    assert kinds == {frozenset(), frozenset({True}), frozenset({False}), frozenset({True, False})}


def everybody_needs(targets: Sequence[Sequence[int]]) -> list[tuple[bool, list[int]]]:
    """Return the rings among processes that each wait for all of their targets."""
    graph = Graph(targets, [True] * len(targets))
    return [(ring.is_cycle, ring.processes) for ring in rings(graph, blocked_for_ever(graph))]


def test_a_large_ring_is_named_whole() -> None:
    """It takes no time that grows with the square, nor depth of calls."""
    ring = [[(number + 1) % LARGE] for number in range(LARGE)]
    assert everybody_needs(ring) == [(True, list(range(LARGE)))]
    graph = Graph(ring, [False] * LARGE)
    assert blocked_for_ever(graph) == [True] * LARGE


def test_a_short_cycle_in_a_large_ring_is_named() -> None:
    """Wherever it lies."""
    ring = [[(number + 1) % LARGE] for number in range(LARGE)]
    ring[-1].append(LARGE - 2)
    assert everybody_needs(ring) == [(True, [LARGE - 2, LARGE - 1])]


def test_a_long_chain_is_freed() -> None:
    """From its end on, one after the other."""
    chain = Graph([[number + 1] for number in range(LARGE)] + [[]], [True] * LARGE + [False])
    assert not any(blocked_for_ever(chain))
    assert len(set(components(chain.targets))) == LARGE + 1


def test_the_search_for_a_shorter_cycle_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is named then is a cycle, and not a shorter one that lies farther on."""
    ring = [[(number + 1) % 9] for number in range(9)]
    ring[7].append(6)
    assert everybody_needs(ring) == [(True, [6, 7])]
    monkeypatch.setattr(module, "STEP_COUNT_MAX", 5)
    assert everybody_needs(ring) == [(True, list(range(9)))]
