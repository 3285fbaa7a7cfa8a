"""A bank whose accounts number every payment, and refuse one that is not the next."""

from dataclasses import field

from stillframe import Channel, Message, Process, Topology, every

START_BALANCE = 1_000_000
ACCOUNT_COUNT = 4
TOTAL = START_BALANCE * ACCOUNT_COUNT


class Payment(Message):
    """So much money; `serial` counts the payments of this channel from 1."""

    amount: int
    serial: int


class Ledger(Process):
    """Pays as fast as it can, and checks that what it receives has no gap and no double."""

    balance: int = START_BALANCE
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
        self.balance += message.amount

    @every(ms=0)
    def pay(self) -> None:
        """Pay the next neighbour an amount that varies."""
        self.turn += 1
        target = self.outgoing[self.turn % len(self.outgoing)]
        amount = min(1 + self.turn % 7, self.balance)
        self.balance -= amount
        self.paid[target] += 1
        self.send(target, Payment(amount, self.paid[target]))


bank = Topology.mesh({f"P{number}": Ledger() for number in range(1, ACCOUNT_COUNT + 1)})
