"""What the tests of the store share: a topology with every kind of column, and states of it."""

import dataclasses
import datetime
from typing import Any

import msgspec
import pytest

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
from stillframe.storage.location import Location
from stillframe.storage.opened import storage_of
from stillframe.store import layout
from stillframe.store.store import Store
from stillframe.topology import Topology


class Transfer(Message):
    """Money on its way."""

    amount: int
    at: datetime.datetime | None = None


class Fee(Message):
    """Money with a fraction: its column meets that of Transfer as float."""

    amount: float
    note: str = ""
    seal: bytes = b""
    is_urgent: bool = False
    when: datetime.datetime = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


class Account(Process):
    """Holds money, and more."""

    balance: int = 100
    name: str = ""
    history: list[int] = dataclasses.field(default_factory=list)

    def receive(self, channel: Channel, message: Transfer | Fee) -> None:
        """Take it."""


class Till(Process):
    """Holds money with a fraction."""

    balance: float = 0.5
    is_open: bool = True

    def receive(self, channel: Channel, message: Transfer) -> None:
        """Take it."""


TOPOLOGY = Topology(
    {"A": Account(), "B": Account(), "T": Till()}, [("A", "B"), ("B", "A"), ("B", "T")]
)
DESCRIPTION = TOPOLOGY.description
T0 = datetime.datetime(2024, 5, 17, 12, 30, 0, 250, tzinfo=datetime.UTC)


def batches_of(first: int, messages: list[Any], *, size: int = 3) -> tuple[Batch, ...]:
    """Return messages as batches of at most `size`, numbered from `first`."""
    encoded = [msgspec.msgpack.encode(message) for message in messages]
    starts = range(0, len(encoded), size)
    return tuple(Batch.of(first + start, encoded[start : start + size]) for start in starts)


def global_state(
    on_channels: dict[tuple[ProcessId, ProcessId], list[Any]] | None = None,
    processes: dict[ProcessId, Process] | None = None,
    *,
    topology: Topology = TOPOLOGY,
) -> GlobalState:
    """Return a state whose books balance, with these messages on these channels."""
    states = []
    for name, kind in topology.description.processes.items():
        process = (processes or {}).get(name, topology.processes[name])
        states.append(ProcessState(name, kind, topology.codecs[name].capture(process)))
    channels = []
    for number, channel in enumerate(topology.description.channels):
        messages = (on_channels or {}).get((channel.source, channel.target), [])
        received = number * 10
        batches = batches_of(received + 1, messages)
        channels.append(ChannelState(channel, received + len(messages), received, batches))
    return GlobalState(tuple(states), tuple(channels))


SOME_MESSAGES: dict[tuple[ProcessId, ProcessId], list[Any]] = {
    ("A", "B"): [Transfer(5), Fee(0.5, "x", b"\x00", True, T0), Transfer(7, T0), Transfer(1)],
    ("B", "T"): [Transfer(2)],
}


def snapshot_of(
    number: int, state: GlobalState | None = None, *, epoch: int = 1, initiator: ProcessId = "A"
) -> Snapshot:
    """Return a snapshot that took half a second."""
    state = global_state(SOME_MESSAGES) if state is None else state
    at = 999.0 + number
    return Snapshot(
        SnapshotId(initiator, number), epoch, at, at + 0.5, state, pause_s=0.002, capture_s=0.03
    )


def publish(store: Store, *numbers: int) -> None:
    """Publish snapshots with these numbers in the current epoch of `store`."""
    for number in numbers:
        store.publish(snapshot_of(number, epoch=store.epoch))


def publish_while_read(manifest: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a manifest away, and put it back when a reader that missed it looks once more."""
    content, _ = storage_of(manifest).read(manifest, bytes_max=2**20)
    is_published_at = layout.is_published_at

    def publish(directory: Location) -> bool:
        storage_of(manifest).put(manifest, content)
        return is_published_at(directory)

    storage_of(manifest).delete([manifest])
    monkeypatch.setattr(layout, "is_published_at", publish)
