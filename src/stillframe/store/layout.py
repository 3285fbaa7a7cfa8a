"""The layout of a store directory: how it is created, recognised, locked and cleared up."""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from stillframe.durable_files import (
    partial_path,
    replace_durably,
    shell_command,
    sync,
    try_lock,
)
from stillframe.errors import Damaged, Fenced, StoreError, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.storage.files import names
from stillframe.storage.lease import Lease
from stillframe.storage.location import Location, ObjectPath, io_advice
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import is_there
from stillframe.storage.storage import Changed
from stillframe.store.manifest import (
    MANIFEST,
    TOMBSTONE_BYTES_MAX,
    BucketHead,
    Head,
    Manifest,
    file_names,
    is_tombstone,
    read_manifest,
)
from stillframe.store.sealed_json import TooLarge, read_sealed, seal
from stillframe.topology import Description

HEAD = "store.json"
SNAPSHOTS = "snapshots"
NEWEST = "newest"
"""Names the snapshot that was published last; no savepoint is called so."""
HISTORY_FILES = ("history.ndjson", "history.1.ndjson")
"""The newer and the older one."""
ASSEMBLED = "assembled.json"
"""Only a store that fragments were assembled into has this file."""
_LOCK = "lock"
LEASE = "lease.json"
"""Takes the place of the lock in an object store."""
_PIPELINE_HEAD = "pipeline.json"
OBSERVATIONS_HEAD = "observations.json"
"""The file that makes a place a store of observations of services."""
OBSERVATIONS = "observations"
LEDGER = "ledger.json"
"""The record of the collector of observations."""
BASELINE_REQUEST = "baseline.json"
"""The newest request of an operator for a new baseline."""
_LISTED_MAX = 5


def first_names(every: Iterable[str]) -> str:
    """Return the first few names for an error message."""
    known = list(every)
    more = f" and {len(known) - _LISTED_MAX} more" if len(known) > _LISTED_MAX else ""
    return ", ".join(known[:_LISTED_MAX]) + more


@contextlib.contextmanager
def explain_io_errors(path: Location, action: str) -> Iterator[None]:
    """Turn an OSError of the body into a StoreError: what could not be done to `path`, and what to
    do. A ``TooLarge`` gets the name of `path`, too."""
    try:
        yield
    except TooLarge as error:
        raise TooLarge(f"{path} could not be {action}: {error}", path=path) from error
    except Changed as error:
        raise Fenced(
            f"{path} could not be {action}: another program has taken over as its writer", path=path
        ) from error
    except OSError as error:
        raise StoreError(
            f"{path} could not be {action}: {error.strerror or error}",
            path=path,
            remedy=io_advice(path, error),
        ) from error


def take_lock(path: Path) -> int:
    """Be the one writer of a store, else Unavailable, until the descriptor is closed."""
    lock = try_lock(path / _LOCK)
    if lock is None:
        raise in_use(path, "another program that writes to it")
    return lock


def is_written_to(path: Location) -> bool:
    """Return whether a living program writes to a store; StoreError if that cannot be found out. In
    an object store, one that ended on another machine without a word may seem to live."""
    with explain_io_errors(path, "looked at"):
        if isinstance(path, ObjectPath):
            return not Lease(path / LEASE, lost=lambda: None).is_free()
        lock = try_lock(path / _LOCK)
        if lock is None:
            return True
        os.close(lock)
        return False


def in_use(path: Location, user: str) -> Unavailable:
    """Return the error for a store that another program writes to; `user` is that, in words."""
    return Unavailable(
        f"the store {path} is in use by {user}",
        path=path,
        remedy="stop that program, or use another directory",
    )


def is_store(path: Location) -> bool:
    """Return whether there is a store at `path`."""
    return is_there(path / HEAD)


def has_observations(path: Location) -> bool:
    """Return whether there is a store of observations of services at `path`."""
    return is_there(path / OBSERVATIONS_HEAD)


