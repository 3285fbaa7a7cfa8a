"""Objects in a bucket as ``storage.Storage``, through the library obstore.

Every request has a time limit, and is repeated with growing pauses after an error that may pass. So
a write may reach the server twice, and the first attempt may arrive after the second one:

- ``put_if_absent`` and ``replace_if_unchanged`` mark each write with its own token. When the server
  refuses a write, the object that exists is read. If it has this token, an earlier attempt took
  effect, and the write has succeeded. The server refuses a late attempt, unless the object was
  deleted meanwhile, or has a version again that it had before. So callers never delete such an
  object while they, or others, may write it, and never write the same content twice.
- A write that took effect and was then replaced by another program is reported as ``Changed``.
- After any other OSError it is unknown whether a write took effect, or will. A caller that must
  know writes something else there with ``put_if_absent``: whichever was first stays.
- ``put``, ``copy`` and ``delete`` have no condition. A late attempt undoes what came after it. So
  callers use each name only once with them.
"""

import errno
import functools
import importlib
import itertools
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from stillframe.errors import StillframeError, Unavailable, UsageError, text_of
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.remote import REPEAT_S, RemoteStorage, library
from stillframe.storage.storage import Changed, Listed, RequestCounts, Version

CONNECT_S = 5.0
SILENT_S = 10.0
"""How long a request may wait for the next byte of an answer. Sending counts as waiting, too."""
LARGE_SILENT_S = 60.0
"""The same for contents above LARGE_BYTES, which take a while to send."""
LARGE_BYTES = 2**20
REQUEST_S = 300.0
"""How long a request may take in all: an object may have gigabytes."""
_DELETED_COUNT_MAX = 1000
_LISTED_COUNT_MAX = 1000
_WRITE_MARK = "stillframewrite"
"""The name of the metadata that tells one write from all others. Azure takes no hyphens."""

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_PATH = re.compile(r'Path "(.{1,1024}?)"(?: contained|:)', re.DOTALL)
_CUT_SHORT = "it cut the answer short"
_MEANINGS = {
    "Connect,": "it cannot be reached",
    "TimedOut": "it did not answer in time",
    "IncompleteMessage": "it closed the connection",
    "body error": _CUT_SHORT,
}
_PASSING = {408, 409, 425, 429, *range(500, 600)} - {501, 505}
_S3_SETTINGS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"),
    *("AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
)
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_ELSEWHERE = 301
_BARE_REDIRECT = "BareRedirect"
"""What obstore says of such an answer that names no address."""
_METADATA = ("169.254.169.254", "metadata.google.internal")
"""Where the credentials of machines come from, if there are no others."""
_AFTER_THE_END = "Wanted range starting at"
"""What obstore itself says of a range that begins after the end of an object."""


