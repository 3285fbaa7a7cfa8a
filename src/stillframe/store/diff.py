"""The differences between two snapshots: fields, keys of keyed fields, and channels."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from stillframe.json_values import json_text, plain, plain_text
from stillframe.model import ChannelState, GlobalState, SnapshotId
from stillframe.store.reader import StoreReader
from stillframe.store.tables import fields_of

_encode = msgspec.msgpack.encode


class FieldDifference(msgspec.Struct, frozen=True):
    """A field of a process that differs; a keyed field has only the keys that differ."""

    process: str
    field: str
    before: Any
    after: Any


class ChannelDifference(msgspec.Struct, frozen=True):
    """A channel that differs: [sent, received, in channel] before and after."""

    channel: str
    before: tuple[int, int, int]
    after: tuple[int, int, int]

    @property
    def is_same_count(self) -> bool:
        """Whether the figures are equal, and only the messages differ."""
        return self.before == self.after


class SnapshotDiff(msgspec.Struct, frozen=True):
    """The differences between two snapshots.

    `keyed` are class and name of the fields whose values are mappings with only the keys that
    differ.
    """

    fields: tuple[FieldDifference, ...]
    channels: tuple[ChannelDifference, ...]
    keyed: frozenset[tuple[str, str]]

    @property
    def is_equal(self) -> bool:
        """Whether there are no differences."""
        return not self.fields and not self.channels


def diff_snapshots(store: StoreReader, before: SnapshotId, after: SnapshotId) -> SnapshotDiff:
    """Compare two snapshots of `store`; both are loaded and verified (``StoreReader.load``)."""
    one, other = (store.load(snapshot).state for snapshot in (before, after))
    keyed = _keyed_fields(store, (before, after))
    return SnapshotDiff(
        tuple(_field_differences(one, other, keyed)), tuple(_channel_differences(one, other)), keyed
    )


def _field_differences(
    one: GlobalState, other: GlobalState, keyed: frozenset[tuple[str, str]]
) -> Iterator[FieldDifference]:
    # After a change of code, processes and fields may differ.
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
            if _differ(*values):
                yield FieldDifference(process, name, *values)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same but for the order of the keys of mappings. A NaN is
    the same as itself; 1, 1.0 and True differ."""
    texts = (plain_text(plain(value), is_sorted=True) for value in (one, other))
    return _encode(one) == _encode(other) or len(set(texts)) == 1


def _differ(one: Any, other: Any) -> bool:
    """Return whether two values are shown differently; that a NaN has other bits is not shown."""
    return _encode(one) != _encode(other) and json_text(one) != json_text(other)


def _keyed_fields(
    store: StoreReader, snapshots: Iterable[SnapshotId]
) -> frozenset[tuple[str, str]]:
    """Return class and name of the fields that are keyed in each of the snapshots."""
    described = [store.description_of(snapshot).keyed for snapshot in snapshots]
    return frozenset.intersection(
        *(frozenset((kind, name) for kind in d for name in d[kind]) for d in described)
    )


def _changed_keys(old: dict[Any, Any], new: dict[Any, Any]) -> tuple[Any, Any]:
    """Return the keys that differ; their order does not count."""

    def left(one: dict[Any, Any], other: dict[Any, Any]) -> dict[Any, Any]:
        return {
            key: value
            for key, value in one.items()
            if key not in other or _differ(value, other[key])
        }

    return left(old, new), left(new, old)


def _channel_differences(one: GlobalState, other: GlobalState) -> Iterator[ChannelDifference]:
    befores, afters = ({s.channel: s for s in state.channels} for state in (one, other))
    for channel in sorted(befores | afters):
        nothing = ChannelState(channel, 0, 0, ())
        before, after = (_content(found.get(channel, nothing)) for found in (befores, afters))
        if before != after:
            yield ChannelDifference(str(channel), before[0], after[0])


def _content(state: ChannelState) -> tuple[tuple[int, int, int], list[bytes]]:
    """Return the figures of a channel, and its messages one by one: the same may be in different
    batches."""
    messages = [single.encoded for batch in state.batches for single in batch.singles()]
    return (state.sent_count, state.received_count, state.message_count), messages
