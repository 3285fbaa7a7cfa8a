"""``stillframe detect``: does a stable predicate hold, since when, and what was found?"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import typer
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stillframe.cli import output, quantities
from stillframe.cli.here import load_function, look_here
from stillframe.cli.verdict import EXIT_NO
from stillframe.detect.loss import Places, places_of
from stillframe.detect.predicate import (
    Sighting,
    StablePredicate,
    Verdict,
    asking,
    deadlock,
    loss_against,
    not_stable,
    termination,
)
from stillframe.detect.sql import ask, is_sql
from stillframe.detect.view import view_of
from stillframe.errors import UsageError
from stillframe.runtime.loading import load_topology
from stillframe.store.manifest import Entry
from stillframe.store.store import Store
from stillframe.topology import Topology

SHIPPED = ("termination", "deadlock", "loss")
EXAMPLE = "select sum(balance) < 100 from processes"
Read = TypeVar("Read")
Look = Callable[[Entry], Sighting]
"""Asks a predicate of one snapshot; raises a StillframeError if it cannot."""


def detect(path: Path, name: str, reference: str | None, *, is_json: bool) -> None:
    """Say whether the predicate `name` holds in the present epoch of the store at `path`, and in
    which snapshot it held first.

    Raises:
        typer.Exit: with 1; it does not hold, or it is not stable.
    """
    store = Store.open(path)
    entries = _present(store)
    look = look_for(name, store, lambda: _topology(store, reference, entries[0]))
    sightings = _look_at_all(look, entries)
    held = [seen for seen in sightings if seen.verdict.holds]
    broken = not_stable(sightings)
    # One that overlaps with the newest may show what that one does not: both are true of now.
    shown = held[-1] if held else sightings[-1]
    first = min(held, key=lambda seen: seen.completed_at, default=None)
    if is_json:
        output.put_json(
            {
                "predicate": name,
                "holds": bool(held) and broken is None,
                "found": shown.verdict.sentence,
                "snapshot": shown.snapshot,
                "first": first and first.snapshot,
                "snapshot_count": len(sightings),
                "not_stable": broken and [seen.snapshot for seen in broken],
            }
        )
    if broken is not None:
        output.say(not_stable_sentence(name, *broken))
        raise typer.Exit(EXIT_NO)
    if first is None:
        output.say(f"no: {name} does not hold in {shown.snapshot}: {shown.verdict.sentence}")
        raise typer.Exit(EXIT_NO)
    count = quantities.count(len(sightings), "snapshot")
    output.say(
        f"yes: {name} holds in {shown.snapshot}, and has since {first.snapshot}, of {count}: "
        f"{shown.verdict.sentence}"
    )


def not_stable_sentence(name: str, held: Sighting, lost: Sighting) -> str:
    """Return what two sightings say of a predicate that is not stable."""
    return (
        f"no: {name} is not stable: it held in snapshot {held.snapshot} and not in "
        f"{lost.snapshot}, which was initiated when that one was complete, so nothing can be said "
        f"of now; in {lost.snapshot}: {lost.verdict.sentence}"
    )


def _present(store: Store) -> list[Entry]:
    """Return the snapshots that say something of now: those of the present epoch, or else the one
    from which it began.

    Raises:
        UsageError: there is none.
    """
    present = [entry for entry in store.entries() if entry.epoch == store.epoch]
    if not present and store.restored_from is not None:
        present = [store.entry(store.restored_from)]
    if not present:
        raise UsageError(f"the store {store.path} holds no snapshot yet: take one")
    return present


def _topology(store: Store, reference: str | None, entry: Entry) -> Topology:
    """Return the topology that the snapshots to look at are of; `entry` is one of them."""
    known = store.reference if reference is None else reference
    if known is None:
        raise UsageError(
            f"the store {store.path} does not say of which topology it is: give "
            "--topology MODULE:TOPOLOGY"
        )
    look_here()
    topology = load_topology(known)
    if topology.description.hash != store.description_of(entry.id).hash:
        raise UsageError(
            f"the snapshots in {store.path} are of another topology than {known} is now: give the "
            "one that they were taken of with --topology"
        )
    return topology


def check_named(name: str) -> None:
    """Refuse what names no predicate.

    Raises:
        UsageError: there is none of that name, or your function cannot be imported.
    """
    if name not in SHIPPED and not is_sql(name):
        _own(name)


def look_for(name: str, store: Store, topology_of: Callable[[], Topology]) -> Look:
    """Return what asks a predicate of one snapshot of a store after the other.

    Args:
        name: termination, deadlock, loss (against the oldest snapshot of the same topology, of
            which there must be one), MODULE:FUNCTION, or a question in SQL.
        store: with the snapshots.
        topology_of: loads the topology; not called for a question in SQL.

    Raises:
        UsageError: as ``check_named``; or in the oldest snapshot nothing is conserved.
    """
    if is_sql(name):

        def look(entry: Entry) -> Sighting:
            return _sighting(entry, ask(name, entry.id, store.tables(entry.id)))

        return look
    topology = topology_of()
    predicate = _predicate(name, store, topology)
    return lambda entry: _sighting(entry, predicate(view_of(store.load(entry.id), topology)))


def _sighting(entry: Entry, verdict: Verdict) -> Sighting:
    return Sighting(entry.id, entry.epoch, entry.initiated_at, entry.completed_at, verdict)


def _predicate(name: str, store: Store, topology: Topology) -> StablePredicate:
    match name:
        case "termination":
            return termination
        case "deadlock":
            return deadlock
        case "loss":
            return loss_against(_places_at_first(store, topology))
    return _own(name)


def _places_at_first(store: Store, topology: Topology) -> Places:
    """Return what the oldest snapshot holds of conserved quantities, of those that this code can
    read: see ``migration`` for what a change of it conserves."""

    def places_in(entry: Entry) -> Places | None:
        if store.description_of(entry.id).hash != topology.description.hash:
            return None
        places = places_of(view_of(store.load(entry.id), topology))
        if not places:
            raise UsageError(
                f"in snapshot {entry.id} nobody has anything that is conserved: write 'conserved' "
                "for the processes and messages that do"
            )
        return places

    for entry in sorted(store.entries(), key=lambda entry: (entry.epoch, entry.initiated_at)):
        places = unless_dropped(entry, places_in)
        if places is not None:
            return places
    raise UsageError(f"no snapshot in {store.path} is of this topology any more: take one")


def _own(name: str) -> StablePredicate:
    if ":" not in name:
        raise UsageError(
            f"there is no predicate {name!r}: give one of {', '.join(SHIPPED)}; or "
            "MODULE:FUNCTION, a function of yours that takes a view and returns True or False; or "
            f"a question in SQL, such as {EXAMPLE!r}"
        )
    return asking(load_function(name), name)


def _look_at_all(look: Look, entries: list[Entry]) -> list[Sighting]:
    console = output.words()
    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        seen = [
            unless_dropped(entry, look)
            for entry in bar.track(entries, description="looking at snapshots")
        ]
    sightings = [sighting for sighting in seen if sighting is not None]
    if not sightings:
        raise UsageError("every snapshot was dropped while it was looked at: ask again")
    return sightings


def unless_dropped(entry: Entry, read: Callable[[Entry], Read]) -> Read | None:
    """Return what `read` gives for a snapshot; None if it was dropped meanwhile, as ``run --keep``
    does.

    Raises:
        StillframeError: it cannot be read.
    """
    try:
        return read(entry)
    except UsageError:
        if entry.directory.is_dir():
            raise
        return None
