"""Files of a pipeline, in a directory or in an object store.

In a directory they are renamed and linked, as ever. Errors are OSErrors, as those of ``storage``.
"""

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, cast

from stillframe.durable_files import link_into, replace_durably
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of

_COPIED_BYTES_MAX = 2**32
_COPIED_COUNT = 16
Place = TypeVar("Place", bound=Location)
"""A path of this machine if the pipeline is in a directory, and one in an object store if not."""


def below(place: Place, *parts: str) -> Place:
    """Return a place below another one, of the same kind."""
    found: Location = place
    for part in parts:
        found = found / part
    return cast("Place", found)


def exists(path: Location) -> bool:
    """Return whether there is a file; a directory counts only on this machine."""
    return storage_of(path).exists(path) if isinstance(path, ObjectPath) else path.exists()


def replace(path: Location, content: bytes) -> None:
    """Replace a file in one step; it is durable when this returns."""
    if isinstance(path, ObjectPath):
        storage_of(path).put(path, content)
    else:
        replace_durably(path, content)


def names(directory: Location) -> list[str]:
    """Return the names in a directory, which need not exist, in any order."""
    if isinstance(directory, ObjectPath):
        return [one.location.name for one in storage_of(directory).children(directory)]
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries]
    except FileNotFoundError:
        return []


def remove_tree(directory: Location) -> None:
    """Remove a directory and all that is in it, if it is there."""
    if isinstance(directory, ObjectPath):
        storage = storage_of(directory)
        storage.delete(one.location for one in storage.files_below(directory))
    elif directory.exists():
        shutil.rmtree(directory)


def byte_count(path: Location) -> int:
    """Return the length of a file."""
    if isinstance(path, ObjectPath):
        return storage_of(path).read_end(path, 1)[1]
    return path.stat().st_size


def copy_into(source: Location, target: Location) -> None:
    """Give a file that never changes a second place: by a link, by a copy inside one bucket, or by
    reading and writing it."""
    if isinstance(source, Path) and isinstance(target, Path):
        link_into(source, target)
        return
    if getattr(source, "root", None) == getattr(target, "root", ""):
        storage_of(source).copy(source, target)
        return
    content, _ = storage_of(source).read(source, bytes_max=_COPIED_BYTES_MAX)
    storage_of(target).put(target, content)


def copy_all(pairs: Sequence[tuple[Location, Location]]) -> None:
    """``copy_into`` many files; several at a time if one is in an object store."""
    if all(isinstance(path, Path) for pair in pairs for path in pair):
        for source, target in pairs:
            copy_into(source, target)
        return
    with ThreadPoolExecutor(_COPIED_COUNT) as pool:
        list(pool.map(lambda pair: copy_into(*pair), pairs))
