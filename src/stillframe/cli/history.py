"""``stillframe history``: what happened to a system."""

from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

from stillframe.cli import output, quantities
from stillframe.model import Abandoned, Reason, SnapshotId
from stillframe.store import history
from stillframe.store.history import Happening, Line, read_history
from stillframe.store.store import Store
from stillframe.view.plain import plain


def show_history(path: Path, *, is_json: bool) -> None:
    """Write the history of the store at `path`, the oldest first."""
    Store.open(path)
    lines = [line for line in read_history(path) if not isinstance(line.what, history.Continued)]
    if is_json:
        events = [{"at": line.at} | plain(line.what) for line in lines]
        output.put_json({"store": path, "history": events})
        return
    output.put_lines(_sentences(lines))
    output.say(f"{quantities.count(len(lines), 'event')}")


def _sentences(lines: list[Line]) -> Iterator[str]:
    for line in lines:
        yield f"{quantities.moment(line.at)}  {sentence(line.what)}"


def sentence(what: Happening) -> str:
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
        case history.Continued():
            text = "older events are in the file before"
        case _:
            assert_never(what)
    return text


def _origin(restored_from: SnapshotId | None) -> str:
    return "afresh" if restored_from is None else f"from snapshot {restored_from}"
