"""The published snapshots as the page lists them: a page of rows at a time."""

import functools
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from stillframe.errors import StillframeError
from stillframe.model import SnapshotId
from stillframe.pipeline.snapshot_manifest import SNAPSHOTS as PIPELINE_SNAPSHOTS
from stillframe.pipeline.snapshot_manifest import Manifest, published_ids, read_manifest
from stillframe.storage.files import mapped
from stillframe.storage.location import Location, ObjectPath
from stillframe.store.layout import (
    OBSERVATIONS,
    changed_ns,
    explain_io_errors,
    is_published_at,
    snapshot_ids,
)
from stillframe.store.layout import SNAPSHOTS as STORE_SNAPSHOTS
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.observations import ObservationManifest, ObservationReader
from stillframe.store.store import Store

ROW_COUNT = 100
"""How many rows the page gets for one request."""
KEPT_ROW_COUNT_MAX = 10_000
"""How many rows of snapshots and observations that never change are kept."""
SETTLED_NS = 2_000_000_000
"""A directory that changed this long ago has another modification time when it changes again: some
file systems count in steps of two seconds."""

LOOKED_COUNT_MAX = 100
"""How often a snapshot in an object store that is not published is looked at; then it never is."""


class Numbered(Protocol):
    """The id of a snapshot or an observation; as text it is the name of its directory."""

    @property
    def number(self) -> int:
        """Its number, by which the list is ordered."""


Id = TypeVar("Id", bound=Numbered)


class ObservationId(NamedTuple):
    """The id of an observation: its number."""

    number: int

    def __str__(self) -> str:
        return str(self.number)


class SnapshotList(Generic[Id]):
    """The ids in a directory of snapshots as of the last poll, and rows for some of them.

    `find_ids` returns all ids by number, and `row` the row of one snapshot.
    """

    def __init__(
        self,
        directory: Location,
        find_ids: Callable[[], list[Id]],
        row: Callable[[Id], dict[str, Any]],
    ) -> None:
        self._directory = directory
        self._find_ids = find_ids
        self._row = row
        self._ids: list[Id] = []
        self._changed_ns = -1

    @property
    def count(self) -> int:
        """The number of snapshots at the last poll."""
        return len(self._ids)

    @property
    def ids(self) -> tuple[Id, ...]:
        """The snapshots at the last poll, by number."""
        return tuple(self._ids)

    def poll(self) -> tuple[list[Id], list[Id]]:
        """Return which snapshots are new, and which were deleted, since the last poll."""
        with explain_io_errors(self._directory, "read"):
            # That of a pipeline appears with its first snapshot.
            changed_at = changed_ns(self._directory)
        if changed_at == self._changed_ns:
            return [], []
        found = self._find_ids()
        # The clock of a file system is coarse: a change within one tick shows at a later poll.
        is_settled = time.time_ns() - changed_at > SETTLED_NS
        self._changed_ns = changed_at if is_settled else -1
        before, now = set(self._ids), set(found)
        self._ids = found
        return [i for i in found if i not in before], [i for i in before if i not in now]

    def rows_before(self, number: int | None, count: int = ROW_COUNT) -> list[dict[str, Any]]:
        """Return rows of the newest snapshots, or of those with lower numbers; the newest first."""
        end = len(self._ids)
        if number is not None:
            end = bisect_left(self._ids, number, key=lambda i: i.number)
        return self.rows(reversed(self._ids[max(0, end - count) : end]))

    def rows(self, snapshots: Iterable[Id]) -> list[dict[str, Any]]:
        """Return the rows of those of some snapshots that exist; an unreadable one says why."""
        rows = []
        for snapshot in snapshots:
            try:
                rows.append(self._row(snapshot))
            except StillframeError as error:
                if is_published_at(self._directory / str(snapshot)):
                    row = {"id": str(snapshot), "number": snapshot.number, "error": str(error)}
                    rows.append(row)
        return rows


