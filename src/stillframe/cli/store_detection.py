"""``stillframe spark detect``: a stable predicate, asked of every snapshot of a store at once."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from stillframe.analytics.predicate_eval import DAMAGED
from stillframe.cli import output, quantities, tasks
from stillframe.cli.detection import not_stable_sentence
from stillframe.cli.verdict import EXIT_NO
from stillframe.errors import Damaged
from stillframe.model import SnapshotId

if TYPE_CHECKING:  # they need PySpark, and the session says what to do if that is missing
    from stillframe.analytics.predicate_history import Summary, Unevaluable

ROW_COUNT_MAX = 20
"""So many snapshots are shown in the table; JSON has all."""

COLUMNS = ("snapshot", "holds", "found", "epoch")
_FOUND_LENGTH_MAX = 60
_NAMED_MAX = 5
Fields = dict[str, Any]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document: what ``detect`` says of the present epoch, and then of all."""

    predicate: str
    holds: bool
    found: str | None
    snapshot: SnapshotId | None
    first: SnapshotId | None
    snapshot_count: int
    not_stable: tuple[SnapshotId, ...] | None
    first_of_all: SnapshotId | None
    epochs: tuple[Any, ...]
    snapshots: list[Fields]


def detect(path: Path, name: str, reference: str | None, *, where: str, is_json: bool) -> None:
    """Say whether the predicate `name` holds in the store at `path`, in which snapshot it held
    first, and whether it stayed.

    Raises:
        typer.Exit: with 1; it does not hold, or it is not stable.
        Damaged: some snapshots could not be asked; the rest has been said.
    """
    with tasks.session(where, "asking all snapshots") as spark:
        from stillframe.analytics import predicate_history  # noqa: PLC0415 - PySpark is there now

        rows = predicate_history.detect(spark, path, name, topology=reference)
        found = predicate_history.summary(rows)
        snapshots = [row.asDict() for row in rows.collect()]
    if is_json:
        output.put_json(_report(name, found, snapshots))
    else:
        _put(snapshots)
    holds = _say(name, found)
    _say_unasked(found.unasked)
    if not holds:
        raise typer.Exit(EXIT_NO)


def _report(name: str, found: "Summary", snapshots: list[Fields]) -> Report:
    return Report(
        predicate=name,
        holds=found.holds,
        found=None if found.shown is None else found.shown.verdict.sentence,
        snapshot=None if found.shown is None else found.shown.snapshot,
        first=None if found.since is None else found.since.snapshot,
        snapshot_count=found.present_count,
        not_stable=found.not_stable and tuple(seen.snapshot for seen in found.not_stable),
        first_of_all=None if found.first is None else found.first.snapshot,
        epochs=found.epochs,
        snapshots=snapshots,
    )


def _put(snapshots: list[Fields]) -> None:
    """Write what could not be asked, then the first in which it holds, then the others."""
    ordered = sorted(snapshots, key=lambda row: (row["holds"] is not None, not row["holds"]))
    output.put_table("", COLUMNS, map(_row, ordered[:ROW_COUNT_MAX]), texts=3)
    left_out = len(snapshots) - ROW_COUNT_MAX
    if left_out > 0:
        output.say(f"and {quantities.count(left_out, 'more snapshot')} (--json has all)")


def _row(row: Fields) -> tuple[str, ...]:
    holds = {True: "yes", False: "no", None: "?"}[row["holds"]]
    found = row["sentence"]
    if len(found) > _FOUND_LENGTH_MAX:
        found = f"{found[:_FOUND_LENGTH_MAX]}..."
    return row["snapshot"], holds, found, "" if row["epoch"] is None else str(row["epoch"])


def _say(name: str, found: "Summary") -> bool:
    """Say what ``stillframe detect`` says, and what all epochs say; return whether it holds."""
    if found.not_stable is not None:
        output.say(not_stable_sentence(name, *found.not_stable))
    elif found.shown is None:
        output.say(f"no: no snapshot of the present epoch could be asked of {name}")
    elif found.since is None:
        shown = found.shown
        output.say(f"no: {name} does not hold in {shown.snapshot}: {shown.verdict.sentence}")
    else:
        count = quantities.count(found.present_count, "snapshot")
        output.say(
            f"yes: {name} holds in {found.shown.snapshot}, and has since {found.since.snapshot}, "
            f"of {count}: {found.shown.verdict.sentence}"
        )
    if len(found.epochs) > 1:
        asked = quantities.count(found.snapshot_count, "snapshot")
        of_all = f"of all {asked} in {quantities.count(len(found.epochs), 'epoch')}"
        if found.first is None:
            output.say(f"{of_all} it held in none")
        else:
            held = sum(epoch.first is not None for epoch in found.epochs)
            stayed = " and stayed in each" if found.not_stable is None else ""
            output.say(
                f"{of_all} it held first in {found.first.snapshot}, in epoch {found.first.epoch}; "
                f"it held in {quantities.count(held, 'epoch')}{stayed}"
            )
    return found.holds


def _say_unasked(unasked: "tuple[Unevaluable, ...]") -> None:
    """Name the snapshots that could not be asked, by reason.

    Raises:
        Damaged: some are damaged.
    """
    reasons: dict[str, list[Unevaluable]] = {}
    for each in unasked:
        reasons.setdefault(each.failure, []).append(each)
    for reason, found in reasons.items():
        names = ", ".join(each.snapshot for each in found[:_NAMED_MAX])
        more = f" and {len(found) - _NAMED_MAX:,} more" if len(found) > _NAMED_MAX else ""
        output.say(f"not asked, {reason}: {names}{more}")
    if DAMAGED in reasons:
        first = reasons[DAMAGED][0]
        raise Damaged(f"snapshot {first.snapshot} could not be asked: {first.sentence}")
