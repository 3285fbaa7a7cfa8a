"""The snapshots of a store as the page lists them: some at a time, however many there are."""

import contextlib
import time
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stillframe.errors import StillframeError
from stillframe.model import SnapshotId
from stillframe.store.manifest import Entry
from stillframe.store.opening import SNAPSHOTS, explained, snapshot_directories
from stillframe.store.store import Store

ROW_COUNT = 100
"""So many rows the page asks for at once, and may."""
SETTLED_NS = 50_000_000
"""A directory that changed so long ago has another time when it changes again."""


class Shelf:
    """Which snapshots there are, and rows for some of them.

    Args:
        store: open for reading.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._directory: Path = store.path / SNAPSHOTS
        self._changed_ns = -1
        self._ids: list[SnapshotId] = []

    @property
    def count(self) -> int:
        """How many there were when somebody looked last."""
        return len(self._ids)

    @property
    def ids(self) -> tuple[SnapshotId, ...]:
        """Those that there were when somebody looked last, by number."""
        return tuple(self._ids)

    def look(self) -> tuple[list[SnapshotId], list[SnapshotId]]:
        """Look which there are now; return those that are new, and those that are gone.

        Raises:
            StoreError: the store cannot be read.
        """
        with explained(self._directory, "read"):
            changed_ns = self._directory.stat().st_mtime_ns
        if changed_ns == self._changed_ns:
            return [], []
        directories = snapshot_directories(self._directory)
        found = sorted(
            (SnapshotId.parse(path.name) for path in directories), key=lambda i: (i.number, i)
        )
        # The clock of a file system stands still for a while: what came in that time shows later.
        is_settled = time.time_ns() - changed_ns > SETTLED_NS
        self._changed_ns = changed_ns if is_settled else -1
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
        """Return what the list says of some snapshots, of those that are there."""
        rows = (self._row(snapshot) for snapshot in snapshots)
        return [row for row in rows if row is not None]

    def entries(self, snapshots: Iterable[SnapshotId]) -> list[Entry]:
        """Return the entries of some snapshots, of those that are there and can be read."""
        found = []
        for snapshot in snapshots:
            with contextlib.suppress(StillframeError):
                found.append(self._store.entry(snapshot))
        return found

    def _row(self, snapshot: SnapshotId) -> dict[str, Any] | None:
        try:
            return row_of(self._store.entry(snapshot))
        except StillframeError as error:
            if not (self._directory / str(snapshot)).is_dir():
                return None
            return {"id": str(snapshot), "number": snapshot.number, "trouble": str(error)}


def row_of(entry: Entry) -> dict[str, Any]:
    """Return what the list says of a snapshot. Times are seconds since 1970, spans seconds."""
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
