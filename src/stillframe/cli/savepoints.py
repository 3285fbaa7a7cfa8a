"""``stillframe savepoint`` and ``drop``: keep a snapshot under a name, and let one go.

The store has one writer: if a system runs on it, that one is asked.
"""

import contextlib
from pathlib import Path

import typer
import uvloop

from stillframe.cli import output
from stillframe.cli.request import published
from stillframe.cli.verdict import EXIT_NO
from stillframe.errors import Unavailable
from stillframe.model import ProcessId
from stillframe.runtime.supervisor.admin_socket import (
    CreateSavepoint,
    DropSnapshot,
    TriggerSnapshot,
    send_command,
)
from stillframe.store.store import Store


def savepoint(
    path: Path, name: str, of: str | None, initiator: ProcessId | None, *, is_json: bool
) -> None:
    """Name the snapshot `of` of the store at `path`, or one that the running system takes now.

    Raises:
        typer.Exit: with 1; the snapshot was abandoned.
    """
    store = Store.open(path)
    store.check_savepoint(name)
    if of is None:
        done = uvloop.run(send_command(path, TriggerSnapshot(initiator), notice=output.say))
        if done.entry is None:
            if is_json:
                output.put_json({"savepoint": None, "abandoned": done.abandoned})
            output.say(f"no: {done.abandoned}")
            raise typer.Exit(EXIT_NO)
        snapshot = done.entry.id
    else:
        snapshot = store.find(of)
    try:
        uvloop.run(send_command(path, CreateSavepoint(snapshot, name), notice=output.say))
    except Unavailable:
        with contextlib.closing(Store.open_writer(path)) as writer:
            writer.save(snapshot, name)
    entry = Store.open(path).entry(snapshot)
    if is_json:
        output.put_json({"savepoint": name, "entry": entry})
    else:
        typer.echo(snapshot)
    output.say(f"savepoint {name}: {published(entry)}; it is kept until 'stillframe drop'")


def drop(path: Path, text: str, *, is_json: bool) -> None:
    """Let go of the snapshot or savepoint `text` of the store at `path`."""
    snapshot = Store.open(path).find(text)
    try:
        reason = uvloop.run(send_command(path, DropSnapshot(text), notice=output.say)).detail
    except Unavailable:
        with contextlib.closing(Store.open_writer(path)) as writer:
            reason = writer.drop(text)
    if is_json:
        output.put_json({"snapshot": snapshot, "is_gone": reason is None, "reason": reason})
    if reason is None:
        output.say(f"snapshot {snapshot} is gone")
    else:
        output.say(f"there is no savepoint {text} any more; snapshot {snapshot} stays: it {reason}")
