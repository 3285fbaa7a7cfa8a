"""Whole stores and event logs on Spark: audits, statistics, differences, predicates, verification.

Importing this package needs no Spark; calling what is in it does.
"""

from typing import TYPE_CHECKING, Any

from stillframe.errors import check_assertions
from stillframe.public_names import public_attribute
from stillframe.spark.session import import_with_pyspark, spark_session
from stillframe.storage.location import Location

if TYPE_CHECKING:
    from stillframe.analytics.assembly import assemble
    from stillframe.analytics.audit import Audit, SnapshotAudit
    from stillframe.analytics.compaction import Compaction, compact_store, compacted_tables
    from stillframe.analytics.full_snapshots import store_tables
    from stillframe.analytics.log_events import (
        LogMessage,
        event_rows,
        locate,
        marker_paths,
        vector_clock,
    )
    from stillframe.analytics.log_verification import log_pieces, published_cuts, verify
    from stillframe.analytics.observation_history import observation_tables
    from stillframe.analytics.predicate_history import (
        EpochSummary,
        Summary,
        Unevaluable,
        detect,
        summary,
    )
    from stillframe.analytics.snapshot_stats import (
        channel_history,
        channel_spread,
        marker_steps,
        snapshot_history,
        spread,
    )
    from stillframe.analytics.store_diff import Difference, diff_store
    from stillframe.analytics.verdict_stream import follow
    from stillframe.analytics.verified_parquet import spark_errors
    from stillframe.analytics.wait_for_graphs import deadlocks
    from stillframe.detect.predicate import Evaluation, Verdict

__all__ = [
    "Audit",
    "Compaction",
    "Difference",
    "EpochSummary",
    "Evaluation",
    "LogMessage",
    "SnapshotAudit",
    "Summary",
    "Unevaluable",
    "Verdict",
    "assemble",
    "audit_store",
    "channel_history",
    "channel_spread",
    "compact_store",
    "compacted_tables",
    "deadlocks",
    "detect",
    "diff_store",
    "event_rows",
    "follow",
    "locate",
    "log_pieces",
    "marker_paths",
    "marker_steps",
    "observation_tables",
    "published_cuts",
    "snapshot_history",
    "spark_errors",
    "spread",
    "store_tables",
    "summary",
    "vector_clock",
    "verify",
]

_MODULES = {
    "stillframe.analytics.assembly": "assemble",
    "stillframe.analytics.audit": "Audit SnapshotAudit",
    "stillframe.analytics.compaction": "Compaction compact_store compacted_tables",
    "stillframe.analytics.full_snapshots": "store_tables",
    "stillframe.analytics.log_events": "LogMessage event_rows locate marker_paths vector_clock",
    "stillframe.analytics.log_verification": "log_pieces published_cuts verify",
    "stillframe.analytics.observation_history": "observation_tables",
    "stillframe.analytics.predicate_history": "EpochSummary Summary Unevaluable detect summary",
    "stillframe.analytics.snapshot_stats": "channel_history channel_spread marker_steps "
    "snapshot_history spread",
    "stillframe.analytics.store_diff": "Difference diff_store",
    "stillframe.analytics.verdict_stream": "follow",
    "stillframe.analytics.verified_parquet": "spark_errors",
    "stillframe.analytics.wait_for_graphs": "deadlocks",
    "stillframe.detect.predicate": "Evaluation Verdict",
}


check_assertions()

if not TYPE_CHECKING:  # a type checker knows the names above, and no others

    def __getattr__(name: str) -> Any:
        """Import what needs PySpark when it is used."""
        return public_attribute(__name__, name, _MODULES, import_with_pyspark)


def audit_store(
    store_path: str | Location, *, states_sql: str | None = None, messages_sql: str | None = None
) -> "Audit":
    """Check all snapshots of a store on Spark, in the active session or a new one.

    Args:
        store_path: the directory of the store, or its address, such as ``s3://bucket/bank``.
        states_sql: an aggregate over process states, such as ``sum(balance)``.
        messages_sql: the same over messages in transit, such as ``sum(amount)``.

    Returns:
        The verdict, with a row per snapshot.

    Raises:
        Unavailable: PySpark or Java is missing.
        UsageError: there is no store or no snapshot in it, or the SQL is wrong.
        StoreError: the store cannot be read.
    """
    spark = spark_session()
    from stillframe.analytics.audit import audit  # noqa: PLC0415 - needs PySpark, which is there

    return audit(spark, store_path, states_sql=states_sql, messages_sql=messages_sql)
