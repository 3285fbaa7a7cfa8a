"""Fragments in an object store, which has no rename and no directories.

A fragment is published by its manifest, which is put last, if nothing is there. What a process left
unfinished is removed by the same process in a later epoch. It puts a tombstone in the place of the
manifest first: if the earlier process still lives, it cannot publish a fragment without files.
"""

import contextlib
import re
from collections import deque
from collections.abc import Iterator

from stillframe.errors import StoreError
from stillframe.model import ProcessId, SnapshotId
from stillframe.storage.location import ObjectPath, io_advice
from stillframe.storage.opened import storage_of
from stillframe.store.layout import parse_snapshot_id
from stillframe.store.manifest import MANIFEST, TOMBSTONE_BYTES_MAX, Tombstone
from stillframe.store.sealed_json import seal
from stillframe.store.snapshot_directory import NewObjects

EPOCH = re.compile(r"e([1-9]\d{0,8})")


class BucketFragments:
    """The place where one process writes the fragments of one epoch, below the `directory` of all;
    see ``fragments.DirectoryFragments``."""

    def __init__(self, directory: ObjectPath, process: ProcessId, epoch: int) -> None:
        self._directory = directory
        self._process = process
        self._epoch = epoch
        self._own = directory / f"e{epoch}" / process
        self._storage = storage_of(directory)
        self._kept: deque[NewObjects] = deque()

    def begin(self, topology: str, content: bytes, *, replaces: bool) -> None:
        """See ``fragments.DirectoryFragments``."""
        for epoch in epochs_in(self._directory):
            if epoch < self._epoch:
                self._clear_up(self._directory / f"e{epoch}" / self._process)
        if replaces:
            self._storage.put(self._directory / topology, content)
        else:
            with contextlib.suppress(FileExistsError):
                self._storage.put_if_absent(self._directory / topology, content)

    def make_room(self, kept_count: int) -> None:
        """See ``fragments.DirectoryFragments``. Other fragments than those of this object are left
        alone."""
        while len(self._kept) >= kept_count:
            oldest = self._kept[0]
            if oldest.is_tried:
                # First: no reader may see it disappear file by file.
                self._storage.delete([oldest.directory / MANIFEST])
            self._storage.delete(oldest.directory / name for name in oldest.names)
            self._kept.popleft()

    @contextlib.contextmanager
    def new(self, snapshot: SnapshotId) -> Iterator[NewObjects]:
        """See ``fragments.DirectoryFragments``. After an error objects may be left, even the
        manifest if its answer was lost."""
        path = self._own / str(snapshot)
        new = NewObjects(path, None)
        try:
            yield new
        except OSError as error:
            raise StoreError(
                f"{path} could not be written: {error.strerror or error}: "
                f"{io_advice(path, error)}. The next snapshot is tried as usual",
                path=path,
            ) from error
        finally:
            self._kept.append(new)

    def _clear_up(self, own: ObjectPath) -> None:
        """Remove what the process left unfinished in an earlier epoch."""
        left: dict[ObjectPath, dict[str, int]] = {}
        for place, byte_count in self._storage.files_below(own):
            assert isinstance(place, ObjectPath)
            if place.parent.parent == own and parse_snapshot_id(place.parent.name) is not None:
                left.setdefault(place.parent, {})[place.name] = byte_count or 0
        for path, sizes in left.items():
            if sizes.get(MANIFEST, 0) > TOMBSTONE_BYTES_MAX:
                continue
            if MANIFEST not in sizes:
                snapshot = parse_snapshot_id(path.name)
                assert snapshot is not None
                try:
                    tombstone = seal(Tombstone(snapshot=snapshot))
                    self._storage.put_if_absent(path / MANIFEST, tombstone)
                except FileExistsError:
                    continue  # it was published meanwhile, or the next start sees the tombstone
            self._storage.delete(path / name for name in sizes if name != MANIFEST)


def epochs_in(directory: ObjectPath) -> list[int]:
    """Return the epochs in the directory of all fragments."""
    names = [one.location.name for one in storage_of(directory).children(directory)]
    return sorted(int(found[1]) for name in names if (found := EPOCH.fullmatch(name)))
