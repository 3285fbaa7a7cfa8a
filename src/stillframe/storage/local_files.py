"""Local files as ``storage.Storage``: written under another name, forced to the disk, renamed."""

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from stillframe.durable_files import link_into, no_wait, replace_by, sync
from stillframe.storage.location import Location
from stillframe.storage.storage import Changed, Listed, Version

_DIGESTED_BYTES_MAX = 2**30


class LocalFiles:
    """The file systems of this machine; see ``storage.Storage``."""

    def read(self, location: Location, *, bytes_max: int) -> tuple[bytes, Version]:
        """See ``storage.Storage``."""
        with open(_path(location), "rb", opener=no_wait) as file:
            content = file.read(min(bytes_max, os.fstat(file.fileno()).st_size) + 1)
        return content, _version(content)

    def read_range(self, location: Location, start: int, length: int) -> bytes:
        """See ``storage.Storage``."""
        with open(_path(location), "rb", opener=no_wait) as file:
            file.seek(start)
            return file.read(length)

    def read_end(self, location: Location, length: int) -> tuple[bytes, int]:
        """See ``storage.Storage``."""
        with open(_path(location), "rb", opener=no_wait) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - length))
            return file.read(length), size

    def exists(self, location: Location) -> bool:
        """See ``storage.Storage``."""
        return _path(location).is_file()

    def children(self, directory: Location) -> list[Listed]:
        """See ``storage.Storage``."""
        try:
            found = sorted(_path(directory).iterdir())
        except FileNotFoundError:
            return []
        return [Listed(path, None if path.is_dir() else path.stat().st_size) for path in found]

    def files_below(self, directory: Location) -> list[Listed]:
        """See ``storage.Storage``."""
        found = sorted(path for path in _path(directory).rglob("*") if path.is_file())
        return [Listed(path, path.stat().st_size) for path in found]

    def put(self, location: Location, content: bytes) -> Version:
        """See ``storage.Storage``."""
        path = _path(location)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_by(_unique(path), path, content)
        sync(path.parent)
        return _version(content)

    def put_if_absent(self, location: Location, content: bytes) -> Version:
        """See ``storage.Storage``."""
        path = _path(location)
        path.parent.mkdir(parents=True, exist_ok=True)
        written = _unique(path)
        replace_by(_unique(path), written, content)
        try:
            os.link(written, path)
        finally:
            written.unlink()
        sync(path.parent)
        return _version(content)

    def replace_if_unchanged(self, location: Location, content: bytes, version: Version) -> Version:
        """See ``storage.Storage``."""
        path = _path(location)
        with _locked(path.parent):
            try:
                found = self.read(path, bytes_max=_DIGESTED_BYTES_MAX)[1]
            except FileNotFoundError:
                found = None
            if found != version:
                raise Changed(errno.ESTALE, "another program has replaced it", str(path))
            return self.put(path, content)

    def copy(self, source: Location, target: Location) -> None:
        """See ``storage.Storage``."""
        link_into(_path(source), _path(target))

    def delete(self, locations: Iterable[Location]) -> None:
        """See ``storage.Storage``."""
        for location in locations:
            _path(location).unlink(missing_ok=True)


def _path(location: Location) -> Path:
    assert isinstance(location, Path)
    return location


def _unique(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")


def _version(content: bytes) -> Version:
    return Version(hashlib.sha256(content).hexdigest())


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
