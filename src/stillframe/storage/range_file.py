"""A file in an object store as a Python file: read in ranges, as a reader of Parquet needs them."""

import io

from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import readable

_END_BYTES = 2**16
"""What Arrow reads first of a Parquet file. The footer is there."""


class RangeFile(io.RawIOBase):
    """A file in an object store. One request fetches its end, and each ``read`` elsewhere is
    another. FileNotFoundError if it is missing, StoreError if it cannot be read."""

    def __init__(self, location: ObjectPath) -> None:
        self._location = location
        self._storage = storage_of(location)
        self._place = 0
        with readable(location):
            self._end, self.size = self._storage.read_end(location, _END_BYTES)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that it has places."""
        return True

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place, as in other files."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next `size` bytes, or those up to the end."""
        rest = max(0, self.size - self._place)
        length = rest if size is None or size < 0 else min(size, rest)
        skipped = self._place - (self.size - len(self._end))
        if length == 0:
            return b""
        if skipped >= 0:
            found = self._end[skipped : skipped + length]
        else:
            # No OSError: a reader of Parquet raises those if a file is damaged.
            with readable(self._location):
                found = self._storage.read_range(self._location, self._place, length)
        self._place += len(found)
        return found
