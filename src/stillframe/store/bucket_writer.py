"""The writer of a store in an object store: it has no locks, no rename and no directories.

A snapshot is published by writing its manifest, last, if nothing is there. A writer that takes a
store over changes the head and the history first. Both are only replaced as their writer left them,
so an earlier writer can begin no snapshot any more. Then the new writer puts a *tombstone* in
the place of each manifest that may still come. Of tombstone and manifest the first one stays.
"""

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor

from stillframe.errors import Damaged, Fenced, StoreError, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.storage.lease import Lease
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.owned import OwnedObject, check_conditional_writes
from stillframe.storage.storage import Changed
from stillframe.store.bucket_history import BucketHistory
from stillframe.store.history import (
    HistoryWriter,
    SnapshotBegan,
    SnapshotPublished,
    SnapshotRemoved,
    removed_snapshots,
)
from stillframe.store.layout import (
    HEAD,
    LEASE,
    SNAPSHOTS,
    check_unused,
    continued,
    explain_io_errors,
    in_use,
    is_published,
    parse_snapshot_id,
)
from stillframe.store.manifest import (
    MANIFEST,
    TOMBSTONE_BYTES_MAX,
    BucketHead,
    Head,
    Manifest,
    Tombstone,
    as_stored_in,
    file_names,
    is_tombstone,
)
from stillframe.store.sealed_json import SEALED_BYTES_MAX, read_sealed_bytes, seal
from stillframe.store.snapshot_directory import NewObjects
from stillframe.store.writer import NewSnapshot, already_there
from stillframe.topology import Description

FILE_BYTES_MAX = 2**40
"""No file of a snapshot is longer."""


