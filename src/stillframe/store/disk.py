"""Files that survive a crash: what was written is on the disk before it has its name.

Everything is written under a name that begins with a dot (Spark and DuckDB pass over those), forced
to the disk, and then renamed; the directory that holds the new name is forced to the disk as well.
"""

import errno
import os
import shutil
from pathlib import Path

from stillframe.errors import Damaged, StoreError

PUT_BACK = "put the file back from a copy"
"""What can be done about a file that is not what was written; its other readers know more."""

WHAT_TO_DO = f"{PUT_BACK}, or delete the directory of that snapshot and use another one"
"""The same, about a file of a snapshot."""

OF_A_FRAGMENT = f"{PUT_BACK}, or delete that fragment: its snapshot is incomplete then"
"""The same, about a file of what one process recorded of a snapshot."""


def partial_path(path: Path) -> Path:
    """Return where `path` is built before it gets its name."""
    return path.with_name(f".{path.name}.partial")


def write_new(path: Path, content: bytes) -> None:
    """Write a new file; to ``sync`` it and its directory is the caller's next step.

    Raises:
        OSError: the disk is full, or the file is there already.
    """
    with path.open("xb", buffering=0) as file:
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) or 0 :]


def sync(path: Path) -> None:
    """Force a file, or the names in a directory, to the disk.

    Raises:
        OSError: the disk is full or failed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(path: Path, content: bytes) -> None:
    """Give a file new content: after a crash at any moment it has the old or the new, whole.

    Raises:
        OSError: the disk is full or failed; the old content is still there.
    """
    partial = partial_path(path)
    partial.unlink(missing_ok=True)
    replace_by(partial, path, content)
    sync(path.parent)


def replace_by(partial: Path, path: Path, content: bytes) -> None:
    """Write a file as `partial`, which is not there, and give it the name `path`; to ``sync`` the
    directory is the caller's next step.

    Raises:
        OSError: the disk is full or failed; nothing is left of `partial`.
    """
    try:
        write_new(partial, content)
        sync(partial)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or, on another file system, a copy.

    Raises:
        OSError: the disk is full or failed, or `target` is there already.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(source, target)


def read_file(path: Path, *, bytes_max: int, advice: str = PUT_BACK) -> bytes:
    """Read a whole file of at most `bytes_max` bytes.

    Raises:
        Damaged: it is missing or longer.
        StoreError: it cannot be read.
    """
    try:
        # Opened so, a pipe into which nobody writes is empty, and nobody waits for more.
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
            # One byte more than there should be tells whether there is more.
            content = file.read(min(bytes_max, os.fstat(file.fileno()).st_size) + 1)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise Damaged(f"{path} is missing: {advice}") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > bytes_max:
        raise Damaged(f"{path} has more than the {bytes_max} bytes that it may have: {advice}")
    return content
