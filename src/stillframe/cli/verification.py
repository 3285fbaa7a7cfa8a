"""``stillframe verify``: is every byte what was written, and do the books balance?"""

from pathlib import Path

import typer
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stillframe.cli import output, quantities
from stillframe.cli.books import books, put_books
from stillframe.cli.verdict import EXIT_NO
from stillframe.errors import Damaged, NotConsistent
from stillframe.model import SnapshotId
from stillframe.store.manifest import Entry
from stillframe.store.store import Store


def verify(path: Path, name: str | None, *, is_json: bool) -> None:
    """Verify the snapshot `name` of the store at `path`, or all; say what is wrong first.

    Raises:
        typer.Exit: with 1; something is damaged or contradicts itself.
    """
    try:
        if name is None:
            _verify_all(Store.open(path), is_json=is_json)
        else:
            store = Store.open(path)
            _verify_one(store, store.find(name), is_json=is_json)
    except (Damaged, NotConsistent) as error:
        if is_json:
            kind = type(error).__name__
            output.put_json({"is_consistent": False, "error": kind, "detail": str(error)})
        output.say(f"no: {error}")
        raise typer.Exit(EXIT_NO) from None


def _verify_one(store: Store, snapshot: SnapshotId, *, is_json: bool) -> None:
    store.verify(snapshot)
    state = store.load(snapshot).state
    if is_json:
        output.put_json({"is_consistent": True, "snapshot": snapshot, "channels": books(state)})
    else:
        put_books(state)
    size = quantities.size(store.entry(snapshot).bytes)
    output.say(f"yes: snapshot {snapshot} is consistent, and its {size} are what was written")


def _verify_all(store: Store, *, is_json: bool) -> None:
    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn()
    console = output.words()
    byte_count = 0
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("verifying snapshots", total=None)

        def progress(entry: Entry, total: int) -> None:
            nonlocal byte_count
            byte_count += entry.bytes
            bar.update(task, total=total, advance=1)

        verified = store.verify_all(progress)
    if is_json:
        output.put_json(
            {"is_consistent": True, "snapshot_count": verified, "byte_count": byte_count}
        )
    output.say(
        f"yes: {quantities.count(verified, 'snapshot')}, {quantities.size(byte_count)}: all "
        "consistent, and every byte is what was written"
        if verified
        else f"the store {store.path} holds no snapshot yet: there is nothing to verify"
    )
