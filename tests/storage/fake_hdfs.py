"""HDFS in memory: what ``stillframe.storage.hdfs`` uses of the library hdfs-native.

It answers as a NameNode of Hadoop 3.5 did.

So ``./check`` needs no server, and a test can decide the order of the calls of several writers, and
which of them fail.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

Step = Callable[[str, str], None]


@dataclass
class NameSpace:
    """The files of one address, and its directories. `before` and `after` are called around every
    step that is atomic in HDFS, with its name and a path; what they raise, the call raises."""

    files: dict[str, bytes] = field(default_factory=dict)
    directories: set[str] = field(default_factory=lambda: {""})
    before: Step = lambda name, path: None
    after: Step = lambda name, path: None
    lock: Any = field(default_factory=threading.RLock)


spaces: dict[str, NameSpace] = {}
"""By address."""


@dataclass(frozen=True)
class WriteOptions:
    """See hdfs-native."""

    overwrite: bool
    create_parent: bool


@dataclass(frozen=True)
class FileStatus:
    """See hdfs-native."""

    path: str
    isdir: bool
    length: int


class Reader:
    """See hdfs-native: it keeps what it has opened."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def read_range(self, start: int, length: int) -> bytes:
        """Return a part; the library panics after the end."""
        if start + length > len(self._content):
            raise SystemExit("Cannot read past end of the file")
        return self._content[start : start + length]

    def read_range_stream(self, start: int, length: int) -> Iterator[bytes]:
        """Yield a part in two chunks."""
        half = length // 2
        yield self.read_range(start, half)
        yield self.read_range(start + half, length - half)


class Writer:
    """See hdfs-native: a file is empty until it is closed."""

    def __init__(self, space: NameSpace, path: str) -> None:
        self._space, self._path, self._content = space, path, b""

    def write(self, content: bytes) -> int:
        """Take bytes."""
        self._content += content
        return len(content)

    def hsync(self) -> None:
        """Do nothing: memory is as durable as it gets."""

    def close(self) -> None:
        """Show them."""
        with self._space.lock:
            if self._path not in self._space.files:
                raise FileNotFoundError(f"File does not exist: {self._path}")
            self._space.files[self._path] = self._content


class Client:
    """See hdfs-native."""

    def __init__(self, root: str, settings: dict[str, str]) -> None:
        assert all(isinstance(value, str) for value in settings.values())
        self._space = spaces.setdefault(root, NameSpace())

    def _step(self, name: str, path: str, act: Callable[[NameSpace], Any]) -> Any:
        self._space.before(name, path)
        with self._space.lock:
            answer = act(self._space)
        self._space.after(name, path)
        return answer

    def get_file_info(self, path: str) -> FileStatus:
        """Return what is there."""
        return self._step("info", path, lambda space: _status(space, path))  # type: ignore[no-any-return]

    def list_status(self, path: str, is_deep: bool) -> Iterable[FileStatus]:
        """Return what is in a directory."""
        return self._step("list", path, lambda space: _listed(space, path, is_deep=is_deep))  # type: ignore[no-any-return]

    def read(self, path: str) -> Reader:
        """Open a file."""

        def opened(space: NameSpace) -> Reader:
            if path not in space.files:
                raise FileNotFoundError(f"File does not exist: {path}")
            return Reader(space.files[path])

        return self._step("read", path, opened)  # type: ignore[no-any-return]

    def create(self, path: str, options: WriteOptions) -> Writer:
        """Make a file."""
        assert options == WriteOptions(overwrite=False, create_parent=True)

        def made(space: NameSpace) -> Writer:
            parts = path.split("/")[:-1]
            space.directories |= {"/".join(parts[:n]) for n in range(1, len(parts) + 1)}
            assert path not in space.files
            space.files[path] = b""
            return Writer(space, path)

        return self._step("create", path, made)  # type: ignore[no-any-return]

    def rename(self, path: str, target: str, overwrite: bool) -> None:
        """Rename a file. HDFS looks for the source first."""

        def renamed(space: NameSpace) -> None:
            if ":" in target:
                raise RuntimeError('RPCError("org.apache.hadoop.fs.InvalidPathException", "Invalid')
            if path not in space.files:
                raise FileNotFoundError(f"rename source {path} is not found.")
            if target in space.directories:
                raise RuntimeError('RPCError("java.io.IOException", "must both be directories')
            if target.rpartition("/")[0] not in space.directories:
                raise FileNotFoundError(f"rename destination parent {target} not found.")
            if target in space.files and not overwrite:
                raise FileExistsError(f"rename destination {target} already exists")
            space.files[target] = space.files.pop(path)

        self._step("rename", target, renamed)

    def delete(self, path: str, is_deep: bool) -> bool:
        """Delete a file or a directory; return whether it was there."""

        def deleted(space: NameSpace) -> bool:
            inner = {p for p in (*space.files, *space.directories) if p.startswith(f"{path}/")}
            if inner and not is_deep:
                name = "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException"
                raise RuntimeError(f'RPCError("{name}", "is non empty')
            was_there = path in space.files or path in space.directories
            for one in (path, *inner):
                space.files.pop(one, None)
                space.directories.discard(one)
            return was_there

        return self._step("delete", path, deleted)  # type: ignore[no-any-return]


def _status(space: NameSpace, path: str) -> FileStatus:
    if path in space.files:
        return FileStatus(path, isdir=False, length=len(space.files[path]))
    if path in space.directories:
        return FileStatus(path, isdir=True, length=0)
    raise FileNotFoundError(path)


def _listed(space: NameSpace, path: str, *, is_deep: bool) -> list[FileStatus]:
    if not _status(space, path.rstrip("/")).isdir:
        return [_status(space, path)]
    start = f"{path.rstrip('/')}/"
    found = (p for p in (*space.files, *space.directories) if p.startswith(start))
    return [_status(space, p) for p in found if is_deep or "/" not in p.removeprefix(start)]


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``stillframe.storage.hdfs`` find this module instead of the library."""
    monkeypatch.setitem(sys.modules, "hdfs_native", sys.modules[__name__])
