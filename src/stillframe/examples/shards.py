"""Accounts sharded over processes by name: two processes, or four with ``SHARDS=4``.

The number of processes determines which process has an account. When a snapshot of two processes is
restored with four, or the other way round, accounts and payments in transit must move:
``stillframe restore --migrate`` calls `redistribute` for that.
"""

import os
import zlib

from stillframe import Channel, InTransit, Keyed, Message, Process, Recorded, Topology, every
from stillframe.process import Quantities

ACCOUNTS = [f"account {number}" for number in range(500)]
START_BALANCE = 100
TOTAL = START_BALANCE * len(ACCOUNTS)


class Transfer(Message):
    """A payment to an account, in transit."""

    account: str
    amount: int

    def conserved(self) -> Quantities:
        """Count the amount: a payment in transit belongs to no balance."""
        return {"money": self.amount}


def shard_of(account: str, shard_count: int) -> str:
    """Return the process that has an account, given the number of processes."""
    return f"S{zlib.crc32(account.encode()) % shard_count}"


class Shard(Process):
    """A process with some of the accounts, which pay others in turn, one unit at a time."""

    accounts: Keyed[str, int]
    paid_count: int = 0

    def conserved(self) -> Quantities:
        """Count the balances of all accounts of this process."""
        return {"money": sum(self.accounts.values())}

    def receive(self, channel: Channel, message: Transfer) -> None:
        """Accept a payment."""
        self.accounts[message.account] += message.amount

    @every(ms=0)
    def pay(self) -> None:
        """Let one account pay another, in this process or in another one."""
        self.paid_count += 1
        payer = ACCOUNTS[self.paid_count % len(ACCOUNTS)]
        payee = ACCOUNTS[self.paid_count * 7 % len(ACCOUNTS)]
        if self.accounts.get(payer, 0) > 0:
            self.accounts[payer] -= 1
            shard = shard_of(payee, len(self.outgoing) + 1)
            if shard == self.id:
                self.accounts[payee] += 1
            else:
                self.send(shard, Transfer(payee, 1))


def redistribute(recorded: Recorded, shard_count: int) -> Recorded:
    """Assign every account and every payment in transit to one of `shard_count` processes."""
    states: dict[str, dict[str, int]] = {f"S{number}": {} for number in range(shard_count)}
    for fields in recorded.states.values():
        for account, balance in fields["accounts"].items():
            states[shard_of(account, shard_count)][account] = balance
    messages = []
    for message in recorded.messages:
        account = message.fields["account"]
        target = shard_of(account, shard_count)
        if message.source in states and message.source != target:
            messages.append(InTransit(message.source, target, message.kind, message.fields))
        else:  # its source no longer exists, or now has the account: deliver it
            states[target][account] += message.fields["amount"]
    return Recorded(
        {process: {"accounts": accounts} for process, accounts in states.items()}, tuple(messages)
    )


def shards(shard_count: int) -> Topology:
    """Return a system in which `shard_count` processes share all accounts."""
    rows: dict[str, dict[str, int]] = {f"S{number}": {} for number in range(shard_count)}
    for account in ACCOUNTS:
        rows[shard_of(account, shard_count)][account] = START_BALANCE
    return Topology.mesh(
        {process: Shard(Keyed(accounts)) for process, accounts in rows.items()},
        redistribute=lambda recorded: redistribute(recorded, shard_count),
    )


two = shards(2)
four = shards(4)
system = shards(int(os.environ.get("SHARDS", "2")))
