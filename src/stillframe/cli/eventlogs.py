"""The commands about event logs, with their words: ``stillframe spark verify``.

As in ``app``: each reads its options and calls the module that does it.
"""
# ruff: noqa: PLC0415 - heavy modules are imported by the command that needs them

from pathlib import Path
from typing import Annotated

import typer

from stillframe.cli import tasks
from stillframe.cli.options import AsJson, Master
from stillframe.cli.verdict import Command

app = typer.Typer()


@app.command(
    cls=Command,
    short_help="Verify all snapshots from an event log.",
    epilog="Examples: stillframe spark verify money.log --store money; "
    "stillframe spark verify money.log --clock P1#17",
)
def verify(
    log: Annotated[
        Path,
        typer.Argument(
            metavar="LOG",
            help="Directory of the event log that 'run --log' wrote.",
            show_default=False,
        ),
    ],
    *,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Store with what was published: it must be what the log says.",
            show_default=False,
        ),
    ] = None,
    clock: Annotated[
        str | None,
        typer.Option(
            metavar="PROCESS#EVENT",
            help="Instead: the vector clock of an event, such as P1#17.",
            show_default=False,
        ),
    ] = None,
    epoch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Only this epoch of the system.  [default: all; the last, for a clock]",
            show_default=False,
        ),
    ] = None,
    where: Master = tasks.MASTER,
    as_json: AsJson = False,
) -> None:
    """Check with what every process did that every snapshot is consistent: nothing is accepted
    inside a cut that was sent outside it, every recorded channel holds what was on it, in order,
    and one marker travelled on each; exit 1 names the first message that contradicts."""
    from stillframe.cli import log_verification

    if clock is not None:
        log_verification.put_clock(log, clock, epoch, where=where, is_json=as_json)
    else:
        log_verification.verify(log, store, epoch, where=where, is_json=as_json)
