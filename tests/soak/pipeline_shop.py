"""The pipeline of the kill soak: a shop's orders, their totals, payments, and what they settle.

    feed --orders--> unique --unique--> totals --totals--> books --payments--> settled --settled-->
                              unique ------------------------^
                              unique ------------------------------------------^

``feed`` sends some orders twice and ``unique`` (a query) lets each through once; ``totals`` (a
query) sums them by account; ``books`` (a service) pays a fixed sum whenever a total passes another
multiple of it; ``settled`` (a query) joins each payment with an order. What comes out at the end
does not depend on how the records were cut into batches, so it can be computed from the input.
"""

import dataclasses
from collections import Counter
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.pipeline import Pipeline, channel
from stillframe.spark.queries import read_channels, start_query
from stillframe.storage.location import Location

FRESH_COUNT = 10
"""How many new orders one action of the feed sends."""

REPEATED = (7, 31)
"""How far back the orders lie that it sends once more."""

ACCOUNT_COUNT = 7
PAYMENT = 500
QUERIES = ("unique", "totals", "settled")

ORDER = pa.schema(
    [("serial", pa.int64()), ("account", pa.int64()), ("ticket", pa.int64()), ("sum", pa.int64())]
)
TOTAL = pa.schema([("account", pa.int64()), ("total", pa.int64()), ("orders", pa.int64())])
PAID = pa.schema([("account", pa.int64()), ("ticket", pa.int64()), ("paid", pa.int64())])
SETTLED = pa.schema([*ORDER, ("paid", pa.int64())])

Row = tuple[int, ...]


@dataclasses.dataclass
class Feed:
    """How many actions the feed has taken: all that it has to remember."""

    actions: int = 0


@dataclasses.dataclass
class Books:
    """What is booked: by order, as the query sums it, and what was paid."""

    booked: dict[int, int] = dataclasses.field(default_factory=dict)
    order_count: int = 0
    totals: dict[int, int] = dataclasses.field(default_factory=dict)
    orders: dict[int, int] = dataclasses.field(default_factory=dict)
    paid: dict[int, int] = dataclasses.field(default_factory=dict)

    def book(self, table: pa.Table) -> None:
        """Book orders."""
        self.order_count += table.num_rows
        for row in table.to_pylist():
            self.booked[row["account"]] = self.booked.get(row["account"], 0) + row["sum"]

    def pay(self, table: pa.Table) -> pa.Table:
        """Take new totals, and return the payments that they bring about."""
        payments = []
        for row in table.to_pylist():
            account, total = row["account"], row["total"]
            before = self.totals.get(account, 0)
            assert total > before, f"the total of account {account} went from {before} to {total}"
            self.totals[account] = total
            self.orders[account] = row["orders"]
            payments += [
                {"account": account, "ticket": ticket, "paid": PAYMENT}
                for ticket in range(self.paid.get(account, 0), total // PAYMENT)
            ]
            self.paid[account] = total // PAYMENT
        return pa.Table.from_pylist(payments, schema=PAID)

    def is_done(self, order_count: int) -> bool:
        """Return whether so many orders are booked, and are in the totals."""
        return self.order_count >= order_count and sum(self.orders.values()) >= order_count


def create(root: Location) -> Pipeline:
    """Make the pipeline, or open it."""
    return Pipeline.create(
        root,
        queries=QUERIES,
        services={"feed": Feed, "books": Books},
        channels=[
            channel("orders", ORDER, source="feed", targets=["unique"]),
            channel(
                "unique",
                ORDER,
                source="unique",
                targets=["totals", "books", "settled"],
                partition_count=2,
                key=["account"],
            ),
            channel("totals", TOTAL, source="totals", targets=["books"]),
            channel("payments", PAID, source="books", targets=["settled"]),
            channel("settled", SETTLED, source="settled"),
        ],
        name="shop",
    )


def order(serial: int) -> Row:
    """Return an order."""
    return serial, serial % ACCOUNT_COUNT, serial // ACCOUNT_COUNT, 100 + serial * 7919 % 401


def orders_of(action: int) -> pa.Table:
    """Return what one action of the feed sends: new orders, and some once more."""
    first = action * FRESH_COUNT
    serials = [*range(first, first + FRESH_COUNT)]
    serials += [first - back for back in REPEATED if back <= first]
    columns = zip(*(order(serial) for serial in serials), strict=True)
    return pa.table(dict(zip(ORDER.names, map(list, columns), strict=True)), schema=ORDER)


def sent_count(action_count: int) -> int:
    """Return how many records so many actions of the feed send."""
    repeated = (max(0, action_count - -(-back // FRESH_COUNT)) for back in REPEATED)
    return action_count * FRESH_COUNT + sum(repeated)


def start_queries(spark: SparkSession, pipeline: Pipeline) -> list[StreamingQuery]:
    """Start the three queries, each before the ones that read from it."""

    def read(query: str, name: str) -> DataFrame:
        return read_channels(spark, pipeline, query, name)

    unique = read("unique", "orders").dropDuplicates(["serial"])
    totals = (
        read("totals", "unique")
        .groupBy("account")
        .agg(F.sum("sum").alias("total"), F.count("*").alias("orders"))
    )
    settled = read("settled", "unique").join(read("settled", "payments"), ["account", "ticket"])
    return [
        start_query(unique, pipeline, "unique", output_mode="append"),
        start_query(totals, pipeline, "totals", output_mode="update"),
        start_query(settled.select(SETTLED.names), pipeline, "settled", output_mode="append"),
    ]


def query_states(spark: SparkSession, checkpoints: dict[str, str]) -> dict[str, list[Row]]:
    """Return the states of the stopped queries, sorted, as Spark's own state source reads them."""

    def rows(query: str, *columns: str, side: str | None = None) -> list[Row]:
        reader = spark.read.format("statestore")
        if side is not None:
            reader = reader.option("joinSide", side)
        found = reader.load(checkpoints[query]).select(*columns).collect()
        return sorted(tuple(row) for row in found)

    return {
        "unique": rows("unique", "key.serial"),
        "totals": rows("totals", "key.account", "value.sum", "value.count"),
        "settled, orders": rows("settled", *(f"value.{c}" for c in ORDER.names), side="left"),
        "settled, payments": rows("settled", *(f"value.{c}" for c in PAID.names), side="right"),
    }


def expected(action_count: int) -> dict[str, Any]:
    """Return what must come out after so many actions of the feed, computed from the input."""
    orders = [order(serial) for serial in range(action_count * FRESH_COUNT)]
    totals: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    for _, account, _, amount in orders:
        totals[account] += amount
        counts[account] += 1
    paid = {account: total // PAYMENT for account, total in totals.items()}
    payments = [(a, ticket, PAYMENT) for a in sorted(paid) for ticket in range(paid[a])]
    by_ticket = {(account, ticket): row for row in orders for _, account, ticket, _ in [row]}
    return {
        "channel orders": sorted(
            order(serial)
            for action in range(action_count)
            for serial in orders_of(action)["serial"].to_pylist()
        ),
        "channel unique": orders,
        "channel payments": payments,
        "channel settled": sorted((*by_ticket[a, t], paid) for a, t, paid in payments),
        "unread by books: unique": 0,
        "unread by books: totals": 0,
        "service feed": Feed(action_count),
        "service books": Books(dict(totals), len(orders), dict(totals), dict(counts), paid),
        "query unique": [(serial,) for serial, *_ in orders],
        "query totals": sorted((a, totals[a], counts[a]) for a in totals),
        "query settled, orders": orders,
        "query settled, payments": payments,
    }
