"""Opens the storage that a location is in."""

import functools
import os

from stillframe.storage.hdfs import Hdfs
from stillframe.storage.local_files import LocalFiles
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.object_store import ObjectStore
from stillframe.storage.storage import RequestCounts, Storage

_LOCAL = LocalFiles()


def storage_of(location: Location) -> Storage:
    """Return the storage that a location is in. Unavailable if its library is not installed,
    UsageError if its settings are wrong."""
    return object_store_of(location) if isinstance(location, ObjectPath) else _LOCAL


def object_store_of(location: ObjectPath) -> ObjectStore | Hdfs:
    """Return the bucket, or the HDFS, that a location is in; errors are as for ``storage_of``."""
    # A client of a parent process does not work in a forked child.
    return _object_store(location.root, os.getpid())


def requests_to(location: Location) -> RequestCounts | None:
    """Return the requests of this program to the bucket of a location; None if it is local."""
    return object_store_of(location).counts if isinstance(location, ObjectPath) else None


def trouble_of(location: Location) -> str:
    """Return why requests to the bucket of a location fail now, in words; "" if none does."""
    return object_store_of(location).trouble if isinstance(location, ObjectPath) else ""


@functools.lru_cache(maxsize=64)
def _object_store(root: str, pid: int) -> ObjectStore | Hdfs:  # noqa: ARG001 - see the caller
    return Hdfs(root) if root.startswith("hdfs:") else ObjectStore(root)