def store_snapshots(store: Store) -> SnapshotList[SnapshotId]:
    """Return the list of the snapshots of a store."""
    directory = store.path / STORE_SNAPSHOTS
    find_ids: Callable[[], list[SnapshotId]] = lambda: snapshot_ids(directory)  # noqa: E731
    if isinstance(directory, ObjectPath):
        find_ids = _PublishedObjects(directory).ids
    return SnapshotList(directory, find_ids, lambda snapshot: store_row(store.entry(snapshot)))


class _PublishedObjects:
    """The published snapshots in a directory of an object store. A listing has others, too: those
    that are being written, and those that never came. Each is looked at until it is published."""

    def __init__(self, directory: ObjectPath) -> None:
        self._directory = directory
        self._published: set[SnapshotId] = set()
        self._looked_count: dict[SnapshotId, int] = {}

    def ids(self) -> list[SnapshotId]:
        """Return the ids by number."""
        found = snapshot_ids(self._directory)
        self._published.intersection_update(found)
        unknown = [
            one
            for one in found
            if one not in self._published and self._looked_count.get(one, 0) < LOOKED_COUNT_MAX
        ]
        places = [self._directory / str(one) for one in unknown]
        are_there = mapped(self._directory, is_published_at, places)
        for one, is_there in zip(unknown, are_there, strict=True):
            self._looked_count[one] = self._looked_count.get(one, 0) + 1
            if is_there:
                self._published.add(one)
                del self._looked_count[one]
        return [one for one in found if one in self._published]


def pipeline_snapshots(root: Location) -> SnapshotList[SnapshotId]:
    """Return the list of the snapshots of the pipeline in a directory. A published one never
    changes, so each is read once."""

    @functools.lru_cache(maxsize=KEPT_ROW_COUNT_MAX)
    def row(snapshot: SnapshotId) -> dict[str, Any]:
        return pipeline_row(read_manifest(root, snapshot))

    return SnapshotList(root / PIPELINE_SNAPSHOTS, lambda: published_ids(root), row)


def stored_observations(store: ObservationReader) -> SnapshotList[ObservationId]:
    """Return the list of the observations of a store. One never changes, so each is read once."""

    @functools.lru_cache(maxsize=KEPT_ROW_COUNT_MAX)
    def row(observation: ObservationId) -> dict[str, Any]:
        return observation_row(store.manifest(observation.number))

    def find_ids() -> list[ObservationId]:
        return [ObservationId(number) for number in store.numbers()]

    return SnapshotList(store.path / OBSERVATIONS, find_ids, row)


def store_row(entry: SnapshotEntry) -> dict[str, Any]:
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
    """Return the row of a pipeline's snapshot. Times are seconds since 1970, durations seconds. The
    count of records in transit is None if some may be in topics of Kafka."""
    return {
        "id": str(manifest.snapshot),
        "number": manifest.snapshot.number,
        "epoch": manifest.epoch,
        "mode": manifest.mode_words,
        "completed_at": manifest.published_at,
        "duration_s": manifest.completed_at - manifest.initiated_at,
        "published_s": manifest.published_at - manifest.initiated_at,
        "bytes": manifest.bytes,
        "message_count": None if manifest.topics else manifest.record_count,
        "staleness_s": manifest.staleness_s,
        "data_age_s": manifest.data_age_s,
        "duplicate_count": manifest.duplicate_count,
        "savepoints": [] if manifest.name is None else [manifest.name],
        "systems": [
            {"name": cut.name, "store": cut.store, "snapshot": str(cut.snapshot)}
            for cut in manifest.systems
        ],
    }


def observation_row(manifest: ObservationManifest) -> dict[str, Any]:
    """Return the row of an observation. Times are seconds since 1970, durations seconds."""
    return {
        "id": str(manifest.number),
        "number": manifest.number,
        "completed_at": manifest.completed_at,
        "duration_s": manifest.duration_s,
        "bytes": manifest.byte_count,
        "quality": manifest.quality,
        "instance_count": manifest.instance_count,
        "open_count": manifest.open_count,
        "unresolved_count": manifest.unresolved_count,
    }
