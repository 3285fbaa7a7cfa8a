"""Public names of the last release that have another name now. They work for one release more."""

import warnings

_TO_ANALYTICS = """
    assemble audit_store channel_history channel_spread compact_store compacted_tables deadlocks
    detect diff_store event_rows follow locate log_pieces marker_paths marker_steps published_cuts
    snapshot_history spread store_tables vector_clock verify
""".split()
_MODULES_TO_ANALYTICS = {
    "audit": "audit",
    "compacted": "compaction",
    "compaction": "compaction",
    "detection": "predicate_history",
    "difference": "store_diff",
    "eventrows": "log_events",
}
RENAMED = {
    "stillframe.Joined": "stillframe.ExternalProcess",
    "stillframe.detect.view.View": "stillframe.detect.view.SnapshotView",
    "stillframe.pipeline.Participant": "stillframe.pipeline.JoinedService",
    "stillframe.pipeline.join": "stillframe.pipeline.service.join",
    "stillframe.runtime.process.join.Participant": "stillframe.runtime.process.join.JoinedProcess",
    **{f"stillframe.spark.{name}": f"stillframe.analytics.{name}" for name in _TO_ANALYTICS},
    **{
        f"stillframe.spark.{old}": f"stillframe.analytics.{new}"
        for old, new in _MODULES_TO_ANALYTICS.items()
    },
}
"""The old name -> where the same object is now."""
_CALLED = {"stillframe.pipeline.service.join": "Pipeline(path).join_service(name, state=...)"}
"""What to write instead, if that is not the name of the object."""


def renamed(package: str, name: str) -> tuple[str, str]:
    """Return the module and the name of what `package` called `name` in the last release, and warn
    the user. Raises the AttributeError of a module if it had no such name."""
    new = RENAMED.get(f"{package}.{name}")
    if new is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    warnings.warn(
        f"{package}.{name} is removed in the next release: use {_CALLED.get(new, new)}",
        DeprecationWarning,
        stacklevel=3,
    )
    module, _, attribute = new.rpartition(".")
    return module, attribute
