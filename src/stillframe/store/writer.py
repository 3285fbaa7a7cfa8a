"""The writer of a store: its interface, and the one of a store in a directory.

``Store`` decides what is published, rewritten and removed, and calls one of these to do it. Their
methods raise OSError, or what ``layout.explain_io_errors`` makes of that.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa

from stillframe.durable_files import replace_durably, sync
from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.storage.location import Location
from stillframe.store import layout
from stillframe.store.history import History, HistoryWriter
from stillframe.store.layout import HEAD, SNAPSHOTS
from stillframe.store.manifest import MANIFEST, FileRecord, Head, Manifest
from stillframe.store.sealed_json import seal
from stillframe.store.snapshot_directory import new_directory
from stillframe.topology import Description


class NewSnapshot(Protocol):
    """A snapshot that is being written: call ``write_tables``, then ``publish``."""

    def write_tables(
        self, tables: Mapping[str, pa.Table], to_parquet: Callable[[str, pa.Table], bytes]
    ) -> tuple[FileRecord, ...]:
        """Write the tables; the first argument of `to_parquet` is the name of the file."""
        ...

    def publish(self, manifest: msgspec.Struct) -> None:
        """Write the manifest. When this returns, the snapshot is published."""
        ...


class StoreWriter(Protocol):
    """Changes one store, until ``close`` or until another writer takes the store over.

    `notes_are_needed`: a snapshot is removed only if its ``SnapshotRemoved`` was written before.
    `is_lost`: it is known that another writer has taken the store over.
    """

    notes_are_needed: bool
    is_lost: bool

    def write_head(self, head: Head) -> None:
        """Replace ``store.json``."""
        ...

    def open_history(self) -> HistoryWriter:
        """Return the history, which the caller closes."""
        ...

    def check_absent(self, snapshot: SnapshotId) -> None:
        """Raise a UsageError if `snapshot` is in the store, or a StoreError if nothing can be
        published."""
        ...

    def has(self, snapshot: SnapshotId) -> bool:
        """Return whether a snapshot that was published is still there."""
        ...

    def new_snapshot(
        self, snapshot: SnapshotId, executor: Executor
    ) -> AbstractContextManager[NewSnapshot]:
        """Return a context in which a snapshot is written; `executor` writes files side by side.
        When it is left by an error, nothing was published."""
        ...

    def write_file(self, location: Location, content: bytes) -> bytes:
        """Write a file next to those of a published snapshot; return what is there: the content, or
        that of another attempt."""
        ...

    def discard_files(self, locations: Iterable[Location]) -> None:
        """Remove files that ``write_file`` has or may have written, if only this writer can have
        used them."""
        ...

    def replace_manifest(self, before: Manifest, manifest: Manifest) -> None:
        """Replace the manifest `before` of a published snapshot."""
        ...

    def remove_unlisted(self, manifest: Manifest, description: Description) -> None:
        """Remove the files of a snapshot that its manifest does not list."""
        ...

    def hide(self, snapshot: SnapshotId) -> None:
        """Make a snapshot invisible to readers, if it is not."""
        ...

    def erase(self, snapshot: SnapshotId, description: Description | None) -> None:
        """Delete the files of a snapshot that is hidden; `description` is of its topology, if that
        is known."""
        ...

    def close(self) -> None:
        """Let another writer have the store. Closing twice does nothing."""
        ...


class DirectoryWriter:
    """The writer of a store in a directory, which it has locked; see ``StoreWriter``."""

    notes_are_needed = False  # on a full disk, the removal makes room for the note
    is_lost = False

    def __init__(self, path: Path, lock: int) -> None:
        self._path = path
        self._snapshots = path / SNAPSHOTS
        self._lock: int | None = lock

    def write_head(self, head: Head) -> None:
        """See ``StoreWriter``."""
        replace_durably(self._path / HEAD, seal(head))

    def open_history(self) -> HistoryWriter:
        """See ``StoreWriter``."""
        return History(self._path)

    def check_absent(self, snapshot: SnapshotId) -> None:
        """See ``StoreWriter``."""
        if (self._snapshots / str(snapshot)).exists():
            raise already_there(self._path, snapshot)
        layout.check_snapshots_exist(self._path)

    def has(self, snapshot: SnapshotId) -> bool:
        """See ``StoreWriter``."""
        return (self._snapshots / str(snapshot)).is_dir()

    def new_snapshot(
        self, snapshot: SnapshotId, executor: Executor
    ) -> AbstractContextManager[NewSnapshot]:
        """See ``StoreWriter``."""
        return new_directory(self._snapshots / str(snapshot), executor)

    def write_file(self, location: Location, content: bytes) -> bytes:
        """See ``StoreWriter``."""
        replace_durably(local(location), content)
        return content

    def discard_files(self, locations: Iterable[Location]) -> None:
        """See ``StoreWriter``."""
        for location in locations:
            with contextlib.suppress(OSError):
                local(location).unlink(missing_ok=True)

    def replace_manifest(self, before: Manifest, manifest: Manifest) -> None:
        """See ``StoreWriter``."""
        replace_durably(self._snapshots / str(before.snapshot) / MANIFEST, seal(manifest))

    def remove_unlisted(self, manifest: Manifest, description: Description) -> None:
        """See ``StoreWriter``."""
        layout.remove_unlisted(self._snapshots / str(manifest.snapshot), manifest, description)

    def hide(self, snapshot: SnapshotId) -> None:
        """See ``StoreWriter``."""
        directory = self._snapshots / str(snapshot)
        if directory.is_dir():  # or it is gone already
            directory.rename(layout.dropped_path(directory))
        sync(self._snapshots)

    def erase(self, snapshot: SnapshotId, description: Description | None) -> None:
        """See ``StoreWriter``."""
        dropped = layout.dropped_path(self._snapshots / str(snapshot))
        if dropped.exists():
            shutil.rmtree(dropped)

    def close(self) -> None:
        """See ``StoreWriter``."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def local(location: Location) -> Path:
    """Return a location of a store in a directory."""
    assert isinstance(location, Path)
    return location


def already_there(store: Location, snapshot: SnapshotId) -> UsageError:
    """Return the error for a snapshot that is already in a store."""
    return UsageError(
        f"snapshot {snapshot} is already in the store {store}: give each a unique number "
        "(Store.next_number)"
    )
