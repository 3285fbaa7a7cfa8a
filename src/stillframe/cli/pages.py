"""The command that shows a system or a pipeline while it runs."""
# ruff: noqa: PLC0415 - see app.py

from pathlib import Path
from typing import Annotated

import typer

from stillframe.cli.command import Command
from stillframe.cli.options import AsJson, Classes, event_log_option

app = typer.Typer(rich_markup_mode=None)

WatchedPath = Annotated[
    Path,
    typer.Argument(
        metavar="STORE",
        help="Directory of the store of a system, or of a pipeline.",
        show_default=False,
    ),
]


@app.command(
    cls=Command,
    short_help="Show a system or a pipeline in a page, while it runs.",
    epilog="Examples: stillframe watch money; stillframe watch shop.pipeline; "
    "stillframe watch money --listen 0.0.0.0 --token-file money.token",
)
def watch(
    store: WatchedPath,
    *,
    detect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREDICATE",
            help="Ask this of every snapshot, as 'stillframe detect' has it; several times for "
            "several.  [default: termination, deadlock, and loss if anything is conserved]",
            show_default=False,
        ),
    ] = None,
    topology: Classes = None,
    log: Annotated[
        Path | None,
        event_log_option("Directory of the event log: snapshots show what happened around them."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Where to listen; on any other address than loopback the link has a token.  "
            "[default: 127.0.0.1:8641]",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Ask for the token in this file, which is made if it is not there.  [default: a "
            "new one each time, and none on loopback]",
            show_default=False,
        ),
    ] = None,
    otlp: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send a trace of each snapshot to this OTLP endpoint, over HTTP.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve a page that shows the system of a store, or a pipeline, while it runs, and its
    snapshots afterwards, until Ctrl-C; the first line written is the link to open. Metrics for
    Prometheus are at /metrics."""
    from stillframe.cli import watch_page

    watch_page.watch(
        *(store, listen, token_file, detect or [], topology, log, otlp), is_json=as_json
    )
