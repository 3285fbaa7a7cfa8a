"""A topology with keyed fields of several types, and parts of snapshots of it, whole or changes."""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

import msgspec

from stillframe.keyed import Keyed
from stillframe.model import (
    Channel,
    ChannelState,
    GlobalState,
    KeyedChange,
    KeyedRows,
    ProcessState,
    Snapshot,
    SnapshotId,
)
from stillframe.process import Message, Process
from stillframe.topology import Topology

_encode = msgspec.msgpack.encode


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A key that is not of one column's type."""

    row: int
    seat: str


class Guest(msgspec.Struct, frozen=True):
    """A value with columns of its own."""

    name: str
    age: int | None = None


class Hello(Message):
    """Nothing much."""

    at: int = 0


class Bank(Process):
    """Holds mappings."""

    name: str = ""
    accounts: Keyed[str, int] = field(default_factory=Keyed)
    seats: Keyed[Place, Guest] = field(default_factory=Keyed)
    days: Keyed[datetime.date, float | None] = field(default_factory=Keyed)

    def receive(self, channel: Channel, message: Hello) -> None:
        """Take it."""


class Clerk(Process):
    """Holds none."""

    balance: int = 3

    def receive(self, channel: Channel, message: Hello) -> None:
        """Take it."""


TOPOLOGY = Topology({"P": Bank(), "Q": Bank(), "T": Clerk()}, [("P", "Q"), ("Q", "T")])
DESCRIPTION = TOPOLOGY.description
BANKS = ("P", "Q")
Fields = dict[str, dict[Any, Any]]
"""Keyed field -> what it holds."""


def nothing() -> Fields:
    """Return the fields of a bank that holds nothing."""
    return {"accounts": {}, "seats": {}, "days": {}}


def change_of(
    rows: Mapping[Any, Any], removed: Iterable[Any] = (), *, size: int = 2
) -> KeyedChange:
    """Return a change in pieces of at most `size` rows."""
    pairs, gone = list(rows.items()), list(removed)
    pieces = [pairs[first : first + size] for first in range(0, len(pairs), size)]
    return KeyedChange(
        tuple(
            KeyedRows(len(p), _encode([key for key, _ in p]), _encode([value for _, value in p]))
            for p in pieces
        ),
        len(gone),
        _encode(gone),
    )


def part(
    process: str, before: Fields, now: Fields, base: SnapshotId | None, *, name: str = ""
) -> ProcessState:
    """Return what a bank records that held `before` at its cut of `base`, and holds `now`."""
    keyed = {}
    for each, held in now.items():
        rows = {k: v for k, v in held.items() if k not in before[each] or before[each][k] != v}
        keyed[each] = change_of(rows, before[each].keys() - held.keys())
    return ProcessState(process, "Bank", _encode({"name": name}), base, keyed)


def whole(process: str, now: Fields, *, name: str = "") -> ProcessState:
    """Return a bank's state with its keyed fields among the others."""
    return ProcessState(process, "Bank", _encode({"name": name, **now}))


def snapshot_of(number: int, banks: Iterable[ProcessState], *, epoch: int = 1) -> Snapshot:
    """Return a snapshot with these states of P and Q; each begins when the one before is over."""
    clerk = ProcessState("T", "Clerk", _encode({"balance": number}))
    channels = tuple(ChannelState(channel, 0, 0, ()) for channel in DESCRIPTION.channels)
    state = GlobalState((*banks, clerk), channels)
    return Snapshot(SnapshotId("P", number), epoch, float(number), number + 0.5, state)


def held(snapshot: Snapshot) -> dict[str, Fields]:
    """Return what the banks hold in a snapshot that was loaded, as a restore reads it."""
    states = {state.process: state for state in snapshot.state.processes}
    assert all(states[bank].base is None and not states[bank].keyed for bank in BANKS)
    decoded = {bank: TOPOLOGY.codecs[bank].decode(states[bank].encoded) for bank in BANKS}
    return {bank: {name: dict(decoded[bank][name]) for name in nothing()} for bank in BANKS}
