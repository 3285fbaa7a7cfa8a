"""``stillframe diff``: in what two snapshots differ."""

from collections.abc import Sequence
from pathlib import Path

import typer

from stillframe.cli import output, quantities
from stillframe.cli.contents import cell
from stillframe.cli.verdict import EXIT_NO
from stillframe.store.diff import ChannelDifference, FieldDifference, diff_snapshots
from stillframe.store.store import Store


def diff(path: Path, before: str, after: str, *, is_json: bool) -> None:
    """Write in what two snapshots of the store at `path` differ.

    Raises:
        typer.Exit: with 1; they do.
    """
    store = Store.open(path)
    found = diff_snapshots(store, store.find(before), store.find(after))
    fields, channels = found.fields, found.channels
    if is_json:
        output.put_json({"is_equal": found.is_equal, "fields": fields, "channels": channels})
    else:
        _put(before, after, fields, channels)
    if found.is_equal:
        output.say(f"{before} and {after} record the same states and the same messages")
        return
    output.say(
        f"{before} and {after} differ in {quantities.count(len(fields), 'field')} of processes and "
        f"{quantities.count(len(channels), 'channel')}"
    )
    raise typer.Exit(EXIT_NO)


def _put(
    before: str,
    after: str,
    fields: Sequence[FieldDifference],
    channels: Sequence[ChannelDifference],
) -> None:
    if fields:
        rows = [(d.process, d.field, cell(d.before), cell(d.after)) for d in fields]
        output.put_table("processes", ["process", "field", before, after], rows, texts=2)
    if channels:
        columns = [f"{what}, {name}" for what in ("sent", "received", "in it") for name in "AB"]
        output.put_table(
            f"channels, counts in messages: A is {before}, B is {after}",
            ["channel", *columns],
            map(_channel_row, channels),
        )


def _channel_row(difference: ChannelDifference) -> tuple[str, ...]:
    note = " (other messages)" if difference.is_same_count else ""
    pairs = zip(difference.before, difference.after, strict=True)
    return difference.channel + note, *(f"{number:,}" for pair in pairs for number in pair)
