"""Consistent global snapshots of running distributed systems.

Write processes (`Process`, `Message`, `every`), say how they are connected (`Topology`), and run
them with ``stillframe run``; a program with its own loop takes part with `join`.
"""

from typing import TYPE_CHECKING, Any

from stillframe.errors import StillframeError
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.process import Message, Process, every
from stillframe.topology import Joined, Topology

if TYPE_CHECKING:
    from stillframe.runtime.joined import join

__all__ = [
    "Channel",
    "Joined",
    "Message",
    "Process",
    "ProcessId",
    "SnapshotId",
    "StillframeError",
    "Topology",
    "every",
    "join",
]


def __getattr__(name: str) -> Any:
    """Import what needs an event loop only when it is asked for."""
    if name == "join":
        from stillframe.runtime.joined import join

        return join
    raise AttributeError(f"module 'stillframe' has no attribute {name!r}")