def refuse_observations(path: Location) -> None:
    """Raise a UsageError if there is a store of observations at `path`: it has no snapshots."""
    if has_observations(path):
        raise UsageError(
            f"{path} holds observations of services, which can be looked at and not restored; they "
            "are not snapshots (docs/observation-format.md)",
            path=path,
            remedy="use 'stillframe observe', 'list', 'show', 'view', 'watch', 'verify', 'detect', "
            f"'diff' or 'store stats', such as '{shell_command('show', path)}', or "
            "observation_tables of stillframe.analytics",
        )


def read_head(path: Location) -> Head:
    """Read ``store.json`` of the store at `path`; errors are as for ``read_sealed``."""
    return read_sealed(path / HEAD, BucketHead if isinstance(path, ObjectPath) else Head)


def check_snapshots_exist(path: Path) -> None:
    """Raise a StoreError if the directory of the snapshots was deleted or moved."""
    if (directory := path / SNAPSHOTS).is_dir():
        return
    remedy = f"put it back, or make an empty one with 'mkdir {directory}'"
    if not is_store(path):
        directory, remedy = path, "put it back, or start a new system with another --store"
    raise StoreError(
        f"the directory {directory} was deleted or moved, and its snapshots with it; nothing was "
        f"published: {remedy}. The next snapshot is tried as usual"
    )


def check_is_store(path: Location) -> None:
    """Check that there is a store at `path`: a UsageError if there is nothing or something else, a
    Damaged if its ``store.json`` is missing."""
    if is_store(path):
        return
    refuse_observations(path)
    if is_there(path / _PIPELINE_HEAD):
        raise UsageError(
            f"{path} is a pipeline, not a store",
            path=path,
            remedy="use the commands under 'stillframe pipeline', such as "
            f"'{shell_command('pipeline', 'list', path)}', or stillframe.Pipeline in Python",
        )
    _check_no_snapshots(path)
    has_any = bool(names(path)) if isinstance(path, ObjectPath) else path.exists()
    what = "is not a store" if has_any else "does not exist"
    raise UsageError(
        f"{path} {what}",
        path=path,
        remedy="give the directory in which 'run' stored its snapshots",
    )


def check_unused(path: Location) -> None:
    """Check that a directory is empty or a store; a UsageError names what else is in it."""
    if is_store(path):
        return
    refuse_observations(path)
    left_by_a_crash = {_LOCK, LEASE, SNAPSHOTS, ASSEMBLED}
    left_by_a_crash |= {partial_path(Path(name)).name for name in (HEAD, ASSEMBLED)}
    foreign = sorted({*names(path)} - left_by_a_crash)
    if foreign:
        raise UsageError(
            f"{path} is not empty and is not a store; it contains {first_names(foreign)}",
            path=path,
            remedy="give an empty or new directory",
        )
    _check_no_snapshots(path)


def check_only_begun(path: Location) -> None:
    """Check that a place is empty or holds the beginning of a copy of a store; a UsageError names
    what else is in it."""
    begun = {_LOCK, LEASE, SNAPSHOTS, ASSEMBLED, *HISTORY_FILES}
    foreign = sorted(name for name in {*names(path)} - begun if not name.endswith(".partial"))
    if foreign:
        raise UsageError(
            f"{path} is not empty; it contains {first_names(foreign)}",
            path=path,
            remedy="give an empty or new directory",
        )


def _check_no_snapshots(path: Location) -> None:
    if next(published_names(path / SNAPSHOTS), None) is not None:
        raise Damaged(
            f"{path / HEAD} is missing: put it back from a copy of the store", path=path / HEAD
        )


def make_store(path: Path, head: Head) -> None:
    """Write ``store.json``, or take over a store of the same topology without snapshots."""
    if (path / HEAD).exists():
        head = continued(path, read_head(path), head)
    (path / SNAPSHOTS).mkdir(exist_ok=True)
    # Last: this file makes the directory a store.
    replace_durably(path / HEAD, seal(head))
    sync(path.parent)


