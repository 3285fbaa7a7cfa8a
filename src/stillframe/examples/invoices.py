"""Invoices that are paid outside the system, in an SQLite file: none is missing, none paid twice.

Customers order, `billing` writes invoices, customers pay, and `till` commits the payments to a
table that no restore undoes:

    stillframe run stillframe.examples.invoices:shop --store shop --every 200ms --duration 10s

The amount of an invoice depends on which order arrived first, so it may differ after a restore. A
payment that is committed too early, as by the till of `naive_shop`, is then made twice, or wrongly.
"""

import os
import sqlite3
from contextlib import closing
from dataclasses import field
from pathlib import Path

from stillframe import Channel, Due, Message, Outbox, Process, Topology, every

CUSTOMER_COUNT = 3
PRICE, PRICE_STEP_COUNT = 100, 17
TABLES = """
    create table if not exists paid (invoice text, amount integer);
    create table if not exists mark (mark text);
    insert into mark select '' where not exists (select * from mark);
"""


def database() -> Path:
    """Return where the table of paid invoices is: the variable INVOICES says it."""
    return Path(os.environ.get("INVOICES", "invoices.sqlite"))


class Order(Message):
    """One more, please."""


class Invoice(Message):
    """An invoice over an amount."""

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
    """Writes an invoice for each order. The price varies from order to order."""

    order_count: int = 0
    order_counts: dict[str, int] = field(default_factory=dict)

    def receive(self, channel: Channel, message: Order) -> None:
        """Number the invoice, and send it."""
        self.order_count += 1
        number = self.order_counts[channel.source] = self.order_counts.get(channel.source, 0) + 1
        amount = PRICE + self.order_count % PRICE_STEP_COUNT
        self.send(channel.source, Invoice(f"{channel.source}/{number}", amount))


class Till(Process):
    """Pays each invoice outside of the system, once."""

    payments: Outbox[Payment] = field(default_factory=lambda: Outbox(pay))

    def receive(self, channel: Channel, message: Payment) -> None:
        """Put the payment: it becomes part of the recorded state, and nothing is done yet."""
        self.payments.put(message)


class NaiveTill(Till):
    """Commits each payment as soon as it comes, which is too early."""

    def receive(self, channel: Channel, message: Payment) -> None:
        """Commit it at once."""
        with closing(connect(database())) as books:
            books.execute("insert into paid values (?, ?)", (message.invoice, message.amount))


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection on which transactions are begun by name."""
    books = sqlite3.connect(path, isolation_level=None)
    books.executescript(f"begin immediate; {TABLES} commit;")
    return books


def pay(due: Due[Payment]) -> None:
    """Commit payments that no death can undo."""
    with closing(connect(database())) as books:
        settle(books, due)


def settle(books: sqlite3.Connection, due: Due[Payment]) -> None:
    """Commit what was not committed before, and the mark, in one transaction."""

    def is_paid(payment: Payment) -> bool:
        query = "select * from paid where invoice = ?"
        return books.execute(query, (payment.invoice,)).fetchone() is not None

    with books:
        books.execute("begin immediate")
        [(mark,)] = books.execute("select mark from mark").fetchall()
        due = due.after(mark, is_done=is_paid)
        rows = [(payment.invoice, payment.amount) for payment in due.items]
        books.executemany("insert into paid values (?, ?)", rows)
        books.execute("update mark set mark = ?", (due.mark,))


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
