"""``stillframe diff``: in what two snapshots differ."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import typer

from stillframe.cli import output, quantities
from stillframe.cli.contents import cell, fields_of
from stillframe.cli.verdict import EXIT_NO
from stillframe.model import ChannelState, GlobalState, SnapshotId
from stillframe.store.store import Store

_encode = msgspec.msgpack.encode


class FieldDifference(msgspec.Struct, frozen=True):
    """A field of a process that is not the same; of a keyed field only the keys that are not."""

    process: str
    field: str
    before: Any
    after: Any


class ChannelDifference(msgspec.Struct, frozen=True):
    """A channel that is not the same: [sent, received, in channel] before and after.

    `is_same_count`: the figures are equal, and only the messages differ.
    """

    channel: str
    before: tuple[int, int, int]
    after: tuple[int, int, int]

    @property
    def is_same_count(self) -> bool:
        """Whether only the messages differ."""
        return self.before == self.after


def diff(path: Path, before: str, after: str, *, is_json: bool) -> None:
    """Write in what two snapshots of the store at `path` differ.

    Raises:
        typer.Exit: with 1; they do.
    """
    store = Store.open(path)
    snapshots = [store.find(name) for name in (before, after)]
    one, other = (store.load(snapshot).state for snapshot in snapshots)
    fields = list(_field_differences(one, other, _keyed_fields(store, snapshots)))
    channels = list(_channel_differences(one, other))
    is_equal = not fields and not channels
    if is_json:
        output.put_json({"is_equal": is_equal, "fields": fields, "channels": channels})
    else:
        _put(before, after, fields, channels)
    if is_equal:
        output.say(f"{before} and {after} record the same states and the same messages")
        return
    output.say(
        f"{before} and {after} differ in {quantities.count(len(fields), 'field')} of processes and "
        f"{quantities.count(len(channels), 'channel')}"
    )
    raise typer.Exit(EXIT_NO)


def _field_differences(
    one: GlobalState, other: GlobalState, keyed: set[tuple[str, str]]
) -> Iterator[FieldDifference]:
    # After a change of code they can be of other processes, with other fields.
    befores, afters = ({s.process: s for s in state.processes} for state in (one, other))
    for process in sorted(befores | afters):
        before, after = befores.get(process), afters.get(process)
        if before is not None and after is not None and before.encoded == after.encoded:
            continue
        old, new = ({} if state is None else fields_of(state) for state in (before, after))
        for name in old | new:
            values: tuple[Any, Any] = old.get(name), new.get(name)
            if before is not None and (before.kind, name) in keyed and None not in values:
                values = _changed_keys(*values)
            if _encode(values[0]) != _encode(values[1]):
                yield FieldDifference(process, name, *values)


def _keyed_fields(store: Store, snapshots: Iterable[SnapshotId]) -> set[tuple[str, str]]:
    """Return class and name of the fields that are keyed in each of the snapshots."""
    described = [store.description_of(snapshot).keyed for snapshot in snapshots]
    return set.intersection(
        *({(kind, name) for kind, fields in d.items() for name in fields} for d in described)
    )


def _changed_keys(old: dict[Any, Any], new: dict[Any, Any]) -> tuple[Any, Any]:
    """Return what two mappings do not have in common; the order of their keys does not count."""

    def left(one: dict[Any, Any], other: dict[Any, Any]) -> dict[Any, Any]:
        return {
            key: value
            for key, value in one.items()
            if key not in other or _encode(value) != _encode(other[key])
        }

    return left(old, new), left(new, old)


def _channel_differences(one: GlobalState, other: GlobalState) -> Iterator[ChannelDifference]:
    befores, afters = ({s.channel: s for s in state.channels} for state in (one, other))
    for channel in sorted(befores | afters):
        nothing = ChannelState(channel, 0, 0, ())
        before, after = befores.get(channel, nothing), afters.get(channel, nothing)
        if _figures(before) != _figures(after) or _messages(before) != _messages(after):
            yield ChannelDifference(str(channel), _figures(before), _figures(after))


def _figures(state: ChannelState) -> tuple[int, int, int]:
    return state.sent_count, state.received_count, state.message_count


def _messages(state: ChannelState) -> list[bytes]:
    # One by one: the same messages may have travelled in other batches.
    return [single.encoded for batch in state.batches for single in batch.singles()]


def _put(
    before: str,
    after: str,
    fields: list[FieldDifference],
    channels: list[ChannelDifference],
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
