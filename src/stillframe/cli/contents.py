"""``stillframe show``: what a snapshot holds, decoded."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from stillframe.cli import output, quantities
from stillframe.cli.books import books, put_books
from stillframe.cli.request import without
from stillframe.model import ChannelState, ProcessState, Snapshot
from stillframe.pages.values import plain
from stillframe.store.store import Store
from stillframe.store.tables import DecodedMessage, fields_of, messages_of
from stillframe.topology import Description

MESSAGE_COUNT_MAX = 3
"""So many messages of a channel are shown."""
VALUE_LENGTH_MAX = 60
"""So many characters of a value are shown in a table; JSON has it whole."""


def show_snapshot(path: Path, name: str, *, only_books: bool, is_json: bool) -> None:
    """Write what the snapshot `name` of the store at `path` holds, or only its books."""
    store = Store.open(path)
    snapshot = store.load(store.find(name))
    description = store.description_of(snapshot.id)
    if is_json:
        output.put_json(_document(snapshot, description, only_books=only_books))
        return
    recorded_s = snapshot.completed_at - snapshot.initiated_at
    output.say(
        f"snapshot {snapshot.id}: epoch {snapshot.epoch}, initiated "
        f"{quantities.moment(snapshot.initiated_at)}, recorded in {quantities.duration(recorded_s)}"
        f"{without(snapshot.excluded)}"
    )
    if only_books:
        put_books(snapshot.state)
        return
    for kind, columns in description.states.items():
        states = [state for state in snapshot.state.processes if state.kind == kind]
        names = [column.name for column in columns]
        rows = [(state.process, *_cells(state, names)) for state in states]
        output.put_table(f"processes: {kind}", ["process", *names], rows)
    _put_channels(snapshot, description)


def cell(value: Any) -> str:
    """Return a value as a table shows it, shortened if it is long."""
    match value:
        case str():
            text = value
        case bool() | None | dict() | list() | tuple() | bytes():
            text = msgspec.json.encode(plain(value)).decode()
        case _:
            text = str(value)
    return text if len(text) <= VALUE_LENGTH_MAX else f"{text[: VALUE_LENGTH_MAX - 3]}..."


def _cells(state: ProcessState, names: list[str]) -> Iterator[str]:
    fields = fields_of(state)
    return (cell(fields.get(name)) for name in names)


def _document(snapshot: Snapshot, description: Description, *, only_books: bool) -> dict[str, Any]:
    channels = books(snapshot.state)
    document: dict[str, Any] = {
        "id": snapshot.id,
        "epoch": snapshot.epoch,
        "initiated_at": snapshot.initiated_at,
        "completed_at": snapshot.completed_at,
        "excluded": snapshot.excluded,
        "channels": channels,
    }
    if only_books:
        return document
    document["processes"] = [
        {"process": state.process, "kind": state.kind, "state": fields_of(state)}
        for state in snapshot.state.processes
    ]
    for shown, state in zip(channels, snapshot.state.channels, strict=True):
        shown["messages"] = _first_messages(state, description)
        shown["messages_left_out_count"] = state.message_count - len(shown["messages"])
    return document


def _first_messages(state: ChannelState, description: Description) -> list[DecodedMessage]:
    return list(itertools.islice(messages_of(state, description), MESSAGE_COUNT_MAX))


def _put_channels(snapshot: Snapshot, description: Description) -> None:
    columns = ["channel", "first messages", "sent", "received", "in channel"]
    rows = [
        (
            str(state.channel),
            _sentence(state, description),
            f"{state.sent_count:,}",
            f"{state.received_count:,}",
            f"{state.message_count:,}",
        )
        for state in snapshot.state.channels
    ]
    output.put_table("channels, counts in messages", columns, rows, texts=2)
    output.say(
        f"{quantities.count(snapshot.state.message_count, 'message')} caught in channels; at most "
        f"{MESSAGE_COUNT_MAX} of each channel are shown, and {VALUE_LENGTH_MAX} characters of each "
        "value (--json has the values whole, messages.parquet has every message)"
    )


def _sentence(state: ChannelState, description: Description) -> str:
    first = _first_messages(state, description)
    shown = [
        f"{message.number}: {message.kind}("
        + ", ".join(f"{name}={cell(value)}" for name, value in message.fields.items())
        + ")"
        for message in first
    ]
    left_out = state.message_count - len(first)
    return ", ".join(shown) + (f" and {left_out:,} more" if left_out else "")
