"""The commands that change which snapshots a store holds: ``snapshot``, ``savepoint``, ``drop``.

The store has one writer: if a system runs on it, that one is asked.
"""

import contextlib
from collections.abc import Mapping
from typing import Annotated

import typer
import uvloop

from stillframe.cli import output, quantities
from stillframe.cli.command import Command, end_with_no
from stillframe.cli.options import AsJson, InitiatorName, SnapshotName, StorePath
from stillframe.errors import Unavailable
from stillframe.model import ProcessId, SnapshotId
from stillframe.runtime.supervisor.admin_socket import (
    CreateSavepoint,
    DropSnapshot,
    TriggerSnapshot,
    send_command,
)
from stillframe.store.manifest import Entry
from stillframe.store.store import Store

app = typer.Typer(rich_markup_mode=None)


@app.command(cls=Command, epilog="Example: stillframe snapshot money --initiator P2")
def snapshot(path: StorePath, initiator: InitiatorName = None, is_json: AsJson = False) -> None:
    """Take a snapshot of the running system now, and print its id; exit 1 if it is abandoned."""
    Store.open(path)  # says so if there is none
    done = uvloop.run(send_command(path, TriggerSnapshot(initiator), notice=output.say))
    if is_json:
        output.put_json({"epoch": done.epoch, "entry": done.entry, "abandoned": done.abandoned})
    if done.abandoned is not None:
        end_with_no(str(done.abandoned))
    assert done.entry is not None
    if not is_json:
        typer.echo(done.entry.id)
    output.say(published(done.entry))


@app.command(
    cls=Command,
    epilog="Examples: stillframe savepoint money before-upgrade; "
    "stillframe savepoint money audited --of P1-17",
)
def savepoint(
    path: StorePath,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the savepoint.")],
    *,
    of: Annotated[
        str | None,
        typer.Option(
            metavar="SNAPSHOT",
            help="The snapshot, also if nothing runs.  [default: one that is taken now]",
        ),
    ] = None,
    initiator: InitiatorName = None,
    is_json: AsJson = False,
) -> None:
    """Take a snapshot of the running system now, or name one that is there, and keep it under that
    name until it is dropped; exit 1 if it is abandoned."""
    store = Store.open(path)
    store.check_savepoint(name)
    if of is None:
        done = uvloop.run(send_command(path, TriggerSnapshot(initiator), notice=output.say))
        if done.entry is None:
            if is_json:
                output.put_json({"savepoint": None, "abandoned": done.abandoned})
            end_with_no(str(done.abandoned))
        chosen = done.entry.id
    else:
        chosen = store.find(of)
    try:
        uvloop.run(send_command(path, CreateSavepoint(chosen, name), notice=output.say))
    except Unavailable:
        with contextlib.closing(Store.open_writer(path)) as writer:
            writer.save(chosen, name)
    entry = Store.open(path).entry(chosen)
    if is_json:
        output.put_json({"savepoint": name, "entry": entry})
    else:
        typer.echo(chosen)
    output.say(f"savepoint {name}: {published(entry)}; it is kept until 'stillframe drop'")


@app.command(cls=Command, epilog="Example: stillframe drop money before-upgrade")
def drop(path: StorePath, name: SnapshotName, is_json: AsJson = False) -> None:
    """Remove a snapshot, or the name of a savepoint and the snapshot with it. What others are based
    on is not lost; the newest, and the one that a restore goes back to, stay."""
    chosen = Store.open(path).find(name)
    try:
        reason = uvloop.run(send_command(path, DropSnapshot(name), notice=output.say)).detail
    except Unavailable:
        with contextlib.closing(Store.open_writer(path)) as writer:
            reason = writer.drop(name)
    if is_json:
        output.put_json({"snapshot": chosen, "is_gone": reason is None, "reason": reason})
    if reason is None:
        output.say(f"snapshot {chosen} is gone")
    else:
        output.say(f"there is no savepoint {name} any more; snapshot {chosen} stays: it {reason}")


def without(excluded: Mapping[ProcessId, SnapshotId]) -> str:
    """Say which processes took no part in a snapshot; nothing if all did."""
    return "".join(
        f"; {process} took no part, and its state is that of {snapshot}"
        for process, snapshot in excluded.items()
    )


def published(entry: Entry) -> str:
    """Say what a published snapshot is."""
    by_name = "; it overlapped another and is no restore point: only its name restores it"
    return (
        f"snapshot {entry.id}: {quantities.count(entry.message_count, 'message')} caught in "
        f"channels, recorded in {quantities.duration(entry.completed_at - entry.initiated_at)}, "
        f"published after {quantities.duration(entry.published_at - entry.initiated_at)}, "
        f"{quantities.size(entry.bytes)}{without(entry.excluded)}"
        f"{'' if entry.is_restore_point else by_name}"
    )
