"""A store as DataFrames, and the questions that are asked of every snapshot at once.

Functions take DataFrames and return DataFrames; nothing runs before somebody collects. The
verdict over a whole store is ``stillframe.spark.audit``.
"""

from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from stillframe.columns import Column
from stillframe.spark.verified import location
from stillframe.store.columns import merged_columns
from stillframe.store.manifest import CHANNELS, MESSAGES, PROCESSES
from stillframe.store.opening import SNAPSHOTS
from stillframe.topology import Description

PROCESSES_SCHEMA = (
    "snapshot STRING, "  # P1-17
    "process STRING, "  # which process
    "kind STRING, "  # its class
    "encoded BINARY"  # its state as a MessagePack map; the fields follow as columns
)
CHANNELS_SCHEMA = (
    "snapshot STRING, "
    "source STRING, "  # the process that sends
    "target STRING, "  # the process that receives
    "sent_count BIGINT, "  # at the cut of the source
    "received_count BIGINT, "  # at the cut of the target
    "message_count BIGINT, "  # how many were on the channel
    "encoded ARRAY<STRUCT<first: BIGINT, count: BIGINT, encoded: BINARY>>"  # as they travelled
)
MESSAGES_SCHEMA = (
    "snapshot STRING, "
    "source STRING, "
    "target STRING, "
    "number BIGINT, "  # of the message on its channel, from 1
    "kind STRING"  # its class; the fields follow as columns
)
SQL_TYPES = {
    "bool": "BOOLEAN",
    "int": "BIGINT",
    "float": "DOUBLE",
    "text": "STRING",
    "bytes": "BINARY",
    "time": "TIMESTAMP",
    "json": "STRING",
}
"""Kind of column (``Column.kind``) -> its type in Spark."""

_CHANNEL = ["snapshot", "source", "target"]


def file_hashes(spark: SparkSession, store_path: Path) -> DataFrame:
    """Return a row for each Parquet file: snapshot, name, byte_count, hash (SHA-256 of its bytes).

    Spark passes over directories that begin with a dot: what is not published yet.
    """
    files = (
        spark.read.format("binaryFile")
        .options(recursiveFileLookup=True, pathGlobFilter="*.parquet")
        .load(location(store_path / SNAPSHOTS))
    )
    parts = F.split("path", "/")
    return files.select(
        F.element_at(parts, -2).alias("snapshot"),
        F.element_at(parts, -1).alias("name"),
        F.col("length").alias("byte_count"),
        F.sha2("content", 256).alias("hash"),
    )


def processes(
    spark: SparkSession,
    store_path: Path,
    description: Description,
    snapshots: Iterable[str] | None = None,
) -> DataFrame:
    """Return a row for each process of each snapshot, its fields as columns.

    `snapshots` are the ids of those to read, for example ``P1-17``; None reads all.
    """
    schema = PROCESSES_SCHEMA + field_schema(description.states)
    return _table(spark, store_path, PROCESSES, schema, snapshots)


def channels(
    spark: SparkSession, store_path: Path, snapshots: Iterable[str] | None = None
) -> DataFrame:
    """Return a row for each channel of each snapshot (`CHANNELS_SCHEMA`)."""
    return _table(spark, store_path, CHANNELS, CHANNELS_SCHEMA, snapshots)


def messages(
    spark: SparkSession,
    store_path: Path,
    description: Description,
    snapshots: Iterable[str] | None = None,
) -> DataFrame:
    """Return a row for each message that a snapshot caught on a channel, its fields as columns."""
    schema = MESSAGES_SCHEMA + field_schema(description.messages)
    return _table(spark, store_path, MESSAGES, schema, snapshots)


def expected_channels(
    spark: SparkSession, description: Description, snapshots: Iterable[str]
) -> DataFrame:
    """Return snapshot, source, target: every channel of the description for each snapshot."""
    ids = spark.createDataFrame([(name,) for name in snapshots], "snapshot STRING")
    pairs = [(channel.source, channel.target) for channel in description.channels]
    return ids.crossJoin(spark.createDataFrame(pairs, "source STRING, target STRING"))


