"""A small pipeline for the tests of the commands under ``stillframe spark``.

What is at rest stays as it is, so each command says the same every time, without Spark: of the
query there is only what Spark would have left in its checkpoint.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.metadata import checkpoint_path
from stillframe.pipeline.service import join

SALES = pa.schema([("amount", pa.int64())])


@dataclass
class Till:
    """Sells."""

    sold: int = 0


@dataclass
class Books:
    """Adds up what was sold."""

    total: int = 0
    notes: dict[str, str] = field(default_factory=dict)


def make_shop(path: Path) -> Pipeline:
    """Make a pipeline: a till tells the books what it sells, and a query audits their totals."""
    return Pipeline.create(
        path,
        services={"till": Till, "books": Books},
        queries=["audit"],
        channels=[
            channel("sales", SALES, source="till", targets=["books"]),
            channel("totals", SALES, source="books", targets=["audit"]),
        ],
    )


def sales(*amounts: int) -> pa.Table:
    """Return records of sales."""
    return pa.table({"amount": amounts}, schema=SALES)


def sell(shop: Pipeline, *amounts: int) -> None:
    """Run the till until it has sold something for each of `amounts`."""
    till = Till()
    with join("till", pipeline=shop.path, state=till) as me:
        for amount in amounts:
            till.sold += amount
            me.append("sales", sales(amount))


def add_up(shop: Pipeline, count: int) -> int:
    """Run the books until they have read `count` sales, and return the total."""
    books = Books()
    with join("books", pipeline=shop.path, state=books) as me:
        for _ in range(count):
            _, table = next(iter(me))
            books.total += sum(table["amount"].to_pylist())
            me.append("totals", sales(books.total))
    return books.total


def commit(shop: Pipeline, batch: int, position: int) -> None:
    """Leave what Spark leaves of a micro-batch of the audit that read totals up to `position`."""
    checkpoint = checkpoint_path(shop.path, shop.epoch, "audit")
    offsets = json.dumps({"stillframe": {"totals": position}})
    for name, text in {
        "metadata": "{}",
        f"offsets/{batch}": f"v1\n{{}}\n{offsets}",
        f"commits/{batch}": "v1\n{}",
        f"state/0/0/{batch + 1}.delta": "the state",
    }.items():
        path = checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def resting_shop(path: Path) -> Pipeline:
    """Make a shop at rest: of three sales of 5, 6 and 7 the books have read one."""
    shop = make_shop(path)
    sell(shop, 5, 6, 7)
    add_up(shop, 1)
    return shop
