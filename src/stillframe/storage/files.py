"""Files in a directory or in an object store, for callers that treat both alike.

In a directory they are renamed and linked, as ever. Errors are OSErrors, as those of ``storage``.
"""

import contextlib
import errno
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar, cast

from stillframe.durable_files import link_into, replace_durably
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of

_COPIED_BYTES_MAX = 2**32
_CONCURRENT_COUNT = 16
"""Requests to an object store at a time: each answer takes long, but they can overlap."""
_AHEAD_COUNT = 64
"""Maximum results that wait for their turn."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
Place = TypeVar("Place", bound=Location)
"""A path of this machine, or one in an object store; a function keeps the kind."""


def below(place: Place, *parts: str) -> Place:
    """Return a place below another one, of the same kind."""
    found: Location = place
    for part in parts:
        found = found / part
    return cast("Place", found)


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
    if len(content) > _COPIED_BYTES_MAX:
        sentence = (
            f"it has more than {_COPIED_BYTES_MAX} bytes, and cannot be copied between places"
        )
        raise OSError(errno.EFBIG, sentence, str(source))
    storage_of(target).put(target, content)


def copy_all(pairs: Sequence[tuple[Location, Location]]) -> None:
    """``copy_into`` many files; several at a time if one is in an object store."""
    places = (path for pair in pairs for path in pair)
    remote = next((path for path in places if isinstance(path, ObjectPath)), Path())
    for _ in mapped(remote, lambda pair: copy_into(*pair), pairs):
        pass


def mapped(
    place: Location, function: Callable[[_Item], _Result], items: Sequence[_Item]
) -> Iterator[_Result]:
    """Yield the results of a function in order; of several items at a time if the files that it
    reads are in an object store, as `place` is."""
    if isinstance(place, Path) or len(items) < 2:
        yield from map(function, items)
        return
    for first in range(0, len(items), _AHEAD_COUNT):
        yield from side_by_side(function, items[first : first + _AHEAD_COUNT], _CONCURRENT_COUNT)


def side_by_side(
    function: Callable[[_Item], _Result], items: Sequence[_Item], thread_count: int
) -> Iterator[_Result]:
    """Yield the results of a function in order, of several items at a time. After an error, it
    waits for what has begun; after Ctrl-C it does not, since an object store may be silent."""
    futures: list[Future[_Result]] = [Future() for _ in items]
    left = deque(zip(futures, items, strict=True))

    def work() -> None:
        with contextlib.suppress(IndexError):  # nothing is left
            while True:
                future, item = left.popleft()
                try:
                    result = function(item)
                except BaseException as error:  # noqa: BLE001 - raised again by the caller
                    future.set_exception(error)
                else:
                    future.set_result(result)

    # Python waits for the threads of a pool before it ends.
    count = min(thread_count, len(items))
    threads = [threading.Thread(target=work, name="files", daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        for future in futures:
            yield future.result()
    except Exception:
        left.clear()
        for thread in threads:
            thread.join()
        raise
    finally:
        left.clear()