def continued(path: Location, existing: Head, head: Head) -> Head:
    """Return the head with which a new store takes over one of the same topology without
    snapshots; a UsageError if that is another one."""
    if next(published_names(path / SNAPSHOTS), None) is not None:
        raise UsageError(
            f"the store {path} already has snapshots: restore from it, or give another "
            "directory for a fresh start"
        )
    if existing.description.hash != head.description.hash:
        raise UsageError(
            f"the store {path} was created for another topology",
            path=path,
            remedy="give another directory, or delete that one, which has no snapshots",
        )
    # The epoch only rises. The snapshot that it began from is gone.
    return msgspec.structs.replace(existing, reference=head.reference, restored_from=None)


def visible(directory: Path) -> list[Path]:
    """Return what is published in a directory, in any order; nothing if there is none."""
    if not directory.is_dir():
        return []
    return [path for path in directory.iterdir() if not path.name.startswith(".")]


def published_names(snapshots: Location) -> Iterator[str]:
    """Yield the names of what is published in the directory of all snapshots; in an object store,
    of what has a manifest that is no tombstone."""
    if isinstance(snapshots, Path):
        yield from (path.name for path in visible(snapshots))
        return
    with explain_io_errors(snapshots, "read"):
        for one in storage_of(snapshots).files_below(snapshots):
            place = one.location.parent
            is_manifest = one.location.name == MANIFEST and place.parent == snapshots
            if is_manifest and isinstance(place, ObjectPath) and _has_manifest(place):
                yield place.name


def _has_manifest(directory: ObjectPath) -> bool:
    try:
        start = storage_of(directory).read_range(directory / MANIFEST, 0, TOMBSTONE_BYTES_MAX + 1)
    except FileNotFoundError:
        return False
    return not is_tombstone(start)


def snapshot_ids(snapshots: Location) -> list[SnapshotId]:
    """Return all published snapshots by number; a StoreError if something else is there. In an
    object store some may be unfinished: they have no manifest, or a tombstone."""
    with explain_io_errors(snapshots, "read"):
        if isinstance(snapshots, Path) and not snapshots.exists() and is_store(snapshots.parent):
            raise StoreError(
                f"the directory {snapshots} was deleted or moved, and its snapshots with it",
                path=snapshots,
                remedy=f"put it back, or make an empty one with 'mkdir {snapshots}'",
            )
        published = [name for name in names(snapshots) if not name.startswith(".")]
    found = []
    for name in published:
        snapshot = parse_snapshot_id(name)
        if snapshot is None:
            raise StoreError(
                f"{snapshots / name} is not a snapshot: move it out of the store",
                path=snapshots / name,
            )
        found.append(snapshot)
    return sorted(found, key=lambda snapshot: (snapshot.number, snapshot))


def changed_ns(directory: Location) -> int:
    """Return when the names in a directory changed last, in nanoseconds: they need not be listed
    again while that stays the same. 0 if there is none; an object store does not know it, so then
    it is always now. Raises OSError."""
    if isinstance(directory, ObjectPath):
        return time.time_ns()
    try:
        return directory.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def parse_snapshot_id(name: str) -> SnapshotId | None:
    """Return the snapshot whose directory has this name: not P1-17 for 'P1-017'."""
    try:
        snapshot = SnapshotId.parse(name)
    except UsageError:
        return None
    return snapshot if str(snapshot) == name else None


def is_snapshot_id(snapshot: SnapshotId) -> bool:
    """Return whether an id, which may come from anywhere, is safe as the name of a directory."""
    return parse_snapshot_id(str(snapshot)) == snapshot


def is_published(path: Location, snapshot: SnapshotId) -> bool:
    """Return whether the store at `path` has `snapshot`."""
    return is_published_at(path / SNAPSHOTS / str(snapshot))


