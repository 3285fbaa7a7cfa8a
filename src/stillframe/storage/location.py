"""Locations: a path of this machine, or a place in an object store, from what a user gives."""

import abc
import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote

from stillframe.durable_files import disk_advice
from stillframe.errors import UsageError, check_kind

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(.*)", re.DOTALL)
"""A scheme has at least two letters, so ``C:/x`` is a path; ``Path("s3://x")`` keeps one slash."""
_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfss",
    "abfss": "abfss",
    "hdfs": "hdfs",
    "memory": "memory",
}
_BUCKET = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_AZURE = re.compile(r"[a-z0-9-]{1,63}@[a-z0-9]{1,24}\.dfs\.core\.windows\.net")
_AUTHORITY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?(?::[0-9]{1,5})?")
_KEY_BYTES_MAX = 1024
"""Of S3 and GCS; Azure has the same number of characters."""
_EXAMPLE = {
    "s3": "s3://bucket/directory",
    "gs": "gs://bucket/directory",
    "abfss": "abfss://container@account.dfs.core.windows.net/directory",
    "hdfs": "hdfs://namenode:8020/directory",
    "memory": "memory://name/directory",
}


class ObjectPath:
    """A place in an object store: the `root` of a bucket, such as ``s3://bucket``, and a `key`.

    It is used like a ``Path``, but no function of ``os`` takes it, so it cannot become a local file
    by mistake.
    """

    __slots__ = ("key", "root")

    def __init__(self, root: str, key: str) -> None:
        self.root = root
        self.key = key

    def __truediv__(self, name: str) -> Self:
        return type(self)(self.root, f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        return f"{self.root}/{self.key}" if self.key else self.root

    def __repr__(self) -> str:
        return f"ObjectPath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectPath) and str(self) == str(other)

    def __lt__(self, other: "Location") -> bool:
        return str(self) < str(other)

    def __hash__(self) -> int:
        return hash((self.root, self.key))

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.root, self.key)

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return Path(self.name).stem

    @property
    def suffix(self) -> str:
        """The end of the name, from its last point on."""
        return Path(self.name).suffix

    @property
    def parent(self) -> Self:
        """The place above; of a bucket, itself."""
        return type(self)(self.root, self.key.rpartition("/")[0])

    def with_name(self, name: str) -> Self:
        """Return the place of another name next to this one."""
        return self.parent / name

    def absolute(self) -> Self:
        """Return itself, as every address is absolute."""
        return self

    def relative_to(self, above: "ObjectPath") -> str:
        """Return the part of the key below another place; ValueError if it is not below that."""
        prefix = f"{above.key}/" if above.key else ""
        if self.root != above.root or not self.key.startswith(prefix):
            raise ValueError(f"{self} is not below {above}")
        return self.key[len(prefix) :]


if TYPE_CHECKING:
    Location = Path | ObjectPath
else:

    class Location(abc.ABC):  # noqa: B024 - one type, because msgspec decodes no union of two
        """A path of this machine, or a place in an object store."""

    Location.register(Path)
    Location.register(ObjectPath)


def locate(where: str | Location) -> Location:
    """Return the location that `where` names: a path, ``file:///dir``, or an address.

    ``s3a://`` means the same place as ``s3://``. UsageError for an address that is not supported,
    or holds credentials; that error does not repeat them.
    """
    if isinstance(where, ObjectPath):
        return where
    check_kind("the path", where, str | os.PathLike, "a string, a Path or an ObjectPath")
    text = str(where)
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return Path(where)
    scheme, rest = found[1].lower(), found[2].removeprefix("/")
    if scheme == "file":
        return _local_file(rest)
    if scheme not in _SCHEMES:
        shown = f"{scheme}://..." if re.search("[@?#]", text) else text
        raise UsageError(
            f"{shown} is an address, and {scheme}: is not supported: give a path of a mounted file "
            "system, or s3://, gs://, abfss:// or hdfs://; for a local directory "
            f"{found[1]}: give its absolute path"
        )
    return _object_path(_SCHEMES[scheme], rest)


def location_of(text: str) -> Location:
    """Return the location whose ``str()`` is `text`. That is no check: ``locate`` takes what a user
    gives."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in _SCHEMES.values():
        return Path(text)
    bucket, _, key = rest.partition("/")
    return ObjectPath(f"{scheme}://{bucket}", key)


def local_path(where: str | Location) -> Path:
    """Return the local path that `where` names; UsageError if it is a place in an object store or
    not supported."""
    found = locate(where)
    if isinstance(found, ObjectPath):
        raise UsageError(
            f"{found} is an address, and only a local file or directory can be used here: give a "
            "path of a mounted file system"
        )
    return found


def io_advice(location: Location, error: OSError) -> str:
    """Return what to do about an error at a location."""
    if not isinstance(location, ObjectPath):
        return disk_advice(error)
    match error.errno:
        case errno.EEXIST:
            return "another program has written there: give another address"
        case errno.EACCES:
            return "check the credentials in the environment, and what they permit"
        case errno.EINVAL:
            return "delete that object, or rename it"
        case errno.ENAMETOOLONG:
            return "give a shorter name"
        case errno.EDQUOT:
            return "make room there, or have the quota raised"
        case errno.ENXIO:
            return "create the bucket, or give another address"
        case _:
            return "check that the object store is available, and its settings in the environment"


def _local_file(rest: str) -> Path:
    # ``file:///x`` has an empty host, and Path("file:///x") has kept one slash of three.
    return Path("/" + unquote(rest.removeprefix("localhost/").lstrip("/")))


def _object_path(scheme: str, rest: str) -> ObjectPath:
    bucket, _, key = rest.partition("/")
    named = re.split("[?#]", bucket, maxsplit=1)[0].rpartition("@")[2]
    # A secret may have a '/', and the bucket seems to end there: nothing but a name is repeated.
    is_name = (_AUTHORITY if scheme == "hdfs" else _BUCKET).fullmatch(named) is not None
    shown = f"{scheme}://{named if is_name else '...'}"
    if "?" in rest or "#" in rest:
        raise UsageError(
            f"an address under {shown} has a '?' or '#': give {_EXAMPLE[scheme]}, without "
            "parameters"
        )
    pattern = {"abfss": _AZURE, "hdfs": _AUTHORITY}.get(scheme, _BUCKET)
    host = bucket.partition(":")[0] if scheme == "hdfs" and "@" not in bucket else bucket
    if (scheme != "abfss" and "@" in bucket) or bucket.count("@") > 1 or ":" in host:
        raise UsageError(
            f"an address must not hold credentials, and that of {shown} does: give "
            f"{_EXAMPLE[scheme]}, and the credentials in the environment"
        )
    if pattern.fullmatch(bucket) is None:
        if scheme == "hdfs":
            raise UsageError(f"hdfs://{host} does not name a NameNode: give {_EXAMPLE[scheme]}")
        raise UsageError(f"{scheme}://{bucket} does not name a bucket: give {_EXAMPLE[scheme]}")
    parts = [part for part in key.split("/") if part]
    if any(part in (".", "..") or not part.isprintable() for part in parts):
        raise UsageError(
            f"{shown}/{key!r} has a part that no key may have: leave out '.', '..' and control "
            "characters"
        )
    key = "/".join(parts)
    if len(key.encode()) > _KEY_BYTES_MAX // 2:
        raise UsageError(
            f"an address under {shown} has {len(key.encode())} bytes, and at most "
            f"{_KEY_BYTES_MAX // 2} leave room for the names below it: give a shorter one"
        )
    return ObjectPath(f"{scheme}://{bucket}", key)
