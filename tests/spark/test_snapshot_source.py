"""A snapshot as tables: services, query states and channel contents, joined and compared."""

import dataclasses
import datetime
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from stillframe.errors import UsageError
from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import verify_files
from stillframe.spark import diff, log_records, query_state, read_channels, register, start_query
from stillframe.spark.scan_planner import plan_snapshot_scan

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOTAL = 1000
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
TRANSFER = pa.schema(
    [
        pa.field("account", pa.int64(), nullable=False),
        ("amount", pa.int64()),
        ("at", pa.timestamp("ms", "Europe/Berlin")),
        ("tags", pa.large_list(pa.large_string())),
    ]
)
SUM = pa.schema([("account", pa.int64()), ("amount", pa.int64())])


@dataclasses.dataclass
class Bank:
    """A service that pays its balance out; a field of every kind."""

    balance: int = TOTAL
    rate: float = 0.5
    is_open: bool = True
    title: str = "bank"
    seal: bytes = b"\x00\xff"
    opened: datetime.datetime = NOON
    paid: list[int] = dataclasses.field(default_factory=list)
    huge: int = 2**63
    nothing: str | None = None


def pay(pipeline: Pipeline, *batches: Iterable[tuple[int, int]]) -> None:
    """Let the bank join, pay accounts, one item of the log for each batch, and leave."""
    state = Bank()
    with join("bank", pipeline=pipeline.path, state=state) as me:
        for batch in batches:
            rows = [{"account": a, "amount": n, "at": NOON, "tags": ["x"]} for a, n in batch]
            me.append("transfers", pa.Table.from_pylist(rows, schema=TRANSFER))
            state.balance -= sum(amount for _, amount in batch)
            state.paid += [amount for _, amount in batch]
            me.boundary()


def run_sums(spark: SparkSession, pipeline: Pipeline) -> None:
    """Let the query sum up by account what was paid so far."""
    transfers = read_channels(spark, pipeline, "sums", "transfers")
    sums = transfers.groupBy("account").agg(F.sum("amount").alias("amount"))
    trigger: Mapping[str, Any] = {"availableNow": True}
    start_query(sums, pipeline, "sums", output_mode="update", trigger=trigger).awaitTermination()


def savepoint(pipeline: Pipeline, name: str) -> None:
    """Take a savepoint of the pipeline; it waits for queries that are just ending."""
    assert not isinstance(pipeline.savepoint(name, "unaligned"), Abandoned)


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A pipeline with a timeline that was abandoned: four savepoints, all taken at rest.

    fresh: no query has run. early: 10 and 20 were paid and summed. late: 5 and 7 as well, and 100,
    1 and 2 are on their way. other: back to early, and 1 was paid and summed.
    """
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    register(spark)
    pipeline = Pipeline.create(
        tmp_path_factory.mktemp("shops") / "shop",
        name="shop",
        queries=["sums", "idle"],
        services={"bank": Bank},
        channels=[
            channel(
                "transfers",
                TRANSFER,
                source="bank",
                targets=["sums", "idle"],
                partition_count=2,
                key=["account"],
            ),
            channel("totals", SUM, source="sums"),
        ],
    )
    pay(pipeline, [(1, 10), (2, 20)])
    savepoint(pipeline, "fresh")
    run_sums(spark, pipeline)
    savepoint(pipeline, "early")
    pay(pipeline, [(1, 5), (3, 7)])
    run_sums(spark, pipeline)
    pay(pipeline, [(2, 100), (4, 1)], [(4, 2)])
    savepoint(pipeline, "late")
    pipeline.restore("early")
    pay(pipeline, [(1, 1)])
    run_sums(spark, pipeline)
    savepoint(pipeline, "other")
    return pipeline


def cut(spark: SparkSession, pipeline: Pipeline, snapshot: str, **options: str) -> DataFrame:
    """Read a part of a snapshot."""
    reader = spark.read.format("stillframe.snapshot")
    return reader.options(pipeline=str(pipeline.path), snapshot=snapshot, **options).load()


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows of a small table, sorted."""
    return sorted(tuple(row) for row in frame.collect())


