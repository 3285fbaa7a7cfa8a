"""The commands for a system whose supervisor died: to bring it back, and to see what happened."""
# ruff: noqa: PLC0415 - see app.py

import typer

from stillframe.cli import machines
from stillframe.cli.options import (
    AsJson,
    Elsewhere,
    Every,
    For,
    IfIncomplete,
    Initiators,
    Keep,
    Listen,
    MarkerWait,
    StorePath,
    Timeout,
    Tls,
    ToEventLog,
    ToFragments,
    Tolerate,
)
from stillframe.cli.verdict import Command
from stillframe.protocol.policy import Policy

app = typer.Typer(rich_markup_mode=None)


@app.command(
    cls=Command,
    short_help="Bring a system back whose supervisor died.",
    epilog="Example: stillframe resume money",
)
def resume(
    store: StorePath,
    *,
    every: Every = "1s",
    initiator: Initiators = None,
    timeout: Timeout = "10s",
    marker_wait: MarkerWait = "0",
    if_incomplete: IfIncomplete = Policy.ABANDON,
    tolerate: Tolerate = None,
    for_: For = None,
    keep: Keep = None,
    log: ToEventLog = None,
    fragments: ToFragments = None,
    listen: Listen = None,
    tls: Tls = None,
    elsewhere: Elsewhere = None,
    as_json: AsJson = False,
) -> None:
    """Bring a system back: processes that go on without their supervisor are taken over as they
    are; if one is missing, or none runs, all go on from the last snapshot, or start afresh."""
    from stillframe.cli.planning import plan_of

    plan = plan_of(
        *(every, initiator, timeout, marker_wait, for_, as_json, None),
        keep=keep,
        policy=if_incomplete,
        tolerated_count=tolerate,
        log=log,
        fragments=fragments,
    )
    plan = machines.on_site(plan, listen, tls, elsewhere)
    from stillframe.cli import runs

    runs.resume(store, plan)


@app.command(
    cls=Command,
    short_help="Show what happened to a system.",
    epilog="Example: stillframe history money",
)
def history(store: StorePath, as_json: AsJson = False) -> None:
    """Show what happened to a system, one line an event: its starts and deaths, and how each
    snapshot ended."""
    from stillframe.cli import history

    history.show_history(store, is_json=as_json)
