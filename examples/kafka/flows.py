"""The pipeline: its services, its queries, and the topics of Kafka between them.

    feed ── flights ── dedup ── unique ── carriers ── totals ── ledger ── entries

`feed` and `ledger` are Python services, `dedup` and `carriers` are streaming queries on Spark. The
feed sends every flight twice, `dedup` drops the second one, `carriers` adds up what is left, and
the ledger books every change of a total.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from examples.flights.flows import FLIGHTS
from stillframe.pipeline import Pipeline, kafka_channel

TOPICS = {name: f"nyc-{name}" for name in ("flights", "unique", "totals", "entries")}
"""Channel -> the name of its topic."""
FLIGHT = pa.schema([FLIGHTS.field(name) for name in ("id", "carrier", "distance", "arr_delay")])
"""What is sent of each flight."""

SENT_COUNT = 2
"""How often the feed sends each flight."""


@dataclass
class Replay:
    """The state of the service `feed`: its position."""

    flight_count: int = 0


@dataclass
class Account:
    """The flights of a carrier, their minutes of delay, and their miles."""

    flight_count: int = 0
    late_minutes: int = 0
    miles: int = 0

    def plus(self, other: "Account", factor: int = 1) -> "Account":
        """Return the sums; the differences if `factor` is -1."""
        return Account(
            self.flight_count + factor * other.flight_count,
            self.late_minutes + factor * other.late_minutes,
            self.miles + factor * other.miles,
        )


@dataclass
class Ledger:
    """The state of the service `ledger`: an account for each carrier."""

    entry_count: int = 0
    accounts: dict[str, Account] = field(default_factory=dict)

    @property
    def flight_count(self) -> int:
        """How many flights are booked."""
        return sum(account.flight_count for account in self.accounts.values())

    def book(self, total: dict[str, Any]) -> dict[str, Any]:
        """Book the new total of a carrier; return the entry, which is the change."""
        carrier, new = account_of(total)
        change = new.plus(self.accounts.get(carrier, Account()), -1)
        self.accounts[carrier] = new
        self.entry_count += 1
        return {"carrier": carrier, **asdict(change)}


def account_of(record: dict[str, Any]) -> tuple[str, Account]:
    """Return the carrier and the numbers of a total, or of an entry."""
    numbers = {name: record[name] for name in ("flight_count", "late_minutes", "miles")}
    return record["carrier"], Account(**numbers)


def create(address: str, brokers: str) -> Pipeline:
    """Create the pipeline at an address, or open an existing one."""
    ends = {
        "flights": ("feed", "dedup"),
        "unique": ("dedup", "carriers"),
        "totals": ("carriers", "ledger"),
        "entries": ("ledger", None),
    }
    return Pipeline.create(
        address,
        queries=["dedup", "carriers"],
        services={"feed": Replay, "ledger": Ledger},
        channels=[
            kafka_channel(
                name,
                topic=TOPICS[name],
                servers=brokers,
                source=source,
                targets=[] if target is None else [target],
                has_unique_keys=name == "totals",
            )
            for name, (source, target) in ends.items()
        ],
    )