def is_published_at(directory: Location) -> bool:
    """Return whether the snapshot in `directory` is published."""
    if isinstance(directory, ObjectPath):
        with explain_io_errors(directory, "read"):
            return _has_manifest(directory)
    return directory.is_dir()


def read_published(directory: Location, topologies: Mapping[str, Description]) -> Manifest | None:
    """Return the manifest of the snapshot in `directory`, of a store with these topologies; None if
    there is none, or it was removed meanwhile. Errors are as for ``read_manifest``."""
    try:
        return read_manifest(directory, topologies)
    except Damaged:
        if not is_published_at(directory):
            return None
    # In an object store it may have been published just now.
    return read_manifest(directory, topologies)


def remove_unfinished(path: Path) -> None:
    """Remove what a crashed writer left in the store at `path`, and force to the disk what it had
    published; only the writer may."""
    snapshots = path / SNAPSHOTS
    for left in unfinished(snapshots):
        shutil.rmtree(left)
    if snapshots.is_dir():
        # It may have died between the two steps of a publication. From here on the system relies
        # on that snapshot: effects are committed that only it contains.
        sync(snapshots)
    partial_path(path / HEAD).unlink(missing_ok=True)


def unfinished(directory: Path) -> Iterator[Path]:
    """Yield the directories in `directory` that a crash left half written or half removed."""
    for pattern in (partial_path(Path("*")).name, dropped_path(Path("*")).name):
        yield from directory.glob(pattern)


def dropped_path(directory: Path) -> Path:
    """Return the name that a snapshot has while it is removed: readers pass over it."""
    return directory.with_name(f".{directory.name}.dropped")


def remove_unlisted(directory: Path, manifest: Manifest, description: Description) -> None:
    """Remove files of the store that a crashed writer, or rewriting in full, left in the directory
    of a snapshot; only the writer may. Foreign files are left alone."""
    known = {name for is_full in (True, False) for name in file_names(description, is_full=is_full)}
    for name in {MANIFEST, *known}:
        partial_path(directory / name).unlink(missing_ok=True)
    for name in known.difference(record.name for record in manifest.files):
        (directory / name).unlink(missing_ok=True)


_SAVEPOINT_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_])?")


def check_savepoint_name(name: str) -> None:
    """Raise a UsageError if a savepoint cannot be called `name`."""
    try:
        SnapshotId.parse(name)
    except UsageError:
        if name == NEWEST:
            raise UsageError(
                f"a savepoint cannot be called {name!r}, which means the newest snapshot of a "
                "store: give another name"
            ) from None
        if _SAVEPOINT_NAME.fullmatch(name) is None:
            raise UsageError(
                f"a savepoint cannot be called {name!r}: use 1 to 64 letters, digits, '_', '.' or "
                "'-', starting with a letter or digit and not ending with '.' or '-'"
            ) from None
    else:
        raise UsageError(
            f"a savepoint cannot be called {name!r}, because snapshot ids look like that; give "
            "a name that does not end with '-' and a number"
        )


def find_snapshot(text: str, savepoints: Mapping[str, SnapshotId], path: Location) -> SnapshotId:
    """Return the snapshot that `text` names in the store at `path`, a savepoint or an id, else
    raise a UsageError."""
    if text in savepoints:
        return savepoints[text]
    try:
        return SnapshotId.parse(text)
    except UsageError:
        raise UsageError(
            f"{text!r} is not a snapshot id, which looks like P1-17, and not a savepoint of the "
            f"store {path}; its savepoints are: {first_names(savepoints) or 'none'}",
            path=path,
            snapshot=text,
        ) from None


def explain_missing(path: Location, snapshot: SnapshotId, known: Iterable[SnapshotId]) -> str:
    """Return a sentence about a snapshot that the store at `path` does not have."""
    listed = first_names(map(str, known))
    return (
        f"there is no snapshot {snapshot} in the store {path}; "
        f"there {'are ' + listed if listed else 'is none at all'}"
    )
