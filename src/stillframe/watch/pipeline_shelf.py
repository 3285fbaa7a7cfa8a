"""The snapshots of a pipeline as the page lists them. What was published never changes, so each
manifest is read once."""

from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stillframe.errors import StillframeError
from stillframe.model import SnapshotId
from stillframe.pipeline.published import (
    Manifest,
    published_ids,
    read_manifest,
    snapshot_path,
)
from stillframe.watch.shelf import ROW_COUNT


class PipelineShelf:
    """Which snapshots there are, and rows for some of them.

    Args:
        root: the pipeline.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ids: list[SnapshotId] = []
        self._rows: dict[SnapshotId, dict[str, Any]] = {}

    @property
    def ids(self) -> tuple[SnapshotId, ...]:
        """Those that there were when somebody looked last, by number."""
        return tuple(self._ids)

    def look(self) -> tuple[list[SnapshotId], list[SnapshotId]]:
        """Look which there are now; return those that are new, and those that are gone.

        Raises:
            Damaged, StoreError: something else is among them, or they cannot be read.
        """
        found = published_ids(self._root)
        before, now = set(self._ids), set(found)
        self._ids = found
        gone = [snapshot for snapshot in before if snapshot not in now]
        for snapshot in gone:
            self._rows.pop(snapshot, None)
        return [snapshot for snapshot in found if snapshot not in before], gone

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

    def _row(self, snapshot: SnapshotId) -> dict[str, Any] | None:
        if snapshot not in self._rows:
            try:
                self._rows[snapshot] = row_of(read_manifest(self._root, snapshot))
            except StillframeError as error:
                if not snapshot_path(self._root, snapshot).is_dir():
                    return None
                return {"id": str(snapshot), "number": snapshot.number, "trouble": str(error)}
        return self._rows[snapshot]


def row_of(manifest: Manifest) -> dict[str, Any]:
    """Return what the list says of a snapshot. Times are seconds since 1970, spans seconds."""
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
