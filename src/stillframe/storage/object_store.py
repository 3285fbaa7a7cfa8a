"""Objects in a bucket as ``storage.Storage``, through the library obstore.

Every request has a time limit, and is repeated with growing pauses after an error that may pass. A
conditional write whose outcome is unknown is never simply repeated: what is there now is read, and
says whether it took effect.
"""

import errno
import importlib
import itertools
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from stillframe.errors import Unavailable
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.storage import Changed, Listed, RequestCounts, Version

_Answer = TypeVar("_Answer")

CONNECT_S = 5.0
SILENT_S = 10.0
"""How long a request may wait for the next byte of an answer."""
REQUEST_S = 300.0
"""How long a request may take in all: an object may have gigabytes."""
REPEAT_S = 15.0
"""For how long a failing request is repeated."""
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 2.0
CONCURRENT_COUNT_MAX = 32
"""Maximum requests of this program to one bucket at a time; more wait."""
_DELETED_COUNT_MAX = 1000

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_CUT_SHORT = "it cut the answer short"
_MEANINGS = {
    "Connect,": "it cannot be reached",
    "TimedOut": "it did not answer in time",
    "IncompleteMessage": "it closed the connection",
    "body error": _CUT_SHORT,
}
_PASSING = {408, 409, 425, 429, *range(500, 600)} - {501, 505}
_NO_BUCKET = "NoSuchBucket"
_METADATA = "/latest/api/token"
"""Where the credentials of a machine of AWS come from, if there are no others."""
_AFTER_THE_END = "Wanted range starting at"
"""What obstore itself says of a range that begins after the end of an object."""


