"""Reading a store, also while its one writer is publishing.

A snapshot is read, verified and queried with the topology that it was taken of: the current one of
the store, or one before a change of code.
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa

from stillframe.errors import Damaged, UsageError
from stillframe.model import Snapshot, SnapshotId
from stillframe.store import layout, snapshot_directory
from stillframe.store.history import began_before_epoch, explain_loss, lost_snapshots
from stillframe.store.layout import HEAD, SNAPSHOTS, first_names, snapshot_directories
from stillframe.store.manifest import (
    Entry,
    Head,
    Manifest,
    chain_length,
    check_chain,
    entry_of,
    newest_restore_point,
    reachable,
    read_manifest,
)
from stillframe.store.sealed_json import read_sealed
from stillframe.store.snapshot_directory import SnapshotChain
from stillframe.store.tables import Tables
from stillframe.topology import Description

FORMER_COUNT_MAX = 100
"""Maximum former topologies; more would take too long to read."""


class TopologyHistory:
    """The topologies in ``store.json``, by the hash that each manifest has (`described`); `present`
    is the hash of the topology of new snapshots."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self.present = head.description.hash
        self.described = {d.hash: d for d in (*head.former, head.description)}
        self._tables: dict[str, Tables] = {}

    def following(self, head: Head) -> "TopologyHistory":
        """Return the topologies after `head` was read; most often the same object."""
        is_same = (head.description, head.former) == (self._head.description, self._head.former)
        return self if is_same else TopologyHistory(head)

    def tables(self, topology: str) -> Tables:
        """Return the tables of the topology with that hash."""
        if topology not in self._tables:
            self._tables[topology] = Tables(self.described[topology])
        return self._tables[topology]


def with_topology(head: Head, description: Description, used: Collection[str]) -> Head:
    """Return the head of a store whose topology is `description` from now on; it may be a former
    one. Former topologies that are not among `used`, the hashes that snapshots have, are forgotten.
    """
    known = {d.hash: d for d in (*head.former, head.description) if d.hash in used}
    known.pop(description.hash, None)
    if len(known) > FORMER_COUNT_MAX:
        raise UsageError(
            f"the store holds snapshots of {len(known)} topologies, and at most "
            f"{FORMER_COUNT_MAX} former ones are kept: delete the snapshots of the oldest"
        )
    return msgspec.structs.replace(head, description=description, former=tuple(known.values()))


_Answer = TypeVar("_Answer")


