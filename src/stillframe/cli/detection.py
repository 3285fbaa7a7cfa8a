"""``stillframe detect``: does a stable predicate hold, since when, and what was found?"""

from pathlib import Path

import typer
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stillframe.cli import output, quantities
from stillframe.cli.verdict import EXIT_NO
from stillframe.detect.predicate import Sighting, not_stable
from stillframe.detect.registry import Evaluate, if_present, resolve_predicate, topology_of_store
from stillframe.errors import UsageError
from stillframe.store.manifest import Entry
from stillframe.store.store import Store
from stillframe.topology import Topology


def detect(path: Path, name: str, reference: str | None, *, is_json: bool) -> None:
    """Say whether the predicate `name` holds in the present epoch of the store at `path`, and in
    which snapshot it held first.

    Raises:
        typer.Exit: with 1; it does not hold, or it is not stable.
    """
    store = Store.open(path)
    entries = _present(store)

    def load() -> Topology:
        return topology_of_store(store, reference, store.description_of(entries[0].id).hash)[1]

    look = resolve_predicate(name, store, load)
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


def _look_at_all(look: Evaluate, entries: list[Entry]) -> list[Sighting]:
    console = output.words()
    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        seen = [
            if_present(entry, look)
            for entry in bar.track(entries, description="looking at snapshots")
        ]
    sightings = [sighting for sighting in seen if sighting is not None]
    if not sightings:
        raise UsageError("every snapshot was dropped while it was looked at: ask again")
    return sightings