class ObjectStore:
    """A bucket, by its `root` such as ``s3://bucket``; see ``storage.Storage``.

    Settings and credentials come from the environment, as for other programs: for S3 the variables
    of AWS (also ``AWS_ENDPOINT_URL`` and ``AWS_PROFILE``), the roles of containers and machines,
    and the files in ``~/.aws`` if boto3 is installed.
    """

    def __init__(self, root: str) -> None:
        try:
            self._api: Any = importlib.import_module("obstore")
        except ImportError:
            raise Unavailable(
                f"{root} needs the library obstore, which is not installed",
                remedy="pip install 'stillframe[object-store]'",
            ) from None
        self._client: Any = _client_of(root)
        self._root = root
        self._free = threading.BoundedSemaphore(CONCURRENT_COUNT_MAX)
        self._counting = threading.Lock()
        self._counts = RequestCounts()
        self._trouble = ""

    @property
    def trouble(self) -> str:
        """The error of the last request, in words, while it is repeated; "" if it succeeded."""
        return self._trouble

    @property
    def counts(self) -> RequestCounts:
        """The requests so far."""
        return self._counts

    def read(self, location: Location, *, bytes_max: int) -> tuple[bytes, Version]:
        """See ``storage.Storage``."""

        def get() -> tuple[bytes, Version]:
            got = self._api.get(self._client, _key(location))
            version = Version(got.meta["e_tag"], got.meta["version"])
            content = bytearray()
            for chunk in got.stream():
                content += chunk
                if len(content) > bytes_max:
                    break
            if len(content) < min(got.meta["size"], bytes_max):
                raise OSError(errno.EIO, _CUT_SHORT)
            return bytes(content[: bytes_max + 1]), version

        return self._request(location, get, received=lambda answer: len(answer[0]))

    def read_range(self, location: Location, start: int, length: int) -> bytes:
        """See ``storage.Storage``."""
        if length == 0:
            return b""

        def get() -> bytes:
            try:
                got = self._api.get(
                    self._client, _key(location), options={"range": (start, start + length)}
                )
            except self._api.exceptions.GenericError as error:
                if _status_of(error) == 416 or _AFTER_THE_END in str(error):
                    return b""
                raise
            content = bytes(got.bytes())
            if len(content) < min(length, got.meta["size"] - start):
                raise OSError(errno.EIO, _CUT_SHORT)
            return content

        return self._request(location, get, received=len)

    def read_end(self, location: Location, length: int) -> tuple[bytes, int]:
        """See ``storage.Storage``."""

        def get() -> tuple[bytes, int]:
            if self._root.startswith("abfss:"):  # Azure takes no range that counts from the end
                size = int(self._api.head(self._client, _key(location))["size"])
                wanted: Any = (max(0, size - length), size)
            else:
                wanted = {"suffix": length}
            try:
                got = self._api.get(self._client, _key(location), options={"range": wanted})
            except self._api.exceptions.GenericError:
                # An empty object has no range.
                if self._api.head(self._client, _key(location))["size"] == 0:
                    return b"", 0
                raise
            content, size = bytes(got.bytes()), int(got.meta["size"])
            if len(content) < min(length, size):
                raise OSError(errno.EIO, _CUT_SHORT)
            return content, size

        return self._request(location, get, received=lambda answer: len(answer[0]))

    def exists(self, location: Location) -> bool:
        """See ``storage.Storage``."""
        try:
            self._request(location, lambda: self._api.head(self._client, _key(location)))
        except FileNotFoundError:
            return False
        return True

    def children(self, directory: Location) -> list[Listed]:
        """See ``storage.Storage``."""
        key = _key(directory)

        def get() -> list[Listed]:
            answer = self._api.list_with_delimiter(self._client, key or None)
            inner = [Listed(ObjectPath(self._root, p), None) for p in answer["common_prefixes"]]
            return sorted([*inner, *self._listed(answer["objects"], key)])

        return self._request(directory, get)

    def files_below(self, directory: Location) -> list[Listed]:
        """See ``storage.Storage``."""
        key = _key(directory)

        def get() -> list[Listed]:
            pages = self._api.list(self._client, key or None, chunk_size=1000)
            return sorted(self._listed(itertools.chain.from_iterable(pages), key))

        return self._request(directory, get)

    def put(self, location: Location, content: bytes) -> Version:
        """See ``storage.Storage``."""
        return self._request(
            location, lambda: self._put(location, content, "overwrite"), sent=len(content)
        )

    def put_if_absent(self, location: Location, content: bytes) -> Version:
        """See ``storage.Storage``."""
        return self._write_if(location, content, "create", None)

    def replace_if_unchanged(self, location: Location, content: bytes, version: Version) -> Version:
        """See ``storage.Storage``."""
        known = {"e_tag": version.etag, "version": version.number}
        mode = {name: value for name, value in known.items() if value is not None}
        return self._write_if(location, content, mode, version)

    def copy(self, source: Location, target: Location) -> None:
        """See ``storage.Storage``."""
        if isinstance(target, ObjectPath) and target.root == self._root:
            copied = lambda: self._api.copy(self._client, _key(source), _key(target))  # noqa: E731
            self._request(source, copied)
            return
        raise NotImplementedError(f"{source} and {target} are in different buckets")

    def delete(self, locations: Iterable[Location]) -> None:
        """See ``storage.Storage``."""
        places = list(locations)
        for first in range(0, len(places), _DELETED_COUNT_MAX):
            batch = places[first : first + _DELETED_COUNT_MAX]
            keys = [_key(place) for place in batch]

            def delete(keys: list[str] = keys) -> None:
                try:
                    self._api.delete(self._client, keys)
                except FileNotFoundError:
                    if len(keys) > 1:  # which ones were deleted is not known
                        for key in keys:
                            delete([key])

            self._request(batch[0], delete)

    def _listed(self, objects: Iterable[Any], key: str) -> Iterator[Listed]:
        for one in objects:
            # Hadoop marks a directory by an object with its name.
            if one["path"] != key and not (one["size"] == 0 and one["path"].endswith("/")):
                yield Listed(ObjectPath(self._root, one["path"]), one["size"])

    def _put(self, location: Location, content: bytes, mode: Any) -> Version:
        try:
            # In one request: it counts as one, and nothing is left of an upload that was cut short.
            put = self._api.put(
                self._client, _key(location), content, mode=mode, use_multipart=False
            )
        except FileNotFoundError as error:
            if mode not in ("overwrite", "create"):
                raise Changed(errno.ESTALE, "another program has deleted it") from error
            raise OSError(errno.ENXIO, f"there is no bucket {self._root}") from error
        return Version(put["e_tag"], put["version"])

    def _write_if(
        self, location: Location, content: bytes, mode: Any, expected: Version | None
    ) -> Version:
        """Write if nothing is there, or what is there is of the version `expected`."""
        refusals = self._api.exceptions.AlreadyExistsError, self._api.exceptions.PreconditionError
        may_be_ours = False

        def write() -> Version:
            nonlocal may_be_ours
            if may_be_ours:
                # An earlier attempt may have taken effect although its answer was lost.
                found = self._found(location, content)
                if found is not None and found[1]:
                    return found[0]
            try:
                return self._put(location, content, mode)
            except (*refusals, Changed) as refusal:
                found = self._found(location, content)
                if found is not None and found[1] and may_be_ours:
                    return found[0]
                if (None if found is None else found[0]) == expected:
                    # A conflict with another request that has not been carried out either.
                    may_be_ours = True
                    raise OSError(errno.EAGAIN, "it reported a conflict") from refusal
                raise _refused(location, expected) from None
            except Exception:
                may_be_ours = True
                raise

        return self._request(location, write, sent=len(content))

    def _found(self, location: Location, content: bytes) -> tuple[Version, bool] | None:
        """Return the version of what is there, and whether that is `content`."""
        self._count(RequestCounts(requests=1))
        try:
            got = self._api.get(self._client, _key(location))
        except FileNotFoundError:
            return None
        is_same = got.meta["size"] == len(content) and bytes(got.bytes()) == content
        return Version(got.meta["e_tag"], got.meta["version"]), is_same

    def _request(
        self,
        location: Location,
        attempt: Callable[[], _Answer],
        *,
        sent: int = 0,
        received: Callable[[_Answer], int] = lambda answer: 0,
    ) -> _Answer:
        """Return what `attempt` returns, repeated for a while after errors that may pass."""
        began = time.monotonic()
        for number in itertools.count():
            from_s = time.monotonic()
            count = 0
            try:
                with self._free:
                    answer = attempt()
                count = received(answer)
            except FileNotFoundError as error:
                where = str(location)
                raise FileNotFoundError(errno.ENOENT, "it does not exist", where) from error
            except (FileExistsError, Changed) as error:
                error.filename = str(location)
                if isinstance(error, FileNotFoundError):
                    error.errno, error.strerror = errno.ENOENT, "it does not exist"
                raise
            except Exception as error:
                passes, failure = self._explain(error, location)
                pause_s = random.uniform(0.5, 1.0) * min(PAUSE_S_MAX, PAUSE_S_MIN * 2**number)  # noqa: S311
                self._trouble = str(failure.strerror)
                if not passes or time.monotonic() + pause_s - began > REPEAT_S:
                    raise failure from error
            else:
                self._trouble = ""
                return answer
            finally:
                took_s = time.monotonic() - from_s
                self._count(RequestCounts(1, min(number, 1), sent, count, took_s))
            time.sleep(pause_s)
        raise AssertionError("the loop has no end")

    def _count(self, more: RequestCounts) -> None:
        with self._counting:
            self._counts = self._counts.plus(more)

    def _explain(self, error: Exception, location: Location) -> tuple[bool, OSError]:
        """Return whether an error may pass, and an OSError with a sentence. The text of the error
        itself is not shown: it may repeat what the server sent."""
        where, known = str(location), self._api.exceptions
        if isinstance(error, OSError) and not isinstance(error, known.BaseError):
            passes = error.errno in (errno.EAGAIN, errno.EIO)
            return passes, OSError(error.errno or errno.EIO, error.strerror or str(error), where)
        if isinstance(error, known.PermissionDeniedError | known.UnauthenticatedError):
            sentence = "the credentials do not allow it, or are wrong or missing"
            return False, PermissionError(errno.EACCES, sentence, where)
        text = repr(error) if not str(error) else str(error)
        if _METADATA in text:
            sentence = "no credentials were found in the environment, and this machine has no role"
            return False, PermissionError(errno.EACCES, sentence, where)
        status, code = _status_of(error), _CODE.search(text)
        if status is not None:
            if code is not None and code[1] == _NO_BUCKET:
                return False, OSError(errno.ENXIO, f"there is no bucket {self._root}", where)
            named = f" ({code[1]})" if code is not None else ""
            sentence = f"the object store answered with status {status}{named}"
            return status in _PASSING, OSError(errno.EIO, sentence, where)
        meaning = next((m for mark, m in _MEANINGS.items() if mark in text), "it does not answer")
        is_network = isinstance(error, known.GenericError)
        if not is_network:
            meaning = f"{type(error).__name__}"
        return is_network, OSError(errno.EIO, f"the object store failed: {meaning}", where)


