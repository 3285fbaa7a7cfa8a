"""A snapshot as predicates see it: objects of the program's own classes."""

import gc
from dataclasses import dataclass, field

import msgspec
import pytest

from stillframe import Channel, Message, Process, SnapshotId, Topology
from stillframe.detect.view import view_of
from stillframe.errors import UsageError
from stillframe.model import Batch, ChannelState, GlobalState, ProcessState, Snapshot
from stillframe.state_codec import StateCodec
from stillframe.topology import ExternalProcess


class Coin(Message):
    """Money on its way."""

    amount: int


class Purse(Process):
    """Holds money."""

    balance: int = 1

    def receive(self, channel: Channel, message: Coin) -> None:
        """Take the money."""


@dataclass
class Book:
    """The state of a program with a loop of its own, whose ``__init__`` wants more."""

    entries: list[str]

    def __post_init__(self) -> None:
        raise AssertionError("nobody makes a new one to look at an old one")


class Note(msgspec.Struct):
    """The state of another."""

    text: str


def book(*entries: str) -> Book:
    """Return a book without asking ``__init__``."""
    made = object.__new__(Book)
    made.entries = list(entries)
    return made


TOPOLOGY = Topology(
    {
        "A": Purse(),
        "B": ExternalProcess(state=Book, accepts=Coin),
        "C": ExternalProcess(state=Note),
    },
    [("A", "B"), ("B", "A")],
)


def snapshot(coins: tuple[int, ...] = ()) -> Snapshot:
    """Return a snapshot with coins on the way from A to B."""
    encoded = [msgspec.msgpack.encode(Coin(amount)) for amount in coins]
    batches = (Batch.of(1, encoded),) if encoded else ()
    states = (
        ProcessState("A", "Purse", StateCodec(Purse).capture(Purse(balance=7))),
        ProcessState("B", "Book", StateCodec(Book).capture(book("one", "two"))),
        ProcessState("C", "Note", StateCodec(Note).capture(Note("hm"))),
    )
    channels = (
        ChannelState(Channel("A", "B"), len(coins), 0, batches),
        ChannelState(Channel("B", "A"), 0, 0, ()),
    )
    return Snapshot(SnapshotId("A", 1), 1, 0.0, 1.0, GlobalState(states, channels))


def test_processes_are_objects_with_the_recorded_fields() -> None:
    """Of every kind of class; a Process knows its name and channels, so that its methods work."""
    view = view_of(snapshot(), TOPOLOGY)
    purse, noted = view.processes["A"], view.processes["C"]
    assert isinstance(purse, Purse)
    assert (purse.balance, purse.id, purse.outgoing) == (7, "A", ("B",))
    assert view.processes["B"].entries == ["one", "two"]
    assert noted == Note("hm")
    assert TOPOLOGY.processes["A"].balance == 1  # type: ignore[union-attr]


def test_channels_hold_messages_in_order() -> None:
    """Each as an object of its class; and every channel is there, also an empty one."""
    view = view_of(snapshot((5, 6)), TOPOLOGY)
    assert view.channels == {Channel("A", "B"): (Coin(5), Coin(6)), Channel("B", "A"): ()}
    assert list(view.in_transit()) == [(Channel("A", "B"), Coin(5)), (Channel("A", "B"), Coin(6))]


def test_a_snapshot_of_another_topology_is_refused() -> None:
    """The error names the processes of both."""
    with pytest.raises(UsageError, match="holds the processes A, B, C, but the topology has A, B:"):
        view_of(snapshot(), Topology.mesh({"A": Purse(), "B": Purse()}))


class Ledger(Process):
    """Holds many objects."""

    rows: list[list[int]] = field(default_factory=list)


def test_a_state_of_many_objects_is_read_without_garbage_collection() -> None:
    """It would traverse all that was read so far, again and again; afterwards it is as before."""
    topology = Topology({"A": Ledger()}, [])
    encoded = StateCodec(Ledger).capture(Ledger(rows=[[number] for number in range(20_000)]))
    state = GlobalState((ProcessState("A", "Ledger", encoded),), ())
    collections: list[str] = []

    def collect(phase: str, _: object) -> None:
        collections.append(phase)

    gc.collect()
    gc.callbacks.append(collect)
    try:
        view = view_of(Snapshot(SnapshotId("A", 1), 1, 0.0, 0.0, state), topology)
        is_enabled, during = gc.isenabled(), list(collections)
    finally:
        gc.callbacks.remove(collect)
    assert len(view.processes["A"].rows) == 20_000
    assert is_enabled
    # One before the pause, and one after it, may come from what the test itself has made.
    assert len(during) <= 4