def channel_books(expected: DataFrame, channels: DataFrame, messages: DataFrame) -> DataFrame:
    """Return the books of each channel of each snapshot, and whether they balance.

    They do if the channel is expected and recorded once, ``sent_count - received_count`` is
    `message_count`, and the batches as well as the rows of `messages` are exactly the numbers
    ``received_count + 1 .. sent_count``.
    """
    recorded = channels.groupBy(*_CHANNEL).agg(
        F.count("*").alias("record_count"),
        F.max("sent_count").alias("sent_count"),
        F.max("received_count").alias("received_count"),
        F.max("message_count").alias("message_count"),
        F.max(F.expr("aggregate(encoded.count, 0L, (sum, count) -> sum + count)")).alias(
            "batched_count"
        ),
    )
    counted = _count_numbers(messages)
    books = (
        expected.withColumn("is_expected", F.lit(True))  # noqa: FBT003 - a value, not a switch
        .join(recorded, _CHANNEL, "full")
        .join(counted, _CHANNEL, "full")
        .fillna(0, ["record_count", "row_count", "number_count"])
        .fillna(False, ["is_expected"])  # noqa: FBT003
    )
    balance = F.expr(
        "is_expected AND record_count = 1 AND received_count >= 0 AND message_count >= 0"
        " AND sent_count - received_count = message_count AND batched_count = message_count"
        " AND row_count = message_count AND number_count = message_count"
        " AND (message_count = 0 OR (number_min = received_count + 1 AND number_max = sent_count))"
    )
    return books.withColumn("is_balanced", F.coalesce(balance, F.lit(False)))  # noqa: FBT003


def _count_numbers(messages: DataFrame) -> DataFrame:
    """Count rows and different numbers per channel. Bitmaps make that exact and several times as
    fast as a distinct count, which sends every number through a shuffle."""
    bits = F.bitmap_construct_agg(F.bitmap_bit_position("number"))
    pieces = messages.groupBy(*_CHANNEL, F.bitmap_bucket_number("number").alias("piece")).agg(
        F.count("*").alias("row_count"),
        F.bitmap_count(bits).alias("number_count"),
        F.min("number").alias("number_min"),
        F.max("number").alias("number_max"),
    )
    return pieces.groupBy(*_CHANNEL).agg(
        F.sum("row_count").alias("row_count"),
        F.sum("number_count").alias("number_count"),
        F.min("number_min").alias("number_min"),
        F.max("number_max").alias("number_max"),
    )


def snapshot_books(books: DataFrame) -> DataFrame:
    """Return for each snapshot: message_count, and the first channel that does not balance.

    `first_wrong` is that channel's row of `books` as a struct, null if all balance.
    """
    figures = F.struct(*(name for name in books.columns if name[:2] != "is"), "is_expected")
    wrong = F.when(~F.col("is_balanced"), F.struct("source", "target", figures.alias("books")))
    return books.groupBy("snapshot").agg(
        F.sum("row_count").alias("message_count"), F.min(wrong)["books"].alias("first_wrong")
    )


def sums(rows: DataFrame, sql: str) -> DataFrame:
    """Return snapshot, amount: an aggregate of your own, such as ``sum(balance)``, per snapshot."""
    return rows.groupBy("snapshot").agg(F.expr(sql).alias("amount"))


def recorded_processes(processes: DataFrame) -> DataFrame:
    """Return snapshot, processes: the sorted names of the processes whose states are there."""
    return processes.groupBy("snapshot").agg(
        F.sort_array(F.collect_list("process")).alias("processes")
    )


def _table(
    spark: SparkSession,
    store_path: Path,
    name: str,
    schema: str,
    snapshots: Iterable[str] | None,
) -> DataFrame:
    directory = location(store_path / SNAPSHOTS)
    reader = spark.read.schema(schema)
    if snapshots is None:
        # One directory to list is much faster for Spark than thousands of paths.
        every = reader.options(recursiveFileLookup=True, pathGlobFilter=name)
        return every.parquet(directory)
    return reader.parquet(*(f"{directory}/{snapshot}/{name}" for snapshot in snapshots))


def field_schema(classes: dict[str, tuple[Column, ...]]) -> str:
    """Return the columns of the fields of some classes, as they go on after others in a schema."""
    return "".join(
        f", `{column.name}` {SQL_TYPES[column.kind]}" for column in merged_columns(classes)
    )
