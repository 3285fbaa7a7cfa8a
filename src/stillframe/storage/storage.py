"""The interface of every kind of storage.

Whatever fails is an OSError: FileNotFoundError if something is missing, FileExistsError and
``Changed`` if a condition did not hold, else one whose ``strerror`` is a sentence. So callers treat
local files and objects alike.

Executors of a cluster import this module: it needs no more than Python.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from stillframe.storage.location import Location


class Version(NamedTuple):
    """Tells the content of a file from every earlier and later one; `etag` and `number` are opaque.
    An object store may reuse the tag of an equal content: write none twice that must not be."""

    etag: str | None
    number: str | None = None


class Changed(OSError):
    """A file is not of the version that was expected: another program has replaced or deleted it.
    Nothing was written."""


class Listed(NamedTuple):
    """One name in a directory; `byte_count` is None for a directory."""

    location: Location
    byte_count: int | None


class Storage(Protocol):
    """One kind of storage. Each method takes locations of this kind; a file is written whole or not
    at all, and is on the disk, or in the object store, when the method returns."""

    def read(self, location: Location, *, bytes_max: int) -> tuple[bytes, Version]:
        """Return at most `bytes_max` + 1 bytes of a file: one more shows that it is longer."""
        ...

    def read_range(self, location: Location, start: int, length: int) -> bytes:
        """Return `length` bytes of a file from `start` on; fewer if it ends before."""
        ...

    def read_end(self, location: Location, length: int) -> tuple[bytes, int]:
        """Return the last `length` bytes of a file, or all if it has fewer, and its size."""
        ...

    def exists(self, location: Location) -> bool:
        """Return whether there is a file."""
        ...

    def children(self, directory: Location) -> list[Listed]:
        """Return what is directly in a directory, by name; nothing if there is no such one."""
        ...

    def files_below(self, directory: Location) -> list[Listed]:
        """Return all files below a directory, by name; none if there is no such one. Empty objects
        are left out, here and by ``children``: other programs mark directories with them."""
        ...

    def put(self, location: Location, content: bytes) -> Version:
        """Write a file; one that is there is replaced."""
        ...

    def put_if_absent(self, location: Location, content: bytes) -> Version:
        """Write a file that is not there; FileExistsError if it is. If others may write the same
        bytes at the same time, each may be told that it was first."""
        ...

    def replace_if_unchanged(self, location: Location, content: bytes, version: Version) -> Version:
        """Replace a file if it is of that version, else ``Changed``."""
        ...

    def copy(self, source: Location, target: Location) -> None:
        """Give a file a second place, without reading it if that is possible. Neither of both may
        be changed in place afterwards."""
        ...

    def delete(self, locations: Iterable[Location]) -> None:
        """Delete files; those that are missing are no error."""
        ...


@dataclass(frozen=True)
class RequestCounts:
    """Counts of requests to an object store.

    `repeated` are those among `requests` that were sent again after a failure. The bytes are those
    of contents; `seconds` is the sum of what each request took.
    """

    requests: int = 0
    repeated: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: float = 0.0

    def plus(self, more: "RequestCounts") -> "RequestCounts":
        """Return the sums of both."""
        return RequestCounts(
            self.requests + more.requests,
            self.repeated + more.repeated,
            self.sent_bytes + more.sent_bytes,
            self.received_bytes + more.received_bytes,
            self.seconds + more.seconds,
        )
