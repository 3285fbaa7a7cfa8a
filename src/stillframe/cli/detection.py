"""``stillframe detect``: does a stable predicate hold, since when, and what was found?"""

import itertools
from pathlib import Path

import typer
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stillframe.cli import output, quantities
from stillframe.cli.here import load_function, look_here
from stillframe.cli.verdict import EXIT_NO
from stillframe.detect.loss import totals_of
from stillframe.detect.predicate import (
    Sighting,
    StablePredicate,
    asking,
    deadlock,
    loss_against,
    not_stable,
    termination,
)
from stillframe.detect.view import view_of
from stillframe.errors import UsageError
from stillframe.runtime.loading import load_topology
from stillframe.store.manifest import Entry
from stillframe.store.store import Store
from stillframe.topology import Topology

SHIPPED = ("termination", "deadlock", "loss")


def detect(path: Path, name: str, reference: str | None, *, is_json: bool) -> None:
    """Say whether the predicate `name` holds in the newest snapshot of the store at `path`, and in
    which it held first.

    Raises:
        typer.Exit: with 1; it does not hold, or it is not stable.
    """
    store = Store.open(path)
    topology = _topology(store, reference)
    entries = store.entries()
    if not entries:
        raise UsageError(f"the store {path} holds no snapshot yet: take one")
    predicate = predicate_named(name, store, topology)
    sightings = _look(store, topology, predicate, entries)
    newest = sightings[-1]
    first = _first_of(sightings)
    broken = not_stable(sightings)
    if is_json:
        output.put_json(
            {
                "predicate": name,
                "holds": newest.verdict.holds,
                "found": newest.verdict.sentence,
                "snapshot": newest.snapshot,
                "first": first and first.snapshot,
                "snapshot_count": len(sightings),
                "not_stable": broken and [seen.snapshot for seen in broken],
            }
        )
    if broken is not None:
        held, lost = broken
        output.say(
            f"no: {name} is not stable: it held in snapshot {held.snapshot} and not in "
            f"{lost.snapshot}, which was initiated when that one was complete, so nothing can be "
            f"said of now; in {lost.snapshot}: {lost.verdict.sentence}"
        )
        raise typer.Exit(EXIT_NO)
    count = quantities.count(len(sightings), "snapshot")
    if first is None:
        output.say(f"no: {name} does not hold in {newest.snapshot}: {newest.verdict.sentence}")
        raise typer.Exit(EXIT_NO)
    output.say(
        f"yes: {name} holds in {newest.snapshot}, and has since {first.snapshot}, of {count}: "
        f"{newest.verdict.sentence}"
    )


def _first_of(sightings: list[Sighting]) -> Sighting | None:
    """Return the first of those at the end in which a predicate holds, if it does in the newest."""
    held = itertools.takewhile(lambda seen: seen.verdict.holds, reversed(sightings))
    return next(reversed(list(held)), None)


def _topology(store: Store, reference: str | None) -> Topology:
    known = store.reference if reference is None else reference
    if known is None:
        raise UsageError(
            f"the store {store.path} does not say of which topology it is: give "
            "--topology MODULE:TOPOLOGY"
        )
    look_here()
    topology = load_topology(known)
    if topology.description.hash != store.description.hash:
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
    if name not in SHIPPED:
        _own(name)


def predicate_named(name: str, store: Store, topology: Topology) -> StablePredicate:
    """Return the predicate of that name, for a store with a snapshot.

    Raises:
        UsageError: as ``check_named``; or in the oldest snapshot nothing is conserved.
    """
    match name:
        case "termination":
            return termination
        case "deadlock":
            return deadlock
        case "loss":
            oldest = store.entries()[0].id
            totals = totals_of(view_of(store.load(oldest), topology))
            if not totals:
                raise UsageError(
                    f"in snapshot {oldest} nobody has anything that is conserved: write "
                    "'conserved' for the processes and messages that do"
                )
            return loss_against(totals)
    return _own(name)


def _own(name: str) -> StablePredicate:
    if ":" not in name:
        raise UsageError(
            f"there is no predicate {name!r}: give one of {', '.join(SHIPPED)}, or "
            "MODULE:FUNCTION, a function of yours that takes a view and returns True or False"
        )
    return asking(load_function(name), name)


def _look(
    store: Store, topology: Topology, predicate: StablePredicate, entries: list[Entry]
) -> list[Sighting]:
    console = output.words()
    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        return [
            look_at(entry, store, topology, predicate)
            for entry in bar.track(entries, description="looking at snapshots")
        ]


def look_at(entry: Entry, store: Store, topology: Topology, predicate: StablePredicate) -> Sighting:
    """Return what a predicate says of one snapshot of a store.

    Raises:
        StillframeError: the snapshot cannot be read, or the predicate not be asked.
    """
    verdict = predicate(view_of(store.load(entry.id), topology))
    return Sighting(entry.id, entry.epoch, entry.initiated_at, entry.completed_at, verdict)
