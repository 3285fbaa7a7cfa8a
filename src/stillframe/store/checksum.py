"""Whether a file is what was written, by a number that is kept elsewhere.

Executors of a cluster use it: it needs no more than Python.
"""

import hashlib
import re
import zlib
from pathlib import Path

from stillframe.errors import Damaged
from stillframe.store.disk import WHAT_TO_DO, read_file

_CHUNK_BYTES = 1 << 20
_SEALED = re.compile(rb'\{"content":(\{.*\}),"hash":"([0-9a-f]{64})"\}', re.DOTALL)


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


def read_hashed(path: Path, byte_count: int, digest: str, *, advice: str = WHAT_TO_DO) -> bytes:
    """Return the bytes of a file that must be `byte_count`, with the SHA-256 `digest`.

    Raises:
        Damaged: they are not what was written.
        StoreError: the file cannot be read.
    """
    content = read_file(path, bytes_max=byte_count, advice=advice)
    if len(content) != byte_count:
        raise Damaged(
            f"{path} has {len(content)} bytes and is cut short: {byte_count} were written: {advice}"
        )
    if hashlib.sha256(content).hexdigest() != digest:
        raise Damaged(f"{path} was changed since it was written: {advice}")
    return content


def read_sealed_content(path: Path, *, bytes_max: int, advice: str) -> bytes:
    """Return the content of a sealed file (``seal``) as it was encoded.

    Raises:
        Damaged: a byte was changed, the file is cut short, too long or missing.
        StoreError: the file cannot be read.
    """
    sealed = _SEALED.fullmatch(read_file(path, bytes_max=bytes_max, advice=advice))
    if sealed is None or hashlib.sha256(sealed[1]).hexdigest().encode() != sealed[2]:
        raise Damaged(f"{path} was changed since it was written: {advice}")
    return sealed[1]
