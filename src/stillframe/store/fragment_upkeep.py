"""What becomes of the files of fragments beside being written: who was first, and what goes."""

import contextlib
import os
import shutil
from pathlib import Path

from stillframe.errors import UsageError
from stillframe.model import ProcessId, SnapshotId
from stillframe.store.disk import sync, write_new
from stillframe.store.opening import dropped_path

KEPT_COUNT = 1024
"""So many fragments of a process stay in an epoch, the newest."""


def put_shared(path: Path, content: bytes, process: ProcessId, *, replaces: bool) -> None:
    """Write a file that other processes may write at the same time: it is always whole.

    Args:
        path: of the file.
        content: what is to be in it.
        process: who writes.
        replaces: whether what is there already gives way.

    Raises:
        OSError: the disk is full or failed.
    """
    partial = path.with_name(f".{path.name}.{process}.partial")
    partial.unlink(missing_ok=True)
    try:
        write_new(partial, content)
        sync(partial)
        if replaces:
            partial.replace(path)
        else:
            _give_name(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def _give_name(partial: Path, path: Path) -> None:
    try:
        os.link(partial, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without second names
        if not path.exists():
            partial.replace(path)


def remove_left(directory: Path, process: ProcessId) -> None:
    """Remove what an earlier life of `process` left unfinished, as far as that can be done."""
    for pattern in (".*.partial", dropped_path(Path("*")).name):
        for left in directory.glob(f"e*/{process}/{pattern}"):
            shutil.rmtree(left, ignore_errors=True)


def make_room(own: Path) -> None:
    """Remove the oldest of the fragments in `own`, of one process, so that one more can come.

    Raises:
        OSError: one cannot be removed.
    """
    there = [path for path in own.iterdir() if not path.name.startswith(".")]
    if len(there) < KEPT_COUNT:
        return
    by_number: list[tuple[int, Path]] = []
    for path in there:
        with contextlib.suppress(UsageError):  # somebody else's, which readers name
            by_number.append((SnapshotId.parse(path.name).number, path))
    for _, path in sorted(by_number)[: max(0, len(by_number) - KEPT_COUNT + 1)]:
        # At once under a name that nobody looks at: no reader may see it go file by file.
        dropped = dropped_path(path)
        shutil.rmtree(path.rename(dropped))
