"""Files in HDFS as ``storage.Storage``, through the library hdfs-native, which needs no JVM.

HDFS has no write that depends on a version, and no copy. It renames a file in one step, and refuses
that if the target exists. So every file is written under another name in the same directory, then
closed and renamed. No reader sees a part of it, and of two writers one is first.

A file that ``replace_if_unchanged`` replaces stays as it is: it is version 0. Version N is the file
``.NAME.versions/N-ROOT-PREVIOUS`` in the same directory. ROOT and PREVIOUS begin the digests of
versions 0 and N-1. So versions of a file that was deleted do not count for the next one of its
name. The highest number is the content.

- A writer that read version N renames its file to the name of version N+1. If that name is taken,
  the writer has lost.
- Only the last ``KEPT_COUNT`` versions stay. Older ones are deleted, lowest first, so a writer that
  slept could take the name of a deleted one. It lists the versions after its rename. It has won if
  its number is the highest, which is never deleted, or if the next version names its content as the
  previous one. It has lost if the next one names another, or was deleted while its own was not. If
  both were deleted, the outcome is unknown; its own was, too, if its name has another content.
- Callers never write the same content twice, and never delete or ``put`` such a file while others
  may write it.
"""

import contextlib
import errno
import functools
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from stillframe.errors import UsageError, text_of
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.remote import RemoteStorage, library, started
from stillframe.storage.storage import Changed, Listed, RequestCounts, Version

_Answer = TypeVar("_Answer")

ANSWER_S = 20.0
"""How long one call of the library may take."""
BYTES_A_SECOND_MIN = 2**20
"""Contents have more time: that of this rate."""
KEPT_COUNT = 8
"""How many versions of a file stay that was replaced, besides the first one."""
PORT = 8020
"""Where a NameNode listens if its address names no port."""
_SETTINGS = {
    # They are repeated here: so each is counted, and the wait is limited.
    "dfs.client.failover.max.attempts": "2",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "500",
    "dfs.client.socket-timeout": "10000",
}
_DIGITS = 16
"""How much of a digest is in a name."""
_VERSION = re.compile(rf"(\d{{12}})-([0-9a-f]{{{_DIGITS}}})-([0-9a-f]{{{_DIGITS}}})")
_VERSIONS = re.compile(r"\.(.+)\.versions")
_PARTIAL = re.compile(r"\.partial-[0-9a-f]{32}")
_LEVELS_KEPT = 2
"""Directories of the first levels, such as ``/user/me``, stay when they are empty."""
_LOOK_COUNT_MAX = 100
REPLACED_BYTES_MAX = 2**27
"""Maximum size of the first version of a file that is replaced: it is read to find the others."""

_CLASS = re.compile(r"""RPCError\("(?:[\w$]+\.)*([\w$]{1,64})\"""")
_MEANINGS = {
    "AccessControlException": (errno.EACCES, "the credentials do not allow it"),
    "AuthorizationException": (errno.EACCES, "the credentials do not allow it"),
    "SaslException": (errno.EACCES, "the credentials are wrong or missing"),
    "SecretManager$InvalidToken": (errno.EACCES, "the credentials are no longer valid"),
    "InvalidPathException": (errno.EINVAL, "HDFS allows no such name: it must not have a ':'"),
    "NSQuotaExceededException": (errno.EDQUOT, "a quota of HDFS is exceeded"),
    "DSQuotaExceededException": (errno.EDQUOT, "a quota of HDFS is exceeded"),
    "QuotaByStorageTypeExceededException": (errno.EDQUOT, "a quota of HDFS is exceeded"),
    "FSLimitException$PathComponentTooLongException": (errno.ENAMETOOLONG, "its name is too long"),
}
"""Answers that would be the same again."""
_NOT_EMPTY = "PathIsNotEmptyDirectoryException"
_UNKNOWN_OUTCOME = "whether this took effect is unknown"
_CHANGED = "a file that was being written has changed"


class _Numbered(NamedTuple):
    """The name of a version; see above."""

    number: int
    root: str
    previous: str

    @property
    def name(self) -> str:
        """What it is called in its directory."""
        return f"{self.number:012}-{self.root}-{self.previous}"