def changes(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return what differs in the state of `sums`: change, account, sum before, sum after."""
    return rows(frame.select("change", "key.account", "before.sum", "after.sum"))


def test_services_are_a_table(spark: SparkSession, shop: Pipeline) -> None:
    """A row per service: what it is, where it stood, and its fields as JSON."""
    table = cut(spark, shop, "late", table="services")
    assert table.columns == ["participant", "kind", "positions", "state"]
    balance = "get_json_object(state, '$.balance')"
    fields = table.selectExpr("participant", "kind", "positions", balance)
    assert rows(fields) == [("bank", "Bank", {}, "855")]


def test_the_fields_of_a_service_are_columns(spark: SparkSession, shop: Pipeline) -> None:
    """What was recorded decides the types; what has no column type of its own is JSON."""
    table = cut(spark, shop, "other", service="bank")
    assert dict(table.dtypes) == {
        "balance": "bigint",
        "rate": "double",
        "is_open": "boolean",
        "title": "string",
        "seal": "binary",
        "opened": "timestamp",
        "paid": "string",
        "huge": "string",
        "nothing": "string",
    }
    (row,) = table.selectExpr(
        "*", "opened = timestamp'2026-01-01 12:00:00+00' AS at_noon"
    ).collect()
    assert (row.balance, row.rate, row.is_open, row.title) == (TOTAL - 31, 0.5, True, "bank")
    assert (row.seal, row.at_noon, row.paid) == (b"\x00\xff", True, "[10,20,1]")
    assert (row.huge, row.nothing) == (str(2**63), None)


def test_queries_are_a_table(spark: SparkSession, shop: Pipeline) -> None:
    """A row per query with its last micro-batch, null if there was none."""
    found = {row.query: row.batch for row in cut(spark, shop, "late", table="queries").collect()}
    assert found == {"idle": None, "sums": 1}


def test_channels_are_a_table(spark: SparkSession, shop: Pipeline) -> None:
    """A row per channel with positions and counts; the counts are those of the manifest."""
    table = cut(spark, shop, "late", table="channels")
    assert table.columns == [
        *("log", "target", "position", "barrier", "sent_count", "received_count"),
        *("record_count", "duplicate_count", "partition", "end"),
    ]
    found = [(row[0], row[1], *row[4:8]) for row in rows(table)]
    assert found == [("transfers", "idle", 7, 0, 7, 0), ("transfers", "sums", 7, 4, 3, 0)]


def test_a_channel_holds_what_was_on_its_way(spark: SparkSession, shop: Pipeline) -> None:
    """The records between target and barrier, with the place of each in the log."""
    table = cut(spark, shop, "late", channel="transfers", target="sums")
    assert table.columns == ["account", "amount", "at", "tags", "_partition", "_offset"]
    caught = table.collect()
    assert sorted((row.account, row.amount) for row in caught) == [(2, 100), (4, 1), (4, 2)]
    assert all(row.tags == ["x"] for row in caught)
    assert table.where("at = timestamp'2026-01-01 12:00:00+00'").count() == 3
    everything = cut(spark, shop, "late", channel="transfers", target="idle").collect()
    places = sorted((row._partition, row._offset) for row in everything)
    by_partition = {p: [o for q, o in places if q == p] for p, _ in places}
    assert all(offsets == list(range(len(offsets))) for offsets in by_partition.values())
    assert len(places) == 7
    assert set(map(tuple, map(_place, caught))) <= set(places)


def _place(row: Any) -> list[int]:
    return [row._partition, row._offset]


def test_an_empty_channel_is_an_empty_table(spark: SparkSession, shop: Pipeline) -> None:
    """Where nothing was on its way there are columns and no rows."""
    table = cut(spark, shop, "early", channel="transfers", target="sums")
    assert "amount" in table.columns
    assert table.collect() == []


def test_one_statement_finds_the_conserved_total(spark: SparkSession, shop: Pipeline) -> None:
    """Service, query state and channel contents of one cut join in SQL; no money is missing."""
    for name in ("early", "late", "other"):
        cut(spark, shop, name, service="bank").createOrReplaceTempView("bank")
        query_state(spark, shop, name, "sums").createOrReplaceTempView("sums")
        on_the_way = cut(spark, shop, name, channel="transfers", target="sums")
        on_the_way.createOrReplaceTempView("transfers")
        (row,) = spark.sql(
            "SELECT b.balance + s.total + coalesce(t.total, 0) AS total, b.balance, t.total AS way "
            "FROM bank b CROSS JOIN (SELECT sum(value.sum) AS total FROM sums) s "
            "CROSS JOIN (SELECT sum(amount) AS total FROM transfers) t"
        ).collect()
        assert row.total == TOTAL
        assert (row.balance, row.way) == {
            "early": (970, None),
            "late": (855, 103),
            "other": (969, None),
        }[name]


def test_a_query_state_is_read_by_spark_itself(spark: SparkSession, shop: Pipeline) -> None:
    """Each savepoint has the state of its own moment, and reading leaves its files alone."""
    states = {}
    for name in ("early", "late", "other"):
        state = query_state(spark, shop, name, "sums")
        states[name] = rows(state.select("key.account", "value.sum"))
        verify_files(shop.path, shop.find(name), lambda size: None)
    assert states == {
        "early": [(1, 10), (2, 20)],
        "late": [(1, 15), (2, 20), (3, 7)],
        "other": [(1, 11), (2, 20)],
    }


def test_a_query_without_micro_batch_has_no_state(spark: SparkSession, shop: Pipeline) -> None:
    """The error says so and what to do, before Spark is asked."""
    with pytest.raises(UsageError, match=r"query sums had committed no micro-batch at .*shop-1"):
        query_state(spark, shop, "fresh", "sums")


def test_a_path_that_spark_takes_for_another_is_refused(
    spark: SparkSession, shop: Pipeline, tmp_path: Path
) -> None:
    """Spark's own source looks for ``my%20shop`` in vain: the error says what to do."""
    shutil.copytree(shop.path, tmp_path / "my shop")
    moved = Pipeline(tmp_path / "my shop")
    with pytest.raises(UsageError, match="Move the pipeline"):
        query_state(spark, moved, "late", "sums")
    on_the_way = cut(spark, moved, "late", channel="transfers", target="sums")
    assert rows(on_the_way.selectExpr("sum(amount)")) == [(103,)]


def test_two_snapshots_of_a_query_are_compared(spark: SparkSession, shop: Pipeline) -> None:
    """Keys that came, went and changed; also between timelines, and from before any state."""
    found = changes(diff(spark, shop, "late", "other", "sums"))
    assert found == [("changed", 1, 15, 11), ("removed", 3, 7, None)]
    found = changes(diff(spark, shop, "fresh", "early", "sums"))
    assert found == [("added", 1, None, 10), ("added", 2, None, 20)]


def test_two_snapshots_of_a_service_are_compared(spark: SparkSession, shop: Pipeline) -> None:
    """The fields whose values differ, as JSON."""
    found = rows(diff(spark, shop, "late", "other", "bank"))
    assert found == [
        ("changed", "balance", "855", "969"),
        ("changed", "paid", "[10,20,5,7,100,1,2]", "[10,20,1]"),
    ]


def test_a_log_is_read_as_it_is_or_up_to_a_snapshot(spark: SparkSession, shop: Pipeline) -> None:
    """The current timeline has nothing of the abandoned one, which its snapshot still has."""
    now = log_records(spark, shop, "transfers")
    assert rows(now.select("account", "amount")) == [(1, 1), (1, 10), (2, 20)]
    late = log_records(spark, shop, "transfers", "late")
    assert rows(late.selectExpr("sum(amount)", "count(*)")) == [(145, 7)]
    assert "_offset" in late.columns
    ends = log_records(spark, shop, "totals").select("account", "amount")
    assert rows(ends) == [(1, 10), (1, 11), (2, 20)]
    with pytest.raises(UsageError, match="there are: totals, transfers"):
        log_records(spark, shop, "nowhere")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"snapshot": "gone", "table": "queries"}, "there are: fresh, early, late, other"),
        ({"snapshot": "late", "table": "states"}, "one of services, queries, channels"),
        ({"snapshot": "late"}, "no source of rows is named"),
        ({"snapshot": "late", "service": "sums"}, "no service 'sums'.*there are: bank"),
        ({"snapshot": "late", "service": "bank", "table": "queries"}, "cannot be combined with"),
        ({"snapshot": "late", "channel": "x", "table": "queries"}, "leave out"),
        ({"snapshot": "late", "channel": "x"}, "no channel 'x'.*there are: totals, transfers"),
        ({"snapshot": "late", "channel": "transfers"}, "name one of idle, sums"),
        ({"snapshot": "late", "channel": "transfers", "target": "x"}, "it has idle, sums"),
        ({"snapshot": "late", "channel": "totals"}, "read it with log_records"),
        ({"table": "queries"}, "needs the option 'snapshot'"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(
    shop: Pipeline, options: dict[str, str], expected: str
) -> None:
    """Every error names what was asked for wrongly and lists what there is."""
    with pytest.raises(UsageError, match=expected):
        plan_snapshot_scan({"pipeline": str(shop.path), **options})


def test_the_answer_comes_through_spark(spark: SparkSession, shop: Pipeline) -> None:
    """The error that Spark raises holds our sentence."""
    with pytest.raises(PySparkException, match="there is no table 'states': give table, one of"):
        cut(spark, shop, "late", table="states")
