"""Public names that are imported when they are used, and old names of the last release, which work
for one release more."""

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

REMOVED_IN = "0.3"
"""The version without the old names of 0.1, of the command line too."""
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
    "stillframe.pipeline.Pipeline.course": "stillframe.pipeline.Pipeline.timeline",
    "stillframe.pipeline.Pipeline.drop": "stillframe.pipeline.Pipeline.delete",
    "stillframe.pipeline.Pipeline.progress": "stillframe.pipeline.Pipeline.status",
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


def public_attribute(
    package: str,
    name: str,
    modules: Mapping[str, str] = {},
    load: Callable[[str], object] = importlib.import_module,
) -> Any:
    """Return what `package`, or a class, calls `name`, or called so in the last release: then warn
    the user. `modules` has the names that each of them defines, with spaces. Raises the
    AttributeError of a module, or class, if there is no such name, and a UsageError if Python runs
    without assertions."""
    if not __debug__:  # only then: executors of a cluster import little
        from stillframe.errors import check_assertions  # noqa: PLC0415

        check_assertions()
    for module, names in modules.items():
        if name in names.split():
            return getattr(load(module), name)
    new = RENAMED.get(f"{package}.{name}")
    if new is None:
        kind = "module" if package in sys.modules else "class"
        raise AttributeError(f"{kind} {package!r} has no attribute {name!r}")
    warnings.warn(
        f"{package}.{name} is removed in {REMOVED_IN}: use {_CALLED.get(new, new)}",
        DeprecationWarning,
        stacklevel=3,
    )
    module, _, attribute = new.rpartition(".")
    found = getattr(load(module), attribute, None)
    return load(new) if found is None else found
