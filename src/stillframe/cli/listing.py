"""``stillframe list``: which snapshots there are."""

from pathlib import Path

from stillframe.cli import output, quantities
from stillframe.cli.request import without
from stillframe.store.manifest import Entry
from stillframe.store.store import Store

COLUMNS = (
    "snapshot",
    "published",
    "epoch",
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
    """Write the snapshots of the store at `path`, in the order of publishing."""
    store = Store.open(path)
    entries, current = store.entries(), store.current()
    if is_json:
        output.put_json(
            {
                "store": path,
                "epoch": store.epoch,
                "current": current and current.id,
                "snapshots": entries,
            }
        )
        return
    if current is None:
        output.say(f"the store {path} holds no snapshot yet")
        return
    output.put_table("", COLUMNS, map(_row, entries), texts=2)
    output.say(*(f"{e.id}{without(e.excluded)}" for e in entries if e.excluded))
    output.say(f"{quantities.count(len(entries), 'snapshot')}; a restore goes back to {current.id}")


def _row(entry: Entry) -> tuple[str, ...]:
    return (
        str(entry.id),
        quantities.moment(entry.published_at),
        str(entry.epoch),
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
