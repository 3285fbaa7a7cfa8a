"""A bank: accounts pay each other as fast as they can, and no money may appear or vanish.

P1 is an auditor as well. It does what looks right and is wrong: it asks every account for its
balance, one after the other, and adds up the answers, while the money moves on.
"""

from dataclasses import field

from stillframe import Channel, Message, Process, Topology, every
from stillframe.process import Quantities

START_BALANCE = 1_000_000
ACCOUNT_COUNT = 5
TOTAL = START_BALANCE * ACCOUNT_COUNT
NAIVE_TOTAL_COUNT_MAX = 10_000


class Transfer(Message):
    """So much money, on its way."""

    amount: int

    def conserved(self) -> Quantities:
        """It is neither made nor lost on the way."""
        return {"money": self.amount}


class Ask(Message):
    """What is your balance?"""


class Answer(Message):
    """It was this, when I was asked."""

    asked_balance: int


class Account(Process):
    """Pays its neighbours in turn, one unit at a time."""

    balance: int = START_BALANCE
    paid_count: int = 0

    def conserved(self) -> Quantities:
        """What the account has is neither made nor lost."""
        return {"money": self.balance}

    def receive(self, channel: Channel, message: Transfer | Ask) -> None:
        """Take the money, or say how much there is."""
        if isinstance(message, Transfer):
            self.balance += message.amount
        else:
            self.send(channel.source, Answer(self.balance))

    @every(ms=0)
    def pay(self) -> None:
        """Give some away."""
        if self.balance > 0:
            self.balance -= 1
            self.paid_count += 1
            self.send(self.outgoing[self.paid_count % len(self.outgoing)], Transfer(1))


class Auditor(Account):
    """An account that also adds up what all accounts say, over the same channels."""

    asked_count: int = 0
    sum_so_far: int = 0
    naive_totals: list[int] = field(default_factory=list)

    def receive(self, channel: Channel, message: Transfer | Ask | Answer) -> None:
        """Take the money, or note an answer and ask the next account."""
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
        """Begin a round, unless one is going on."""
        if self.asked_count in (0, len(self.outgoing)):
            self.asked_count = 0
            self.sum_so_far = self.balance
            self.send(self.outgoing[0], Ask())


bank = Topology.mesh(
    {"P1": Auditor(), **{f"P{number}": Account() for number in range(2, ACCOUNT_COUNT + 1)}}
)