class _Current(NamedTuple):
    """The current version of a file: its place, its number, and the digest of version 0, which is
    "" if no other version was found."""

    path: str
    number: int
    root: str


class Hdfs(RemoteStorage):
    """A file system, by its `root` such as ``hdfs://namenode:8020``; see ``storage.Storage``.

    Settings and credentials come from where Hadoop's own programs have them: ``HADOOP_CONF_DIR`` or
    ``HADOOP_HOME``, ``HADOOP_USER_NAME``, a Kerberos ticket, ``HADOOP_TOKEN_FILE_LOCATION``.
    """

    _failures = (OSError, RuntimeError)
    _requests_of_an_attempt = 0  # each call counts

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._api = library("hdfs_native", root, "hdfs")
        self._client: Any = self._connected()

    def read(self, location: Location, *, bytes_max: int) -> tuple[bytes, Version]:
        """See ``storage.Storage``."""

        def get(current: _Current) -> tuple[bytes, Version]:
            content = self._content(current.path, 0, bytes_max + 1)
            if len(content) > bytes_max:
                return content, Version(None)
            etag = _digest(content)
            return content, _version(etag, current.number, current.root or etag[:_DIGITS])

        return self._of_current(location, get, received=lambda answer: len(answer[0]))

    def read_range(self, location: Location, start: int, length: int) -> bytes:
        """See ``storage.Storage``."""
        if length == 0:
            return b""
        return self._of_current(
            location, lambda current: self._content(current.path, start, length), received=len
        )

    def read_end(self, location: Location, length: int) -> tuple[bytes, int]:
        """See ``storage.Storage``."""

        def get(current: _Current) -> tuple[bytes, int]:
            size = self._length(current)
            return self._content(current.path, max(0, size - length), length), size

        return self._of_current(location, get, received=lambda answer: len(answer[0]))

    def exists(self, location: Location) -> bool:
        """See ``storage.Storage``."""
        path = _path(location)
        try:
            found = self._request(location, lambda: self._call(self._client.get_file_info, path))
        except FileNotFoundError:
            return False
        return not found.isdir

    def children(self, directory: Location) -> list[Listed]:
        """See ``storage.Storage``."""
        return self._request(directory, lambda: self._listed(directory, is_deep=False))

    def files_below(self, directory: Location) -> list[Listed]:
        """See ``storage.Storage``."""
        return self._request(directory, lambda: self._listed(directory, is_deep=True))

    def put(self, location: Location, content: bytes) -> Version:
        """See ``storage.Storage``."""
        self._publish(location, _path(location), content, overwrite=True)
        return _first_version(content)

    def put_if_absent(self, location: Location, content: bytes) -> Version:
        """See ``storage.Storage``."""
        if self.exists(location):  # so those that come later write nothing
            raise FileExistsError(errno.EEXIST, "it exists already", str(location))
        self._publish(location, _path(location), content)
        return _first_version(content)

    def replace_if_unchanged(self, location: Location, content: bytes, version: Version) -> Version:
        """See ``storage.Storage``."""
        changed = Changed(errno.ESTALE, "another program has replaced or deleted it", str(location))
        try:
            current = self._of_current(location, self._with_root)
        except FileNotFoundError:
            raise changed from None
        if version.etag is None or version.number != f"{current.number}-{current.root}":
            raise changed
        new = _Numbered(current.number + 1, current.root, version.etag[:_DIGITS])
        etag = _digest(content)
        place = f"{_versions(_path(location))}/{new.name}"
        try:
            self._publish(location, place, content)
        except FileExistsError:
            raise changed from None
        found = self._request(location, lambda: self._numbered(_path(location), current.root))
        if _is_won(new, etag[:_DIGITS], found):
            self._prune(location, found, new.number - KEPT_COUNT)
            return _version(etag, new.number, new.root)
        is_next_known = any(one.number == new.number + 1 for one in found)
        if is_next_known or (new in found and self._holds(location, place, content)):
            self._try_to_delete(place)
            raise changed
        raise OSError(errno.EIO, _UNKNOWN_OUTCOME, str(location))

    def copy(self, source: Location, target: Location) -> None:
        """See ``storage.Storage``. HDFS has no copy: all bytes are read and written."""
        if not isinstance(target, ObjectPath) or target.root != self._root:
            raise NotImplementedError(f"{source} and {target} are in different file systems")

        def copied(current: _Current) -> None:
            reader = self._call(self._client.read, current.path)
            chunks = reader.read_range_stream(0, len(reader))
            partial = self._write(_path(target), chunks, len(reader))
            try:
                self._rename(partial, _path(target), overwrite=True)
            except self._failures as error:
                self._try_to_delete(partial)  # the next attempt writes another one
                if isinstance(error, FileNotFoundError):
                    # It says nothing about the source: the library may have renamed it twice.
                    raise OSError(errno.EAGAIN, _CHANGED) from None
                raise
            self._count(RequestCounts(sent_bytes=len(reader), received_bytes=len(reader)))

        self._of_current(source, copied)

    def delete(self, locations: Iterable[Location]) -> None:
        """See ``storage.Storage``. Directories that are empty then are deleted, too: elsewhere a
        place without files is no directory."""
        parents = set()
        for location in locations:
            path = _path(location)
            self._request(location, functools.partial(self._delete, path))
            parents.add(_parent(path))
        for parent in sorted(parents, key=len, reverse=True):
            while parent.count("/") > _LEVELS_KEPT and self._try_to_delete(parent):
                parent = _parent(parent)  # noqa: PLW2901 - one level up

    def _delete(self, path: str) -> None:
        try:
            # The first version goes first: without it, the others mean nothing.
            self._remove(path)
        except RuntimeError as error:
            if _NOT_EMPTY not in text_of(error):
                raise
        else:
            self._remove(_versions(path), is_deep=True)

    def _try_to_delete(self, path: str) -> bool:
        """Delete a file or an empty directory; return whether that succeeded."""
        with contextlib.suppress(*self._failures):
            return self._remove(path)
        return False

    def _of_current(
        self,
        location: Location,
        use: Callable[[_Current], _Answer],
        *,
        received: Callable[[_Answer], int] = lambda answer: 0,
    ) -> _Answer:
        """Return what `use` returns for the current version of a file."""
        return self._request(
            location, lambda: self._looked_up(_path(location), use), received=received
        )

    def _looked_up(self, path: str, use: Callable[[_Current], _Answer]) -> _Answer:
        for _ in range(_LOOK_COUNT_MAX):
            current = self._current(path)
            try:
                return use(current)
            except FileNotFoundError:
                if current.number == 0:
                    raise
        # As often it was replaced, and deleted, before it was read.
        raise OSError(errno.EAGAIN, "it is replaced too often")

    def _current(self, path: str) -> _Current:
        found = self._numbered(path)
        if not found:
            return _Current(path, 0, "")
        root = self._root_of(path)
        own = [one for one in found if one.root == root]
        if not own:
            return _Current(path, 0, root)
        return _Current(f"{_versions(path)}/{max(own).name}", max(own).number, root)

    def _with_root(self, current: _Current) -> _Current:
        if current.root:
            return current
        return current._replace(root=self._root_of(current.path))

    def _root_of(self, path: str) -> str:
        content = self._content(path, 0, REPLACED_BYTES_MAX + 1)
        if len(content) > REPLACED_BYTES_MAX:
            raise OSError(errno.EFBIG, "it is too large to be a file that was replaced")
        return _digest(content)[:_DIGITS]

    def _holds(self, location: Location, path: str, content: bytes) -> bool:
        """Return whether a file is there, and has just this content."""
        with contextlib.suppress(FileNotFoundError):
            return self._request(location, lambda: self._content_is(path, content))
        return False

    def _content_is(self, path: str, content: bytes) -> bool:
        return self._content(path, 0, len(content) + 1) == content

    def _numbered(self, path: str, root: str | None = None) -> list[_Numbered]:
        """Return the versions that have numbers, of that root or of any, in order."""
        listed = self._statuses(_versions(path), is_deep=False)
        parsed = (_VERSION.fullmatch(_name(status.path)) for status in listed)
        found = [_Numbered(int(one[1]), one[2], one[3]) for one in parsed if one]
        return sorted(one for one in found if root in (None, one.root))

    def _statuses(self, directory: str, *, is_deep: bool) -> list[Any]:
        for _ in range(_LOOK_COUNT_MAX):
            try:
                found = self._call(lambda: list(self._client.list_status(directory, is_deep)))
            except FileNotFoundError:
                # It may be one of the directories below that disappeared meanwhile.
                if not is_deep or not self._is_there(directory):
                    return []
            else:
                return [status for status in found if status.path != directory]
        raise OSError(errno.EAGAIN, "directories in it disappear too often")

    def _is_there(self, path: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            self._call(self._client.get_file_info, path)
            return True
        return False

    def _listed(self, directory: Location, *, is_deep: bool) -> list[Listed]:
        listed, replaced = {}, []
        for status in self._statuses(_path(directory), is_deep=is_deep):
            above, name = _parent(status.path), _name(status.path)
            versions = _VERSIONS.fullmatch(name) if status.isdir else None
            if versions is not None:
                replaced.append(f"{above}/{versions[1]}")
            elif (
                _PARTIAL.fullmatch(name)
                or _VERSIONS.fullmatch(_name(above))
                or (is_deep and status.isdir)
            ):
                continue
            else:
                location = ObjectPath(self._root, status.path.strip("/"))
                listed[status.path] = Listed(location, None if status.isdir else status.length)
        for path in replaced:
            if path in listed and listed[path].byte_count is not None:
                try:
                    count = self._looked_up(path, self._length)
                    listed[path] = listed[path]._replace(byte_count=count)
                except FileNotFoundError:
                    del listed[path]  # it was deleted meanwhile
        return sorted(listed.values())

    def _length(self, current: _Current) -> int:
        found = self._call(self._client.get_file_info, current.path)
        if found.isdir:
            raise FileNotFoundError
        return int(found.length)

    def _content(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes from `start` on, fewer if the file ends before."""
        reader = self._call(self._client.read, path)
        rest = max(0, len(reader) - start)
        wanted = rest if length is None else min(length, rest)
        if wanted == 0:
            return b""
        content = bytes(self._call(reader.read_range, start, wanted, wait_s=_wait_s(wanted)))
        if len(content) != wanted:
            raise OSError(errno.EIO, "it cut the answer short")
        return content

    def _publish(
        self, location: Location, target: str, content: bytes, *, overwrite: bool = False
    ) -> None:
        """Write a file whole, then give it its name; FileExistsError if that is taken."""
        partial = ""

        def attempt() -> None:
            nonlocal partial
            if not partial:
                partial = self._write(target, [content], len(content))
            try:
                self._rename(partial, target, overwrite=overwrite)
            except FileNotFoundError:
                # An earlier rename took effect without an answer: the library, too, repeats some.
                with contextlib.suppress(FileNotFoundError):
                    if self._content_is(target, content):
                        return
                raise OSError(errno.EIO, _UNKNOWN_OUTCOME) from None

        try:
            self._request(location, attempt, sent=len(content))
        except OSError:
            if partial:
                self._try_to_delete(partial)  # then a late attempt has nothing to rename
            raise

    def _write(self, target: str, chunks: Iterable[bytes], byte_count: int) -> str:
        """Write a file in the directory of `target`; return its path once it is on the disks."""
        path = f"{_parent(target)}/.partial-{secrets.token_hex(16)}"
        options = self._api.WriteOptions(overwrite=False, create_parent=True)

        def write(writer: Any) -> None:
            for chunk in chunks:
                if chunk:
                    writer.write(chunk)
            with contextlib.suppress(NotImplementedError):  # with erasure coding
                writer.hsync()
            writer.close()

        try:
            writer = self._call(self._client.create, path, options)
            self._call(write, writer, wait_s=_wait_s(byte_count))
        except self._failures as error:
            self._try_to_delete(path)
            if isinstance(error, FileExistsError | FileNotFoundError):
                # It says nothing about the target. The library has repeated a call, or another
                # program has deleted the file.
                raise OSError(errno.EAGAIN, _CHANGED) from None
            raise
        return path

    def _rename(self, path: str, target: str, *, overwrite: bool) -> None:
        self._call(self._client.rename, path, target, overwrite)

    def _remove(self, path: str, *, is_deep: bool = False) -> bool:
        return bool(self._call(self._client.delete, path, is_deep))

    def _prune(self, location: Location, found: list[_Numbered], number_max: int) -> None:
        """Delete old versions, lowest first: see above. What is left over goes next time: after a
        failure no higher one is deleted."""
        with contextlib.suppress(*self._failures):
            for one in (one for one in found if one.number <= number_max):
                self._remove(f"{_versions(_path(location))}/{one.name}")

    def _call(self, function: Callable[..., Any], *arguments: Any, wait_s: float = ANSWER_S) -> Any:
        """Call the library, which itself may wait forever."""
        self._count(RequestCounts(requests=1))

        def call() -> Any:
            try:
                return function(*arguments)
            except Exception:
                raise
            except BaseException:  # noqa: BLE001 - a panic of Rust
                raise OSError(errno.EIO, "the library hdfs-native failed") from None

        try:
            return started(call, "hdfs").result(wait_s)
        except TimeoutError:
            self._client = self._connected()  # other calls would wait behind this one
            raise OSError(errno.EAGAIN, "it did not answer in time") from None

    def _connected(self) -> Any:
        try:
            try:
                return self._api.Client(self._root, _SETTINGS)
            except RuntimeError:
                if self._root.rpartition(":")[2].isdigit():
                    raise
                return self._api.Client(f"{self._root}:{PORT}", _SETTINGS)
        except (OSError, RuntimeError):
            raise UsageError(
                f"{self._root} cannot be used: check the address, and the files in HADOOP_CONF_DIR"
            ) from None

    def _explain(self, error: Exception, location: Location) -> tuple[bool, OSError]:
        """Return whether an error may pass, and an OSError with a sentence. The text of the error
        itself is not shown: it has traces of Java."""
        where, text = str(location), str(error)
        if isinstance(error, Changed):
            return False, error
        if isinstance(error, FileExistsError):
            return False, FileExistsError(errno.EEXIST, "it exists already", where)
        if isinstance(error, FileNotFoundError | IsADirectoryError):
            return False, FileNotFoundError(errno.ENOENT, "it does not exist", where)
        if isinstance(error, OSError):
            if error.errno is not None:
                passes = error.strerror != _UNKNOWN_OUTCOME and error.errno != errno.EFBIG
                return passes, OSError(error.errno, error.strerror, where)
            return True, OSError(
                errno.EIO, "HDFS cannot be reached, or closed the connection", where
            )
        found = _CLASS.search(text)
        if found is None:
            return True, OSError(errno.EIO, "HDFS did not complete it", where)
        if found[1] in _MEANINGS:
            number, sentence = _MEANINGS[found[1]]
            return False, OSError(number, sentence, where)
        return True, OSError(errno.EIO, f"HDFS answered with {found[1]}", where)


def _is_won(new: _Numbered, digest: str, found: list[_Numbered]) -> bool:
    """Return whether a version that was renamed to its name became the content of the file."""
    later = [one for one in found if one.number > new.number]
    return not later or any(
        one.number == new.number + 1 and one.previous == digest for one in later
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _version(etag: str, number: int, root: str) -> Version:
    return Version(etag, f"{number}-{root}")


def _first_version(content: bytes) -> Version:
    etag = _digest(content)
    return _version(etag, 0, etag[:_DIGITS])


def _wait_s(byte_count: int) -> float:
    return ANSWER_S + byte_count / BYTES_A_SECOND_MIN


def _path(location: Location) -> str:
    assert isinstance(location, ObjectPath)
    return f"/{location.key}"


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _versions(path: str) -> str:
    return f"{_parent(path)}/.{_name(path)}.versions"
