"""What the tests of migration share: a system before a change of code, and snapshots of it."""

import dataclasses
from typing import Any

import msgspec

from stillframe.model import (
    Batch,
    Channel,
    ChannelState,
    GlobalState,
    ProcessId,
    ProcessState,
    Snapshot,
    SnapshotId,
)
from stillframe.process import Message, Process
from stillframe.topology import Topology


class Pay(Message):
    """Money on its way."""

    amount: int
    memo: str = ""


class Ask(Message):
    """How much?"""


@dataclasses.dataclass
class Line:
    """A part of a state."""

    text: str = "x"
    count: int = 1


class Holder(Process):
    """Holds money."""

    balance: int = 100
    note: str = "n"
    lines: list[Line] = dataclasses.field(default_factory=lambda: [Line()])


class Account(Holder):
    """Takes money as well."""

    def receive(self, channel: Channel, message: Pay | Ask) -> None:
        """Take it."""


ID = SnapshotId("A", 7)


def snapshot_of(
    topology: Topology,
    fields: dict[ProcessId, dict[str, Any]] | None = None,
    messages: dict[tuple[ProcessId, ProcessId], list[Any]] | None = None,
) -> Snapshot:
    """Return a snapshot: each process as it starts but for `fields`, these messages in transit."""
    states = []
    for name, kind in topology.description.processes.items():
        start = topology.processes[name]
        values = {n: getattr(start, n) for n in topology.codecs[name].types if hasattr(start, n)}
        encoded = msgspec.msgpack.encode(values | (fields or {}).get(name, {}))
        states.append(ProcessState(name, kind, encoded))
    channels = []
    for number, channel in enumerate(topology.description.channels):
        sent = (messages or {}).get((channel.source, channel.target), [])
        encoded_messages = [msgspec.msgpack.encode(message) for message in sent]
        batches = (Batch.of(10 * number + 1, encoded_messages),) if sent else ()
        channels.append(ChannelState(channel, 10 * number + len(sent), 10 * number, batches))
    return Snapshot(ID, 3, 1.0, 2.0, GlobalState(tuple(states), tuple(channels)))


def states_of(snapshot: Snapshot) -> dict[ProcessId, dict[str, Any]]:
    """Return the fields of every process in plain values."""
    return {s.process: msgspec.msgpack.decode(s.encoded) for s in snapshot.state.processes}


def messages_of(snapshot: Snapshot) -> dict[str, list[Any]]:
    """Return the messages of every channel that has some, in plain values."""
    return {
        str(state.channel): [
            m for batch in state.batches for m in msgspec.msgpack.decode(batch.encoded)
        ]
        for state in snapshot.state.channels
        if state.batches
    }
