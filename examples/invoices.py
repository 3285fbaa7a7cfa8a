"""Invoices that are paid outside the system, in an SQLite file: none is missing, none paid twice.

Customers order, `billing` writes invoices, customers pay, and `till` commits what was paid to a
table that no restore takes back:

    stillframe run examples.invoices:shop --store shop --every 200ms --duration 10s

What an invoice amounts to depends on which order came first, so after a restore it may be another
one: what is committed too early, as at `naive_shop`, is then paid twice, or wrongly.
"""

import hashlib
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import field
from pathlib import Path

import msgspec

from stillframe import Channel, Message, Process, Topology, every
from stillframe.model import SnapshotId

CUSTOMER_COUNT = 3
PRICE, PRICE_STEP_COUNT = 100, 17
TABLES = """
    create table if not exists paid (invoice text, amount integer);
    create table if not exists mark (mark text, is_forked integer);
    insert into mark select '', 0 where not exists (select * from mark);
"""


def database() -> Path:
    """Return where the table of paid invoices is: the variable INVOICES says it."""
    return Path(os.environ.get("INVOICES", "invoices.sqlite"))


class Order(Message):
    """One more, please."""


class Invoice(Message):
    """That makes so much."""

    invoice: str
    amount: int


class Payment(Message):
    """Here it is."""

    invoice: str
    amount: int


class Customer(Process):
    """Orders, and pays what it owes."""

    paid: dict[str, int] = field(default_factory=dict)

    @every(ms=10)
    def order(self) -> None:
        """Order something."""
        self.send("billing", Order())

    def receive(self, channel: Channel, message: Invoice) -> None:
        """Pay."""
        self.paid[message.invoice] = message.amount
        self.send("till", Payment(message.invoice, message.amount))


class Billing(Process):
    """Writes an invoice for each order. The price varies from order to order, whoever it is of."""

    order_count: int = 0
    order_counts: dict[str, int] = field(default_factory=dict)

    def receive(self, channel: Channel, message: Order) -> None:
        """Number the invoice, and send it."""
        self.order_count += 1
        number = self.order_counts[channel.source] = self.order_counts.get(channel.source, 0) + 1
        amount = PRICE + self.order_count % PRICE_STEP_COUNT
        self.send(channel.source, Invoice(f"{channel.source}/{number}", amount))


class Due(msgspec.Struct, frozen=True):
    """A payment that is to be committed. `mark` stands for it and for all that came before it: two
    histories that lead to the same mark are the same."""

    invoice: str
    amount: int
    mark: str


class Till(Process):
    """Commits payments, each once, when no restore can go back behind it any more."""

    settled: str = ""
    due: list[Due] = field(default_factory=list)
    _cuts: dict[SnapshotId, str] = field(default_factory=dict)

    def receive(self, channel: Channel, message: Payment) -> None:
        """Note the payment: the effect is part of the recorded state, and nothing is done yet."""
        before = self.due[-1].mark if self.due else self.settled
        said = f"{before} {message.invoice} {message.amount}".encode()
        mark = hashlib.sha256(said).hexdigest()
        self.due.append(Due(message.invoice, message.amount, mark))

    def on_cut(self, snapshot: SnapshotId) -> None:
        """Note what is the last payment before this cut."""
        if self.due:
            self._cuts[snapshot] = self.due[-1].mark

    def on_published(self, snapshot: SnapshotId) -> None:
        """Commit what is before the cut, and forget it."""
        marks = [due.mark for due in self.due]
        last = self._cuts.pop(snapshot, None)
        if last not in marks:  # committed already, for a snapshot after this one
            return
        count = marks.index(last) + 1
        with closing(connect(database())) as books:
            self.settle(books, count)
        self.settled = marks[count - 1]
        del self.due[:count]
        self._cuts = {cut: mark for cut, mark in self._cuts.items() if mark in marks[count:]}

    def settle(self, books: sqlite3.Connection, count: int) -> None:
        """Commit the first `count` payments that are due."""
        settle(books, self.settled, self.due[:count])


class NaiveTill(Till):
    """Commits each payment as soon as it comes, which is too early."""

    def receive(self, channel: Channel, message: Payment) -> None:
        """Commit it at once."""
        with closing(connect(database())) as books:
            books.execute("insert into paid values (?, ?)", (message.invoice, message.amount))


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection on which every transaction is begun and committed by name."""
    books = sqlite3.connect(path, isolation_level=None)
    books.executescript(f"begin immediate; {TABLES} commit;")
    return books


def settle(books: sqlite3.Connection, settled: str, due: Sequence[Due]) -> None:
    """Commit payments, in one transaction with the mark of the last one.

    The mark in the file tells what of them was committed before: all up to it, if this history
    leads to it. If not, somebody restored an older snapshot by hand, and the file has payments that
    this history knows nothing of: from then on each invoice is looked up before it is paid.

    Args:
        books: the file, as ``connect`` opens it.
        settled: the mark of the last payment before `due`.
        due: payments that no restore takes back by itself, in their order.
    """
    books.execute("begin immediate")
    mark, is_forked = books.execute("select mark, is_forked from mark").fetchone()
    marks = [settled, *(payment.mark for payment in due)]
    if mark in marks:
        due = due[marks.index(mark) :]
    else:
        is_forked = True
    for payment in due:
        row = (payment.invoice, payment.amount)
        if is_forked and books.execute("select * from paid where invoice = ?", row[:1]).fetchone():
            continue
        books.execute("insert into paid values (?, ?)", row)
    books.execute("update mark set mark = ?, is_forked = ?", (marks[-1], is_forked))
    books.execute("commit")


def shop_with(till: Till) -> Topology:
    """Return a shop with that till."""
    customers = [f"C{number}" for number in range(1, CUSTOMER_COUNT + 1)]
    channels = [
        channel
        for customer in customers
        for channel in ((customer, "billing"), ("billing", customer), (customer, "till"))
    ]
    return Topology(
        {"billing": Billing(), "till": till, **{customer: Customer() for customer in customers}},
        channels,
    )


shop = shop_with(Till())
naive_shop = shop_with(NaiveTill())
