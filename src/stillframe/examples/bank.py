"""A bank whose accounts pay each other as fast as they can, while the total never changes.

P1 is also an auditor. It queries the balance of each account in turn and adds up the answers, while
the money keeps moving: its totals are usually wrong.
"""

from dataclasses import field

from stillframe import Channel, Message, Process, Topology, every
from stillframe.process import Quantities

START_BALANCE = 1_000_000
ACCOUNT_COUNT = 5
TOTAL = START_BALANCE * ACCOUNT_COUNT
NAIVE_TOTAL_COUNT_MAX = 10_000


class Transfer(Message):
    """A payment in transit."""

    amount: int

    def conserved(self) -> Quantities:
        """Count the amount: a payment in transit belongs to no balance."""
        return {"money": self.amount}


class Ask(Message):
    """A query for the balance of an account."""


class Answer(Message):
    """The balance at the time of the query."""

    asked_balance: int


class Account(Process):
    """An account that pays the other accounts in turn, one unit at a time."""

    balance: int = START_BALANCE
    paid_count: int = 0

    def conserved(self) -> Quantities:
        """Count the balance."""
        return {"money": self.balance}

    def receive(self, channel: Channel, message: Transfer | Ask) -> None:
        """Accept a payment, or report the balance."""
        if isinstance(message, Transfer):
            self.balance += message.amount
        else:
            self.send(channel.source, Answer(self.balance))

    @every(ms=0)
    def pay(self) -> None:
        """Pay one unit to the next account."""
        if self.balance > 0:
            self.balance -= 1
            self.paid_count += 1
            self.send(self.outgoing[self.paid_count % len(self.outgoing)], Transfer(1))


class Auditor(Account):
    """An account that also queries all accounts over the same channels, and adds them up."""

    asked_count: int = 0
    sum_so_far: int = 0
    naive_totals: list[int] = field(default_factory=list)

    def receive(self, channel: Channel, message: Transfer | Ask | Answer) -> None:
        """Accept a payment, or add an answer and query the next account."""
        if not isinstance(message, Answer):
            super().receive(channel, message)
            return
        self.sum_so_far += message.asked_balance
        self.asked_count += 1
        if self.asked_count < len(self.outgoing):
            self.send(self.outgoing[self.asked_count], Ask())
        elif len(self.naive_totals) < NAIVE_TOTAL_COUNT_MAX:
            self.naive_totals.append(self.sum_so_far)

    @every(ms=100)
    def audit(self) -> None:
        """Start a round of queries, unless one is in progress."""
        if self.asked_count in (0, len(self.outgoing)):
            self.asked_count = 0
            self.sum_so_far = self.balance
            self.send(self.outgoing[0], Ask())


bank = Topology.mesh(
    {"P1": Auditor(), **{f"P{number}": Account() for number in range(2, ACCOUNT_COUNT + 1)}}
)
