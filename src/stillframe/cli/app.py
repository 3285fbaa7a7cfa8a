"""The commands by name: a module of commands is imported when one of its commands is called."""

from typing import Annotated

import typer

from stillframe.cli.command import defer

app = typer.Typer(
    name="stillframe",
    help="Consistent global snapshots of running distributed systems.",
    epilog="Exit codes: 0 yes or done, 1 no, 2 wrong usage or something missing, 101 our bug.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)
spark_app = typer.Typer(
    help="One snapshot across streaming queries and services; and whole stores on Spark: only "
    "the commands with a STORE start it (and need the extra 'spark' and Java 17, 21 or 25).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
defer(app, "run", "run", "Start a system afresh.")
defer(app, "run", "restore", "Go back to a snapshot, live or by starting again.")
defer(app, "snapshots", "snapshot", "Take a snapshot now.")
defer(app, "snapshots", "savepoint", "Keep a snapshot under a name.")
defer(app, "snapshots", "drop", "Remove a snapshot or a savepoint.")
defer(app, "snapshots", "list", "List the snapshots of a store.")
defer(app, "snapshots", "show", "Show what a snapshot holds, or what is under way.")
defer(app, "snapshots", "verify", "Check every byte and the books.")
defer(app, "snapshots", "detect", "Say whether a stable predicate holds.")
defer(app, "snapshots", "diff", "Compare two snapshots.")
defer(spark_app, "analytics", "audit", "Check all snapshots of a store at once.")
defer(spark_app, "pipeline", "snapshot", "Take a snapshot of a pipeline now.")
defer(spark_app, "pipeline", "savepoint", "Take a snapshot that is kept under a name.")
defer(spark_app, "pipeline", "list", "List the snapshots of a pipeline.")
defer(spark_app, "pipeline", "show", "Show what a snapshot of a pipeline holds.")
defer(spark_app, "pipeline", "restore", "Take a stopped pipeline back to a snapshot.")
defer(spark_app, "pipeline", "fork", "Make a second pipeline from a snapshot.")
defer(spark_app, "pipeline", "progress", "Show who holds a snapshot up.")
defer(spark_app, "pipeline", "drop", "Delete snapshots of a pipeline.")
defer(spark_app, "analytics", "history", "Show how all snapshots of a store went.")
defer(spark_app, "analytics", "diff", "Compare two snapshots of a large store.")
defer(spark_app, "analytics", "detect", "Find out since when a stable predicate holds.")
defer(spark_app, "records", "compact", "Make few large tables of all snapshots.")
defer(spark_app, "records", "assemble", "Make snapshots of what processes recorded.")
defer(spark_app, "follow", "follow", "Judge every snapshot of a store as it ends.")
defer(spark_app, "records", "verify", "Verify all snapshots from an event log.")
app.add_typer(spark_app, name="spark")

more_app = typer.Typer()
"""The commands that the help shows after the group ``spark``."""
defer(more_app, "run", "resume", "Bring a system back whose supervisor died.")
defer(more_app, "snapshots", "history", "Show what happened to a system.")
defer(more_app, "run", "join", "Run one process of a system here.")
defer(more_app, "run", "certificates", "Make certificates for several machines.")
defer(more_app, "trace", "import", "Turn a log of another system into a trace.")
defer(more_app, "trace", "cuts", "Ask about the consistent cuts of a trace.")
defer(more_app, "sim", "sim", "Simulate seeds with faults, or play a script.")
defer(more_app, "sim", "explore", "Visit every interleaving of a small system.")
defer(more_app, "view", "view", "Show an execution as a space-time diagram.")
defer(more_app, "watch", "watch", "Show a system or a pipeline in a page, while it runs.")
app.add_typer(more_app)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        import importlib.metadata  # noqa: PLC0415 - this option alone needs it

        typer.echo(f"stillframe {importlib.metadata.version('stillframe')}")
        raise typer.Exit


@app.callback()
def _stillframe(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass
