"""A bank whose accounts number every payment, and refuse one that is not the next."""

import os
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import msgspec

from stillframe import Channel, Message, Process, Topology, every
from stillframe.model import ProcessId, Snapshot

START_BALANCE = 1_000_000
ACCOUNT_COUNT = 4
TOTAL = START_BALANCE * ACCOUNT_COUNT
IS_NIGHT = "STILLFRAME_NIGHTLY_SEED" in os.environ
"""Whether this is ``./check nightly``. ``tests.nightly`` says so, too, but it imports pytest, which
no process of a system needs."""
PAY_EVERY_MS = 0 if IS_NIGHT else 2
"""How often an account pays. At 0 the processes keep two cores busy for as long as a test waits."""


class Payment(Message):
    """So much money; `serial` counts the payments of this channel from 1."""

    amount: int
    serial: int


class Counting(Process):
    """Numbers what it sends on each channel, and takes only the next on each."""

    paid: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        """Begin both counts at 0."""
        self.paid = dict.fromkeys(self.outgoing, 0)
        self.received = dict.fromkeys(self.incoming, 0)

    def next_serial(self, target: str) -> int:
        """Return the serial of the payment that is sent to `target` now."""
        self.paid[target] += 1
        return self.paid[target]

    def count(self, channel: Channel, serial: int) -> None:
        """Count a payment that came; it must be the next."""
        expected = self.received[channel.source] + 1
        if serial != expected:
            raise AssertionError(f"payment {serial} came where {expected} should")
        self.received[channel.source] = expected


class Ledger(Counting):
    """Pays all the time, and checks that what it receives has no gap and no double."""

    balance: int = START_BALANCE
    turn: int = 0

    def receive(self, channel: Channel, message: Payment) -> None:
        """Take the payment if it is the next."""
        self.count(channel, message.serial)
        self.balance += message.amount

    @every(ms=PAY_EVERY_MS)
    def pay(self) -> None:
        """Pay the next neighbour an amount that varies."""
        self.turn += 1
        target = self.outgoing[self.turn % len(self.outgoing)]
        amount = min(1 + self.turn % 7, self.balance)
        self.balance -= amount
        self.send(target, Payment(amount, self.next_serial(target)))


bank = Topology.mesh({f"P{number}": Ledger() for number in range(1, ACCOUNT_COUNT + 1)})


def amount_in_transit(
    snapshot: Snapshot, states: Mapping[ProcessId, dict[str, Any]], topology: Topology
) -> int:
    """Check the channels of a snapshot against what counting processes say; return the money there.

    On every channel the source's and the target's own counts say what the books say: no message was
    lost, none came twice. The last two fields of a payment are its amount and its serial.
    """
    snapshot.state.check_books()
    assert set(states) == set(topology.processes), f"{snapshot.id} is partial: {sorted(states)}"
    assert {c.channel for c in snapshot.state.channels} == set(topology.description.channels)
    total = 0
    for channel in snapshot.state.channels:
        source, target = channel.channel.source, channel.channel.target
        assert states[source]["paid"].get(target, 0) == channel.sent_count, channel.channel
        assert states[target]["received"].get(source, 0) == channel.received_count, channel.channel
        expected = channel.received_count
        for batch in channel.batches:
            for *_, amount, serial in msgspec.msgpack.decode(batch.encoded):
                expected += 1
                assert serial == expected, (channel.channel, serial, expected)
                total += amount
    return total
