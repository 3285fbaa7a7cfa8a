"""The systems and services whose stores, logs and pipelines are recorded in ``data``.

Nothing of what is recorded may change here: names, fields and defaults are those of the data.
"""

import datetime
import os
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from stillframe import Channel, Keyed, Message, Process, Topology, every
from stillframe.process import Quantities

OPENED = datetime.datetime(2024, 5, 17, 12, 30, tzinfo=datetime.UTC)
START_BALANCE = 1000
TOTAL = 3 * START_BALANCE
SALES = pa.schema([("amount", pa.int64())])
COUNTS = pa.schema([("amount", pa.int64()), ("sold_count", pa.int64())])


class Coin(Message):
    """Money in transit."""

    amount: int
    note: str = ""
    seal: bytes = b"\x00\xff"
    at: datetime.datetime | None = None

    def conserved(self) -> Quantities:
        """Nothing is lost in transit."""
        return {"coins": self.amount}


class Receipt(Message):
    """Money that has arrived; with a fraction, so that its column meets that of `Coin`."""

    amount: float
    is_last: bool = False


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A key that does not fit into one column."""

    row: int
    seat: str


class Guest(msgspec.Struct, frozen=True):
    """A value with columns of its own."""

    name: str
    age: int | None = None


class Purse(Process):
    """Pays the others in turn; all that it has is recorded anew for each snapshot."""

    balance: int = START_BALANCE
    paid_count: int = 0
    rate: float = 0.5
    is_open: bool = True
    token: bytes = b"\x01\x02"
    opened: datetime.datetime = OPENED
    owner: Guest = field(default_factory=lambda: Guest("Ada", 36))
    newest: list[int] = field(default_factory=list)

    def conserved(self) -> Quantities:
        """Nothing is lost here."""
        return {"coins": self.balance}

    def receive(self, channel: Channel, message: Coin | Receipt) -> None:
        """Take the money, and let the payer know."""
        if isinstance(message, Coin):
            self.balance += message.amount
            self.newest = [*self.newest, message.amount][-3:]
            self.send(channel.source, Receipt(message.amount / 2))

    @every(ms=40)
    def pay(self) -> None:
        """Pay one of the others."""
        if self.balance > 0:
            self.balance -= 1
            self.paid_count += 1
            target = self.outgoing[self.paid_count % len(self.outgoing)]
            self.send(target, Coin(1, f"coin {self.paid_count}", at=OPENED))


class Register(Process):
    """Has keyed fields, of which a snapshot takes what changed; and it is slow, so that messages
    wait on its channels."""

    balance: int = START_BALANCE
    accounts: Keyed[str, int] = field(default_factory=Keyed)
    seats: Keyed[Place, Guest] = field(default_factory=Keyed)
    days: Keyed[datetime.date, float | None] = field(default_factory=Keyed)

    def conserved(self) -> Quantities:
        """Nothing is lost here."""
        return {"coins": self.balance}

    def start(self) -> None:
        """Fill the keyed fields."""
        self.accounts.update({f"account {number}": number for number in range(20)})
        self.seats[Place(0, "a")] = Guest("Grace")
        self.days[OPENED.date()] = None

    def receive(self, channel: Channel, message: Coin | Receipt) -> None:
        """Enter the money in the books; every fifth coin goes back."""
        if not isinstance(message, Coin):
            return
        time.sleep(0.005)
        self.balance += message.amount
        key = f"account {self.balance % 30}"
        self.accounts[key] = self.accounts.get(key, 0) + 1
        self.accounts.pop(f"account {(self.balance + 7) % 30}", None)
        self.seats[Place(self.balance % 3, "b")] = Guest(channel.source, self.balance % 90)
        self.days[OPENED.date() + datetime.timedelta(self.balance % 4)] = self.balance / 2
        if self.balance % 5 == 0:
            self.balance -= 1
            self.send(channel.source, Coin(1, "back"))


class Lone(Process):
    """Has no channels, so that a snapshot can exclude it."""

    turn_count: int = 0

    @every(ms=200)
    def turn(self) -> None:
        """Count."""
        self.turn_count += 1


system = Topology(
    {"A": Purse(), "B": Purse(), "C": Register(), "D": Lone()},
    [(source, target) for source in "ABC" for target in "ABC" if source != target],
)


FORMER = "STILLFRAME_GOLDEN_FORMER"
"""In an environment with this variable, `growing` is what it was before its code changed."""

if FORMER in os.environ:

    class Growing(Process):
        """Counts."""

        count: int = 0

        @every(ms=100)
        def grow(self) -> None:
            """Count."""
            self.count += 1

else:

    class Growing(Process):  # type: ignore[no-redef]
        """Counts, and has a name since its code changed."""

        count: int = 0
        name: str = "unnamed"

        @every(ms=100)
        def grow(self) -> None:
            """Count."""
            self.count += 1


growing = Topology({"G": Growing()}, [])


def has_paid(view: Any) -> bool:
    """Say whether A has paid somebody: a predicate that stays true."""
    return bool(view.processes["A"].paid_count)


@dataclass
class Till:
    """A service that sells."""

    sold: int = 0
    opened: datetime.datetime = OPENED


@dataclass
class Books:
    """A service that adds up what was sold."""

    total: int = 0
    notes: dict[str, str] = field(default_factory=dict)
