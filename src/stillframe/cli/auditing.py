"""``stillframe spark audit``: every snapshot of a store at once, on Spark."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stillframe.analytics import audit_store
from stillframe.cli import output
from stillframe.cli.verdict import EXIT_NO
from stillframe.errors import Damaged

if TYPE_CHECKING:  # it needs PySpark, and audit_store says what to do if that is missing
    from stillframe.analytics.audit import Audit, SnapshotAudit

ROW_COUNT_MAX = 20
"""So many snapshots are shown in the table: the wrong ones first; JSON has all."""

COLUMNS = (
    "snapshot",
    "verdict",
    "messages caught",
    "in states",
    "in channels",
    "total",
    "differs by",
)


def audit(path: Path, *, states_sql: str | None, messages_sql: str | None, is_json: bool) -> None:
    """Audit the store at `path`, and write a row per snapshot.

    Raises:
        typer.Exit: with 1; a snapshot, or the store itself, is damaged; or a snapshot contradicts
            itself or differs from the first.
    """
    try:
        with output.words().status("auditing on Spark"):
            found = audit_store(path, states_sql=states_sql, messages_sql=messages_sql)
    except Damaged as error:
        if is_json:
            verdict = {"ok": False, "verdict": str(error)}
            output.put_json({**verdict, "snapshots": [], "history_damage": None})
        output.say(f"no: {error}")
        raise typer.Exit(EXIT_NO) from None
    if is_json:
        output.put_json(found)
    else:
        _put(found)
    output.say(f"{'yes' if found.ok else 'no'}: {found.verdict}")
    if not found.ok:
        raise typer.Exit(EXIT_NO)


def _put(found: "Audit") -> None:
    wrong_first = sorted(found.snapshots, key=lambda row: row.is_valid)
    output.put_table("", COLUMNS, map(_row, wrong_first[:ROW_COUNT_MAX]), texts=2)
    left_out = len(found.snapshots) - ROW_COUNT_MAX
    if left_out > 0:
        output.say(f"and {left_out:,} more snapshots (--json has all)")


def _row(row: "SnapshotAudit") -> tuple[str, ...]:
    amounts = (row.states_amount, row.messages_amount, row.total, row.difference)
    return (
        str(row.id),
        row.damage or row.contradiction or ("sound" if row.is_valid else "total differs"),
        f"{row.message_count:,}",
        *("" if amount is None else f"{amount:,}" for amount in amounts),
    )
