"""Consistent global snapshots of running distributed systems.

Write processes (`Process`, `Message`, `every`), connect them (`Topology`), and run them with `run`
or the command ``stillframe run``. A program with its own event loop takes part with `join`.
`open_store` reads the snapshots. Streaming queries and services that are connected by logs make a
`Pipeline`.
"""

from typing import TYPE_CHECKING, Any

from stillframe.public_names import public_attribute

if TYPE_CHECKING:
    from stillframe.detect.view import SnapshotView
    from stillframe.errors import (
        ApplicationError,
        Damaged,
        Fenced,
        NotConsistent,
        ProtocolViolation,
        Refused,
        StillframeError,
        StoreError,
        Unavailable,
        UsageError,
    )
    from stillframe.keyed import Keyed
    from stillframe.model import Abandoned, Channel, ProcessId, Reason, SnapshotId
    from stillframe.outbox import Due, Outbox, OutboxEntry
    from stillframe.pipeline.pipeline import Pipeline
    from stillframe.process import Message, Process, Quantities, every
    from stillframe.protocol.policy import Policy
    from stillframe.running_system import RunningSystem, run
    from stillframe.runtime.process.join import JoinedProcess, join
    from stillframe.snapshot_store import (
        AbandonedSnapshot,
        LoadedSnapshot,
        SnapshotStore,
        open_store,
    )
    from stillframe.storage.location import ObjectPath
    from stillframe.store.manifest import SnapshotEntry
    from stillframe.store.tables import DecodedMessage
    from stillframe.topology import ExternalProcess, InTransit, Recorded, Topology
    from stillframe.waiting import Waiting, for_all, for_any

__all__ = [
    "Abandoned",
    "AbandonedSnapshot",
    "ApplicationError",
    "Channel",
    "Damaged",
    "DecodedMessage",
    "Due",
    "ExternalProcess",
    "Fenced",
    "InTransit",
    "JoinedProcess",
    "Keyed",
    "LoadedSnapshot",
    "Message",
    "NotConsistent",
    "ObjectPath",
    "Outbox",
    "OutboxEntry",
    "Pipeline",
    "Policy",
    "Process",
    "ProcessId",
    "ProtocolViolation",
    "Quantities",
    "Reason",
    "Recorded",
    "Refused",
    "RunningSystem",
    "SnapshotEntry",
    "SnapshotId",
    "SnapshotStore",
    "SnapshotView",
    "StillframeError",
    "StoreError",
    "Topology",
    "Unavailable",
    "UsageError",
    "Waiting",
    "every",
    "for_all",
    "for_any",
    "join",
    "open_store",
    "run",
]

_MODULES = {
    "stillframe.detect.view": "SnapshotView",
    "stillframe.errors": "ApplicationError Damaged Fenced NotConsistent ProtocolViolation Refused "
    "StillframeError StoreError Unavailable UsageError",
    "stillframe.keyed": "Keyed",
    "stillframe.model": "Abandoned Channel ProcessId Reason SnapshotId",
    "stillframe.outbox": "Due Outbox OutboxEntry",
    "stillframe.pipeline.pipeline": "Pipeline",
    "stillframe.process": "Message Process Quantities every",
    "stillframe.protocol.policy": "Policy",
    "stillframe.running_system": "RunningSystem run",
    "stillframe.runtime.process.join": "JoinedProcess join",
    "stillframe.snapshot_store": "AbandonedSnapshot LoadedSnapshot SnapshotStore open_store",
    "stillframe.storage.location": "ObjectPath",
    "stillframe.store.manifest": "SnapshotEntry",
    "stillframe.store.tables": "DecodedMessage",
    "stillframe.topology": "ExternalProcess InTransit Recorded Topology",
    "stillframe.waiting": "Waiting for_all for_any",
}

__version__: str

if not TYPE_CHECKING:  # a type checker knows the names above, and no others

    def __getattr__(name: str) -> Any:
        """Import a public name when it is used: executors of a cluster import this package, and
        have only Arrow and PySpark."""
        if name == "__version__":
            return _version()
        return public_attribute(__name__, name, _MODULES)

    def _version() -> str:
        import importlib.metadata  # noqa: PLC0415 - it takes longer than the rest of this module

        try:
            return importlib.metadata.version(__name__)
        except importlib.metadata.PackageNotFoundError as error:
            raise AttributeError(f"{__name__} is not installed, so it has no version") from error

    def __dir__() -> list[str]:
        """Return all names, for completion in a notebook."""
        return sorted({*globals(), *__all__})
