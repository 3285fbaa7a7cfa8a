"""``stillframe history``: what happened to a system."""

from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

import typer

from stillframe.cli import output, quantities
from stillframe.cli.verdict import EXIT_NO
from stillframe.model import Abandoned, Reason, SnapshotId
from stillframe.pages.values import plain
from stillframe.store import history
from stillframe.store.history import HistoryEvent, HistoryRecord, readable_history
from stillframe.store.store import Store


def show_history(path: Path, *, is_json: bool) -> None:
    """Write the history of the store at `path`, the oldest first, and name the lines that are
    damaged.

    Raises:
        typer.Exit: with 1; one is.
    """
    Store.open(path)
    found, damages = readable_history(path)
    lines = [line for line in found if not isinstance(line.what, history.Rollover)]
    if is_json:
        events = [{"at": line.at} | plain(line.what) for line in lines]
        damaged = [{"detail": str(damage)} for damage in damages]
        output.put_json({"store": path, "history": events, "damaged": damaged})
    else:
        output.put_lines(_sentences(lines))
        output.say(f"{quantities.count(len(lines), 'event')}")
    if damages:
        output.say(*(f"no: {damage}" for damage in damages))
        raise typer.Exit(EXIT_NO)


def _sentences(lines: list[HistoryRecord]) -> Iterator[str]:
    for line in lines:
        yield f"{quantities.moment(line.at)}  {sentence(line.what)}"


def sentence(what: HistoryEvent) -> str:
    """Return what happened, as people read it."""
    match what:
        case history.EpochBegan(epoch, restored_from):
            text = f"epoch {epoch} began {_origin(restored_from)}"
        case history.TakenOver(epoch):
            text = f"epoch {epoch} goes on: a new supervisor took it over"
        case history.ProcessDied(process, cause):
            text = f"process {process} died: {cause}"
        case history.SnapshotBegan(snapshot):
            text = f"snapshot {snapshot} began"
        case history.SnapshotPublished(snapshot):
            text = f"snapshot {snapshot} was published"
        case history.SnapshotRemoved(snapshot):
            text = f"snapshot {snapshot} was removed"
        case history.SnapshotAbandoned(snapshot, reason, missing, detail):
            text = str(Abandoned(snapshot, Reason[reason], missing, detail))
        case history.Rollover():
            text = "older events are in the file before"
        case _:
            assert_never(what)
    return text


def _origin(restored_from: SnapshotId | None) -> str:
    return "afresh" if restored_from is None else f"from snapshot {restored_from}"
