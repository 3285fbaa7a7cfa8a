"""Paths of this machine, told apart from addresses of other storage."""

import re
from pathlib import Path

from stillframe.errors import UsageError

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""A scheme has two letters at least, so ``C:/x`` is a path; ``Path("s3://x")`` keeps one slash."""


def local_path(path: str | Path) -> Path:
    """Return `path` if it is one of this machine's file system.

    Raises:
        UsageError: it is an address, such as ``s3://bucket/x`` or ``dbfs:/x``; as a path it would
            be a directory called ``s3:`` in the working directory.
    """
    found = _ADDRESS.match(str(path))
    if found is not None:
        raise UsageError(
            f"{path} is an address, and {found[1]}: is not supported: give a path of a mounted "
            f"file system, such as /mnt/x; for a local directory {found[1]}: give its absolute path"
        )
    return Path(path)