class BucketWriter:
    """The writer of a store in an object store; see ``writer.StoreWriter``.

    With a `head` the store is made; it may exist without a snapshot (``layout.continued``). `lost`
    is called, by any thread, when another writer has taken the store over. If it `keeps_files`, the
    files of a snapshot that never began stay, and so does a last snapshot whose publication took
    effect although it failed. Raises Unavailable if another program writes to the store, and
    UsageError if the object store cannot be used.
    """

    notes_are_needed = True

    def __init__(
        self,
        path: ObjectPath,
        *,
        head: Head | None,
        lost: Callable[[], object],
        keeps_files: bool = False,
    ) -> None:
        self._path = path
        self._keeps_files = keeps_files
        self._snapshots = path / SNAPSHOTS
        self._storage = storage_of(path)
        self._head = OwnedObject(path / HEAD)
        self._lost = lost
        self.is_lost = self._is_open = self._is_lease_lost = False
        self._history: BucketHistory | None = None
        self._unresolved: set[SnapshotId] = set()
        self._rewritten: set[SnapshotId] = set()
        self._left: dict[str, set[str]] = {}
        self._lease = Lease(path / LEASE, lost=self._lose_lease)
        with explain_io_errors(path, "opened for writing"):
            self._lease.acquire(self._in_use)
            try:
                check_conditional_writes(self._snapshots)
                self._take_over(head)
                self._is_open = True
                if self._is_lease_lost:
                    self.is_lost = True
                    self.check()
            except BaseException:
                self.close()
                raise

    def check(self) -> None:
        """Raise Fenced if it is known that another writer has taken the store over."""
        if self.is_lost:
            raise self._fenced()

    def write_head(self, head: Head) -> None:
        """See ``writer.StoreWriter``."""
        self.check()
        with self._fencing():
            self._head.replace(seal(as_stored_in(head, is_bucket=True)))

    def open_history(self) -> HistoryWriter:
        """See ``writer.StoreWriter``."""
        assert self._history is not None
        return self._history

    def check_absent(self, snapshot: SnapshotId) -> None:
        """See ``writer.StoreWriter``."""
        self.check()

    def has(self, snapshot: SnapshotId) -> bool:
        """See ``writer.StoreWriter``."""
        return True

    @contextlib.contextmanager
    def new_snapshot(self, snapshot: SnapshotId, executor: Executor) -> Iterator[NewSnapshot]:
        """See ``writer.StoreWriter``."""
        directory = self._snapshots / str(snapshot)
        new = NewObjects(directory, executor)
        try:
            self._resolve()
            history = self.open_history()
            has_begun = snapshot in history.pending
            if not has_begun:
                # The next writer must know what this one may still publish.
                history.append(SnapshotBegan(snapshot))
            yield new
            if not has_begun:
                history.append(SnapshotPublished(snapshot, is_removal_noted=True))
        except FileExistsError:
            raise self._why_refused(snapshot) from None
        except BaseException as error:
            if new.is_tried:
                self._unresolved.add(snapshot)
                if self._history is not None:
                    self._history.hold(snapshot)
            if not isinstance(error, OSError):
                raise
            raise StoreError(
                f"{directory} could not be written: {error.strerror or error}; nothing was "
                "published. The next snapshot is tried as usual",
                path=directory,
            ) from error

    def write_file(self, location: Location, content: bytes) -> bytes:
        """See ``writer.StoreWriter``. What is there stays: an earlier attempt has left it, or
        another writer uses it."""
        self.check()
        try:
            self._storage.put_if_absent(location, content)
        except FileExistsError:
            return self._storage.read(location, bytes_max=FILE_BYTES_MAX)[0]
        return content

    def discard_files(self, locations: Iterable[Location]) -> None:
        """See ``writer.StoreWriter``. Another writer may use them by now: the next one that opens
        the store removes them."""

    def replace_manifest(self, before: Manifest, manifest: Manifest) -> None:
        """See ``writer.StoreWriter``."""
        path = self._snapshots / str(manifest.snapshot) / MANIFEST
        place = OwnedObject(path)
        content = place.read(bytes_max=SEALED_BYTES_MAX)
        with self._fencing():
            # Only this writer replaces or removes what it has published or found.
            if content is None or is_tombstone(content):
                raise Changed(errno.ESTALE, "another program has removed it", str(path))
            found = read_sealed_bytes(path, content, Manifest)
            is_ours = found == manifest and manifest.snapshot in self._rewritten
            if found != before and not is_ours:
                raise Changed(errno.ESTALE, "another program has replaced it", str(path))
            self.check()
            if not is_ours:
                # Until it is known how this ends: after an error it may have taken effect.
                self._rewritten.add(manifest.snapshot)
                place.replace(seal(manifest))
            self._rewritten.discard(manifest.snapshot)

    def remove_unlisted(self, manifest: Manifest, description: Description) -> None:
        """See ``writer.StoreWriter``."""
        # Never a full file: a writer that was overtaken here would delete one in use.
        names = {*file_names(description, is_full=False)}
        unlisted = names.difference(record.name for record in manifest.files)
        # As the store is opened, the names are known, and most often there is nothing to delete.
        unlisted &= self._left.pop(str(manifest.snapshot), names)
        directory = self._snapshots / str(manifest.snapshot)
        if unlisted:
            self._storage.delete(directory / name for name in sorted(unlisted))

    def hide(self, snapshot: SnapshotId) -> None:
        """See ``writer.StoreWriter``."""
        self._resolve()
        self._storage.delete([self._snapshots / str(snapshot) / MANIFEST])

    def erase(self, snapshot: SnapshotId, description: Description | None) -> None:
        """See ``writer.StoreWriter``."""
        directory = self._snapshots / str(snapshot)
        if description is None:
            found = [one.location for one in self._storage.files_below(directory)]
        else:
            found = [directory / name for name in sorted(_names(description))]
        self._storage.delete(found)

    def close(self) -> None:
        """See ``writer.StoreWriter``."""
        if self._history is not None:
            # Who assembles has reported none as abandoned: the next writer finds out which came.
            with contextlib.suppress(OSError, StoreError):
                if not self._keeps_files:
                    self._resolve()  # else the next writer does
            self._history.close()
        self._lease.close()

    def _take_over(self, new: Head | None) -> None:
        """Become the only writer, and remove what an earlier one left."""
        content = self._head.read(bytes_max=SEALED_BYTES_MAX)
        head: Head | None = None
        if content is not None:
            head = read_sealed_bytes(self._path / HEAD, content, BucketHead)
        if new is not None:
            if head is None:
                check_unused(self._path)
            head = new if head is None else continued(self._path, head, new)
        if head is None:
            raise Damaged(f"{self._path / HEAD} is missing", path=self._path / HEAD)
        # An earlier writer can change the head no more from here on, then the history.
        self.write_head(head)
        self._history = self._open_history()
        for snapshot in self._history.pending:
            self._bury(snapshot)
        self._clear_up()

    def _open_history(self) -> BucketHistory:
        while True:
            history = BucketHistory(self._path, fenced=self._fence)
            try:
                history.take_over()
            except Fenced:
                # An earlier writer, whose lease has ended, was faster: read what it wrote.
                history.close()
            else:
                return history

    def _bury(self, snapshot: SnapshotId) -> None:
        """Let the manifest of a snapshot never come, if it is not there."""
        tombstone = seal(Tombstone(snapshot=snapshot))
        with contextlib.suppress(FileExistsError):
            self._storage.put_if_absent(self._snapshots / str(snapshot) / MANIFEST, tombstone)

    def _resolve(self) -> None:
        """Remove what may be published although the attempt failed: it was reported as abandoned,
        and nothing was committed because of it."""
        self.check()
        for snapshot in sorted(self._unresolved):
            self._bury(snapshot)
            place = self._snapshots / str(snapshot) / MANIFEST
            content, version = self._storage.read(place, bytes_max=SEALED_BYTES_MAX)
            if not is_tombstone(content):
                # This line first: another writer, which may have restored it, has fenced this one.
                self.open_history().append(SnapshotRemoved(snapshot))
                with self._fencing():
                    tombstone = seal(Tombstone(snapshot=snapshot))
                    self._storage.replace_if_unchanged(place, tombstone, version)
            self._unresolved.discard(snapshot)
            if self._history is not None:
                self._history.release(snapshot)

    def _clear_up(self) -> None:
        """Delete what no snapshot needs: an earlier writer died while it wrote or removed it."""
        last_number, removed = self.open_history().last_number, removed_snapshots(self._path)
        found: dict[str, dict[str, int]] = {}
        for one in self._storage.files_below(self._snapshots):
            assert isinstance(one.location, ObjectPath)
            name, _, rest = one.location.relative_to(self._snapshots).partition("/")
            found.setdefault(name, {})[rest] = one.byte_count or 0
        self._left = {name: {*files} for name, files in found.items()}
        unneeded: list[ObjectPath] = []
        for name, files in found.items():
            snapshot, directory = parse_snapshot_id(name), self._snapshots / name
            if snapshot is None or snapshot.number > last_number:
                continue  # readers report other names; a later writer may be at a later snapshot
            if 0 < files.get(MANIFEST, 0) <= TOMBSTONE_BYTES_MAX:
                pass
            elif MANIFEST not in files:
                if self._keeps_files:
                    continue
                # The listing may be old: only the tombstone shows that no manifest is there.
                self._bury(snapshot)
                if is_published(self._path, snapshot):
                    continue
            elif snapshot in removed:
                self._storage.delete([directory / MANIFEST])
            else:
                continue
            unneeded += [directory / rest for rest in files if rest and rest != MANIFEST]
        if unneeded:
            self._storage.delete(unneeded)

    def _why_refused(self, snapshot: SnapshotId) -> StoreError | UsageError:
        if is_published(self._path, snapshot):
            return already_there(self._path, snapshot)
        self._fence()
        return self._fenced()

    def _in_use(self, holder: str) -> Unavailable:
        return in_use(self._path, f"another program that writes to it: {holder}")

    @contextlib.contextmanager
    def _fencing(self) -> Iterator[None]:
        try:
            yield
        except Changed:
            self._fence()
            raise

    def _lose_lease(self) -> None:
        self._is_lease_lost = True
        self._fence()

    def _fence(self) -> None:
        if self._is_open and not self.is_lost:
            self.is_lost = True
            self._lost()

    def _fenced(self) -> Fenced:
        return Fenced(
            f"another program has taken over as the writer of {self._path}; this one can write no "
            "more",
            path=self._path,
        )


def _names(description: Description) -> set[str]:
    """Return the names that files of a snapshot may have."""
    return {name for full in (True, False) for name in file_names(description, is_full=full)}
