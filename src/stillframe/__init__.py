"""Consistent global snapshots of running distributed systems.

Write processes (`Process`, `Message`, `every`), say how they are connected (`Topology`), and run
them with ``stillframe run``; a program with its own loop takes part with `join`. Streaming queries
and services that are connected by logs make a pipeline: ``stillframe.pipeline``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stillframe.detect.view import SnapshotView
    from stillframe.errors import StillframeError
    from stillframe.keyed import Keyed
    from stillframe.model import Channel, ProcessId, SnapshotId
    from stillframe.outbox import Due, Outbox
    from stillframe.process import Message, Process, every
    from stillframe.running_system import RunningSystem, run
    from stillframe.runtime.process.join import join
    from stillframe.snapshot_store import (
        AbandonedSnapshot,
        LoadedSnapshot,
        SnapshotStore,
        open_store,
    )
    from stillframe.store.manifest import SnapshotEntry
    from stillframe.store.tables import DecodedMessage
    from stillframe.topology import InTransit, Joined, Recorded, Topology

__all__ = [
    "AbandonedSnapshot",
    "Channel",
    "DecodedMessage",
    "Due",
    "InTransit",
    "Joined",
    "Keyed",
    "LoadedSnapshot",
    "Message",
    "Outbox",
    "Process",
    "ProcessId",
    "Recorded",
    "RunningSystem",
    "SnapshotEntry",
    "SnapshotId",
    "SnapshotStore",
    "SnapshotView",
    "StillframeError",
    "Topology",
    "every",
    "join",
    "open_store",
    "run",
]

_MODULES = {
    "detect.view": ("SnapshotView",),
    "errors": ("StillframeError",),
    "keyed": ("Keyed",),
    "model": ("Channel", "ProcessId", "SnapshotId"),
    "outbox": ("Due", "Outbox"),
    "process": ("Message", "Process", "every"),
    "running_system": ("RunningSystem", "run"),
    "runtime.process.join": ("join",),
    "snapshot_store": ("AbandonedSnapshot", "LoadedSnapshot", "SnapshotStore", "open_store"),
    "store.manifest": ("SnapshotEntry",),
    "store.tables": ("DecodedMessage",),
    "topology": ("InTransit", "Joined", "Recorded", "Topology"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: executors of a cluster import this package, and
    have nothing but Arrow and PySpark."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"stillframe.{module}"), name)
    raise AttributeError(f"module 'stillframe' has no attribute {name!r}")
