"""The commands, with their words: each reads its options and calls the module that does it.

Only that module imports what is heavy (pyarrow, the event loop, Spark), so ``--help`` is quick.
"""
# ruff: noqa: PLC0415 - see above

from pathlib import Path
from typing import Annotated

import typer

from stillframe.cli import eventlogs, machines, pages, pipelines, revival, stores, study
from stillframe.cli.options import (
    AsJson,
    Classes,
    Elsewhere,
    Every,
    For,
    IfIncomplete,
    InitiatorName,
    Initiators,
    InPipeline,
    Keep,
    Listen,
    MarkerWait,
    OptionalSnapshotName,
    SnapshotName,
    StorePath,
    Timeout,
    Tls,
    ToEventLog,
    ToFragments,
    Tolerate,
    TopologyName,
    Until,
)
from stillframe.cli.verdict import Command
from stillframe.errors import UsageError
from stillframe.protocol.policy import Policy

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
spark_app.add_typer(pipelines.app)
spark_app.add_typer(stores.app)
spark_app.add_typer(eventlogs.app)
app.add_typer(spark_app, name="spark")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        import importlib.metadata

        typer.echo(f"stillframe {importlib.metadata.version('stillframe')}")
        raise typer.Exit


@app.callback()
def _stillframe(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_print_version,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    pass


app.add_typer(revival.app)
app.add_typer(machines.app)
app.add_typer(study.app)
app.add_typer(pages.app)


@app.command(
    cls=Command,
    short_help="Start a system afresh.",
    epilog="Example: stillframe run examples.bank:bank --store money --every 250ms",
)
def run(
    topology: TopologyName,
    *,
    store: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where snapshots go: a new or empty directory."),
    ],
    every: Every = "1s",
    initiator: Initiators = None,
    timeout: Timeout = "10s",
    marker_wait: MarkerWait = "0",
    if_incomplete: IfIncomplete = Policy.ABANDON,
    tolerate: Tolerate = None,
    for_: For = None,
    until: Until = None,
    keep: Keep = None,
    pipeline: InPipeline = None,
    log: ToEventLog = None,
    fragments: ToFragments = None,
    listen: Listen = None,
    tls: Tls = None,
    elsewhere: Elsewhere = None,
    as_json: AsJson = False,
) -> None:
    """Start a system afresh and keep it running, with snapshots, until Ctrl-C or SIGTERM."""
    from stillframe.cli.planning import plan_of

    plan = plan_of(
        *(every, initiator, timeout, marker_wait, for_, as_json, pipeline, until),
        keep=keep,
        policy=if_incomplete,
        tolerated_count=tolerate,
        log=log,
        fragments=fragments,
    )
    plan = machines.on_site(plan, listen, tls, elsewhere)
    from stillframe.cli import runs

    runs.run(topology, store, plan)


@app.command(
    cls=Command,
    short_help="Go back to a snapshot, live or by starting again.",
    epilog="Example: stillframe restore money P1-17",
)
def restore(
    store: StorePath,
    snapshot: OptionalSnapshotName = None,
    *,
    every: Every = "1s",
    initiator: Initiators = None,
    timeout: Timeout = "10s",
    marker_wait: MarkerWait = "0",
    if_incomplete: IfIncomplete = Policy.ABANDON,
    tolerate: Tolerate = None,
    for_: For = None,
    keep: Keep = None,
    pipeline: InPipeline = None,
    log: ToEventLog = None,
    fragments: ToFragments = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say what a restore would do with the code as it is, and do nothing."
        ),
    ] = False,
    migrate: Annotated[
        bool,
        typer.Option("--migrate", help="Go on though the code is not what the snapshot is of."),
    ] = False,
    listen: Listen = None,
    tls: Tls = None,
    elsewhere: Elsewhere = None,
    as_json: AsJson = False,
) -> None:
    """Go back to a snapshot, by default the last: live if the system is running (the options of
    its start stay), else by starting it again with these options."""
    from stillframe.cli.planning import plan_of

    plan = plan_of(
        *(every, initiator, timeout, marker_wait, for_, as_json, pipeline),
        may_migrate=migrate,
        keep=keep,
        policy=if_incomplete,
        tolerated_count=tolerate,
        log=log,
        fragments=fragments,
    )
    plan = machines.on_site(plan, listen, tls, elsewhere)
    if dry_run:
        from stillframe.cli import migration

        migration.foretell(store, snapshot, pipeline, is_json=as_json)
        return
    from stillframe.cli import runs

    runs.restore(store, snapshot, plan)


