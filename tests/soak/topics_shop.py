"""The pipeline of the kill soak over Kafka: a shop's orders, their sums, and a ledger of both.

    orders -> unique -> unique -> sums -----> sums -----> ledger -> ledger
                        unique -> receipts -> receipts -> ledger

The query ``unique`` lets each order through once, ``sums`` adds them up by account, and the service
``receipts`` numbers them. The query ``ledger`` adds up what has a receipt, and compares. All
channels are topics, and the queries are ordinary ones. The updates depend on how Spark cuts the
orders into micro-batches, and the numbers on the order in which the service reads. What each ends
with does not.
"""

import json
import random
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.pipeline import Pipeline, kafka_channel
from stillframe.pipeline.kafka import KafkaRecord, settings_of
from stillframe.spark import counted, kafka_options, start_query
from stillframe.storage.location import Location
from tests.kafka_topics import create_topics

ACCOUNT_COUNT = 499
RECORDS_MAX = 6000
"""How many records of a topic a micro-batch reads at most: so many it writes, too."""
REPEATED = 0.2
"""The part of the orders that is sent once more."""
NOTE = "x" * 300
"""Part of each record of the topic unique: it takes a while to write a micro-batch."""
PARTITION_COUNT = 2
QUERIES = ("unique", "sums", "ledger")
SERVICE = "receipts"
WRITERS = (*QUERIES, SERVICE)
"""Each writes the topic of its name."""
_FIELDS = "serial long, account long, sum long, orders long"


@dataclass
class Receipts:
    """The state of the service."""

    count: int = 0
    sum: int = 0

    def book(self, value: bytes) -> str:
        """Book an order; return its receipt."""
        one = json.loads(value)
        self.count += 1
        self.sum += one["sum"]
        receipt = {name: one[name] for name in ("serial", "account", "sum")}
        return json.dumps(receipt | {"number": self.count, "total": self.sum})


def create(root: Location, servers: str) -> Pipeline:
    """Make the pipeline, or open it."""
    return Pipeline.create(
        root,
        queries=QUERIES,
        services={SERVICE: Receipts},
        channels=[
            kafka_channel("orders", topic="orders", servers=servers, targets=["unique"]),
            kafka_channel(
                "unique",
                topic="unique",
                servers=servers,
                source="unique",
                targets=["sums", SERVICE],
            ),
            kafka_channel(
                SERVICE, topic=SERVICE, servers=servers, source=SERVICE, targets=["ledger"]
            ),
            kafka_channel(
                "sums",
                topic="sums",
                servers=servers,
                source="sums",
                targets=["ledger"],
                has_unique_keys=True,
            ),
            kafka_channel("ledger", topic="ledger", servers=servers, source="ledger"),
        ],
        name="shop",
    )


def make_topics(servers: str) -> None:
    """Make the topics."""
    create_topics(servers, "orders", *WRITERS, partition_count=PARTITION_COUNT)


def order(serial: int) -> dict[str, int]:
    """Return an order."""
    account = serial * 31 % ACCOUNT_COUNT
    return {"serial": serial, "account": account, "sum": 100 + serial * 7919 % 401}


