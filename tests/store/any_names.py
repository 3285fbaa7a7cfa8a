"""A system whose fields are called like everything that a store knows."""

import dataclasses
from dataclasses import field
from pathlib import Path

import msgspec

from stillframe.keyed import Keyed
from stillframe.model import (
    Batch,
    Channel,
    ChannelState,
    GlobalState,
    ProcessState,
    Snapshot,
    SnapshotId,
)
from stillframe.process import Message
from stillframe.store.store import Store
from stillframe.store.tables import as_changes
from stillframe.topology import ExternalProcess, Topology


class Value(msgspec.Struct, frozen=True):
    """A value with columns of its own."""

    snapshot: str
    process: str
    key: int
    is_removed: bool
    key_encoded: int = 7
    value: int = 1


class Sent(Message):
    """A message."""

    snapshot: str
    source: int
    target: int
    number: int
    kind: str
    encoded: bytes = b"\x05"


@dataclasses.dataclass
class Named:
    """The state of a program that joins: no method takes a name."""

    snapshot: int = 1
    process: int = 2
    kind: int = 3
    encoded: int = 4
    key: int = 5
    number: int = 6
    value: int = 7
    source: str = "s"
    wanted: int = 8
    rest: int = 9
    parts: Keyed[str, Value] = field(default_factory=Keyed)


TOPOLOGY = Topology(
    {name: ExternalProcess(state=Named, accepts=Sent) for name in "AB"}, [("A", "B")]
)
MESSAGE = Sent("of mine", 1, 2, 77, "K")
VALUES = {"a": Value("x", "y", 3, is_removed=True), "b": Value("z", "w", 4, is_removed=False)}


def snapshot(number: int, base: SnapshotId | None) -> Snapshot:
    """Return a snapshot with one message in flight; only key a has changed since the base."""
    values = {"a": VALUES["a"], **({"b": VALUES["b"]} if base is None else {})}
    fields = {**vars(Named(number=number)), "parts": values}
    states: list[ProcessState] = []
    for name in "AB":
        state = ProcessState(name, "Named", msgspec.msgpack.encode(fields))
        if base is not None:
            changes = as_changes(f"A-{number}", state, TOPOLOGY.description)
            state = msgspec.structs.replace(changes, base=base)
        states.append(state)
    batch = Batch.of(number + 1, [msgspec.msgpack.encode(MESSAGE)])
    channel = ChannelState(Channel("A", "B"), number + 1, number, (batch,))
    return Snapshot(
        SnapshotId("A", number), 1, number, number + 0.5, GlobalState(tuple(states), (channel,))
    )


def make_store(path: Path) -> Path:
    """Make a store with a full snapshot A-1, and A-2, which holds changes since."""
    store = Store.create(path, description=TOPOLOGY.description)
    store.raise_epoch(None)
    store.publish(snapshot(1, None))
    store.publish(snapshot(2, SnapshotId("A", 1)))
    store.close()
    return path
