"""``stillframe show --live``: the snapshots under way in a running system, and what they await."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stillframe.cli import output, quantities
from stillframe.model import SnapshotId
from stillframe.protocol.stragglers import UnderWay
from stillframe.runtime.supervisor.admin_socket import GetPendingSnapshots, send_command
from stillframe.store.layout import is_published
from stillframe.store.store import Store

AGAIN_S = 0.5
"""So long after one answer the system is asked again, in seconds."""
COLUMNS = ("snapshot", "under way for", "time left", "missing", "held up by")

Shown = tuple[UnderWay, ...]
Looks = tuple[Shown, float]


def show_live(path: Path, *, is_json: bool) -> None:
    """Write the snapshots under way in the system that runs on the store at `path`.

    As JSON once; else again and again until none is under way, or Ctrl-C.

    Raises:
        Unavailable: no system is running there.
    """
    Store.open(path)  # says so if there is none
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_put_once(path) if is_json else _follow(path))


async def _put_once(path: Path) -> None:
    done = await send_command(path, GetPendingSnapshots(), notice=output.say)
    output.put_json({"epoch": done.epoch, "under_way": done.under_way})


async def _follow(path: Path) -> None:
    console = output.words()
    if console.is_terminal and sys.stdout.isatty():
        with Live(console=console, transient=True) as live:
            async for shown, now in _looks(path, console):
                live.update(_table(shown, now))
    else:
        told: dict[SnapshotId, str] = {}
        async for shown, now in _looks(path, console):
            _put_changes(shown, told, now)
    output.say("no snapshot is under way")


async def _looks(path: Path, console: Console) -> AsyncIterator[Looks]:
    """Yield what is under way, and the time by the clock of the snapshots, until nothing is; say of
    each snapshot how it ended."""
    before: Shown = ()
    while True:
        done = await send_command(path, GetPendingSnapshots(), notice=output.say)
        shown = done.under_way
        present = {under_way.snapshot for under_way in shown}
        for under_way in before:
            if under_way.snapshot not in present:
                # To the console that shows the table, which would else be drawn over it.
                output.say(_ending(path, under_way.snapshot), console=console)
        if not shown:
            return
        yield shown, done.now
        before = shown
        await asyncio.sleep(AGAIN_S)


def _ending(path: Path, snapshot: SnapshotId) -> str:
    is_there = is_published(path, snapshot)
    return f"snapshot {snapshot} {'was published' if is_there else 'is no longer under way'}"


def _put_changes(shown: Shown, told: dict[SnapshotId, str], now: float) -> None:
    """Write a line for each snapshot of which something other than the time has changed."""
    for under_way in shown:
        # As of the same moment for all looks, so that the words change with the causes alone.
        words = "; ".join((*under_way.missing, *under_way.sentences(0.0)))
        if told.get(under_way.snapshot) != words:
            told[under_way.snapshot] = words
            output.put_lines([_line(under_way, now)])


def _line(under_way: UnderWay, now: float) -> str:
    missing = ", ".join(under_way.missing)
    age = quantities.duration(max(0.0, now - under_way.initiated_at))
    head = f"snapshot {under_way.snapshot}: under way for {age}; missing: {missing}"
    return "; ".join((head, *under_way.sentences(now)))


def _table(shown: Shown, now: float) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in COLUMNS:
        table.add_column(Text(column), overflow="fold")
    for under_way in shown:
        cells = (
            str(under_way.snapshot),
            quantities.duration(max(0.0, now - under_way.initiated_at)),
            quantities.duration(max(0.0, under_way.deadline - now)),
            ", ".join(under_way.missing),
            "\n".join(under_way.sentences(now)),
        )
        table.add_row(*map(Text, cells))
    return table
