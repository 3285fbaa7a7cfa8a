"""Snapshots and Spark: a session, the store as DataFrames, audits; queries in pipelines.

Importing this package needs no Spark; calling what is in it does.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillframe.errors import Unavailable
from stillframe.spark.session import spark_session

if TYPE_CHECKING:
    from stillframe.spark.assembly import assemble
    from stillframe.spark.audit import Audit
    from stillframe.spark.compacted import compacted_tables
    from stillframe.spark.compaction import compact_store
    from stillframe.spark.deadlock import deadlocks
    from stillframe.spark.detection import detect
    from stillframe.spark.difference import diff_store
    from stillframe.spark.eventrows import event_rows, locate, vector_clock
    from stillframe.spark.following import follow
    from stillframe.spark.markers import marker_paths
    from stillframe.spark.queries import (
        checkpoint_location,
        read_channels,
        register,
        start_query,
        to_channel,
        with_barriers,
    )
    from stillframe.spark.reading import diff, log_records, query_state
    from stillframe.spark.timeline import (
        channel_history,
        channel_spread,
        marker_steps,
        snapshot_history,
        spread,
    )
    from stillframe.spark.verification import log_pieces, published_cuts, verify
    from stillframe.spark.whole import store_tables

__all__ = [
    "assemble",
    "audit_store",
    "channel_history",
    "channel_spread",
    "checkpoint_location",
    "compact_store",
    "compacted_tables",
    "deadlocks",
    "detect",
    "diff",
    "diff_store",
    "event_rows",
    "follow",
    "locate",
    "log_pieces",
    "log_records",
    "marker_paths",
    "marker_steps",
    "published_cuts",
    "query_state",
    "read_channels",
    "register",
    "snapshot_history",
    "spark_session",
    "spread",
    "start_query",
    "store_tables",
    "to_channel",
    "vector_clock",
    "verify",
    "with_barriers",
]

_MODULES = {
    "assembly": ("assemble",),
    "compacted": ("compacted_tables",),
    "compaction": ("compact_store",),
    "deadlock": ("deadlocks",),
    "detection": ("detect",),
    "difference": ("diff_store",),
    "eventrows": ("event_rows", "locate", "vector_clock"),
    "following": ("follow",),
    "markers": ("marker_paths",),
    "queries": (
        "checkpoint_location",
        "read_channels",
        "register",
        "start_query",
        "to_channel",
        "with_barriers",
    ),
    "reading": ("diff", "log_records", "query_state"),
    "timeline": (
        "channel_history",
        "channel_spread",
        "marker_steps",
        "snapshot_history",
        "spread",
    ),
    "verification": ("log_pieces", "published_cuts", "verify"),
    "whole": ("store_tables",),
}


def __getattr__(name: str) -> Any:
    """Import what needs PySpark when it is asked for.

    Raises:
        Unavailable: PySpark is missing.
    """
    for module, names in _MODULES.items():
        if name in names:
            try:
                return getattr(importlib.import_module(f"stillframe.spark.{module}"), name)
            except ModuleNotFoundError as error:
                raise Unavailable(
                    f"PySpark is not installed ({error}): pip install 'stillframe[spark]'"
                ) from error
    raise AttributeError(f"module 'stillframe.spark' has no attribute {name!r}")


def audit_store(
    store_path: Path, *, states_sql: str | None = None, messages_sql: str | None = None
) -> "Audit":
    """Check every snapshot of a store at once on Spark, in the active session or one of our own.

    Args:
        store_path: the directory of the store.
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
    from stillframe.spark.audit import audit  # noqa: PLC0415 - needs PySpark, which is there now

    return audit(spark, store_path, states_sql=states_sql, messages_sql=messages_sql)
