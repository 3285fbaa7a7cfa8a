"""The published snapshots as the page lists them: a page of rows at a time."""

import contextlib
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stillframe.errors import StillframeError
from stillframe.model import SnapshotId
from stillframe.pipeline.snapshot_manifest import SNAPSHOTS as PIPELINE_SNAPSHOTS
from stillframe.pipeline.snapshot_manifest import Manifest, published_ids, read_manifest
from stillframe.store.layout import SNAPSHOTS as STORE_SNAPSHOTS
from stillframe.store.layout import explain_io_errors, snapshot_ids
from stillframe.store.manifest import Entry
from stillframe.store.store import Store

ROW_COUNT = 100
"""How many rows the page gets for one request."""
SETTLED_NS = 50_000_000
"""A directory that changed this long ago has another modification time when it changes again."""


class SnapshotList(ABC):
    """The ids in a directory of snapshots as of the last poll, and rows for some of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ids: list[SnapshotId] = []

    @property
    def count(self) -> int:
        """The number of snapshots at the last poll."""
        return len(self._ids)

    @property
    def ids(self) -> tuple[SnapshotId, ...]:
        """The snapshots at the last poll, by number."""
        return tuple(self._ids)

    def poll(self) -> tuple[list[SnapshotId], list[SnapshotId]]:
        """Return which snapshots are new, and which are gone, since the last poll."""
        found = self._find_ids()
        if found is None:
            return [], []
        before, now = set(self._ids), set(found)
        self._ids = found
        return [i for i in found if i not in before], [i for i in before if i not in now]

    def rows_before(self, number: int | None, count: int = ROW_COUNT) -> list[dict[str, Any]]:
        """Return rows of the newest snapshots, or of those with lower numbers; the newest first."""
        end = len(self._ids)
        if number is not None:
            end = bisect_left(self._ids, number, key=lambda i: i.number)
        return self.rows(reversed(self._ids[max(0, end - count) : end]))

    def rows(self, snapshots: Iterable[SnapshotId]) -> list[dict[str, Any]]:
        """Return the rows of those of some snapshots that exist; an unreadable one says why."""
        rows = []
        for snapshot in snapshots:
            try:
                rows.append(self._row(snapshot))
            except StillframeError as error:
                if (self._directory / str(snapshot)).is_dir():
                    row = {"id": str(snapshot), "number": snapshot.number, "error": str(error)}
                    rows.append(row)
        return rows

    @abstractmethod
    def _find_ids(self) -> list[SnapshotId] | None:
        """Return all ids by number; None if nothing has changed since the last poll."""

    @abstractmethod
    def _row(self, snapshot: SnapshotId) -> dict[str, Any]:
        """Return the row of one snapshot."""


class StoreSnapshots(SnapshotList):
    """The snapshots of a store."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.path / STORE_SNAPSHOTS)
        self._store = store
        self._changed_ns = -1

    def entries(self, snapshots: Iterable[SnapshotId]) -> list[Entry]:
        """Return the entries of those of some snapshots that exist and are readable."""
        found = []
        for snapshot in snapshots:
            with contextlib.suppress(StillframeError):
                found.append(self._store.entry(snapshot))
        return found

    def _find_ids(self) -> list[SnapshotId] | None:
        with explain_io_errors(self._directory, "read"):
            changed_ns = self._directory.stat().st_mtime_ns
        if changed_ns == self._changed_ns:
            return None
        found = snapshot_ids(self._directory)
        # The clock of a file system is coarse: a change within one tick shows at a later poll.
        is_settled = time.time_ns() - changed_ns > SETTLED_NS
        self._changed_ns = changed_ns if is_settled else -1
        return found

    def _row(self, snapshot: SnapshotId) -> dict[str, Any]:
        return store_row(self._store.entry(snapshot))


class PipelineSnapshots(SnapshotList):
    """The snapshots of a pipeline. A published one never changes, so each is read once."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / PIPELINE_SNAPSHOTS)
        self._root = root
        self._known: dict[SnapshotId, dict[str, Any]] = {}

    def _find_ids(self) -> list[SnapshotId]:
        found = published_ids(self._root)
        self._known = {i: self._known[i] for i in found if i in self._known}
        return found

    def _row(self, snapshot: SnapshotId) -> dict[str, Any]:
        if snapshot not in self._known:
            self._known[snapshot] = pipeline_row(read_manifest(self._root, snapshot))
        return self._known[snapshot]


def store_row(entry: Entry) -> dict[str, Any]:
    """Return the row of a system's snapshot. Times are seconds since 1970, durations seconds."""
    return {
        "id": str(entry.id),
        "number": entry.id.number,
        "epoch": entry.epoch,
        "completed_at": entry.completed_at,
        "duration_s": entry.completed_at - entry.initiated_at,
        "pause_s": entry.pause_s,
        "bytes": entry.bytes,
        "message_count": entry.message_count,
        "savepoints": entry.savepoints,
        "is_restore_point": entry.is_restore_point,
        "bases": [str(base) for base in entry.bases],
        "excluded": sorted(entry.excluded),
    }


def pipeline_row(manifest: Manifest) -> dict[str, Any]:
    """Return the row of a pipeline's snapshot. Times are seconds since 1970, durations seconds."""
    return {
        "id": str(manifest.snapshot),
        "number": manifest.snapshot.number,
        "epoch": manifest.epoch,
        "mode": str(manifest.mode),
        "completed_at": manifest.published_at,
        "duration_s": manifest.completed_at - manifest.initiated_at,
        "published_s": manifest.published_at - manifest.initiated_at,
        "bytes": manifest.bytes,
        "message_count": manifest.record_count,
        "duplicate_count": manifest.duplicate_count,
        "savepoints": [] if manifest.name is None else [manifest.name],
        "systems": [
            {"name": cut.name, "store": cut.store, "snapshot": str(cut.snapshot)}
            for cut in manifest.systems
        ],
    }
