"""Stable predicates as functions of a global state, and what is seen of one over many snapshots."""

from collections.abc import Callable, Mapping

import msgspec

from stillframe.detect.asked import yes_or_no
from stillframe.detect.deadlock import find_deadlock
from stillframe.detect.loss import Number, find_loss, total
from stillframe.detect.rings import deadlock_text
from stillframe.detect.termination import find_activity
from stillframe.detect.view import View
from stillframe.model import SnapshotId

NO_DEADLOCK = "no processes keep each other blocked"


class Verdict(msgspec.Struct, frozen=True):
    """Whether a predicate holds in a snapshot, and what was found there, for people."""

    holds: bool
    sentence: str


StablePredicate = Callable[[View], Verdict]
"""Once it holds it must hold for ever, as long as the system is not restored: then what holds in a
snapshot holds now (Chandy & Lamport 1985, section 4)."""


def termination(view: View) -> Verdict:
    """Judge whether everything is over: all processes are passive, and all channels empty."""
    activity = find_activity(view)
    return Verdict(
        activity is None, str(activity or "every process is passive, nothing on its way")
    )


def deadlock(view: View) -> Verdict:
    """Judge whether processes keep each other blocked for ever."""
    found = find_deadlock(view)
    if found is None:
        return Verdict(holds=False, sentence=NO_DEADLOCK)
    among = {name for ring in found.rings for name in ring.processes}
    behind = [name for name in found.processes if name not in among]
    return Verdict(holds=True, sentence=deadlock_text([str(ring) for ring in found.rings], behind))


def loss_against(expected: Mapping[str, Mapping[str, Number]]) -> StablePredicate:
    """Return the predicate that there is less or more of something than expected.

    Args:
        expected: what ``loss.places_of`` said of a snapshot in which nothing was lost.
    """
    amounts = ", ".join(f"{total(places)} {quantity}" for quantity, places in expected.items())

    def loss(view: View) -> Verdict:
        found = find_loss(view, expected)
        return Verdict(bool(found), "; ".join(map(str, found)) or f"all is there: {amounts}")

    return loss


def asking(function: Callable[[View], bool], name: str) -> StablePredicate:
    """Return a predicate that asks a function of yours.

    Args:
        function: takes a `View` and returns whether the predicate holds.
        name: for people.
    """

    def own(view: View) -> Verdict:
        found = yes_or_no(function, view, name, f"on snapshot {view.snapshot}")
        return Verdict(found, f"{name} says {found}")

    return own


class Sighting(msgspec.Struct, frozen=True):
    """A verdict on one snapshot. Times are seconds since 1970 (``model.Snapshot``)."""

    snapshot: SnapshotId
    epoch: int
    initiated_at: float
    completed_at: float
    verdict: Verdict


def not_stable(sightings: list[Sighting]) -> tuple[Sighting, Sighting] | None:
    """Return two sightings that show that a predicate is not stable; None if none do.

    It held in the first, and not in the second, whose snapshot was initiated in the same epoch when
    the first was complete. Snapshots that overlap show nothing: neither comes after the other.
    """
    first_held: dict[int, Sighting] = {}
    for seen in sightings:
        if seen.verdict.holds:
            before = first_held.get(seen.epoch)
            if before is None or seen.completed_at < before.completed_at:
                first_held[seen.epoch] = seen
    for seen in sightings:
        before = first_held.get(seen.epoch)
        if seen.verdict.holds or before is None:
            continue
        if seen.initiated_at >= before.completed_at:
            return before, seen
    return None
