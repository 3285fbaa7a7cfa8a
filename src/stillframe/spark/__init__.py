"""Pipelines on Spark: a session, streaming queries that take part in snapshots, their snapshots.

Importing this package needs no Spark; calling what is in it does. Functions of whole stores and
event logs are in ``stillframe.analytics``; their names here are their old home.
"""

from typing import TYPE_CHECKING, Any

from stillframe.spark.session import import_with_pyspark, lazy_attribute, spark_session

if TYPE_CHECKING:
    from stillframe.spark.queries import (
        checkpoint_location,
        read_channels,
        start_query,
        to_channel,
        with_barriers,
    )
    from stillframe.spark.snapshot_reader import diff, log_records, query_state

__all__ = [
    "checkpoint_location",
    "diff",
    "log_records",
    "query_state",
    "read_channels",
    "register",
    "spark_session",
    "start_query",
    "to_channel",
    "with_barriers",
]

_MODULES = {
    "queries": "checkpoint_location read_channels start_query to_channel with_barriers",
    "snapshot_reader": "diff log_records query_state",
}
_ANALYTICS = "stillframe.analytics"
_MOVED = """
    assemble audit_store channel_history channel_spread compact_store compacted_tables deadlocks
    detect diff_store event_rows follow locate log_pieces marker_paths marker_steps published_cuts
    snapshot_history spread store_tables vector_clock verify
""".split()
_MOVED_MODULES = {
    "audit": "audit",
    "compacted": "compaction",
    "compaction": "compaction",
    "detection": "predicate_history",
    "difference": "store_diff",
    "eventrows": "log_events",
}
"""The functions, and by their old names the modules, that moved to ``stillframe.analytics``. They
still work from here, their former home; import them from there. They are found by name, so that no
import goes up from this package."""


def __getattr__(name: str) -> Any:
    """Import what needs PySpark when it is used."""
    if name == "register":  # it registers the format of the analytics, too
        return import_with_pyspark(f"{_ANALYTICS}.verdict_stream").register
    if name in _MOVED_MODULES:
        return import_with_pyspark(f"{_ANALYTICS}.{_MOVED_MODULES[name]}")
    if name in _MOVED:
        return getattr(import_with_pyspark(_ANALYTICS), name)
    return lazy_attribute(__name__, _MODULES, name)
