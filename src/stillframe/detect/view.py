"""A snapshot as predicates see it: processes as objects, channels as messages."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec

from stillframe.errors import UsageError
from stillframe.model import (
    DECODING_ERRORS,
    Channel,
    ChannelState,
    ProcessId,
    ProcessState,
    Snapshot,
    SnapshotId,
)
from stillframe.process import Message, Process
from stillframe.protocol.action_runner import ActionRunner, union_of
from stillframe.topology import Topology


class View(msgspec.Struct, frozen=True):
    """The global state of a snapshot.

    `processes` holds an object of each process's own class with the recorded fields; `channels`
    the messages on each channel, in the order in which they were sent.
    """

    snapshot: SnapshotId
    processes: dict[ProcessId, Any]
    channels: dict[Channel, tuple[Message, ...]]

    def in_transit(self) -> Iterator[tuple[Channel, Message]]:
        """Yield every message that is on a channel, with the channel."""
        for channel, messages in self.channels.items():
            for message in messages:
                yield channel, message


def view_of(snapshot: Snapshot, topology: Topology) -> View:
    """Return how a snapshot looks to a predicate.

    Args:
        snapshot: of a system with this topology.
        topology: with the classes of processes and messages.

    Raises:
        UsageError: a recorded state or message does not fit the classes of the topology.
    """
    recorded = {state.process: state for state in snapshot.state.processes}
    if recorded.keys() != topology.processes.keys():
        raise UsageError(
            f"snapshot {snapshot.id} holds the processes {', '.join(recorded)}, and the topology "
            f"has {', '.join(topology.processes)}: give the topology that it was taken of"
        )
    return View(
        snapshot.id,
        {name: _process(topology, state) for name, state in recorded.items()},
        {state.channel: _messages(topology, state) for state in snapshot.state.channels},
    )


def _process(topology: Topology, state: ProcessState) -> Any:
    codec = topology.codecs[state.process]
    if isinstance(topology.processes[state.process], Process):
        return ActionRunner(state.process, topology, state.encoded).process
    fields = codec.decode(state.encoded)
    try:
        if issubclass(codec.kind, msgspec.Struct):
            return codec.kind(**fields)
        # What __init__ of a dataclass would do besides is not recorded, and may need what is not
        # here; fields that are not recorded are as they are declared.
        process = object.__new__(codec.kind)
        for name, value in (_unrecorded(codec.kind) | fields).items():
            object.__setattr__(process, name, value)
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"process {state.process}: no {codec.kind.__name__} can be made of the fields that "
            f"were recorded of it, {', '.join(fields) or 'none'}, to ask it: {error}"
        ) from error
    return process


def _unrecorded(kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass that have a default."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


def _messages(topology: Topology, state: ChannelState) -> tuple[Message, ...]:
    accepts = topology.accepts[state.channel.target]
    if not accepts or not state.batches:
        return ()
    decoder = msgspec.msgpack.Decoder(list[union_of(accepts)])  # type: ignore[misc]
    try:
        return tuple(m for batch in state.batches for m in decoder.decode(batch.encoded))
    except DECODING_ERRORS as error:
        raise UsageError(
            f"a message on channel {state.channel} does not fit the topology: {error}"
        ) from error
