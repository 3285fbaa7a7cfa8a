"""Files that survive a crash: each is complete on the disk before it gets its name.

Everything is written under a name that begins with a dot (Spark and DuckDB ignore those), forced to
the disk, and then renamed; the directory with the new name is forced to the disk as well. A
checksum that is kept elsewhere detects changes. A function that writes raises OSError if the disk
is full or failed, and leaves the old content, if any, and nothing of the new.

Executors of a cluster import this module: it needs no more than Python.
"""

import errno
import fcntl
import os
import secrets
import shlex
import shutil
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path

from stillframe.errors import Damaged, UsageError, text_of

_CHUNK_BYTES = 1 << 20


def partial_path(path: Path) -> Path:
    """Return where `path` is written before it gets its name."""
    return path.with_name(f".{path.name}.partial")


def disk_advice(error: OSError) -> str:
    """Return what to do about an error of the disk."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "make room on that disk, or give another directory"
        case errno.EFBIG:
            return "raise the limit of the size of files ('ulimit -f')"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "give this user access to it, or give another directory"
        case errno.EEXIST | errno.ENOTDIR:
            return "a file has that name, or that of a directory above it: give another name"
        case errno.EMFILE | errno.ENFILE:
            return "raise the limit of open files ('ulimit -n')"
        case _:
            return "check that this directory exists and that its disk is healthy"


def shell_command(*words: object) -> str:
    """Return a command of Stillframe to copy into a shell, also if a path has spaces."""
    return shlex.join(["stillframe", *map(str, words)])


def write_new(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file that does not exist yet; ``sync`` it and its directory next. `mode` says who may
    read it, except whom the process's mask excludes."""
    with open(path, "xb", buffering=0, opener=lambda p, flags: os.open(p, flags, mode)) as file:
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) or 0 :]


def sync(path: Path) -> None:
    """Force a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Replace the content of a file: after a crash at any moment it has the old or the new one."""
    partial = partial_path(path)
    partial.unlink(missing_ok=True)
    replace_by(partial, path, content, mode=mode)
    sync(path.parent)


def replace_by(partial: Path, path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file as `partial`, which does not exist, and rename it to `path`; ``sync`` its
    directory next."""
    try:
        write_new(partial, content, mode=mode)
        sync(partial)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def try_lock(path: Path) -> int | None:
    """Lock a file, which is made if it is not there, until the returned descriptor is closed; None
    if it is locked already."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, which does not exist, or copy it to another file system."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(source, target)


def link_into(source: Path, target: Path) -> None:
    """``link_or_copy`` into a directory that need not exist."""
    target.parent.mkdir(parents=True, exist_ok=True)
    link_or_copy(source, target)


def link_tree(source: Path, target: Path) -> None:
    """``link_or_copy`` every file below a directory to the same place below another one."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            link_into(path, target / path.relative_to(source))


def no_wait(path: str, flags: int) -> int:
    """Open a file, as the `opener` of ``open``. A pipe does not block: to be read, one without a
    writer is empty; to be written, one without a reader is an OSError."""
    return os.open(path, flags | os.O_NONBLOCK)


def checksum_of(path: Path) -> int:
    """Return the CRC-32 of a file: it detects errors of a disk or a cable, not forgery."""
    checksum = 0
    with open(path, "rb", buffering=0, opener=no_wait) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        while chunk := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def check_file(path: Path, checksum: int) -> None:
    """Raise a Damaged if a file is not what was written, or cannot be read."""
    try:
        found = checksum_of(path)
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {text_of(error)}", path=path) from error
    check_content(path, found, checksum)


def check_content(path: object, found: int, checksum: int) -> None:
    """Raise a Damaged if the CRC-32 of a file is not the one of what was written."""
    if found != checksum:
        raise Damaged(
            f"{path} was changed since it was written: its checksum is {found:08x}, and was "
            f"{checksum:08x}; restore a snapshot that does not need it",
            path=path,
        )


def write_atomically(path: Path, chunks: Iterable[bytes], *, inputs: Iterable[Path] = ()) -> None:
    """Write `chunks` to `path`; an existing file is replaced completely or not at all. A symbolic
    link is followed: its target is written. `inputs` are files that the content is made from; none
    of them is overwritten (`check_target`)."""
    target = check_target(path, inputs=inputs)
    # In the same directory, so on the same disk; its name is never too long.
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
            # The caller does not know the temporary name.
            error.filename, error.filename2 = str(path), None
        raise


def check_target(path: Path, *, inputs: Iterable[Path] = ()) -> Path:
    """Return the file that writing to `path` replaces, with symbolic links followed; UsageError if
    that is one of `inputs`, no regular file, or in no directory."""
    if str(path) == "-":
        raise UsageError("'-' is not a file, and this output goes to files only: give a file name")
    target = Path(os.path.realpath(path))
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if not target.parent.is_dir():
            problem = "is not a directory" if target.parent.exists() else "does not exist"
            raise UsageError(
                f"{path} cannot be written: the directory {path.parent} {problem}: create it first"
            ) from None
        return target
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path} is not a regular file, and is not replaced: give another name")
    for source in inputs:
        if source.exists() and path.samefile(source):
            raise UsageError(f"{path} is {source}, the input: give another output file")
    return target
