"""``stillframe list``: which snapshots there are."""

from pathlib import Path

import typer

from stillframe.cli import output, quantities
from stillframe.cli.request import without
from stillframe.cli.verdict import EXIT_NO
from stillframe.errors import Damaged, UsageError
from stillframe.model import SnapshotId
from stillframe.store.manifest import Entry
from stillframe.store.store import Store

COLUMNS = (
    "snapshot",
    "published",
    "epoch",
    "restore point",
    "processes",
    "channels",
    "messages caught",
    "paused for",
    "encoded in",
    "recorded in",
    "published after",
    "size",
    "based on",
    "chain",
    "savepoint",
)


def list_snapshots(path: Path, *, is_json: bool) -> None:
    """Write the snapshots of the store at `path`, in the order of publishing, and name those whose
    manifest is damaged.

    Raises:
        typer.Exit: with 1; one is.
    """
    store = Store.open(path)
    entries, damages = store.listing()
    current = None
    try:
        current = store.current()
    except (Damaged, UsageError):
        if not damages:
            raise
    _put(store, entries, current, damages, is_json=is_json)
    if damages:
        output.say(*(f"no: {damage}" for damage in damages.values()))
        raise typer.Exit(EXIT_NO)


def _put(
    store: Store,
    entries: list[Entry],
    current: Entry | None,
    damages: dict[SnapshotId, Damaged],
    *,
    is_json: bool,
) -> None:
    if is_json:
        output.put_json(
            {
                "store": store.path,
                "epoch": store.epoch,
                "current": current and current.id,
                "snapshots": entries,
                "damaged": [{"id": one, "detail": str(damage)} for one, damage in damages.items()],
            }
        )
        return
    if not entries and not damages:
        output.say(f"the store {store.path} holds no snapshot yet")
        return
    output.put_table("", COLUMNS, map(_row, entries), texts=2)
    output.say(*(f"{e.id}{without(e.excluded)}" for e in entries if e.excluded))
    point = "to none: name one" if current is None else f"to {current.id}"
    output.say(f"{quantities.count(len(entries), 'snapshot')}; a restore goes back {point}")


def _row(entry: Entry) -> tuple[str, ...]:
    return (
        str(entry.id),
        quantities.moment(entry.published_at),
        str(entry.epoch),
        "yes" if entry.is_restore_point else "no",
        str(entry.process_count),
        str(entry.channel_count),
        f"{entry.message_count:,}",
        quantities.duration(entry.pause_s),
        quantities.duration(entry.capture_s),
        quantities.duration(entry.completed_at - entry.initiated_at),
        quantities.duration(entry.published_at - entry.initiated_at),
        quantities.size(entry.bytes),
        ", ".join(map(str, entry.bases)),
        str(entry.chain_length) if entry.bases else "",
        ", ".join(entry.savepoints),
    )
