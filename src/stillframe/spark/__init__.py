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
_OLD_HOME = {
    # It registers the format of the analytics, too.
    "register": (f"{_ANALYTICS}.verdict_stream", "register"),
    **{
        name: (_ANALYTICS, name)
        for name in (
            *("assemble", "audit_store", "channel_history", "channel_spread", "compact_store"),
            *("compacted_tables", "deadlocks", "detect", "diff_store", "event_rows", "follow"),
            *("locate", "log_pieces", "marker_paths", "marker_steps", "published_cuts"),
            *("snapshot_history", "spread", "store_tables", "vector_clock", "verify"),
        )
    },
    **{
        old: (f"{_ANALYTICS}.{new}", None)
        for old, new in {
            "audit": "audit",
            "compacted": "compaction",
            "compaction": "compaction",
            "detection": "predicate_history",
            "difference": "store_diff",
            "eventrows": "log_events",
        }.items()
    },
}
"""The names that moved to ``stillframe.analytics``: name -> its module and attribute, None for the
module itself. They still work from here, their former home; import them from there. They are found
by name, so that no import goes up from this package."""


def __getattr__(name: str) -> Any:
    """Import what needs PySpark when it is used."""
    if name in _OLD_HOME:
        module, attribute = _OLD_HOME[name]
        found = import_with_pyspark(module)
        return found if attribute is None else getattr(found, attribute)
    return lazy_attribute(__name__, _MODULES, name)