class ObjectStore(RemoteStorage):
    """A bucket, by its `root` such as ``s3://bucket``; see ``storage.Storage``.

    Settings and credentials come from the environment, as for other programs: for S3 the variables
    of AWS (also ``AWS_ENDPOINT_URL`` and ``AWS_PROFILE``), the roles of containers and machines,
    and the files in ``~/.aws`` if boto3 is installed.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._api = library("obstore", root, "object-store")
        self._failures = (OSError, self._api.exceptions.BaseError)
        self._client: Any = _client_of(root, SILENT_S)

    @functools.cached_property
    def _client_for_large(self) -> Any:
        return _client_of(self._root, LARGE_SILENT_S)

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
                self._count(RequestCounts(requests=1))
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
            self._count_pages(len(inner) + len(answer["objects"]))
            return sorted([*inner, *self._listed(answer["objects"], key)])

        return self._request(directory, get)

    def files_below(self, directory: Location) -> list[Listed]:
        """See ``storage.Storage``."""
        key = _key(directory)

        def get() -> list[Listed]:
            pages = self._api.list(self._client, key or None, chunk_size=_LISTED_COUNT_MAX)
            objects = list(itertools.chain.from_iterable(pages))
            self._count_pages(len(objects))
            return sorted(self._listed(objects, key))

        return self._request(directory, get)

    def put(self, location: Location, content: bytes) -> Version:
        """See ``storage.Storage``."""
        return self._request(
            location, lambda: self._put(location, content, "overwrite", None), sent=len(content)
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
            # Hadoop and others mark a directory by an empty object, without the last "/" here.
            if one["path"] != key and one["size"]:
                yield Listed(ObjectPath(self._root, one["path"]), one["size"])

    def _put(self, location: Location, content: bytes, mode: Any, token: str | None) -> Version:
        put = self._api.put(
            self._client if len(content) <= LARGE_BYTES else self._client_for_large,
            _key(location),
            content,
            mode=mode,
            attributes=None if token is None else {_WRITE_MARK: token},
            # In one request: it counts as one, and nothing is left of an upload that was cut short.
            use_multipart=False,
        )
        return Version(put["e_tag"], put["version"])

    def _write_if(
        self, location: Location, content: bytes, mode: Any, expected: Version | None
    ) -> Version:
        """Write if nothing is there, or what is there is of the version `expected`."""
        refusals = self._api.exceptions.AlreadyExistsError, self._api.exceptions.PreconditionError
        token = secrets.token_hex(16)

        def write() -> Version:
            try:
                return self._put(location, content, mode, token)
            except (*refusals, FileNotFoundError) as refusal:
                if isinstance(refusal, FileNotFoundError) and expected is None:
                    raise  # there is no bucket
                found, found_token = self._found(location)
                if found is not None and found_token == token:
                    return found
                if _is_same(found, expected):
                    # A conflict with another request that has not been carried out either.
                    raise OSError(errno.EAGAIN, "it reported a conflict") from None
                raise _refused(location, expected) from None

        return self._request(location, write, sent=len(content))

    def _found(self, location: Location) -> tuple[Version | None, str | None]:
        """Return the version of what is there, and the token of the write that it comes from."""
        self._count(RequestCounts(requests=1))
        try:
            got = self._api.get(self._client, _key(location), options={"head": True})
        except FileNotFoundError:
            return None, None
        return Version(got.meta["e_tag"], got.meta["version"]), got.attributes.get(_WRITE_MARK)

    def _count_pages(self, name_count: int) -> None:
        self._count(RequestCounts(requests=max(0, name_count - 1) // _LISTED_COUNT_MAX))

    def _explain(self, error: Exception, location: Location) -> tuple[bool, OSError]:
        """Return whether an error may pass, and an OSError with a sentence. The text of the error
        itself is not shown: it may repeat what the server sent, and a signed address."""
        where, known, text = str(location), self._api.exceptions, str(error)
        status, code = _status_of(error), _CODE.search(text)
        if isinstance(error, FileExistsError | Changed):
            return False, error
        if code is not None and code[1] in _NO_BUCKET:
            return False, OSError(errno.ENXIO, f"there is no bucket {self._root}", where)
        if isinstance(error, FileNotFoundError):
            return False, FileNotFoundError(errno.ENOENT, "it does not exist", where)
        if isinstance(error, OSError) and not isinstance(error, known.BaseError):
            passes = error.errno in (errno.EAGAIN, errno.EIO)
            return passes, OSError(error.errno or errno.EIO, error.strerror or text, where)
        if status not in _PASSING and any(source in text for source in _METADATA):
            sentence = "no credentials were found in the environment, and this machine has no role"
            return False, PermissionError(errno.EACCES, sentence, where)
        if isinstance(error, known.PermissionDeniedError | known.UnauthenticatedError):
            sentence = "the credentials do not allow it, or are wrong or missing"
            return False, PermissionError(errno.EACCES, sentence, where)
        if isinstance(error, known.InvalidPathError):
            name = found[1] if (found := _PATH.search(text)) else ""
            sentence = f"an object there has a name that no path can have: {name!r}"
            return False, OSError(errno.EINVAL, sentence, where)
        if status == _ELSEWHERE or _BARE_REDIRECT in text:
            return False, OSError(errno.EIO, "the bucket is in another region", where)
        if status is not None:
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
    return Changed(errno.ESTALE, "another program has replaced or deleted it", str(location))


def _is_same(found: Version | None, expected: Version | None) -> bool:
    if found is None or expected is None:
        return found is expected
    # A bucket whose versions are suspended names none when it is written, and "null" when read.
    is_number_same = found.number == expected.number or None in (found.number, expected.number)
    return found.etag == expected.etag and is_number_same


def _key(location: Location) -> str:
    assert isinstance(location, ObjectPath)
    return location.key


def _status_of(error: Exception) -> int | None:
    found = _STATUS.search(str(error))
    return None if found is None else int(found[1])


_memory: dict[str, Any] = {}
"""Buckets in the memory of this program, by name."""


def _client_of(root: str, silent_s: float) -> Any:
    kinds: Any = importlib.import_module("obstore.store")
    scheme, bucket = root.split("://")
    client_options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "read_timeout": timedelta(seconds=silent_s),
        "timeout": timedelta(seconds=REQUEST_S),
    }
    # They are repeated here: so each is counted, and no conditional one is repeated blindly.
    retries = {"max_retries": 0, "retry_timeout": timedelta(seconds=REPEAT_S)}
    limits = {"client_options": client_options, "retry_config": retries}
    if scheme == "memory":
        return _memory.setdefault(bucket, kinds.MemoryStore())
    try:
        if scheme == "gs":
            kind, settings = kinds.GCSStore, _gcs_settings()
        elif scheme == "abfss":
            bucket, _, host = bucket.partition("@")
            kind, settings = kinds.AzureStore, _azure_settings(host.partition(".")[0])
        else:
            kind, settings = kinds.S3Store, _s3_settings()
        places = settings.get("endpoint", ""), settings.get("service_account_key", "")
        client_options["allow_http"] = any("http://" in place for place in places)
        return kind(bucket, **settings, **limits)
    except StillframeError:
        raise
    except Exception as error:  # noqa: BLE001 - of obstore, or of boto3
        # The first line names a setting. That may be an address with credentials.
        why = re.sub(r"\S+[@?]\S*", "...", text_of(error).partition("\n")[0])
        raise UsageError(f"{root} cannot be used with these settings: {why}") from None


def _gcs_settings() -> dict[str, Any]:
    """Return the settings for an emulator, which the variable of Google's libraries names."""
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if not emulator:
        return {}
    address = emulator if "://" in emulator else f"http://{emulator}"
    unused = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    account = {"gcs_base_url": address, "disable_oauth": True, **unused}
    return {"service_account_key": json.dumps(account)}


def _azure_settings(account: str) -> dict[str, Any]:
    """Return the settings that obstore itself does not take from the environment: variables of
    Azure's command line."""
    names = {"AZURE_STORAGE_KEY": "account_key", "AZURE_STORAGE_ENDPOINT": "endpoint"}
    found = {
        name: os.environ[variable] for variable, name in names.items() if variable in os.environ
    }
    return {"account_name": account, **found}


def _s3_settings() -> dict[str, Any]:
    """Return the settings that obstore itself does not take from the environment."""
    settings: dict[str, Any] = {}
    for name in _S3_SETTINGS:
        # Such a one ends in a panic of obstore. The last line of a file often has a line break.
        if re.fullmatch("[!-~]*", os.environ.get(name, "")) is None:
            raise UsageError(f"{name} in the environment has a space, a line break or the like")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        if not endpoint.startswith(("http://", "https://")):
            raise UsageError("AWS_ENDPOINT_URL does not begin with http:// or https://")
        settings["endpoint"] = endpoint
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
