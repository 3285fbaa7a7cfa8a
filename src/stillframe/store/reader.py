"""Reading a store, also while its one writer is publishing.

A snapshot is read, verified and queried with the topology that it was taken of: the current one of
the store, or one before a change of code.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

import pyarrow as pa

from stillframe.durable_files import shell_command
from stillframe.errors import Damaged, StillframeError, UsageError
from stillframe.model import Snapshot, SnapshotId
from stillframe.storage.files import mapped
from stillframe.storage.location import Location
from stillframe.store import layout, snapshot_directory
from stillframe.store.history import (
    began_before_epoch,
    explain_loss,
    lost_snapshots,
    not_removed,
)
from stillframe.store.layout import SNAPSHOTS, snapshot_ids
from stillframe.store.manifest import (
    Head,
    Manifest,
    Manifests,
    SnapshotEntry,
    check_chain,
    entry_of,
    reachable,
)
from stillframe.store.snapshot_directory import SnapshotChain
from stillframe.store.tables import Tables
from stillframe.topology import Description

_Answer = TypeVar("_Answer")


class StoreReader:
    """The snapshots of one system, to read; ``store.Store`` is the entry point.

    Every answer is what the store holds at that moment: the disk is read each time. `path` is its
    directory. Every method raises StoreError if something cannot be read; one that needs a manifest
    or a file raises Damaged if that is not what was written, and names it; one that is given a
    snapshot raises UsageError if there is none, and lists those that exist.
    """

    def __init__(self, path: Location) -> None:
        self.path = path
        self._snapshots = path / SNAPSHOTS
        self._head = self._read_head()
        self._tables: dict[str, Tables] = {}

    @property
    def description(self) -> Description:
        """The topology of new snapshots; ``description_of`` returns that of an older one."""
        return self._head.description

    @property
    def reference(self) -> str | None:
        """Where that topology is defined, ``module:attribute``, if known."""
        return self._head.reference

    @property
    def epoch(self) -> int:
        """How many times the system was started or restored; 0 before the first start."""
        return self._head_now().epoch

    @property
    def restored_from(self) -> SnapshotId | None:
        """The snapshot from which the current epoch began; None for the initial states."""
        return self._head_now().restored_from

    @property
    def savepoints(self) -> dict[str, SnapshotId]:
        """The snapshots that are kept under a name."""
        return dict(self._head_now().savepoints)

    def find(self, text: str) -> SnapshotId:
        """Return the snapshot that `text` names: a savepoint, or an id, which need not exist."""
        return layout.find_snapshot(text, self._head_now().savepoints, self.path)

    def check_savepoint(self, name: str) -> None:
        """Raise a UsageError if a new savepoint cannot be called `name`."""
        layout.check_savepoint_name(name)
        known = self.savepoints
        if name in known:
            raise UsageError(
                f"the savepoint {name!r} already exists, as snapshot {known[name]}: give another "
                f"name, or delete that one with '{shell_command('delete', self.path, name)}'"
            )

    def entries(self) -> list[SnapshotEntry]:
        """Return all snapshots in the order of publishing."""
        return self._entries_of(self._manifests())

    def listing(self) -> tuple[list[SnapshotEntry], dict[SnapshotId, Damaged]]:
        """Return ``entries`` without those whose manifest is damaged, and the errors of these."""
        manifests, damages = self._readable()
        return self._entries_of(manifests), dict(sorted(damages.items()))

    def current(self) -> SnapshotEntry | None:
        """Return the snapshot for a restore after a death: the newest restore point of this epoch,
        else the snapshot from which this epoch began, else None.

        Newer ones of an older epoch do not count: the system was rolled back to before them on
        purpose. A UsageError if the snapshot from which this epoch began was deleted: name another
        one.
        """
        snapshot = self._current()
        return None if snapshot is None else self._entry_of(self._gathered(snapshot), snapshot)

    def entry(self, snapshot: SnapshotId) -> SnapshotEntry:
        """Return the entry of one snapshot."""
        entry = self._entry_of(self._gathered(snapshot), snapshot)
        if self._is_removed(snapshot):
            raise self._missing(snapshot)
        return entry

    def description_of(self, snapshot: SnapshotId) -> Description:
        """Return the topology that a snapshot was taken of."""
        return self._head.described[self._manifest(snapshot).topology]

    def load(self, snapshot: SnapshotId) -> Snapshot:
        """Read a full snapshot, verified; a NotConsistent if its books do not balance."""
        return self._reading(snapshot, snapshot_directory.read_snapshot)

    def tables(self, snapshot: SnapshotId) -> dict[str, pa.Table]:
        """Return a snapshot as tables by name: processes, channels, messages, and
        ``<class>_<field>`` for each keyed field, with a row for each key."""
        return self._reading(snapshot, snapshot_directory.read_tables)

    def verify(self, snapshot: SnapshotId) -> None:
        """Read every byte of a snapshot, of its bases and of ``store.json``, and compare redundant
        data. A NotConsistent if the books do not balance, or the columns for queries differ from
        the recorded states and messages."""
        self._read_head()
        self._reading(snapshot, snapshot_directory.verify_snapshot)
        self._reading(snapshot, snapshot_directory.verify_links)

    def verify_all(self, progress: Callable[[SnapshotEntry, int], None]) -> int:
        """Verify every snapshot, the oldest first, except those that are dropped meanwhile; return
        how many. `progress` is called after each with its entry and the number of all.

        Errors are as for ``verify``, for the first snapshot that is wrong; a Damaged, too, if a
        published snapshot is missing (``lost_snapshots``).
        """
        self._read_head()
        entries = self.entries()
        verified_count = 0
        for entry in entries:
            try:
                self._reading(entry.id, snapshot_directory.verify_snapshot)
            except UsageError:
                if layout.is_published_at(entry.directory):
                    raise
                continue
            verified_count += 1
            progress(entry, len(entries))
        # Last: a damaged history must not hide the error of a snapshot.
        for lost in lost_snapshots(self.path):
            raise Damaged(explain_loss(self.path, lost), path=self.path, snapshot=lost)
        return verified_count

    def next_number(self) -> int:
        """Return a number for the next snapshot: above that of every snapshot in the store."""
        return 1 + max((snapshot.number for snapshot in snapshot_ids(self._snapshots)), default=0)

    def _reading(self, snapshot: SnapshotId, read: Callable[[SnapshotChain], _Answer]) -> _Answer:
        """Return what `read` makes of a snapshot and of its bases.

        Files may be removed meanwhile: changes whose snapshot was rewritten in full, and snapshots
        that are no base any more. Then the manifests have changed, and are read again.
        """
        seen: dict[SnapshotId, Manifest] = {}
        while True:
            manifests = self._gathered(snapshot)
            try:
                return read(self._chain(manifests, snapshot))
            except StillframeError as error:
                error.locate(snapshot=snapshot, path=self._snapshots / str(snapshot))
                if manifests == seen or not isinstance(error, Damaged):
                    if isinstance(error, Damaged) and self._is_removed(snapshot):
                        raise self._missing(snapshot) from None
                    raise
            seen = manifests

    def _chain(self, manifests: dict[SnapshotId, Manifest], snapshot: SnapshotId) -> SnapshotChain:
        """Check that a snapshot and its bases can be read together, and return them."""
        check_chain(manifests, self._snapshots)
        manifest = manifests[snapshot]
        tables = self._tables_of(manifest.topology)
        return SnapshotChain(self._snapshots, manifest, manifests, tables)

    def _tables_of(self, topology: str) -> Tables:
        if topology not in self._tables:
            self._tables[topology] = Tables(self._head.described[topology])
        return self._tables[topology]

    def _read_head(self) -> Head:
        return layout.read_head(self.path)

    def _head_now(self) -> Head:
        """Read ``store.json`` again: the writer may have raised the epoch."""
        head = self._read_head()
        if head != self._head:  # the same object, most often, knows its topologies by hash already
            self._head = head
        return self._head

    def _manifests(self) -> dict[SnapshotId, Manifest]:
        manifests, damages = self._readable()
        for damage in damages.values():
            raise damage
        return manifests

    def _readable(self) -> tuple[dict[SnapshotId, Manifest], dict[SnapshotId, Damaged]]:
        # In this order: ``store.json`` then has the topology of every snapshot found.
        snapshots = snapshot_ids(self._snapshots)
        self._head_now()
        manifests: dict[SnapshotId, Manifest] = {}
        damages: dict[SnapshotId, Damaged] = {}
        for snapshot, found in self._read_each(not_removed(self.path, snapshots)):
            if isinstance(found, Damaged):
                damages[snapshot] = found
            elif found is not None:
                manifests[snapshot] = found
        return manifests, damages

    def _read_each(
        self, snapshots: list[SnapshotId]
    ) -> Iterator[tuple[SnapshotId, Manifest | Damaged | None]]:
        """Yield each snapshot with its manifest, its error, or None if it was dropped meanwhile."""

        def read(snapshot: SnapshotId) -> Manifest | Damaged | None:
            try:
                return self._read_if_there(snapshot)
            except Damaged as damage:
                return damage

        yield from zip(snapshots, mapped(self.path, read, snapshots), strict=True)

    def _gathered(self, snapshot: SnapshotId) -> dict[SnapshotId, Manifest]:
        """Return the manifests of a snapshot, which must exist, and of its bases."""
        return {snapshot: self._manifest(snapshot)} | reachable(snapshot, self._manifest_if_there)

    def _manifest(self, snapshot: SnapshotId) -> Manifest:
        manifest = self._manifest_if_there(snapshot)
        if manifest is None:
            raise self._missing(snapshot)
        return manifest

    def _missing(self, snapshot: SnapshotId) -> UsageError:
        # By their directories: a damaged manifest of another one does not matter here.
        known = sorted(map(SnapshotId.parse, layout.published_names(self._snapshots)))
        why = layout.explain_missing(self.path, snapshot, not_removed(self.path, known))
        return UsageError(why, path=self.path, snapshot=snapshot)

    def _is_removed(self, snapshot: SnapshotId) -> bool:
        return not not_removed(self.path, [snapshot])

    def _manifest_if_there(self, snapshot: SnapshotId) -> Manifest | None:
        if not layout.is_snapshot_id(snapshot) or not layout.is_published(self.path, snapshot):
            return None
        self._head_now()
        return self._read_if_there(snapshot)

    def _read_if_there(self, snapshot: SnapshotId) -> Manifest | None:
        """Return the manifest of a snapshot; None if that was dropped meanwhile."""
        try:
            return layout.read_published(self._snapshots / str(snapshot), self._head.described)
        except Damaged as error:
            error.locate(snapshot=snapshot)
            raise

    def _current(self) -> SnapshotId | None:
        point = self._newest_restore_point()
        return self._head.restored_from if point is None else point.snapshot

    def _newest_restore_point(self) -> Manifest | None:
        """Return the newest restore point of the epoch, which is then that of ``_head``; a Damaged
        if it is one whose manifest was changed, or may be.

        Searches from the newest snapshot back and no further than that epoch: numbers only rise.
        """
        # In this order: a snapshot that comes meanwhile is of an epoch that is not over.
        snapshots = snapshot_ids(self._snapshots)
        epoch = self._head_now().epoch
        for snapshot in reversed(snapshots):
            try:
                manifest = self._read_if_there(snapshot)
            except Damaged:
                if not began_before_epoch(self.path, snapshot, epoch):
                    raise
                continue
            if manifest is not None and manifest.epoch != epoch:
                return None
            if manifest is not None and manifest.is_restore_point:
                return manifest
        return None

    def _entries_of(self, manifests: Manifests) -> list[SnapshotEntry]:
        ordered = sorted(manifests, key=lambda snapshot: manifests[snapshot].sequence)
        return [self._entry_of(manifests, snapshot) for snapshot in ordered]

    def _entry_of(self, manifests: Manifests, snapshot: SnapshotId) -> SnapshotEntry:
        return entry_of(manifests, snapshot, self._head, self._snapshots)
