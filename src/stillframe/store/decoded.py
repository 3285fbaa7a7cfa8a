"""What a snapshot holds, decoded: fields and messages by name, without the system's classes."""

from collections.abc import Iterator
from typing import Any

import msgspec

from stillframe.model import ChannelState, ProcessState
from stillframe.topology import Description


class DecodedMessage(msgspec.Struct, frozen=True):
    """A message that was on a channel: its number there, its class, and its fields by name."""

    number: int
    kind: str
    fields: dict[str, Any]


def fields_of(state: ProcessState) -> dict[str, Any]:
    """Return the recorded fields of a process."""
    return msgspec.msgpack.decode(state.encoded, type=dict[str, Any])


def messages_of(state: ChannelState, description: Description) -> Iterator[DecodedMessage]:
    """Yield the messages of a channel in order; a batch is decoded when its first is asked for."""
    for batch in state.batches:
        for index, (kind, *values) in enumerate(msgspec.msgpack.decode(batch.encoded)):
            names = [column.name for column in description.messages[kind]]
            fields = dict(zip(names, values, strict=False))
            yield DecodedMessage(batch.first + index, kind, fields)
