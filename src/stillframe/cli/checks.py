"""The commands that answer yes or no about snapshots: ``verify``, ``detect`` and ``diff``."""

import typer

from stillframe.cli import output, quantities
from stillframe.cli.command import EXIT_NO, Commands, argument, end_with_no
from stillframe.cli.options import CLASSES, OptionalSnapshotName, StorePath
from stillframe.cli.snapshots import books_document, put_books
from stillframe.detect.predicate import Evaluation, not_stable
from stillframe.detect.registry import Evaluate, if_present, resolve_predicate, topology_of_store
from stillframe.errors import Damaged, NotConsistent, UsageError
from stillframe.model import SnapshotId
from stillframe.store.diff import ChannelDifference, SnapshotDiff, diff_snapshots
from stillframe.store.manifest import Entry
from stillframe.store.store import Store
from stillframe.topology import Topology

app = Commands()


@app.add("Example: stillframe verify money")
def verify(path: StorePath, name: OptionalSnapshotName = None) -> None:
    """Check every byte and the books of a snapshot, by default of all; exit 1 names what is
    wrong."""
    try:
        store = Store.open(path)
        if name is None:
            _verify_all(store)
        else:
            _verify_one(store, store.find(name))
    except (Damaged, NotConsistent) as error:
        kind = type(error).__name__
        output.answer({"is_consistent": False, "error": kind, "detail": str(error)})
        end_with_no(str(error))


def _verify_one(store: Store, snapshot: SnapshotId) -> None:
    store.verify(snapshot)
    state = store.load(snapshot).state
    document = {"is_consistent": True, "snapshot": snapshot, "channels": books_document(state)}
    output.answer(document, lambda: put_books(state))
    size = quantities.size(store.entry(snapshot).bytes)
    output.say(f"yes: snapshot {snapshot} is consistent, and its {size} are what was written")


def _verify_all(store: Store) -> None:
    byte_count = 0
    with output.progress_bar("verifying snapshots") as update:

        def progress(entry: Entry, total: int) -> None:
            nonlocal byte_count
            byte_count += entry.bytes
            update(total=total, advance=1)

        verified = store.verify_all(progress)
    output.answer({"is_consistent": True, "snapshot_count": verified, "byte_count": byte_count})
    output.say(
        f"yes: {quantities.count(verified, 'snapshot')}, {quantities.size(byte_count)}: all "
        "consistent, and every byte is what was written"
        if verified
        else f"the store {store.path} holds no snapshot yet: there is nothing to verify"
    )


@app.add(
    "Examples: stillframe detect dinner deadlock; stillframe detect money loss; stillframe detect "
    "money 'select sum(paid_count) > 1000 from processes'"
)
def detect(
    path: StorePath,
    name: str = argument(
        "PREDICATE",
        "termination, deadlock, loss (against the oldest snapshot); MODULE:FUNCTION, a function "
        "of yours that takes a view of a snapshot and returns True or False; or a question in SQL "
        "that gives true or false, over the tables processes, channels and messages.",
    ),
    reference: str | None = CLASSES,
) -> None:
    """Say whether a stable predicate holds in the newest snapshot of a store, since which, and what
    was found; exit 1 if it does not, or is not stable."""
    store = Store.open(path)
    entries = _present(store)

    def load() -> Topology:
        return topology_of_store(store, reference, store.description_of(entries[0].id).hash)[1]

    evaluations = _evaluate_all(resolve_predicate(name, store, load), entries)
    held = [seen for seen in evaluations if seen.verdict.holds]
    broken = not_stable(evaluations)
    # One that overlaps with the newest may show what that one does not: both are true of now.
    shown = held[-1] if held else evaluations[-1]
    first = min(held, key=lambda seen: seen.completed_at, default=None)
    output.answer(
        {
            "predicate": name,
            "holds": bool(held) and broken is None,
            "found": shown.verdict.sentence,
            "snapshot": shown.snapshot,
            "first": first and first.snapshot,
            "snapshot_count": len(evaluations),
            "not_stable": broken and [seen.snapshot for seen in broken],
        }
    )
    if broken is not None:
        end_with_no(not_stable_sentence(name, *broken))
    if first is None:
        end_with_no(f"{name} does not hold in {shown.snapshot}: {shown.verdict.sentence}")
    output.say(holds_sentence(name, shown, first, len(evaluations)))


def holds_sentence(name: str, shown: Evaluation, first: Evaluation, snapshot_count: int) -> str:
    """Say that a predicate holds, since when, and what was found."""
    return (
        f"yes: {name} holds in {shown.snapshot}, and has since {first.snapshot}, of "
        f"{quantities.count(snapshot_count, 'snapshot')}: {shown.verdict.sentence}"
    )


def not_stable_sentence(name: str, held: Evaluation, lost: Evaluation) -> str:
    """Say, after a ``no: ``, what two evaluations show of a predicate that is not stable."""
    return (
        f"{name} is not stable: it held in snapshot {held.snapshot} and not in "
        f"{lost.snapshot}, which was initiated when that one was complete, so nothing can be said "
        f"of now; in {lost.snapshot}: {lost.verdict.sentence}"
    )


def _present(store: Store) -> list[Entry]:
    """Return the snapshots that say something of now: those of the present epoch, or else the one
    from which it began."""
    present = [entry for entry in store.entries() if entry.epoch == store.epoch]
    if not present and store.restored_from is not None:
        present = [store.entry(store.restored_from)]
    if not present:
        raise UsageError(f"the store {store.path} holds no snapshot yet: take one")
    return present


def _evaluate_all(evaluate: Evaluate, entries: list[Entry]) -> list[Evaluation]:
    seen = [
        if_present(entry, evaluate)
        for entry in output.tracked(entries, "looking at snapshots", len(entries))
    ]
    evaluations = [evaluation for evaluation in seen if evaluation is not None]
    if not evaluations:
        raise UsageError("every snapshot was dropped while it was looked at: ask again")
    return evaluations


@app.add("Example: stillframe diff money P1-16 P1-17")
def diff(
    path: StorePath,
    before: str = argument("A", "Id of a snapshot."),
    after: str = argument("B", "Id of another."),
) -> None:
    """Show in what two snapshots differ, field by field and channel by channel; exit 1 if they
    do."""
    store = Store.open(path)
    found = diff_snapshots(store, store.find(before), store.find(after))
    fields, channels = found.fields, found.channels
    output.answer(
        {"is_equal": found.is_equal, "fields": fields, "channels": channels},
        lambda: _put_difference(before, after, found),
    )
    if found.is_equal:
        output.say(f"{before} and {after} record the same states and the same messages")
        return
    output.say(
        f"{before} and {after} differ in {quantities.count(len(fields), 'field')} of processes and "
        f"{quantities.count(len(channels), 'channel')}"
    )
    raise typer.Exit(EXIT_NO)


def _put_difference(before: str, after: str, found: SnapshotDiff) -> None:
    if fields := found.fields:
        rows = [(d.process, d.field, output.cell(d.before), output.cell(d.after)) for d in fields]
        output.put_table("processes", ["process", "field", before, after], rows, texts=2)
    if found.channels:
        columns = [f"{what}, {name}" for what in ("sent", "received", "in it") for name in "AB"]
        output.put_table(
            f"channels, counts in messages: A is {before}, B is {after}",
            ["channel", *columns],
            map(_channel_row, found.channels),
        )


def _channel_row(difference: ChannelDifference) -> tuple[str, ...]:
    note = " (other messages)" if difference.is_same_count else ""
    pairs = zip(difference.before, difference.after, strict=True)
    return difference.channel + note, *(f"{number:,}" for pair in pairs for number in pair)
