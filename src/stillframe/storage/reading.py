"""Reads files that detect changes, wherever they are."""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator

from stillframe.durable_files import no_wait
from stillframe.errors import Damaged, StoreError
from stillframe.storage.location import Location, ObjectPath, io_advice
from stillframe.storage.opened import storage_of

FILE_ADVICE = "put the file back from a copy"
"""What to do about a damaged file; some readers know more."""
SNAPSHOT_ADVICE = f"{FILE_ADVICE}, or delete the directory of that snapshot and use another one"
FRAGMENT_ADVICE = f"{FILE_ADVICE}, or delete that fragment: its snapshot is incomplete then"

_SEALED = re.compile(rb'\{"content":(\{.*\}),"hash":"([0-9a-f]{64})"\}', re.DOTALL)


def unreadable(path: Location, error: OSError) -> StoreError:
    """Return the error for a file that may be intact, but cannot be read now."""
    return StoreError(
        f"{path} cannot be read: {error.strerror or error}",
        path=path,
        remedy=io_advice(path, error),
    )


@contextlib.contextmanager
def readable(path: Location) -> Iterator[None]:
    """Raise ``unreadable`` for an OSError of the body. FileNotFoundError stays as it is."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error


def is_there(path: Location) -> bool:
    """Return whether there is a file; a directory counts only on this machine. StoreError if that
    cannot be found out."""
    if isinstance(path, ObjectPath):
        try:
            return storage_of(path).exists(path)
        except OSError as error:
            raise unreadable(path, error) from error
    with readable(path):
        return path.exists()


def read_file(path: Location, *, bytes_max: int, advice: str = FILE_ADVICE) -> bytes:
    """Read a whole file of at most `bytes_max` bytes; Damaged if it is missing or longer,
    StoreError if it cannot be read."""
    with readable(path):
        try:
            if isinstance(path, ObjectPath):
                content, _ = storage_of(path).read(path, bytes_max=bytes_max)
            else:
                with open(path, "rb", opener=no_wait) as file:
                    # One byte more than expected shows whether the file is longer.
                    content = file.read(min(bytes_max, os.fstat(file.fileno()).st_size) + 1)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise Damaged(f"{path} is missing", path=path, remedy=advice) from None
    if len(content) > bytes_max:
        raise Damaged(
            f"{path} has more than the {bytes_max} bytes that it may have", path=path, remedy=advice
        )
    return content


def read_hashed(
    path: Location, byte_count: int, digest: str, *, advice: str = SNAPSHOT_ADVICE
) -> bytes:
    """Return the bytes of a file that must be `byte_count`, with the SHA-256 `digest`; errors as
    for ``read_file``."""
    content = read_file(path, bytes_max=byte_count, advice=advice)
    if len(content) != byte_count:
        raise Damaged(
            f"{path} has {len(content)} bytes and is cut short: {byte_count} were written",
            path=path,
            remedy=advice,
        )
    if hashlib.sha256(content).hexdigest() != digest:
        raise Damaged(f"{path} was changed since it was written", path=path, remedy=advice)
    return content


def read_sealed_content(path: Location, *, bytes_max: int, advice: str) -> bytes:
    """Return the content of a sealed file (``store.sealed_json``), still encoded; errors as for
    ``read_file``."""
    return sealed_content(path, read_file(path, bytes_max=bytes_max, advice=advice), advice=advice)


def sealed_content(path: Location, sealed: bytes, *, advice: str) -> bytes:
    """Return the content of a sealed file that was read already; Damaged if it was changed."""
    found = _SEALED.fullmatch(sealed)
    if found is None or hashlib.sha256(found[1]).hexdigest().encode() != found[2]:
        raise Damaged(f"{path} was changed since it was written", path=path, remedy=advice)
    return found[1]
