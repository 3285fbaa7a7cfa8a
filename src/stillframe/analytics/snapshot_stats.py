"""Statistics of the snapshots of a store: how long, how large, how many messages in transit.

Functions take DataFrames and return DataFrames; nothing runs before an action.
"""

from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from stillframe.analytics import verified_parquet
from stillframe.analytics.full_snapshots import CHANNELS_SCHEMA
from stillframe.analytics.log_events import event_rows
from stillframe.analytics.log_verification import log_pieces
from stillframe.analytics.manifests import Published, read_published
from stillframe.model import SnapshotId
from stillframe.storage.location import Location
from stillframe.store.manifest import CHANNELS

_TIME = pa.timestamp("us", tz="UTC")
SNAPSHOTS_SCHEMA = pa.schema(
    [
        pa.field("snapshot", pa.string()),  # P1-17
        pa.field("sequence", pa.int64()),  # its place in the order of publishing, from 1
        pa.field("epoch", pa.int64()),
        pa.field("initiator", pa.string()),
        pa.field("initiated_at", _TIME),
        pa.field("completed_at", _TIME),  # when the last part of it was in
        pa.field("published_at", _TIME),
        pa.field("pause_s", pa.float64()),  # the longest pause of any process
        pa.field("capture_s", pa.float64()),  # the longest that encoding a state took, beside work
        # From the request to the last part, less the two above: markers and fragments in transit,
        # and processes that were busy. The longest of each need not be the same process's, so it is
        # waiting at the least, and 0 if that would be less.
        pa.field("waiting_s", pa.float64()),
        pa.field("publishing_s", pa.float64()),  # from the last part to the rename
        pa.field("total_s", pa.float64()),  # from the request to the rename
        pa.field("bytes", pa.int64()),  # of its Parquet files
        pa.field("process_count", pa.int64()),
        pa.field("channel_count", pa.int64()),
        pa.field("message_count", pa.int64()),  # in transit, on all channels
        pa.field("chain_length", pa.int64()),  # how many earlier snapshots it takes to read it
        pa.field("bases", pa.list_(pa.string())),  # it holds the changes since; none: it is full
        pa.field("savepoints", pa.list_(pa.string())),  # the names that it is kept under
        pa.field("is_restore_point", pa.bool_()),
        pa.field("topology", pa.string()),  # the hash of its description
    ]
)
FIGURES = (
    "pause_s",
    "capture_s",
    "waiting_s",
    "publishing_s",
    "total_s",
    "bytes",
    "message_count",
    "chain_length",
)
"""The columns of ``snapshots`` that ``spread`` summarizes."""
_TIMES = ("initiated_at", "completed_at", "published_at")
_COUNTS = ("snapshot", "source", "target", "sent_count", "received_count", "message_count")


def snapshot_history(spark: SparkSession, store_path: str | Location) -> DataFrame:
    """Return a row for each snapshot of a store (`SNAPSHOTS_SCHEMA`), in the order of publishing.

    Every manifest is verified; one that is damaged has no row (``manifests.Published.damages``).

    Raises:
        UsageError: there is no store.
        Damaged: its ``store.json`` was changed.
        StoreError: it cannot be read.
    """
    return snapshots(spark, read_published(store_path))


def snapshots(spark: SparkSession, published: Published) -> DataFrame:
    """Return the same of manifests that were read."""
    return spark.createDataFrame(snapshot_table(published))


def snapshot_table(published: Published) -> pa.Table:
    """Return the same as an Arrow table; what else an entry says is left out of it."""
    rows = [
        {
            **msgspec.structs.asdict(entry),
            "snapshot": str(entry.id),
            "initiator": entry.id.initiator,
            **{name: round(getattr(entry, name) * 1e6) for name in _TIMES},
            "waiting_s": max(
                0.0, entry.completed_at - entry.initiated_at - entry.pause_s - entry.capture_s
            ),
            "publishing_s": entry.published_at - entry.completed_at,
            "total_s": entry.published_at - entry.initiated_at,
            "bases": list(map(str, entry.bases)),
            "topology": published.manifests[entry.id].topology,
        }
        for entry in published.entries()
    ]
    return pa.Table.from_pylist(rows, schema=SNAPSHOTS_SCHEMA)


def spread(snapshots: DataFrame, figures: Sequence[str] = FIGURES) -> DataFrame:
    """Return figure, median, p90, max, and `snapshot`, the one with the maximum."""
    values = [F.col(name).cast("double").alias(name) for name in figures]
    each = snapshots.select("snapshot", *values).unpivot(
        ["snapshot"], list(figures), "figure", "value"
    )
    return each.groupBy("figure").agg(*_spread_of("value"))


def channel_history(channels: DataFrame, snapshots: DataFrame) -> DataFrame:
    """Return the messages in transit on each channel over time.

    Args:
        channels: a row for each channel of each snapshot, as ``channel_counts`` returns them.
        snapshots: as ``snapshots`` returns them.

    Returns:
        sequence, initiated_at, snapshot, source, target, sent_count, received_count,
        message_count; and `sent_since` and `received_since`, the numbers since the previous
        snapshot of the same epoch, null for the first.
    """
    of_snapshot = snapshots.select("snapshot", "sequence", "epoch", "initiated_at")
    joined = channels.join(F.broadcast(of_snapshot), "snapshot")
    window = "OVER (PARTITION BY source, target, epoch ORDER BY sequence)"
    since = [
        F.expr(f"{count}_count - lag({count}_count) {window}").alias(f"{count}_since")
        for count in ("sent", "received")
    ]
    return joined.select(
        *("sequence", "initiated_at", "snapshot", "source", "target"),
        *("sent_count", "received_count", "message_count"),
        *since,
    )


def channel_counts(
    spark: SparkSession, published: Published, snapshots: Iterable[SnapshotId] | None = None
) -> DataFrame:
    """Return the counts of each channel of some snapshots, or of all, from verified bytes."""
    chosen = published.manifests if snapshots is None else dict.fromkeys(snapshots)
    files = [published.file(snapshot, CHANNELS) for snapshot in chosen]
    schema = pa.schema([CHANNELS_SCHEMA.field(name) for name in _COUNTS])
    return verified_parquet.rows(spark, files, schema)


def channel_spread(channel_history: DataFrame) -> DataFrame:
    """Return source, target, and the median, p90, max of the messages in transit there; and
    `snapshot`, the one with the most. The channel with most in transit is first."""
    found = channel_history.groupBy("source", "target").agg(*_spread_of("message_count"))
    return found.orderBy(F.desc("max"), F.desc("median"), "source", "target")


def marker_steps(spark: SparkSession, log: str | Location) -> DataFrame:
    """Return the steps of snapshots in the event log `log` (``log_events.ROWS``), as far as it is
    written, for ``marker_paths``. They are read when Spark runs the DataFrame (``spark_errors``).

    Raises:
        UsageError: there is no event log.
        Damaged, StoreError: a file in it is not part of a log, or cannot be read.
    """
    return event_rows(log_pieces(spark, log), pc.field("snapshot").is_valid())


def _spread_of(value: str) -> tuple[Column, ...]:
    # Of several snapshots with the maximum it is the one with the last name, always the same.
    place = F.when(F.col(value).isNotNull(), F.struct(value, "snapshot"))
    return (
        F.median(value).alias("median"),
        F.percentile(value, 0.9).alias("p90"),
        F.max(value).alias("max"),
        F.max_by("snapshot", place).alias("snapshot"),
    )
