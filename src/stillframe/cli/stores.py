"""The commands that ask Spark about a whole store: ``stillframe spark history`` and so on.

As in ``app``: each reads its options and calls the module that does it.
"""
# ruff: noqa: PLC0415 - heavy modules are imported by the command that needs them

from pathlib import Path
from typing import Annotated

import typer

from stillframe.cli.options import (
    AsJson,
    Classes,
    For,
    Master,
    StorePath,
    event_log_option,
    keep_option,
)
from stillframe.cli.tasks import MASTER
from stillframe.cli.verdict import Command

app = typer.Typer()


@app.command(
    cls=Command,
    short_help="Show how all snapshots of a store went.",
    epilog="Examples: stillframe spark history money; "
    "stillframe spark history money --log money.log",
)
def history(
    store: StorePath,
    *,
    log: Annotated[
        Path | None,
        event_log_option("Directory of the event log: show the way of the markers, too."),
    ] = None,
    where: Master = MASTER,
    as_json: AsJson = False,
) -> None:
    """Show for every snapshot how long it took and what it waited for, its size and what was in
    transit; over all of them the median, nine tenths and the most; and the busiest channels."""
    from stillframe.cli import store_history

    store_history.show_history(store, log, where=where, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Show in what two snapshots of a large store differ.",
    epilog="Example: stillframe spark diff money P1-16 P1-17",
)
def diff(
    store: StorePath,
    before: Annotated[
        str,
        typer.Argument(metavar="A", help="Id of a snapshot, or name of a savepoint."),
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    *,
    where: Master = MASTER,
    as_json: AsJson = False,
) -> None:
    """Show in what two snapshots differ: fields, keys of keyed fields that were added, removed or
    changed, channels, and messages that only one caught; exit 1 if they do."""
    from stillframe.cli import store_difference

    store_difference.show_difference(store, before, after, where=where, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Find out since when a stable predicate holds.",
    epilog="Examples: stillframe spark detect dinner deadlock; stillframe spark detect money "
    "'select snapshot, sum(balance) < 100 from processes group by snapshot'",
)
def detect(
    store: StorePath,
    predicate: Annotated[
        str,
        typer.Argument(
            metavar="PREDICATE",
            help="As 'stillframe detect' has it: termination, deadlock, loss or MODULE:FUNCTION; "
            "or a question in SQL, over the rows of all snapshots together, that gives for each "
            "its id, and true or false.",
            show_default=False,
        ),
    ],
    *,
    topology: Classes = None,
    where: Master = MASTER,
    as_json: AsJson = False,
) -> None:
    """Ask a stable predicate of every snapshot of a store, of all its epochs: whether it holds now,
    in which it held first, and whether it stayed; exit 1 if it does not hold or did not stay."""
    from stillframe.cli import store_detection

    store_detection.detect(store, predicate, topology, where=where, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Make few large tables of all snapshots.",
    epilog="Examples: stillframe spark compact money --out money.tables --keep 1000; "
    "stillframe spark compact money --out audited --of P1-17",
)
def compact(
    store: StorePath,
    *,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Where the tables go: a new directory, or one from before, to which only new "
            "snapshots are added.",
            show_default=False,
        ),
    ],
    of: Annotated[
        str | None,
        typer.Option(
            metavar="SNAPSHOT",
            help="Only this one, an id or the name of a savepoint.  [default: all]",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        int | None,
        keep_option(
            "Remove the rows of all but the newest N; savepoints stay.  [default: keep all]"
        ),
    ] = None,
    where: Master = MASTER,
    as_json: AsJson = False,
) -> None:
    """Make few large Parquet tables of the thousands of small files of a store, with the full state
    of each snapshot, also of those that hold only changes. Every byte is verified before; a crash
    leaves the tables as they were."""
    from stillframe.cli import store_compaction

    store_compaction.compact(store, out, of=of, keep=keep, where=where, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Make snapshots of what processes recorded.",
    epilog="Example: stillframe spark assemble money.parts --out money.again",
)
def assemble(
    fragments: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Directory of the fragments of all processes: what 'run --fragments' and 'join "
            "--fragments' wrote, brought together.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[
        Path,
        typer.Option(
            metavar="STORE",
            help="Where the snapshots go: a new directory, or one from before, to which only what "
            "is not there yet is added.",
            show_default=False,
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
    where: Master = MASTER,
    as_json: AsJson = False,
) -> None:
    """Make snapshots of what each process recorded by itself, on whatever machine, also of those
    that a coordinator never published; a store of them can be asked and restored from like any
    other. Says of which something is missing or came late; exit 1 if fragments contradict each
    other."""
    from stillframe.cli import assembly

    assembly.assemble(fragments, out, timeout=timeout, epoch=epoch, where=where, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Judge every snapshot of a store as it ends.",
    epilog="Examples: stillframe spark follow money; "
    "stillframe spark follow money --log money.log --checkpoint judged --json",
)
def follow(
    store: StorePath,
    *,
    log: Annotated[
        Path | None,
        event_log_option("Directory of the event log: judge from there as well, 2 s later."),
    ] = None,
    timeout: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="A snapshot that has not ended so long after it began is incomplete; or 'never'.",
        ),
    ] = "1m",
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Spark's checkpoint: a command that is started again with it goes on where the "
            "last one was.  [default: judge all snapshots]",
            show_default=False,
        ),
    ] = None,
    for_: For = None,
    where: Master = MASTER,
    as_json: AsJson = False,
) -> None:
    """Write a verdict on each snapshot as soon as it is published or given up, while a system runs:
    consistent, inconsistent or incomplete, and why; exit 1 if some were inconsistent."""
    from stillframe.cli import following

    following.follow(
        store,
        log,
        timeout=timeout,
        for_=for_,
        checkpoint=checkpoint,
        where=where,
        is_json=as_json,
    )
