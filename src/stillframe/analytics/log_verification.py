"""Verifies snapshots from the event log of a system: functions from DataFrames to DataFrames.

Each task reads separate row groups and counts. Its counts of each channel go, as small vectors,
to one task that checks that channel for all snapshots (both in ``log_checks``). The cost
is that of reading each row once, and of comparing each channel of each snapshot once; no message is
joined with any snapshot, and no task holds more than a row group and the counts of one channel.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_schema

from stillframe.analytics import verified_parquet
from stillframe.analytics.audit import invalid_snapshots
from stillframe.analytics.full_snapshots import CHANNELS_SCHEMA
from stillframe.analytics.log_checks import (
    ACCEPTED_SIDE,
    COUNTS,
    CUT,
    FAULTS,
    FINDINGS,
    GAPS,
    IN_TRANSIT,
    KNOWN,
    LOGGED,
    PUBLISHED_SIDE,
    SPLITS,
    aggregate_splits,
    check_group,
    plan_splits,
)
from stillframe.analytics.manifests import Published, read_complete
from stillframe.analytics.snapshot_verdicts import CONSISTENT, INCOMPLETE, INCONSISTENT
from stillframe.eventlog.segments import STREAM
from stillframe.spark.session import add_package
from stillframe.storage.location import Location, locate
from stillframe.store.layout import explain_io_errors
from stillframe.store.manifest import CHANNELS

_RECORDED_SCHEMA = pa.schema(
    [
        *(
            CHANNELS_SCHEMA.field(name)
            for name in ("snapshot", "source", "target", "sent_count", "received_count")
        ),
        # The messages themselves are left out.
        ("encoded", pa.list_(pa.struct([("first", pa.int64()), ("count", pa.int64())]))),
    ]
)
_TASKS_PER_CORE = 3
_NAMED_MAX = 10
_WORST_FIRST = (INCONSISTENT, INCOMPLETE, CONSISTENT)
_STEPS = ("cuts", "markers")

Row = dict[str, Any]


def log_pieces(spark: SparkSession, log: str | Location) -> DataFrame:
    """Return a row for each row group of an event log (`SPLITS`): what `verify` takes.

    A running system may write to it; its later rows are not included.

    Raises:
        UsageError: there is no event log.
        Damaged: a file in it is not part of a log.
        StoreError: one cannot be read.
    """
    path = locate(log)
    with explain_io_errors(path, "read"):
        splits = plan_splits(path)
    return spark.createDataFrame(splits, SPLITS)


def published_cuts(spark: SparkSession, store_path: str | Location) -> DataFrame:
    """Return the counts of each channel of a store at the cuts of its snapshots, for `verify`.

    Every byte of the store is verified first, so that no damaged store is found consistent.

    Raises:
        UsageError: there is no store, or no snapshot in it.
        Damaged: a file of it was changed or is missing.
        NotConsistent: a snapshot contradicts itself.
        StoreError: it cannot be read.
    """
    published = read_complete(store_path)
    for snapshot, error in invalid_snapshots(spark, published).items():
        raise type(error)(f"snapshot {snapshot}: {error}")
    return channel_cuts(spark, published)


def channel_cuts(spark: SparkSession, published: Published) -> DataFrame:
    """Return the same of manifests that were read; only the bytes used are verified."""
    epochs = [(str(snapshot), found.epoch) for snapshot, found in published.manifests.items()]
    files = [published.file(snapshot, CHANNELS) for snapshot in published.manifests]
    step = F.struct(
        "snapshot",
        F.col("sent_count").alias("place"),
        F.col("received_count").alias("event"),
        F.col("encoded").alias("recorded"),
    )
    known = spark.createDataFrame(epochs, "snapshot STRING, epoch BIGINT")
    steps = (
        verified_parquet.rows(spark, files, _RECORDED_SCHEMA)
        .join(F.broadcast(known), "snapshot")
        .groupBy("epoch", "source", "target")
        .agg(F.collect_list(step).alias("markers"))
        .withColumn("side", F.lit(PUBLISHED_SIDE))
    )
    nothing = spark.createDataFrame([], from_arrow_schema(COUNTS))
    return nothing.unionByName(steps, allowMissingColumns=True)


def findings(pieces: DataFrame, published: DataFrame | None = None) -> DataFrame:
    """Return the ``log_checks.FINDINGS`` about a log, compared with a store if that is given."""
    counts = counted(pieces)
    return to_findings(counts if published is None else counts.union(published))


def counted(pieces: DataFrame) -> DataFrame:
    """Return the counts of each channel and process in each split (``log_checks.COUNTS``)."""
    spark = pieces.sparkSession
    add_package(spark)
    task_count = _TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    return pieces.repartition(task_count).mapInArrow(aggregate_splits, from_arrow_schema(COUNTS))


def to_findings(counts: DataFrame) -> DataFrame:
    """Return the findings from the counts of all splits of an epoch."""
    by_channel = counts.groupBy("epoch", "source", "target")
    return by_channel.applyInArrow(check_group, from_arrow_schema(FINDINGS))


def verdicts(findings: DataFrame) -> DataFrame:
    """Return a verdict for each snapshot, and for the log of each epoch, from `findings`; see
    `verify`."""
    what = F.col("what")
    found = F.struct("source", "target", "what", "first", "last", "count")

    def processes(of: str, *columns: str) -> Column:
        lists = [F.collect_set(F.when(what == of, F.col(column))) for column in columns]
        return F.array_distinct(F.concat(*lists)).alias(of)

    def first_few(of: tuple[str, ...], name: str) -> Column:
        return F.sort_array(F.collect_list(F.when(what.isin(*of), found))).alias(name)

    grouped = findings.groupBy("epoch", "snapshot").agg(
        F.sum(F.when(what == CUT, F.col("first"))).alias("event_count"),
        F.coalesce(F.sum(F.when(what == IN_TRANSIT, F.col("count"))), F.lit(0)).alias(
            "message_count"
        ),
        processes(KNOWN, "source", "target"),
        processes(LOGGED, "source"),
        processes(CUT, "source"),
        first_few(FAULTS, "faults"),
        first_few(GAPS, "gaps"),
    )
    # Only the row of the log itself has it; an array with names is greater than one without.
    known = F.max(KNOWN).over(Window.partitionBy("epoch"))
    present = F.when(F.col("snapshot").isNull(), F.col(LOGGED)).otherwise(F.col(CUT))
    verdict = (
        F.when(F.size("faults") > 0, INCONSISTENT)
        .when((F.size("gaps") > 0) | (F.size("missing") > 0), INCOMPLETE)
        .otherwise(CONSISTENT)
    )
    return grouped.withColumn("missing", F.sort_array(F.array_except(known, present))).select(
        "epoch",
        "snapshot",
        verdict.alias("verdict"),
        "event_count",
        "message_count",
        "missing",
        *(F.slice(name, 1, _NAMED_MAX).alias(name) for name in ("faults", "gaps")),
        F.size("faults").alias("fault_count"),
    )


def verify(pieces: DataFrame, published: DataFrame | None = None) -> DataFrame:
    """Return the verdicts on all snapshots of an event log.

    Args:
        pieces: of the log, as `log_pieces` returns them.
        published: the same snapshots in a store, as `published_cuts` returns them.

    Returns:
        a row for each snapshot, and one with `snapshot` null for the log of each epoch. The columns
        are ``epoch``, ``snapshot`` and ``verdict``: ``consistent``, ``inconsistent`` (the rules
        were broken, or the log is not true) or ``incomplete`` (not completed, or the log lacks
        something). ``event_count`` are the actions inside the cut, ``message_count`` the messages
        in transit, and ``missing`` the processes that did not record, or have no log. ``faults``
        and ``gaps`` are the first few, as structs of source, target, what, first, last and count;
        ``fault_count`` counts all.

    Raises:
        Damaged: a file of the log is not what was written.
        StoreError: Spark cannot read the log, for example because a file was removed.
    """
    return verified_parquet.collected(verdicts(findings(pieces, published)), "the event log")


class CrossCheck:
    """Looks micro-batches of ``follow`` up in an event log, if there is one. A verdict counts what
    is before a cut from the beginning of its epoch; the counts of complete files stay known, so
    that each micro-batch reads only new files and those still being written."""

    def __init__(self, spark: SparkSession, log: Location | None) -> None:
        self._spark = spark
        self._log = log
        self._read: set[str] = set()
        self._counts = COUNTS.empty_table()

    def rows(self, batch: DataFrame) -> list[Row]:
        """Return a micro-batch as rows of ``VERDICTS``; no snapshot may come twice. With an event
        log each row has as `log` the verdict from there, None if it has none, and the worse
        verdict."""
        found = [row.asDict(recursive=True) for row in batch.collect()]
        if self._log is None or not found:
            return found
        names = pa.array([row["snapshot"] for row in found if row["snapshot"]], pa.string())
        epochs = {row["epoch"] for row in found if row["epoch"] is not None}
        counts = self._count(self._log, epochs, names)
        of_log = verdicts(to_findings(counts))
        of_snapshots = of_log.where(F.col("snapshot").isNotNull()).collect()
        known = {row["snapshot"]: row.asDict(recursive=True) for row in of_snapshots}
        for row in found:
            row["log"] = logged = known.get(row["snapshot"])
            seen = {row["verdict"], INCOMPLETE if logged is None else logged["verdict"]}
            row["verdict"] = next(verdict for verdict in _WORST_FIRST if verdict in seen)
        return found

    def _count(self, log: Location, epochs: set[int], names: pa.Array) -> DataFrame:
        """Return the counts of `epochs`, with the steps of the snapshots `names` alone."""
        listed = [piece for piece in plan_splits(log) if piece["epoch"] in epochs]
        complete = {_file(piece) for piece in listed if piece["row_group"] != STREAM}
        # Counts of removed files must go, too: the log begins after them.
        kept = self._counts.filter(_is_of(self._counts, complete & self._read))
        new = [piece for piece in listed if _file(piece) not in complete & self._read]
        if new:
            read = counted(self._spark.createDataFrame(new, SPLITS)).toArrow()
            kept = pa.concat_tables([kept, read.cast(COUNTS)])
        self._counts = _with_steps(
            kept.filter(_is_of(kept, complete)), lambda name: pc.invert(pc.is_in(name, names))
        )
        self._read = complete
        return self._spark.createDataFrame(
            _with_steps(kept, lambda name: pc.is_in(name, names)), from_arrow_schema(COUNTS)
        )


def _file(piece: Row) -> str:
    return f"{piece['epoch']} {piece['process']} {piece['part']}"


def _is_of(counts: pa.Table, files: set[str]) -> pa.ChunkedArray:
    is_accepted = pc.equal(counts["side"], ACCEPTED_SIDE)
    process = pc.if_else(is_accepted, counts["target"], counts["source"])
    epoch, part = (counts[name].cast(pa.string()) for name in ("epoch", "part"))
    named = pc.binary_join_element_wise(epoch, process, part, " ")
    return pc.is_in(named, pa.array(sorted(files), pa.string()))


def _with_steps(counts: pa.Table, is_wanted: Callable[[pa.Array], pa.Array]) -> pa.Table:
    """Return `counts` with those cuts and markers that are of wanted snapshots."""
    for column in _STEPS:
        lists = counts[column].combine_chunks()
        flat = lists.flatten()
        chosen = is_wanted(flat.field("snapshot"))
        of_row = pc.list_parent_indices(lists).filter(chosen).to_numpy()
        ends = np.cumsum([0, *np.bincount(of_row, minlength=len(lists))])
        some = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat.filter(chosen))
        counts = counts.set_column(counts.schema.get_field_index(column), column, some)
    return counts.cast(COUNTS)
