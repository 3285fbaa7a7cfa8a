"""A system of processes with channels over TCP, some of which are services of a pipeline.

Its own snapshot, with markers on those channels, and the pipeline's, with barriers in the logs,
become one cut: a process that is in both records once, in one atomic step, for both. The system's
coordinator says under which id it takes its part, before any marker travels, and how that ended:

    ROOT/under-way/shop-17/systems/P1.json     the system whose first service is P1
"""

import contextlib
import enum
from pathlib import Path

import msgspec

from stillframe.errors import Damaged, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline.dataflow import Dataflow
from stillframe.pipeline.part import Request, request_path
from stillframe.store.disk import replace_durably
from stillframe.store.opening import explained
from stillframe.store.seal import FORMAT, read_sealed, seal
from stillframe.store.store import Store

SYSTEMS = "systems"


class Outcome(enum.Enum):
    """How far a system is with its part."""

    UNDER_WAY = "under way"
    PUBLISHED = "published"
    ABANDONED = "abandoned"


class SystemCut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A system's part of a pipeline's snapshot: a snapshot of its own, in its own store.

    `name` is the first of its services, `store` the absolute path of its store, `detail` why it
    was abandoned.
    """

    format: int = FORMAT
    name: str
    store: str
    snapshot: SnapshotId
    outcome: Outcome = Outcome.UNDER_WAY
    detail: str = ""


def services_among(dataflow: Dataflow, processes: list[str]) -> tuple[str, ...]:
    """Return which processes of a system are services of the pipeline, sorted.

    Raises:
        UsageError: none is.
    """
    attached = tuple(sorted(set(processes) & dataflow.services.keys()))
    if not attached:
        raise UsageError(
            f"no process of the system ({', '.join(processes)}) is a service of the pipeline "
            f"({', '.join(dataflow.services) or 'it has none'}): they are joined by equal names"
        )
    return attached


def announce_cut(root: Path, request: Request, cut: SystemCut) -> None:
    """Say how far a system is; if the pipeline's snapshot is over, nothing is written."""
    path = request_path(root, request.snapshot) / SYSTEMS / f"{cut.name}.json"
    with explained(path, "written"), contextlib.suppress(FileNotFoundError):
        path.parent.mkdir(exist_ok=True)
        replace_durably(path, seal(cut))


def system_cut(root: Path, snapshot: SnapshotId, name: str) -> SystemCut | None:
    """Return how far a system is with its part; None if it has not begun."""
    path = request_path(root, snapshot) / SYSTEMS / f"{name}.json"
    if not path.exists():
        return None
    try:
        return read_sealed(path, SystemCut)
    except Damaged:
        if path.exists():
            raise
        return None  # the pipeline's snapshot is over, and its directory gone


def verify_system(cut: SystemCut) -> None:
    """Check that a system's part is in its store, every byte of it.

    Raises:
        UsageError: the store or the snapshot is not there.
        Damaged, NotConsistent, StoreError: it is not what was published.
    """
    Store.open(Path(cut.store)).verify(cut.snapshot)
