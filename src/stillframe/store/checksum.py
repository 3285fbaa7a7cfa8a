"""Whether a file is what was written, by a number that is kept elsewhere.

Executors of a cluster use it: it needs no more than Python.
"""

import zlib
from pathlib import Path

from stillframe.errors import Damaged

_CHUNK_BYTES = 1 << 20


def checksum_of(path: Path) -> int:
    """Return the CRC-32 of a file: it finds what a disk or a cable changed, not what somebody
    forged.

    Raises:
        OSError: the file cannot be read.
    """
    checksum = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def check_file(path: Path, checksum: int) -> None:
    """Refuse a file that is not what was written.

    Raises:
        Damaged: it is missing, was changed or cannot be read.
    """
    try:
        found = checksum_of(path)
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error}") from error
    if found != checksum:
        raise Damaged(
            f"{path} was changed since it was written: its checksum is {found:08x}, and was "
            f"{checksum:08x}; go back to a snapshot that does not need it"
        )
