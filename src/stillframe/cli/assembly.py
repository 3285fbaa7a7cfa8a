"""``stillframe spark assemble``: snapshots of what processes recorded, each by itself."""

from pathlib import Path
from typing import Any

import typer

from stillframe.analytics.fragment_groups import places_of
from stillframe.analytics.snapshot_verdicts import CONSISTENT, INCONSISTENT
from stillframe.cli import output, quantities, tasks
from stillframe.cli.verdict import EXIT_NO

ROW_COUNT_MAX = 50
COLUMNS = ("snapshot", "epoch", "verdict", "why", "fragments", "late")

Row = dict[str, Any]


def assemble(
    directory: Path, out: Path, *, timeout: str, epoch: int | None, where: str, is_json: bool
) -> None:
    """Add to the store `out` what is whole among the fragments in `directory`, and write what
    became of each snapshot.

    Raises:
        typer.Exit: with 1; fragments contradict each other.
        Unavailable: PySpark or Java is missing, or somebody else writes to `out`.
        UsageError: there are no fragments, or `out` is something else.
        StoreError: something cannot be read or written.
    """
    timeout_s = quantities.parse_duration("--timeout", timeout)
    places_of(directory, epoch)  # before Spark is started
    with tasks.session(where, "assembling") as spark:
        from stillframe.analytics.assembly import assemble as work  # noqa: PLC0415 - needs PySpark

        found = work(spark, directory, out, timeout_s=timeout_s, epoch=epoch)
        rows = [row.asDict() for row in found.collect()]
    if is_json:
        output.put_json({"store": out, "snapshots": [_plain(row) for row in rows]})
    else:
        _put(rows)
    _say(rows, out)
    if any(row["verdict"] == INCONSISTENT for row in rows):
        raise typer.Exit(EXIT_NO)


def _plain(row: Row) -> Row:
    return {name: tasks.with_zone(value) for name, value in row.items()}


def _put(rows: list[Row]) -> None:
    ordered = sorted(rows, key=lambda row: row["verdict"] == CONSISTENT)
    cells = [
        (
            row["snapshot"],
            str(row["epoch"]),
            row["verdict"],
            row["why"],
            f"{row['fragment_count']:,}",
            ", ".join(row["late"]),
        )
        for row in ordered[:ROW_COUNT_MAX]
    ]
    if cells:
        output.put_table("", COLUMNS, cells, texts=4)
    if (left_out := len(ordered) - ROW_COUNT_MAX) > 0:
        output.say(f"and {left_out:,} more rows (--json has all)")


def _say(rows: list[Row], out: Path) -> None:
    counts = {
        verdict: sum(row["verdict"] == verdict for row in rows)
        for verdict in dict.fromkeys((CONSISTENT, *(row["verdict"] for row in rows)))
    }
    sentence = f"{quantities.count(counts.pop(CONSISTENT), 'snapshot')} added to {out}"
    for verdict, count in sorted(counts.items()):
        sentence += f"; {count:,} {verdict}"
    if late := sum(bool(row["late"]) for row in rows):
        sentence += f"; {late:,} with fragments that came late"
    output.say(sentence)
