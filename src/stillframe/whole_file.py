"""Files that are written whole or not at all, and never over what they are made from."""

import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from stillframe.errors import UsageError


def write_whole(path: Path, chunks: Iterable[bytes], *, inputs: Iterable[Path] = ()) -> None:
    """Write `chunks` to `path`; a file that is there is replaced, whole or not at all.

    A symbolic link is followed: what it points to is written.

    Args:
        path: where to.
        chunks: the content.
        inputs: files that this is made from; none of them is overwritten.

    Raises:
        OSError: the disk is full or failed; what was at `path` is still there.
        UsageError: `path` cannot be written like that; see `check_target`.
    """
    target = check_target(path, inputs=inputs)
    # Beside it, so that it is on the same disk; of a name that is never too long.
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            # Nobody knows the temporary name.
            error.filename, error.filename2 = str(path), None
        raise


def check_target(path: Path, *, inputs: Iterable[Path] = ()) -> Path:
    """Return the file that writing to `path` replaces, with symbolic links followed.

    Raises:
        UsageError: `path` is one of `inputs`, is there and no regular file, or is in no directory.
        OSError: it cannot be looked at.
    """
    if str(path) == "-":
        raise UsageError("'-' is no file, and this is written to files only: name one")
    target = Path(os.path.realpath(path))
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if not target.parent.is_dir():
            problem = "is no directory" if target.parent.exists() else "does not exist"
            raise UsageError(
                f"{path} cannot be written: the directory {path.parent} {problem}: make it first"
            ) from None
        return target
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path} is no regular file, and is not replaced: name another")
    for source in inputs:
        if source.exists() and path.samefile(source):
            raise UsageError(
                f"{path} is {source}, from which it would be made: name another file to write"
            )
    return target
