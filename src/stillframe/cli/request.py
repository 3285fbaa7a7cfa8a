"""``stillframe snapshot``: ask the running system for one."""

from collections.abc import Mapping
from pathlib import Path

import typer
import uvloop

from stillframe.cli import output, quantities
from stillframe.cli.verdict import EXIT_NO
from stillframe.model import ProcessId, SnapshotId
from stillframe.runtime.supervisor.admin_socket import TriggerSnapshot, send_command
from stillframe.store.manifest import Entry
from stillframe.store.store import Store


def take_snapshot(path: Path, initiator: ProcessId | None, *, is_json: bool) -> None:
    """Have the system that runs on the store at `path` take a snapshot, and wait for it.

    Raises:
        typer.Exit: with 1; the snapshot was abandoned.
    """
    Store.open(path)  # says so if there is none
    done = uvloop.run(send_command(path, TriggerSnapshot(initiator), notice=output.say))
    if is_json:
        output.put_json({"epoch": done.epoch, "entry": done.entry, "abandoned": done.abandoned})
    if done.abandoned is not None:
        output.say(f"no: {done.abandoned}")
        raise typer.Exit(EXIT_NO)
    assert done.entry is not None
    if not is_json:
        typer.echo(done.entry.id)
    output.say(published(done.entry))


def without(excluded: Mapping[ProcessId, SnapshotId]) -> str:
    """Say which processes took no part in a snapshot; nothing if all did."""
    return "".join(
        f"; {process} took no part, and its state is that of {snapshot}"
        for process, snapshot in excluded.items()
    )


def published(entry: Entry) -> str:
    """Say what a published snapshot is."""
    return (
        f"snapshot {entry.id}: {quantities.count(entry.message_count, 'message')} caught in "
        f"channels, recorded in {quantities.duration(entry.completed_at - entry.initiated_at)}, "
        f"published after {quantities.duration(entry.published_at - entry.initiated_at)}, "
        f"{quantities.size(entry.bytes)}{without(entry.excluded)}{_by_name(entry)}"
    )


def _by_name(entry: Entry) -> str:
    """Say that a snapshot is no restore point; nothing if it is one."""
    if entry.is_restore_point:
        return ""
    return "; it overlapped another and is no restore point: only its name restores it"
