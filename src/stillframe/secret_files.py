"""Files that hold secrets: only their owner may read them."""

import os
import stat
from pathlib import Path

from stillframe.durable_files import no_wait
from stillframe.errors import UsageError

BYTES_MAX = 2**16


def read_text(path: Path, *, is_secret: bool) -> str:
    """Return the content of a file; UsageError if it cannot be read or others can read a secret."""
    try:
        with open(path, "rb", opener=no_wait) as file:
            status = os.fstat(file.fileno())
            content = file.read(BYTES_MAX + 1) if stat.S_ISREG(status.st_mode) else None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if content is None or len(content) > BYTES_MAX:
        raise UsageError(f"{path} is no regular file of up to {BYTES_MAX} bytes")
    # A file of root may belong to a group for the purpose, as mounted secrets do.
    others = 0o037 if status.st_uid == 0 else 0o077
    if is_secret and status.st_mode & others:
        raise UsageError(
            f"{path} can be read or changed by other users, and may hold a secret: chmod 600 {path}"
        )
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text in UTF-8") from None