class StoreReader:
    """The snapshots of one system, to read; ``store.Store`` is the entry point.

    Every answer is what the store holds at that moment: the disk is read each time. `path` is its
    directory. Every method raises StoreError if something cannot be read; one that needs a manifest
    or a file raises Damaged if that is not what was written, and names it; one that is given a
    snapshot raises UsageError if there is none, and lists those that exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._snapshots = path / SNAPSHOTS
        self._head = self._read_head()
        self._topologies = TopologyHistory(self._head)

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
        """How often the system was started or restored; 0 before the first time."""
        return self._head_now().epoch

    @property
    def restored_from(self) -> SnapshotId | None:
        """The snapshot from which the current epoch began; None if it began afresh."""
        return self._head_now().restored_from

    @property
    def savepoints(self) -> dict[str, SnapshotId]:
        """The snapshots that are kept under a name."""
        return dict(self._head_now().savepoints)

    def find(self, text: str) -> SnapshotId:
        """Return the snapshot that `text` names: a savepoint, or an id, which need not exist. A
        UsageError if it is neither."""
        return layout.find_snapshot(text, self._head_now().savepoints)

    def check_savepoint(self, name: str) -> None:
        """Raise a UsageError if a new savepoint cannot be called `name`."""
        layout.check_savepoint_name(name)
        known = self.savepoints
        if name in known:
            raise UsageError(
                f"there is a savepoint {name!r} already, snapshot {known[name]}: give another "
                f"name, or drop that one with 'stillframe drop {self.path} {name}'"
            )

    def entries(self) -> list[Entry]:
        """Return all snapshots in the order of publishing."""
        return self._entries_of(self._manifests())

    def listing(self) -> tuple[list[Entry], dict[SnapshotId, Damaged]]:
        """Return the snapshots with a readable manifest, as ``entries``, and the errors of the
        others."""
        manifests, damages = self._readable()
        return self._entries_of(manifests), dict(sorted(damages.items()))

    def current(self) -> Entry | None:
        """Return the snapshot for a restore after a death: the newest restore point of this epoch,
        else the snapshot from which this epoch began, else None.

        Newer ones of an older epoch do not count: the system was rolled back to before them on
        purpose. A UsageError if the snapshot from which this epoch began was deleted: name another
        one.
        """
        point = self._newest_restore_point()
        snapshot = self._head.restored_from if point is None else point.snapshot
        return None if snapshot is None else self.entry(snapshot)

    def entry(self, snapshot: SnapshotId) -> Entry:
        """Return the entry of one snapshot."""
        manifests = self._gathered(snapshot)
        return self._entry_of(manifests[snapshot], chain_length(manifests, snapshot))

    def description_of(self, snapshot: SnapshotId) -> Description:
        """Return the topology that a snapshot was taken of."""
        return self._topologies.described[self._manifest(snapshot).topology]

    def load(self, snapshot: SnapshotId) -> Snapshot:
        """Read a full snapshot; every file that is read is verified.

        Raises:
            NotConsistent: its books do not balance.
        """
        return self._reading(snapshot, snapshot_directory.read_snapshot)

    def tables(self, snapshot: SnapshotId) -> dict[str, pa.Table]:
        """Return a snapshot as tables by name: processes, channels, messages, and
        ``<class>_<field>`` for each keyed field, with a row for each key."""
        return self._reading(snapshot, snapshot_directory.read_tables)

    def verify(self, snapshot: SnapshotId) -> None:
        """Read every byte of a snapshot, of its bases and of ``store.json``, and compare redundant
        data.

        Raises:
            NotConsistent: the books do not balance, or the columns for queries differ from the
                recorded states and messages.
        """
        self._read_head()
        self._reading(snapshot, snapshot_directory.verify_snapshot)
        self._reading(snapshot, snapshot_directory.verify_links)

    def verify_all(self, progress: Callable[[Entry, int], None]) -> int:
        """Verify every snapshot, the oldest first, except those that are dropped meanwhile.
        `progress` is called after each with its entry and the number of all.

        Returns:
            how many were verified.

        Raises:
            NotConsistent: as ``verify``, for the first that is wrong.
            Damaged: a published snapshot is missing (``lost_snapshots``).
        """
        self._read_head()
        entries = self.entries()
        verified_count = 0
        for entry in entries:
            try:
                self._reading(entry.id, snapshot_directory.verify_snapshot)
            except UsageError:
                if entry.directory.is_dir():
                    raise
                continue
            verified_count += 1
            progress(entry, len(entries))
        # Last: a damaged history must not hide the error of a snapshot.
        for lost in lost_snapshots(self.path):
            raise Damaged(explain_loss(self.path, lost))
        return verified_count

    def next_number(self) -> int:
        """Return a number for the next snapshot: above that of every snapshot in the store."""
        directories = snapshot_directories(self._snapshots)
        ids = [SnapshotId.parse(directory.name) for directory in directories]
        return 1 + max((snapshot.number for snapshot in ids), default=0)

    def _reading(self, snapshot: SnapshotId, read: Callable[[SnapshotChain], _Answer]) -> _Answer:
        """Return what `read` makes of a snapshot and of its bases.

        Files may be removed meanwhile: changes whose snapshot was rewritten in full, and snapshots
        that are no base any more. Then the manifests have changed, and are read again.
        """
        seen: dict[SnapshotId, Manifest] = {}
        while True:
            manifests = self._gathered(snapshot)
            manifest = manifests[snapshot]
            tables = self._topologies.tables(manifest.topology)
            try:
                check_chain(manifests, manifest, self._snapshots)
                return read(SnapshotChain(self._snapshots, manifest, manifests, tables))
            except Damaged:
                if manifests == seen:
                    raise
            seen = manifests

    def _read_head(self) -> Head:
        return read_sealed(self.path / HEAD, Head)

    def _head_now(self) -> Head:
        """Read ``store.json`` again: the writer may have raised the epoch."""
        self._take(self._read_head())
        return self._head

    def _take(self, head: Head) -> None:
        self._head, self._topologies = head, self._topologies.following(head)

    def _manifests(self) -> dict[SnapshotId, Manifest]:
        """Return all manifests, or raise the error of one."""
        manifests, damages = self._readable()
        for damage in damages.values():
            raise damage
        return manifests

    def _readable(self) -> tuple[dict[SnapshotId, Manifest], dict[SnapshotId, Damaged]]:
        """Return the manifests that can be read, and the errors of the others."""
        # In this order: ``store.json`` then has the topology of every snapshot found.
        directories = snapshot_directories(self._snapshots)
        self._head_now()
        manifests: dict[SnapshotId, Manifest] = {}
        damages: dict[SnapshotId, Damaged] = {}
        for directory in directories:
            try:
                manifest = self._read_if_there(directory)
            except Damaged as damage:
                damages[SnapshotId.parse(directory.name)] = damage
                continue
            if manifest is not None:
                manifests[manifest.snapshot] = manifest
        return manifests, damages

    def _gathered(self, snapshot: SnapshotId) -> dict[SnapshotId, Manifest]:
        """Return the manifests of a snapshot, which must exist, and of its bases."""
        return {snapshot: self._manifest(snapshot)} | reachable(snapshot, self._manifest_if_there)

    def _manifest(self, snapshot: SnapshotId) -> Manifest:
        manifest = self._manifest_if_there(snapshot)
        if manifest is None:
            # By their directories: a damaged manifest of another one does not matter here.
            found = snapshot_directories(self._snapshots)
            ids = [SnapshotId.parse(directory.name) for directory in found]
            known = [str(one) for one in sorted(ids, key=lambda one: one.number)]
            raise UsageError(
                f"there is no snapshot {snapshot} in the store {self.path}; "
                f"there {'are ' + first_names(known) if known else 'is none at all'}"
            )
        return manifest

    def _manifest_if_there(self, snapshot: SnapshotId) -> Manifest | None:
        directory = self._snapshots / str(snapshot)
        if not layout.is_snapshot_id(snapshot) or not directory.is_dir():
            return None
        self._head_now()
        return self._read_if_there(directory)

    def _read_if_there(self, directory: Path) -> Manifest | None:
        """Return the manifest in a directory; None if that was dropped meanwhile."""
        try:
            return read_manifest(directory, self._topologies.described)
        except Damaged:
            if directory.is_dir():
                raise
            return None

    def _newest_restore_point(self) -> Manifest | None:
        """Return the newest restore point of the epoch, which is then that of ``_head``.

        Raises:
            Damaged: it is one whose manifest was changed, or may be.
        """
        # In this order: a snapshot that comes meanwhile is of an epoch that is not over.
        directories = snapshot_directories(self._snapshots)
        epoch = self._head_now().epoch

        def read(directory: Path) -> Manifest | None:
            try:
                return self._read_if_there(directory)
            except Damaged:
                if began_before_epoch(self.path, SnapshotId.parse(directory.name), epoch):
                    return None
                raise

        return newest_restore_point(directories, read, epoch)

    def _entries_of(self, manifests: dict[SnapshotId, Manifest]) -> list[Entry]:
        ordered = sorted(manifests.values(), key=lambda manifest: manifest.sequence)
        return [self._entry_of(m, chain_length(manifests, m.snapshot)) for m in ordered]

    def _entry_of(self, manifest: Manifest, length: int) -> Entry:
        names = [
            name
            for name, snapshot in self._head.savepoints.items()
            if snapshot == manifest.snapshot
        ]
        directory = self._snapshots / str(manifest.snapshot)
        return entry_of(manifest, directory, savepoints=names, chain_length=length)