def _refused(location: Location, expected: Version | None) -> OSError:
    if expected is None:
        return FileExistsError(errno.EEXIST, "it exists already", str(location))
    return Changed(errno.ESTALE, "another program has replaced it", str(location))


def _key(location: Location) -> str:
    assert isinstance(location, ObjectPath)
    return location.key


def _status_of(error: Exception) -> int | None:
    found = _STATUS.search(str(error))
    return None if found is None else int(found[1])


_memory: dict[str, Any] = {}
"""Buckets in the memory of this program, by name."""


def _client_of(root: str) -> Any:
    kinds: Any = importlib.import_module("obstore.store")
    scheme, bucket = root.split("://")
    limits: dict[str, Any] = {
        "client_options": {
            "connect_timeout": timedelta(seconds=CONNECT_S),
            "read_timeout": timedelta(seconds=SILENT_S),
            "timeout": timedelta(seconds=REQUEST_S),
        },
        # They are repeated here: so each is counted, and no conditional one is repeated blindly.
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=REPEAT_S)},
    }
    if scheme == "memory":
        return _memory.setdefault(bucket, kinds.MemoryStore())
    if scheme == "gs":
        return kinds.GCSStore(bucket, **limits)
    if scheme == "abfss":
        container, _, host = bucket.partition("@")
        return kinds.AzureStore(container, account_name=host.partition(".")[0], **limits)
    return kinds.S3Store(bucket, **_s3_settings(limits), **limits)


def _s3_settings(limits: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that obstore itself does not take from the environment."""
    settings: dict[str, Any] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        settings["endpoint"] = endpoint
        limits["client_options"]["allow_http"] = endpoint.startswith("http://")
    has_files = any(
        Path("~/.aws", name).expanduser().exists() for name in ("credentials", "config")
    )
    if "AWS_ACCESS_KEY_ID" not in os.environ and ("AWS_PROFILE" in os.environ or has_files):
        try:
            by_files: Any = importlib.import_module("obstore.auth.boto3")
        except ImportError:
            if "AWS_PROFILE" in os.environ:
                raise Unavailable(
                    "AWS_PROFILE is set, and reading profiles needs the library boto3",
                    remedy="pip install boto3",
                ) from None
        else:
            settings["credential_provider"] = by_files.Boto3CredentialProvider()
    return settings
