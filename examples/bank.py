"""Accounts that pay each other as fast as they can: money moves, and none may appear or vanish."""

from stillframe import Channel, Message, Process, Topology, every


class Transfer(Message):
    """So much money, on its way."""

    amount: int


class Account(Process):
    """Pays its neighbours in turn, one unit at a time."""

    balance: int = 1_000_000
    paid_count: int = 0

    def receive(self, channel: Channel, message: Transfer) -> None:
        """Take the money."""
        self.balance += message.amount

    @every(ms=0)
    def pay(self) -> None:
        """Give some away."""
        if self.balance > 0:
            self.balance -= 1
            self.paid_count += 1
            self.send(self.outgoing[self.paid_count % len(self.outgoing)], Transfer(1))


bank = Topology.mesh({f"P{number}": Account() for number in range(1, 6)})
