"""Copies a store to another place: a directory or an object store, in either direction.

Every file is verified as it is read. The head comes last, so a copy that was interrupted is no
store; the next attempt continues it.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from stillframe.durable_files import partial_path, sync
from stillframe.errors import Fenced, UsageError
from stillframe.storage.files import side_by_side
from stillframe.storage.lease import Lease
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.owned import OwnedObject, check_conditional_writes
from stillframe.storage.reading import is_there, read_file, read_hashed
from stillframe.storage.storage import Storage
from stillframe.store import layout
from stillframe.store.history import NEWER, OLDER, READ_BYTES_MAX
from stillframe.store.layout import ASSEMBLED, HEAD, LEASE, SNAPSHOTS, explain_io_errors
from stillframe.store.manifest import (
    MANIFEST,
    FileRecord,
    Head,
    Manifest,
    SnapshotEntry,
    as_stored_in,
    read_manifest,
)
from stillframe.store.sealed_json import SEALED_BYTES_MAX, seal
from stillframe.store.store import Store
from stillframe.store.writer import local

_THREAD_COUNT = 16
_ONLY_IN_BUCKETS = b'"type":"WriterChanged"'


def copy_store(
    source: Location, target: Location, progress: Callable[[SnapshotEntry, int], None]
) -> list[SnapshotEntry]:
    """Copy the store at `source`, which no other program writes meanwhile, to `target`, which is
    empty or the beginning of such a copy; return the snapshots.

    `progress` is called after each snapshot with its entry and the number of all. Errors are as for
    ``Store.open_writer`` and ``Store.verify``; a UsageError if something else is in `target`.
    """
    _check_no_store(target)
    lost = threading.Event()
    with contextlib.closing(Store.open_writer(source)) as store:
        store.lost = lost.set
        entries = store.entries()
        head = layout.read_head(source)
        with _alone(target, lost) as others:
            foreign = {*layout.published_names(target / SNAPSHOTS)} - {str(e.id) for e in entries}
            if foreign:
                raise UsageError(
                    f"{target} holds snapshots that {source} does not: "
                    f"{layout.first_names(sorted(foreign))}",
                    path=target,
                    remedy="give another place",
                )
            for entry in entries:
                _check(lost, source, target)
                manifest = read_manifest(entry.directory, head.described)
                _copy_snapshot(entry, manifest, target / SNAPSHOTS / str(entry.id))
                progress(entry, len(entries))
            for name, other in others.items():
                if is_there(source / name):
                    content = read_file(source / name, bytes_max=READ_BYTES_MAX)
                    with explain_io_errors(target / name, "written"):
                        other.replace(_as_known_there(content, target))
            _check(lost, source, target)
            if layout.read_head(source) != head:  # a frozen program is not told that it lost
                raise _overtaken(source)
            _put_head(target, head)
        return entries


def _check_no_store(target: Location) -> None:
    if layout.is_store(target):
        raise UsageError(f"{target} is a store already", path=target, remedy="give another place")


def _check(lost: threading.Event, source: Location, target: Location) -> None:
    if lost.is_set():
        raise _overtaken(f"{source} or {target}")


def _overtaken(where: object) -> Fenced:
    return Fenced(f"another program has taken over {where}: the copy is not complete")


@contextlib.contextmanager
def _alone(target: Location, lost: threading.Event) -> Iterator[dict[str, OwnedObject]]:
    """Keep other writers out of `target`, where there is nothing, or a copy that was begun. Yield
    the files that are not of a snapshot; `lost` is set if another program took over."""
    with contextlib.ExitStack() as held, explain_io_errors(target, "written"):
        if isinstance(target, ObjectPath):
            lease = Lease(target / LEASE, lost=lost.set)
            lease.acquire(lambda holder: layout.in_use(target, holder))
            held.callback(lease.close)
            check_conditional_writes(target / SNAPSHOTS)
        else:
            target.mkdir(parents=True, exist_ok=True)
            held.callback(os.close, layout.take_lock(target))
            layout.remove_unfinished(target)
        others = {name: OwnedObject(target / name) for name in (OLDER, NEWER, ASSEMBLED)}
        for other in others.values():
            other.read(bytes_max=READ_BYTES_MAX)
        # After these were read: once there is a head, none of them is replaced.
        _check_no_store(target)
        layout.check_only_begun(target)
        yield others


def _copy_snapshot(entry: SnapshotEntry, manifest: Manifest, target: Location) -> None:
    sealed = read_file(entry.directory / MANIFEST, bytes_max=SEALED_BYTES_MAX)
    if is_there(target / MANIFEST):
        if read_file(target / MANIFEST, bytes_max=SEALED_BYTES_MAX) != sealed:
            raise UsageError(
                f"{target} is another snapshot {entry.id}", path=target, remedy="give another place"
            )
        return
    place = target
    if isinstance(target, Path):
        place = partial_path(target)
    storage = storage_of(target)

    def copy(file: FileRecord) -> None:
        content = read_hashed(entry.directory / file.name, file.bytes, file.hash)
        _put_once(storage, place / file.name, content)

    with explain_io_errors(target, "written"):
        for _ in side_by_side(copy, manifest.files, _THREAD_COUNT):
            pass
        _put_once(storage, place / MANIFEST, sealed)
        if isinstance(target, Path):
            local(place).rename(target)
            sync(target.parent)


def _put_once(storage: Storage, location: Location, content: bytes) -> None:
    """Write a file that is not there, or has this content from an earlier attempt."""
    try:
        storage.put_if_absent(location, content)
    except FileExistsError:
        if storage.read(location, bytes_max=len(content))[0] != content:
            raise


def _as_known_there(content: bytes, target: Location) -> bytes:
    """Return a file without lines that only the history of an object store has."""
    if isinstance(target, ObjectPath):
        return content
    lines = content.splitlines(keepends=True)
    return b"".join(line for line in lines if _ONLY_IN_BUCKETS not in line)


def _put_head(target: Location, head: Head) -> None:
    is_bucket = isinstance(target, ObjectPath)
    if not is_bucket:
        local(target / SNAPSHOTS).mkdir(exist_ok=True)
    with explain_io_errors(target / HEAD, "written"):
        content = seal(as_stored_in(head, is_bucket=is_bucket))
        storage_of(target).put_if_absent(target / HEAD, content)
