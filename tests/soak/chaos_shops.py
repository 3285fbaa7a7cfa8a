"""Shops with many accounts each, which pay each other and refuse a payment that is not the next."""

from dataclasses import field

import msgspec

from stillframe import Channel, Keyed, Message, Topology, every
from stillframe.model import Snapshot
from tests.soak.ledger import IS_NIGHT, Counting, amount_in_transit

SHOP_COUNT = 5
ACCOUNT_COUNT = 2_000
START_BALANCE = 1_000
TOTAL = SHOP_COUNT * ACCOUNT_COUNT * START_BALANCE
PAYMENTS_AT_ONCE = 20 if IS_NIGHT else 4
"""How many payments a shop makes every 5 ms. With 20 the shops keep both cores busy."""


class Payment(Message):
    """So much for one account; `serial` counts the payments of this channel from 1."""

    account: int
    amount: int
    serial: int


class Shop(Counting):
    """Pays from its accounts to those of the others, some at a time."""

    accounts: Keyed[int, int] = field(
        default_factory=lambda: Keyed(dict.fromkeys(range(ACCOUNT_COUNT), START_BALANCE))
    )
    turn: int = 0

    def receive(self, channel: Channel, message: Payment) -> None:
        """Take the payment if it is the next."""
        self.count(channel, message.serial)
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
            self.send(target, Payment(payee, amount, self.next_serial(target)))


shops = Topology.mesh({f"S{number}": Shop() for number in range(1, SHOP_COUNT + 1)})


def check_snapshot(snapshot: Snapshot) -> int:
    """Check one snapshot against what the shops counted; return how many are in transit.

    The money is all there, every account too.
    """
    states = {
        s.process: msgspec.msgpack.decode(s.encoded, type=dict) for s in snapshot.state.processes
    }
    total = amount_in_transit(snapshot, states, shops)
    for process, state in states.items():
        assert len(state["accounts"]) == ACCOUNT_COUNT, f"{snapshot.id}: {process} lost accounts"
        total += sum(state["accounts"].values())
    assert total == TOTAL, f"{snapshot.id}: {total} is not {TOTAL}"
    return snapshot.state.message_count
