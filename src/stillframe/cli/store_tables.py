"""The commands that make stores and tables of what is recorded: ``compact`` and ``assemble``."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from stillframe.analytics.fragment_groups import places_of
from stillframe.analytics.manifests import read_published
from stillframe.analytics.snapshot_verdicts import CONSISTENT, INCONSISTENT
from stillframe.cli import output, quantities, spark_session
from stillframe.cli.command import EXIT_NO, Command
from stillframe.cli.options import AsJson, Master, StorePath, keep_option

Row = dict[str, Any]
ROW_COUNT_MAX = 50

app = typer.Typer(rich_markup_mode=None)


@app.command(
    cls=Command,
    epilog="Examples: stillframe spark compact money --out money.tables --keep 1000; "
    "stillframe spark compact money --out audited --of P1-17",
)
def compact(
    path: StorePath,
    *,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Where the tables go: a new directory, or one from before, to which only new "
            "snapshots are added.",
        ),
    ],
    of: Annotated[
        str | None,
        typer.Option(
            metavar="SNAPSHOT",
            help="Only this one, an id or the name of a savepoint.  [default: all]",
        ),
    ] = None,
    keep: Annotated[
        int | None,
        keep_option(
            "Remove the rows of all but the newest N; savepoints stay.  [default: keep all]"
        ),
    ] = None,
    where: Master = spark_session.MASTER,
    is_json: AsJson = False,
) -> None:
    """Make few large Parquet tables of the thousands of small files of a store, with the full state
    of each snapshot, also of those that hold only changes. Every byte is verified before; a crash
    leaves the tables as they were."""
    published = read_published(path)
    if of is not None:  # before Spark is started
        published.find(of)
    with spark_session.session(where, "compacting") as spark:
        from stillframe.analytics.compaction import (  # noqa: PLC0415 - needs PySpark
            INDEX,
            compact_store,
            version_path,
        )

        done = compact_store(spark, path, out, of=of, keep=keep)
    catalog = done.catalog
    directory = version_path(out, catalog.version)
    rows: list[dict[str, Any]] = [
        {
            "table": name,
            "row_count": sum(file.row_count for file in files),
            "file_count": len(files),
            "bytes": sum(file.bytes for file in files),
        }
        for name in (INDEX, *catalog.columns)
        for files in [catalog.files(name)]
    ]
    if is_json:
        output.put_json(
            {
                "directory": directory,
                "added": done.added,
                "removed": done.removed,
                "snapshot_count": len(catalog.snapshots),
                "tables": rows,
            }
        )
    else:
        columns: dict[str, Callable[[Row], str | int]] = {
            "table": lambda row: row["table"],
            "rows": lambda row: row["row_count"],
            "files": lambda row: row["file_count"],
            "size": lambda row: quantities.size(row["bytes"]),
        }
        output.put_records(columns, rows)
    output.say(
        f"{quantities.count(len(done.added), 'snapshot')} added, {len(done.removed):,} removed: "
        f"{quantities.count(len(catalog.snapshots), 'snapshot')} in {directory}"
    )


@app.command(cls=Command, epilog="Example: stillframe spark assemble money.parts --out money.again")
def assemble(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Directory of the fragments of all processes: what 'run --fragments' and 'join "
            "--fragments' wrote, brought together.",
        ),
    ],
    *,
    out: Annotated[
        Path,
        typer.Option(
            metavar="STORE",
            help="Where the snapshots go: a new directory, or one from before, to which only what "
            "is not there yet is added.",
        ),
    ],
    timeout: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="A fragment is late that was complete so long after the snapshot began.",
        ),
    ] = "10s",
    epoch: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Only this epoch of the system.  [default: all]", show_default=False
        ),
    ] = None,
    where: Master = spark_session.MASTER,
    is_json: AsJson = False,
) -> None:
    """Make snapshots of what each process recorded by itself, on whatever machine, also of those
    that a coordinator never published; a store of them can be asked and restored from like any
    other. Says of which something is missing or came late; exit 1 if fragments contradict each
    other."""
    timeout_s = quantities.parse_duration("--timeout", timeout)
    places_of(directory, epoch)  # before Spark is started
    with spark_session.session(where, "assembling") as spark:
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
    return {name: spark_session.with_zone(value) for name, value in row.items()}


def _put(rows: list[Row]) -> None:
    ordered = sorted(rows, key=lambda row: row["verdict"] == CONSISTENT)
    columns: dict[str, Callable[[Row], str | int]] = {
        "snapshot": lambda row: row["snapshot"],
        "epoch": lambda row: str(row["epoch"]),
        "verdict": lambda row: row["verdict"],
        "why": lambda row: row["why"],
        "fragments": lambda row: row["fragment_count"],
        "late": lambda row: ", ".join(row["late"]),
    }
    if ordered:
        output.put_records(columns, ordered, texts=4, limit=ROW_COUNT_MAX)


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
