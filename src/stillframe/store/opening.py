"""A directory becomes a store, is known as one, and belongs to one writer."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from stillframe.errors import Damaged, StoreError, Unavailable, UsageError
from stillframe.local_path import local_path
from stillframe.model import SnapshotId
from stillframe.store.disk import partial_path, replace_durably, sync
from stillframe.store.manifest import MANIFEST, Head, Manifest
from stillframe.store.seal import TooLarge, read_sealed, seal

HEAD = "store.json"
SNAPSHOTS = "snapshots"
ASSEMBLED = "assembled.json"
"""It is in a store that fragments were assembled into, and in no other."""
_LOCK = "lock"
_PIPELINE_HEAD = "pipeline.json"
_LISTED_MAX = 5


def listed(names: Iterable[str]) -> str:
    """Return the first few names for an error message."""
    known = list(names)
    more = f" and {len(known) - _LISTED_MAX} more" if len(known) > _LISTED_MAX else ""
    return ", ".join(known[:_LISTED_MAX]) + more


@contextlib.contextmanager
def explained(path: Path, action: str) -> Iterator[None]:
    """Turn an OSError into a StoreError that says what could not be done to `path`; what is too
    large to be sealed is said of `path` as well."""
    try:
        yield
    except TooLarge as error:
        raise TooLarge(f"{path} could not be {action}: {error}") from error
    except OSError as error:
        raise StoreError(
            f"{path} could not be {action}: {error.strerror or error}: see to the space, the "
            "permissions and the health of that disk, or give another directory"
        ) from error


def take_lock(path: Path) -> int:
    """Become the one writer of the store at `path`, until the descriptor returned is closed.

    Raises:
        Unavailable: there is another writer.
        OSError: the directory cannot be written to.
    """
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise Unavailable(
            f"the store {path} is in use by another program that writes to it: stop that one, or "
            "give this one another directory"
        ) from None
    except OSError:
        os.close(lock)
        raise
    return lock


def check_is_store(path: Path) -> None:
    """Refuse what is no store.

    Raises:
        UsageError: there is nothing, or something else.
        Damaged: it has lost its ``store.json``.
    """
    if (local_path(path) / HEAD).exists():
        return
    if (path / _PIPELINE_HEAD).exists():
        raise UsageError(
            f"{path} is a pipeline and no store: use the commands under 'stillframe spark', such "
            f"as 'stillframe spark list {path}'"
        )
    if _has_snapshots(path):
        raise Damaged(f"{path / HEAD} is missing: put it back from a copy of the store")
    what = "is no store" if path.exists() else "does not exist"
    raise UsageError(f"{path} {what}: give the directory that 'run' wrote its snapshots to")


def check_free(path: Path) -> None:
    """Refuse a directory that is somebody else's: neither empty nor a store.

    Raises:
        UsageError: it is; the error says what is in it.
        OSError: it cannot be read.
    """
    if (path / HEAD).exists():
        return
    made_first = path / ASSEMBLED
    left_by_a_crash = {_LOCK, SNAPSHOTS, partial_path(path / HEAD).name}
    left_by_a_crash |= {made_first.name, partial_path(made_first).name}
    foreign = sorted({item.name for item in path.iterdir()} - left_by_a_crash)
    if foreign:
        raise UsageError(
            f"{path} is not empty and no store, it holds {listed(foreign)}: give a directory that "
            "is empty or not there yet"
        )
    if _has_snapshots(path):
        raise Damaged(f"{path / HEAD} is missing: put it back from a copy of the store")


def make_store(path: Path, head: Head) -> None:
    """Write what makes `path` a store, or take over one without snapshots.

    Raises:
        UsageError: it has snapshots, or is of another topology.
        Damaged, StoreError: its ``store.json`` was changed or cannot be read.
        OSError: the disk is full or failed.
    """
    if (path / HEAD).exists():
        existing = read_sealed(path / HEAD, Head)
        if _has_snapshots(path):
            raise UsageError(
                f"the store {path} has snapshots already: restore from it, or give another "
                "directory for a fresh start"
            )
        if existing.description.hash != head.description.hash:
            raise UsageError(
                f"the store {path} was made for another topology: give another directory, or "
                "delete that one, it has no snapshots"
            )
        # The epoch goes on: an older one must never come again. What it began from is gone.
        head = msgspec.structs.replace(existing, reference=head.reference, restored_from=None)
    (path / SNAPSHOTS).mkdir(exist_ok=True)
    # Last, because it is what makes the directory a store.
    replace_durably(path / HEAD, seal(head))
    sync(path.parent)


def snapshot_directories(snapshots: Path) -> list[Path]:
    """Return the directories of all that is published in `snapshots`, in any order.

    Raises:
        StoreError: it cannot be read, or a name in it is none of ours.
    """
    with explained(snapshots, "read"):
        found = [path for path in snapshots.iterdir() if not path.name.startswith(".")]
    for path in found:
        try:
            SnapshotId.parse(path.name)
        except UsageError:
            raise StoreError(f"{path} is no snapshot: move it out of the store") from None
    return found


def is_published(path: Path, snapshot: SnapshotId) -> bool:
    """Return whether the store at `path` has `snapshot`: one that is there is there whole."""
    return (path / SNAPSHOTS / str(snapshot)).is_dir()


def remove_partial(path: Path) -> None:
    """Remove what a crashed writer left; only the writer may.

    Raises:
        OSError: something cannot be removed.
    """
    for pattern in (".*.partial", dropped_path(Path("*")).name):
        for left in (path / SNAPSHOTS).glob(pattern):
            shutil.rmtree(left)
    partial_path(path / HEAD).unlink(missing_ok=True)


def dropped_path(directory: Path) -> Path:
    """Return the name that a snapshot has while it is removed: no reader looks at it."""
    return directory.with_name(f".{directory.name}.dropped")


def remove_unlisted(directory: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Remove what a crashed writer left in the directory of a snapshot; only the writer may.

    Args:
        directory: of the snapshot.
        manifest: lists the files that stay.
        names: of all files that the store may write there; others are somebody else's.

    Raises:
        OSError: something cannot be removed.
    """
    listed_names = {record.name for record in manifest.files}
    for name in names:
        partial_path(directory / name).unlink(missing_ok=True)
        if name not in listed_names and name != MANIFEST:
            (directory / name).unlink(missing_ok=True)


def _has_snapshots(path: Path) -> bool:
    snapshots = path / SNAPSHOTS
    return snapshots.is_dir() and any(not item.name.startswith(".") for item in snapshots.iterdir())
