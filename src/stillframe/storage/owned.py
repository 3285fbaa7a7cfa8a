"""Reliance on conditional writes: whether an object store honours them, and an object that one
program replaces again and again, until another program takes it over.
"""

import contextlib
import errno
import hashlib
import secrets

from stillframe.errors import StoreError
from stillframe.storage.location import Location
from stillframe.storage.opened import storage_of
from stillframe.storage.storage import Changed, Version

PROBE = ".probe-"
"""The beginning of the name of a file that ``check_conditional_writes`` may leave when it dies."""


class OwnedObject:
    """The current content of a file, as far as this program knows.

    Every content that is written must differ from all others, also from those of other programs. So
    a write whose answer was lost is recognised later: what is there is either ours, or another
    program has taken the object over. One thread at a time may use it.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self._storage = storage_of(location)
        self._version: Version | None = None
        self._uncertain: set[bytes] = set()

    def read(self, *, bytes_max: int) -> bytes | None:
        """Return the content, at most one byte more than `bytes_max`, and own that version from now
        on; None if the file is missing. Raises OSError."""
        self._version = content = None
        with contextlib.suppress(FileNotFoundError):
            content, self._version = self._storage.read(self.location, bytes_max=bytes_max)
        return content

    def replace(self, content: bytes) -> None:
        """Replace the content that was read or written last. Raises ``Changed`` if another program
        has written, and OSError if it is unknown whether this took effect; then call again, with
        any content."""
        try:
            try:
                self._put(content)
            except (Changed, FileExistsError):
                self._adopt()
                self._put(content)
        except (Changed, FileExistsError):
            raise Changed(
                errno.ESTALE, "another program has replaced it", str(self.location)
            ) from None
        except OSError:
            self._uncertain.add(_digest(content))
            raise
        self._uncertain.clear()

    def _put(self, content: bytes) -> None:
        if self._version is None:
            self._version = self._storage.put_if_absent(self.location, content)
        else:
            version = self._storage.replace_if_unchanged(self.location, content, self._version)
            self._version = version

    def _adopt(self) -> None:
        """Own what is there, if this program wrote it without an answer; else ``Changed``."""
        if self._uncertain:
            # Only the digest of a content of ours is known, and so is not its length.
            found, version = self._storage.read(self.location, bytes_max=2**27)
            if _digest(found) in self._uncertain:
                self._version = version
                return
        raise Changed


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def check_conditional_writes(directory: Location) -> None:
    """Write, and delete, a small file in `directory`; StoreError if a condition was ignored, so
    that two writers could not be told apart. OSError if the storage fails."""
    storage = storage_of(directory)
    place = directory / f"{PROBE}{secrets.token_hex(8)}"
    contents = [secrets.token_bytes(16) for _ in range(4)]
    first = storage.put_if_absent(place, contents[0])
    try:
        with contextlib.suppress(FileExistsError):
            storage.put_if_absent(place, contents[1])
            raise _ignores("writes an object although it exists ('If-None-Match: *')", place)
        try:
            storage.replace_if_unchanged(place, contents[2], first)
        except Changed as error:
            raise _ignores("refuses to replace an object that is unchanged", place) from error
        with contextlib.suppress(Changed):
            storage.replace_if_unchanged(place, contents[3], first)
            raise _ignores("replaces an object although it was changed ('If-Match')", place)
    finally:
        storage.delete([place])


def _ignores(what: str, place: Location) -> StoreError:
    return StoreError(
        f"the object store of {place.parent} {what}: two writers could not be kept apart there",
        path=place.parent,
        remedy="use an object store with conditional writes, or a local directory",
    )
