"""Shops with many accounts each, which pay each other and refuse a payment that is not the next."""

from dataclasses import field

import msgspec

from stillframe import Channel, Keyed, Message, Process, Topology, every
from stillframe.model import Snapshot

SHOP_COUNT = 5
ACCOUNT_COUNT = 2_000
START_BALANCE = 1_000
TOTAL = SHOP_COUNT * ACCOUNT_COUNT * START_BALANCE
PAYMENTS_AT_ONCE = 20


class Payment(Message):
    """So much for one account; `serial` counts the payments of this channel from 1."""

    account: int
    amount: int
    serial: int


class Shop(Process):
    """Pays from its accounts to those of the others, some at a time."""

    accounts: Keyed[int, int] = field(
        default_factory=lambda: Keyed(dict.fromkeys(range(ACCOUNT_COUNT), START_BALANCE))
    )
    turn: int = 0
    paid: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        """Begin both counts at 0."""
        self.paid = dict.fromkeys(self.outgoing, 0)
        self.received = dict.fromkeys(self.incoming, 0)

    def receive(self, channel: Channel, message: Payment) -> None:
        """Take the payment if it is the next."""
        expected = self.received[channel.source] + 1
        if message.serial != expected:
            raise AssertionError(f"payment {message.serial} came where {expected} should")
        self.received[channel.source] = expected
        self.accounts[message.account] += message.amount

    @every(ms=5)
    def pay(self) -> None:
        """Pay from some accounts to accounts of the next neighbours."""
        for _ in range(PAYMENTS_AT_ONCE):
            self.turn += 1
            target = self.outgoing[self.turn % len(self.outgoing)]
            payer, payee = self.turn * 7919 % ACCOUNT_COUNT, self.turn * 104729 % ACCOUNT_COUNT
            amount = min(1 + self.turn % 7, self.accounts[payer])
            self.accounts[payer] -= amount
            self.paid[target] += 1
            self.send(target, Payment(payee, amount, self.paid[target]))


shops = Topology.mesh({f"S{number}": Shop() for number in range(1, SHOP_COUNT + 1)})


def check_snapshot(snapshot: Snapshot) -> int:
    """Check one snapshot against what the shops counted; return how many messages it caught.

    The money is all there, every account too, and on every channel the source's and the target's
    own counts say what the books say: no message was lost, none came twice.
    """
    snapshot.state.check_books()
    states = {
        s.process: msgspec.msgpack.decode(s.encoded, type=dict) for s in snapshot.state.processes
    }
    assert set(states) == set(shops.processes), f"{snapshot.id} is partial: {sorted(states)}"
    assert {c.channel for c in snapshot.state.channels} == set(shops.description.channels)
    total = 0
    for process, state in states.items():
        assert len(state["accounts"]) == ACCOUNT_COUNT, f"{snapshot.id}: {process} lost accounts"
        total += sum(state["accounts"].values())
    for channel in snapshot.state.channels:
        source, target = channel.channel.source, channel.channel.target
        assert states[source]["paid"].get(target, 0) == channel.sent_count, channel.channel
        assert states[target]["received"].get(source, 0) == channel.received_count, channel.channel
        expected = channel.received_count
        for batch in channel.batches:
            for _, _, amount, serial in msgspec.msgpack.decode(batch.encoded):
                expected += 1
                assert serial == expected, (channel.channel, serial, expected)
                total += amount
    assert total == TOTAL, f"{snapshot.id}: {total} is not {TOTAL}"
    return snapshot.state.message_count
