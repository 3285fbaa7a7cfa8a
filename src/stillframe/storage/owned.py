"""An object that one program replaces again and again, until another program takes it over."""

import contextlib
import errno
import hashlib

from stillframe.storage.location import Location
from stillframe.storage.opened import storage_of
from stillframe.storage.storage import Changed, Version


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
