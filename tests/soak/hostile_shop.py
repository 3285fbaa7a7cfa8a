"""The system that hostile frames are thrown at: two processes with fields of every kind."""

import datetime
from dataclasses import field

import msgspec

from stillframe import Channel, Message, Process, Topology
from stillframe.keyed import Keyed


class Row(msgspec.Struct, frozen=True):
    """A value of a keyed field."""

    amount: int
    note: str = ""


class Wide(Message):
    """A message with a field of every kind."""

    count: int
    name: str = ""
    parts: list[list[int]] = msgspec.field(default_factory=list)
    notes: dict[str, float] = msgspec.field(default_factory=dict)
    at: datetime.datetime | None = None
    blob: bytes = b""


class Narrow(Message):
    """A message of little."""

    text: str


class Keeper(Process):
    """Keeps what comes, and checks that it is what it is said to be."""

    count: int = 0
    texts: list[str] = field(default_factory=list)
    rows: Keyed[str, Row] = field(default_factory=Keyed)

    def receive(self, channel: Channel, message: Wide | Narrow) -> None:
        """A legal message is one that comes back from its own bytes."""
        encoded = msgspec.msgpack.encode(message)
        again = msgspec.msgpack.decode(encoded, type=type(message))
        assert msgspec.msgpack.encode(again) == encoded, message
        self.count += 1


def shop() -> Topology:
    """Return a fresh system."""
    return Topology.mesh({"A": Keeper(rows=Keyed({"x": Row(1)})), "B": Keeper()})


NEW_YEAR = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
MESSAGES = [
    Wide(7, "seven", [[1, 2], []], {"a": 0.5}, NEW_YEAR, b"\x00\xff"),
    Narrow("text"),
    Wide(-1),
]
