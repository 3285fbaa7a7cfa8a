"""Snapshots in a directory: one writer, any number of readers, and plain Parquet inside.

    STORE/store.json                         what is described, the epoch; replaced as a whole
    STORE/lock                               held by the one writer, as long as it lives
    STORE/snapshots/P1-17/manifest.json      every file of the snapshot, with length and SHA-256
    STORE/snapshots/P1-17/processes.parquet  one row per process
    STORE/snapshots/P1-17/channels.parquet   one row per channel
    STORE/snapshots/P1-17/messages.parquet   one row per message that was on a channel
    STORE/snapshots/.P1-17.partial/          a snapshot that is being written

A snapshot is written and forced to the disk under the name with the dot, then renamed: that one
rename publishes it. A crash at any moment leaves the store as it was before or after.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import msgspec
import pyarrow as pa

from stillframe.errors import UsageError
from stillframe.model import Snapshot, SnapshotId
from stillframe.store import opening
from stillframe.store.contents import (
    check_described,
    read_snapshot,
    verify_snapshot,
    write_snapshot,
)
from stillframe.store.disk import replace_durably
from stillframe.store.manifest import (
    FILES,
    Entry,
    Head,
    Manifest,
    entry_of,
    manifest_of,
    newest_restore_point,
    read_manifest,
)
from stillframe.store.opening import HEAD, SNAPSHOTS, explained, listed
from stillframe.store.seal import read_sealed, seal
from stillframe.store.topologies import Topologies, changed
from stillframe.topology import Description

_THREAD_COUNT = len(FILES) + 2  # every file, the manifest and the directory wait side by side


class Store:
    """The snapshots of one system: use ``create``, ``open`` or ``open_writer``, then ``close``.

    Its methods are called by one thread at a time. A reader sees what a writer, in another process
    or in this one, has published in the meantime.
    """

    def __init__(self, path: Path, *, lock: int | None) -> None:
        self._path = path
        self._snapshots = path / SNAPSHOTS
        self._lock = lock
        self._head = self._read_head()
        self._topologies = Topologies(self._head)
        self._last_sequence = 0
        self._restore_point: Entry | None = None
        self._executor: ThreadPoolExecutor | None = None

    @classmethod
    def create(cls, path: Path, *, description: Description, reference: str | None = None) -> Self:
        """Make a store and open it for writing; call ``raise_epoch`` before the first snapshot.

        A store of the same topology without a single snapshot is taken over.

        Args:
            path: a directory that is empty or not there yet.
            description: of the topology whose snapshots it will hold.
            reference: where the topology is defined, ``module:attribute``.

        Raises:
            UsageError: the directory holds snapshots, another topology, or something else.
            Unavailable: another program is writing to it.
            StoreError: the disk is full or failed.
        """
        with explained(path, "made into a store"):
            path.mkdir(parents=True, exist_ok=True)
            opening.check_free(path)
        head = Head(reference=reference, description=description)
        return cls._locked(path, lambda: opening.make_store(path, head))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a store for reading, also while another program writes to it.

        Raises:
            UsageError: there is no store at `path`.
            Damaged: its ``store.json`` was changed.
            StoreError: it cannot be read, or a newer version of Stillframe made it.
        """
        opening.check_is_store(path)
        return cls(path, lock=None)

    @classmethod
    def open_writer(cls, path: Path) -> Self:
        """Open a store for reading and writing, and remove what a crashed writer left.

        Call ``raise_epoch`` before the first snapshot. The store is held until ``close``, or until
        this operating-system process (and what it forked without exec) is gone.

        Raises:
            UsageError, Damaged, StoreError: as ``open``; also if a manifest is damaged.
            Unavailable: another program is writing to it.
        """
        opening.check_is_store(path)
        return cls._locked(path, lambda: None)

    @classmethod
    def _locked(cls, path: Path, prepare: Callable[[], None]) -> Self:
        with explained(path, "opened for writing"):
            lock = opening.take_lock(path)
            try:
                prepare()
                opening.remove_partial(path)
                store = cls(path, lock=lock)
                store._last_sequence = max((e.sequence for e in store.entries()), default=0)
                store._restore_point = newest_restore_point(
                    opening.snapshot_directories(store._snapshots),
                    store._topologies,
                    store._head.epoch,
                )
                # The first conversion takes most of a second: Arrow looks for pandas then. Now is a
                # better time than while the first snapshot waits to be published.
                store._threads().submit(pa.array, [0])
                return store
            except BaseException:
                os.close(lock)
                raise

    @property
    def path(self) -> Path:
        """The directory of the store."""
        return self._path

    @property
    def description(self) -> Description:
        """The topology that new snapshots are of; ``description_of`` has that of an old one."""
        return self._head.description

    @property
    def reference(self) -> str | None:
        """Where that topology is defined, ``module:attribute``; None if nobody said."""
        return self._head.reference

    @property
    def epoch(self) -> int:
        """How often the system was started or restored; 0 before the first time."""
        return self._head_now().epoch

    @property
    def restored_from(self) -> SnapshotId | None:
        """The snapshot from which the current epoch began; None if it began afresh."""
        return self._head_now().restored_from

    def raise_epoch(
        self, restored_from: SnapshotId | None, description: Description | None = None
    ) -> int:
        """Begin the next epoch; it is on the disk when this returns.

        Args:
            restored_from: the snapshot that the system starts from; None if it starts afresh.
            description: of the topology from now on; None if it stays.

        Returns:
            the new epoch, for everybody who takes part.

        Raises:
            UsageError: no such snapshot, too many former topologies, or open for reading only.
            StoreError: the disk is full or failed; call again when that is mended.
        """
        self._check_writer()
        if restored_from is not None:
            self.entry(restored_from)
        head = msgspec.structs.replace(
            self._head, epoch=self._head.epoch + 1, restored_from=restored_from
        )
        if description not in (None, head.description):
            head = changed(head, description, {m.topology for m in self._manifests()})
        with explained(self._path / HEAD, "written"):
            try:
                replace_durably(self._path / HEAD, seal(head))
            except OSError:
                # It may have its name and not be forced to the disk: an epoch is never used twice.
                self._take(self._read_head())
                raise
        self._take(head)
        self._restore_point = None
        return head.epoch

    def publish(self, snapshot: Snapshot) -> Entry:
        """Write a snapshot; when this returns it is on the disk, whole.

        It is a restore point, to which a death goes back, if it was initiated after the one before
        was complete. Snapshots that overlap can have cuts that cross: to go from one to the other
        could take a process behind a cut that it was told is safe.

        Raises:
            NotConsistent: its books do not balance.
            UsageError: it is of another epoch or topology, is there already, or the store is open
                for reading only.
            StoreError: a value does not fit its column, or the disk is full or failed.
            In each case nothing was published.
        """
        self._check_writer()
        directory = self._snapshots / str(snapshot.id)
        if snapshot.epoch != self._head.epoch:
            raise UsageError(
                f"snapshot {snapshot.id} is of epoch {snapshot.epoch}, and the store "
                f"{self._path} is in epoch {self._head.epoch}: what is left of an older epoch is "
                "not published"
            )
        if directory.exists():
            raise UsageError(
                f"snapshot {snapshot.id} is in the store {self._path} already: give each a number "
                "of its own (Store.next_number)"
            )
        check_described(snapshot, self._head.description)
        snapshot.state.check_books()
        manifest = write_snapshot(
            directory,
            self._topologies.tables(self._topologies.present).of(snapshot.id, snapshot.state),
            lambda files: manifest_of(
                snapshot,
                files,
                sequence=self._last_sequence + 1,
                restore_point=self._restore_point,
                topology=self._topologies.present,
            ),
            self._threads(),
        )
        self._last_sequence = manifest.sequence
        entry = entry_of(manifest, directory)
        if entry.is_restore_point:
            self._restore_point = entry
        return entry

    def entries(self) -> list[Entry]:
        """Return all snapshots in the order in which they were published.

        Raises:
            Damaged: a manifest was changed or is missing.
            StoreError: something cannot be read, or a name in the store is none of ours.
        """
        manifests = self._manifests()
        manifests.sort(key=lambda manifest: manifest.sequence)
        return [entry_of(m, self._snapshots / str(m.snapshot)) for m in manifests]

    def current(self) -> Entry | None:
        """Return the snapshot to go back to: the newest restore point of this epoch, or else the
        snapshot from which this epoch began, or else None.

        Newer ones of an older epoch do not count: the system went back behind them on purpose.

        Raises:
            UsageError: the snapshot from which this epoch began was deleted: name another one.
            Damaged, StoreError: as ``entries``.
        """
        directories = opening.snapshot_directories(self._snapshots)
        head = self._head_now()
        if self._lock is None:
            self._restore_point = newest_restore_point(directories, self._topologies, head.epoch)
        if self._restore_point is not None:
            return self._restore_point
        return None if head.restored_from is None else self.entry(head.restored_from)

    def entry(self, snapshot: SnapshotId) -> Entry:
        """Return the entry of one snapshot.

        Raises:
            UsageError: there is none; the error says which there are.
            Damaged, StoreError: its manifest was changed or cannot be read.
        """
        manifest, directory = self._manifest_of(snapshot)
        return entry_of(manifest, directory)

    def description_of(self, snapshot: SnapshotId) -> Description:
        """Return the topology that a snapshot was taken of.

        Raises:
            UsageError, Damaged, StoreError: as ``entry``.
        """
        manifest, _ = self._manifest_of(snapshot)
        return self._topologies.description(manifest.topology)

    def load(self, snapshot: SnapshotId) -> Snapshot:
        """Read a snapshot; everything that is read for it is verified.

        Raises:
            UsageError: there is no such snapshot.
            Damaged: a file is not what was written; it is named.
            NotConsistent: its books do not balance.
            StoreError: a file cannot be read.
        """
        manifest, directory = self._manifest_of(snapshot)
        loaded = read_snapshot(directory, manifest)
        check_described(loaded, self._topologies.description(manifest.topology))
        return loaded

    def verify(self, snapshot: SnapshotId) -> None:
        """Read every byte of a snapshot and of ``store.json``, and compare what is there twice.

        Raises:
            UsageError: there is no such snapshot.
            Damaged: a file is not what was written; it is named.
            NotConsistent: the books do not balance, or the files for queries do not say what was
                recorded.
            StoreError: a file cannot be read.
        """
        self._read_head()
        manifest, directory = self._manifest_of(snapshot)
        verified = verify_snapshot(directory, manifest, self._topologies.tables(manifest.topology))
        check_described(verified, self._topologies.description(manifest.topology))

    def verify_all(self, progress: Callable[[Entry, int], None]) -> int:
        """Verify every snapshot, the oldest first.

        Args:
            progress: called after each with its entry and how many there are.

        Returns how many were verified; raises as ``verify``, for the first that is wrong.
        """
        self._read_head()
        entries = self.entries()
        for entry in entries:
            self.verify(entry.id)
            progress(entry, len(entries))
        return len(entries)

    def next_number(self) -> int:
        """Return a number for the next snapshot: above that of every snapshot in the store.

        Raises:
            StoreError: the store cannot be read.
        """
        ids = [
            SnapshotId.parse(directory.name)
            for directory in opening.snapshot_directories(self._snapshots)
        ]
        return 1 + max((snapshot.number for snapshot in ids), default=0)

    def close(self) -> None:
        """Let another writer have the store. Closing twice does nothing."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read_head(self) -> Head:
        return read_sealed(self._path / HEAD, Head)

    def _head_now(self) -> Head:
        """A reader looks again: the writer may have raised the epoch."""
        if self._lock is None:
            self._take(self._read_head())
        return self._head

    def _take(self, head: Head) -> None:
        self._head, self._topologies = head, self._topologies.following(head)

    def _check_writer(self) -> None:
        if self._lock is None:
            raise UsageError(
                f"the store {self._path} is open for reading only: use Store.open_writer"
            )

    def _threads(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(_THREAD_COUNT, "stillframe-store")
        return self._executor

    def _manifests(self) -> list[Manifest]:
        # In this order: a reader then knows the topology of each that it finds.
        directories = opening.snapshot_directories(self._snapshots)
        self._head_now()
        return [read_manifest(directory, self._topologies) for directory in directories]

    def _manifest_of(self, snapshot: SnapshotId) -> tuple[Manifest, Path]:
        directory = self._snapshots / str(snapshot)
        if not directory.is_dir():
            known = [str(entry.id) for entry in self.entries()]
            raise UsageError(
                f"there is no snapshot {snapshot} in the store {self._path}; "
                f"there {'are ' + listed(known) if known else 'is none at all'}"
            )
        self._head_now()
        return read_manifest(directory, self._topologies), directory
