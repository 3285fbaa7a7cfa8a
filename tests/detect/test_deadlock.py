"""Deadlock detection against a search through everything that could still happen."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillframe.detect.predicate import find_deadlock
from stillframe.detect.view import SnapshotView
from stillframe.errors import UsageError
from stillframe.model import Channel, SnapshotId
from stillframe.process import Message
from stillframe.waiting import Waiting, for_all, for_any
from tests.nightly import examples


class Grant(Message):
    """What ends a wait."""


class Request(Message):
    """What does not."""


@dataclass
class Waiter:
    """A process that waits as it is told."""

    waiting: Waiting | None

    def waits_for(self) -> Waiting | None:
        """Say so."""
        return self.waiting


def seen(
    waits: Mapping[str, Waiting | None], *in_transit: tuple[str, str, Message]
) -> SnapshotView:
    """Return a global state in which processes wait and messages (source, target, message) are on
    their way."""
    channels: dict[Channel, tuple[Message, ...]] = {
        Channel(source, target): () for source in waits for target in waits
    }
    for source, target, message in in_transit:
        channel = Channel(source, target)
        channels[channel] = (*channels.get(channel, ()), message)
    return SnapshotView(SnapshotId("P", 1), {n: Waiter(w) for n, w in waits.items()}, channels)


def test_a_cycle_is_named_from_its_smallest_name_on() -> None:
    """Each needs the next; whoever merely waits for one of them is deadlocked, and not named."""
    found = find_deadlock(
        seen(
            {"D": for_any("B"), "B": for_all("C"), "C": for_all("A"), "A": for_all("B"), "E": None}
        )
    )
    assert found is not None
    assert found.processes == ("A", "B", "C", "D")
    assert [str(ring) for ring in found.rings] == ["A waits for B waits for C waits for A"]


def test_a_knot_is_named_whole() -> None:
    """Each could go on with a message from any of several, who are all blocked."""
    waits = {"A": for_any("B", "C"), "B": for_any("A", "C"), "C": for_any("A", "B")}
    found = find_deadlock(seen(waits))
    assert found is not None
    (ring,) = found.rings
    assert (ring.is_cycle, ring.processes) == (False, ("A", "B", "C"))
    assert str(ring) == "A waits for B or C; B waits for A or C; C waits for A or B"
    assert find_deadlock(seen(waits | {"D": None, "C": for_any("A", "D")})) is None


def test_in_the_and_model_one_way_out_is_not_enough() -> None:
    """Who needs all stays blocked by one; who needs any goes on by one."""
    blocked = {"A": for_all("B", "C"), "B": for_all("A"), "C": None}
    found = find_deadlock(seen(blocked))
    assert found is not None
    assert found.processes == ("A", "B")
    assert find_deadlock(seen(blocked | {"A": for_any("B", "C")})) is None


def test_a_message_on_its_way_ends_a_wait() -> None:
    """A grant does, a request does not, and each ends its own part of a wait for all."""
    cycle = {"A": for_all("B", ended_by=Grant), "B": for_all("A", ended_by=Grant)}
    assert find_deadlock(seen(cycle, ("A", "B", Grant()))) is None
    assert find_deadlock(seen(cycle, ("A", "B", Request()))) is not None
    assert find_deadlock(seen(cycle | {"A": for_all("B")}, ("B", "A", Request()))) is None
    two = {"A": for_all("B", "C"), "B": for_all("A"), "C": for_all("A")}
    found = find_deadlock(seen(two, ("B", "A", Grant())))
    assert found is not None
    assert [str(ring) for ring in found.rings] == ["A waits for C waits for A"]


def test_two_rings_are_both_named() -> None:
    """Also when one of them waits for the other besides."""
    found = find_deadlock(
        seen({"A": for_all("B", "C"), "B": for_all("A"), "C": for_all("D"), "D": for_all("C")})
    )
    assert found is not None
    assert [ring.processes for ring in found.rings] == [("A", "B"), ("C", "D")]


def test_a_stranger_is_refused() -> None:
    """A wait for a process that there is not is a mistake of the program."""
    with pytest.raises(UsageError, match="process A waits for 'X', which is not a process"):
        find_deadlock(seen({"A": for_all("X")}))
    view = seen({"A": for_all("B"), "B": None})
    del view.channels[Channel("B", "A")]
    with pytest.raises(UsageError, match="there is no channel from B to A"):
        find_deadlock(view)
    with pytest.raises(UsageError, match="name at least one, or return None"):
        for_any()
    with pytest.raises(UsageError, match=r"cannot wait for \['A'\]: give names, one by one"):
        for_any(["A"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="ended_by holds 'Grant': give message classes"):
        for_all("A", ended_by=("Grant",))  # type: ignore[arg-type]


NAMES = ("A", "B", "C")
WAITS = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        Waiting, st.frozensets(st.sampled_from(NAMES), min_size=1), st.booleans(), st.just((Grant,))
    ),
)
MESSAGES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), st.sampled_from([Grant, Request])),
    max_size=4,
)


def ever_free(waits: Mapping[str, Waiting], grants: set[tuple[str, str]]) -> set[str]:
    """Return which processes go on in some course of events: whoever is free may send a grant to
    anybody, and a grant that was sent arrives at some time."""
    free: set[str] = set()
    frontier: list[tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]]]] = [
        (frozenset(grants), frozenset())
    ]
    visited = set(frontier)
    while frontier:
        on_the_way, arrived = frontier.pop()
        now = {n for n in NAMES if n not in waits or _is_over(waits[n], n, arrived)}
        free |= now
        steps = [(on_the_way, arrived | {grant}) for grant in on_the_way]
        steps += [(on_the_way | {(s, t)}, arrived) for s in now for t in NAMES if t != s]
        for step in steps:
            if step not in visited:
                visited.add(step)
                frontier.append(step)
    return free


def _is_over(waiting: Waiting, name: str, arrived: frozenset[tuple[str, str]]) -> bool:
    granted = [(source, name) in arrived for source in waiting.processes]
    return all(granted) if waiting.needs_all else any(granted)


@pytest.mark.slow
@settings(max_examples=examples(250))
@given(WAITS, MESSAGES)
def test_it_finds_exactly_those_that_never_go_on(
    waits: dict[str, Waiting], messages: list[tuple[str, str, type[Message]]]
) -> None:
    """No false alarm and nothing missed, in all mixtures of both models, with messages on their
    way."""
    everybody = dict.fromkeys(NAMES) | waits
    found = find_deadlock(seen(everybody, *((s, t, kind()) for s, t, kind in messages)))
    grants = {(source, target) for source, target, kind in messages if kind is Grant}
    deadlocked = set(NAMES) - ever_free(waits, grants)
    assert (set() if found is None else set(found.processes)) == deadlocked
    assert found is None or found.rings