@app.command(
    cls=Command,
    short_help="Take a snapshot now.",
    epilog="Example: stillframe snapshot money --initiator P2",
)
def snapshot(
    store: StorePath,
    initiator: InitiatorName = None,
    as_json: AsJson = False,
) -> None:
    """Take a snapshot of the running system now, and print its id; exit 1 if it is abandoned."""
    from stillframe.cli import request

    request.take_snapshot(store, initiator, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Keep a snapshot under a name.",
    epilog="Examples: stillframe savepoint money before-upgrade; "
    "stillframe savepoint money audited --of P1-17",
)
def savepoint(
    store: StorePath,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the savepoint.")],
    *,
    of: Annotated[
        str | None,
        typer.Option(
            metavar="SNAPSHOT",
            help="The snapshot, also if nothing runs.  [default: one that is taken now]",
            show_default=False,
        ),
    ] = None,
    initiator: InitiatorName = None,
    as_json: AsJson = False,
) -> None:
    """Take a snapshot of the running system now, or name one that is there, and keep it under that
    name until it is dropped; exit 1 if it is abandoned."""
    from stillframe.cli import savepoints

    savepoints.savepoint(store, name, of, initiator, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Remove a snapshot or a savepoint.",
    epilog="Example: stillframe drop money before-upgrade",
)
def drop(store: StorePath, snapshot: SnapshotName, as_json: AsJson = False) -> None:
    """Remove a snapshot, or the name of a savepoint and the snapshot with it. What others are based
    on is not lost; the newest, and the one that a restore goes back to, stay."""
    from stillframe.cli import savepoints

    savepoints.drop(store, snapshot, is_json=as_json)


@app.command(
    "list",
    cls=Command,
    short_help="List the snapshots of a store.",
    epilog="Example: stillframe list money",
)
def list_(store: StorePath, as_json: AsJson = False) -> None:
    """List the snapshots of a store in the order of publishing."""
    from stillframe.cli import listing

    listing.list_snapshots(store, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Show what a snapshot holds, or what is under way.",
    epilog="Examples: stillframe show money P1-17 --books; stillframe show money --live",
)
def show(
    store: StorePath,
    snapshot: OptionalSnapshotName = None,
    books: Annotated[bool, typer.Option("--books", help="Show only the books.")] = False,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Show the snapshots under way in the running system, and which processes and "
            "channels hold them up, until none is.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a snapshot holds: process states, and what was sent, received and in channels."""
    if live == (snapshot is not None) or (live and books):
        raise UsageError("give either SNAPSHOT, with or without --books, or --live")
    if snapshot is None:
        from stillframe.cli.live import show_live

        show_live(store, is_json=as_json)
        return
    from stillframe.cli import contents

    contents.show_snapshot(store, snapshot, only_books=books, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Check every byte and the books.",
    epilog="Example: stillframe verify money",
)
def verify(
    store: StorePath, snapshot: OptionalSnapshotName = None, as_json: AsJson = False
) -> None:
    """Check every byte and the books of a snapshot, by default of all; exit 1 names what is
    wrong."""
    from stillframe.cli import verification

    verification.verify(store, snapshot, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Say whether a stable predicate holds.",
    epilog="Examples: stillframe detect dinner deadlock; stillframe detect money loss; "
    "stillframe detect money 'select sum(paid_count) > 1000 from processes'",
)
def detect(
    store: StorePath,
    predicate: Annotated[
        str,
        typer.Argument(
            metavar="PREDICATE",
            help="termination, deadlock, loss (against the oldest snapshot); MODULE:FUNCTION, a "
            "function of yours that takes a view of a snapshot and returns True or False; or a "
            "question in SQL that gives true or false, over the tables processes, channels and "
            "messages.",
            show_default=False,
        ),
    ],
    topology: Classes = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a stable predicate holds in the newest snapshot of a store, since which, and what
    was found; exit 1 if it does not, or is not stable."""
    from stillframe.cli import detection

    detection.detect(store, predicate, topology, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Show in what two snapshots differ.",
    epilog="Example: stillframe diff money P1-16 P1-17",
)
def diff(
    store: StorePath,
    before: Annotated[str, typer.Argument(metavar="A", help="Id of a snapshot.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Id of another.")],
    as_json: AsJson = False,
) -> None:
    """Show in what two snapshots differ, field by field and channel by channel; exit 1 if they
    do."""
    from stillframe.cli import difference

    difference.diff(store, before, after, is_json=as_json)


@spark_app.command(
    cls=Command,
    short_help="Check all snapshots of a store at once.",
    epilog="Example: stillframe spark audit money --states 'sum(balance)' --messages 'sum(amount)'",
)
def audit(
    store: StorePath,
    states: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Aggregate over process states.", show_default=False),
    ] = None,
    messages: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Aggregate over messages caught.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check bytes and books of all snapshots at once, and that the sum of both aggregates never
    changes; exit 1 names the first that is wrong."""
    from stillframe.cli import auditing

    auditing.audit(store, states_sql=states, messages_sql=messages, is_json=as_json)