class Feed:
    """Sends orders, some of them twice and some in another order. `count` is how many it has sent.

    Args:
        servers: the brokers.
        chance: chooses what is repeated.
    """

    def __init__(self, servers: str, chance: random.Random) -> None:
        self.count = 0
        self._chance = chance
        self._producer = Producer(
            {**settings_of(servers), "enable.idempotence": True, "linger.ms": 5}
        )

    def send(self, count: int) -> None:
        """Send so many new orders, and wait until the broker has them."""
        serials = list(range(self.count, self.count + count))
        again = [serial for serial in serials if self._chance.random() < REPEATED]
        serials += again + self._chance.choices(range(self.count + 1), k=count // 20)
        self._chance.shuffle(serials)
        for serial in serials:
            self._producer.produce(
                "orders",
                key=str(order(serial)["account"]),
                value=json.dumps(order(serial)),
                partition=self._chance.randrange(PARTITION_COUNT),
            )
            self._producer.poll(0)
        assert self._producer.flush() == 0
        self.count += count


def start_queries(
    spark: SparkSession, pipeline: Pipeline, holding: str | None = None
) -> list[StreamingQuery]:
    """Start the three queries. That named `holding` says ``written`` when its topic has a
    micro-batch, and never commits it."""

    def read(query: str, name: str) -> DataFrame:
        source = spark.readStream.format("kafka").options(**kafka_options(pipeline, name))
        source = source.option("maxOffsetsPerTrigger", RECORDS_MAX)
        frame = counted(source.load(), pipeline, query, name)
        return frame.select(F.from_json(F.col("value").cast("string"), _FIELDS).alias("f"))

    def start(query: str, frame: DataFrame, mode: str) -> StreamingQuery:
        values = frame.select(
            F.col("account").cast("string").alias("key"), F.to_json(F.struct("*")).alias("value")
        )
        each_batch = _hold if query == holding else None
        return start_query(values, pipeline, query, output_mode=mode, each_batch=each_batch)

    note = F.lit(NOTE).alias("note")
    unique = read("unique", "orders").select("f.serial", "f.account", "f.sum", note)
    started = [start("unique", unique.dropDuplicates(["serial"]), "append")]
    accounts = read("sums", "unique").groupBy("f.account")
    sums = accounts.agg(F.sum("f.sum").alias("sum"), F.count("*").alias("orders"))
    started.append(start("sums", sums, "update"))
    booked = read("ledger", SERVICE).selectExpr("f.account", "f.sum", "1 AS one", "0L AS told")
    told = read("ledger", "sums").selectExpr("f.account", "0L AS sum", "0 AS one", "f.sum AS told")
    ledger = (
        booked.unionByName(told)
        .groupBy("account")
        .agg(F.sum("sum").alias("sum"), F.sum("one").alias("orders"), F.max("told").alias("told"))
    )
    return [*started, start("ledger", ledger, "update")]


def _hold(_batch: DataFrame, _number: int) -> None:
    print("written", flush=True)
    threading.Event().wait()


def differences(count: int, topics: dict[str, list[KafkaRecord]]) -> list[str]:
    """Return a sentence for everything in the topics that is not as computed from the orders.

    Args:
        count: how many orders were sent.
        topics: the records of each topic that count; those of a partition are in their order.
    """
    orders = [order(serial) for serial in range(count)]
    found = {name: [json.loads(record.value or b"") for record in topics[name]] for name in WRITERS}
    wrong = []
    got, wanted = (
        Counter(map(str, found["unique"])),
        Counter(str(one | {"note": NOTE}) for one in orders),
    )
    if got != wanted:
        missing, extra = list((wanted - got).elements()), list((got - wanted).elements())
        wrong.append(
            f"unique: {len(missing)} are missing {missing[:3]}, {len(extra)} too many {extra[:3]}"
        )
    wrong += _receipts(found[SERVICE], orders)
    totals, counts = Counter[int](), Counter[int]()
    for one in orders:
        totals[one["account"]] += one["sum"]
        counts[one["account"]] += 1
    wrong += _updates("sums", found["sums"], {a: (counts[a], totals[a]) for a in totals})
    final = {a: (counts[a], totals[a], totals[a]) for a in totals}
    return wrong + _updates("ledger", found["ledger"], final)


def _receipts(found: Iterable[dict[str, int]], orders: Iterable[dict[str, int]]) -> list[str]:
    """Compare the receipts: each order has one, with the next number, and the sum until then."""
    in_order = sorted(found, key=lambda one: one["number"])
    total, wrong = 0, []
    for number, receipt in enumerate(in_order, 1):
        total += receipt["sum"]
        if (receipt["number"], receipt["total"]) != (number, total):
            wrong.append(f"receipt {number}: its number or its total is wrong: {receipt}")
            break
    got = sorted((one["serial"], one["account"], one["sum"]) for one in in_order)
    wanted = sorted((one["serial"], one["account"], one["sum"]) for one in orders)
    if got != wanted:
        wrong.append(f"receipts: {len(got)} are not those of the {len(wanted)} orders")
    return wrong


def _updates(
    name: str, found: Iterable[dict[str, int]], final: Mapping[int, tuple[int, ...]]
) -> list[str]:
    """Compare the updates of each account: they rise, and the last one is as computed."""
    wrong = []
    last: dict[int, tuple[int, ...]] = {}
    for one in found:
        value = (one["orders"], one["sum"], *([one["told"]] if "told" in one else []))
        before = last.get(one["account"], (0,) * len(value))
        has_risen = all(a <= b for a, b in zip(before, value, strict=True)) and before != value
        if not has_risen:
            wrong.append(f"{name}: account {one['account']} went from {before} to {value}")
        last[one["account"]] = value
    wrong += [
        f"{name}: account {account} ends with {last.get(account)} instead of {value}"
        for account, value in final.items()
        if last.get(account) != value
    ]
    return wrong
