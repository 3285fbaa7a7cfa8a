"""The writers of a store of observations: one for a directory, and one for an object store.

``ObservationWriter`` decides what is stored, and calls one of these to do it. Their methods raise
OSError, or a StoreError.

In a directory a rename publishes an observation. An object store has none, and no locks. There the
ledger lists the observations, and the write of the ledger publishes one, after its manifest. It is
replaced only as this writer left it, so an earlier writer can publish nothing any more.
"""

import contextlib
import itertools
import os
import secrets
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from stillframe.durable_files import partial_path, replace_durably, sync
from stillframe.errors import Damaged, Fenced, StoreError, Unavailable, UsageError, text_of
from stillframe.model import DECODING_ERRORS
from stillframe.protocol.calls import CallLedger
from stillframe.storage.files import names
from stillframe.storage.lease import Lease
from stillframe.storage.location import Location, ObjectPath, io_advice
from stillframe.storage.opened import storage_of
from stillframe.storage.owned import OwnedObject, check_conditional_writes
from stillframe.storage.reading import FILE_ADVICE
from stillframe.store import layout
from stillframe.store.layout import (
    LEASE,
    LEDGER,
    OBSERVATIONS,
    OBSERVATIONS_HEAD,
    explain_io_errors,
)
from stillframe.store.manifest import MANIFEST
from stillframe.store.observation_tables import FILES
from stillframe.store.sealed_json import (
    BUCKET_FORMAT,
    FORMAT,
    OBSERVATION_FORMAT,
    SEALED_BYTES_MAX,
    read_sealed,
    read_sealed_bytes,
    seal,
)
from stillframe.store.snapshot_directory import NewObjects, new_directory
from stillframe.store.writer import NewSnapshot

_NUMBER_DIGITS_MAX = 18
_OBJECTS = (MANIFEST, *FILES)
_NO_CALLS = msgspec.msgpack.encode(CallLedger())


class ObservationsHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``observations.json``."""

    format: int = FORMAT
    kind: Literal["observations"] = "observations"


class BucketObservationsHead(
    ObservationsHead, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """The content of ``observations.json`` in an object store."""

    format: int = BUCKET_FORMAT


class StoredLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``ledger.json``.

    Attributes:
        format: the version of the format.
        number: the newest observation.
        ledger: the collector's record of calls that instances no longer keep, as MessagePack.
    """

    format: int = OBSERVATION_FORMAT
    number: int
    ledger: bytes


class BucketLedger(StoredLedger, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``ledger.json`` in an object store.

    Attributes:
        token: is new with each write: no two contents are equal, or the object store could not tell
            them apart.
        published: the observations that are in the store, by number.
    """

    token: str
    published: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse numbers that are not in order."""
        every = (0, *self.published, self.number + 1)
        if any(one >= other for one, other in itertools.pairwise(every)):
            raise ValueError("the numbers of observations are not in order")


def read_head(path: Location) -> ObservationsHead:
    """Read ``observations.json``; errors are as for ``read_sealed``."""
    is_bucket = isinstance(path, ObjectPath)
    kind = BucketObservationsHead if is_bucket else ObservationsHead
    return read_sealed(path / OBSERVATIONS_HEAD, kind)


def is_number(name: str) -> bool:
    """Return whether a text is the number of an observation, as its directory is called."""
    is_digits = name.isascii() and name.isdigit() and len(name) <= _NUMBER_DIGITS_MAX
    return is_digits and name == str(int(name)) and name != "0"


def stored_ledger(path: Location) -> StoredLedger:
    """Read ``ledger.json``; errors are as for ``read_sealed``."""
    kind = BucketLedger if isinstance(path, ObjectPath) else StoredLedger
    return read_sealed(path / LEDGER, kind)


def decoded_ledger(path: Location, stored: StoredLedger) -> CallLedger:
    """Return the collector's ledger in that of a store.

    Raises:
        Damaged: it is no ledger.
    """
    try:
        return msgspec.msgpack.decode(stored.ledger, type=CallLedger)
    except DECODING_ERRORS as error:
        raise Damaged(
            f"{path / LEDGER} has invalid content: {text_of(error)}",
            path=path / LEDGER,
            remedy=FILE_ADVICE,
        ) from error


def stored_numbers(path: Location) -> list[int]:
    """Return the numbers of all observations of the store at `path`, in order."""
    if isinstance(path, ObjectPath):
        return list(read_sealed(path / LEDGER, BucketLedger).published)
    directory = path / OBSERVATIONS
    with explain_io_errors(directory, "read"):
        if not directory.is_dir():
            raise StoreError(
                f"the directory {directory} was deleted or moved, and its observations with it",
                path=directory,
                remedy="put it back, or observe into a new directory",
            )
        found = [one.name for one in layout.visible(directory)]
    for name in found:
        if not is_number(name):
            raise StoreError(
                f"{directory / name} is not an observation: move it out of the store",
                path=directory / name,
            )
    return sorted(map(int, found))


class ObservationStorage(Protocol):
    """Changes one store of observations, until ``close``; `stored` is the ledger that was there."""

    stored: StoredLedger

    def new(self, number: int) -> AbstractContextManager[NewSnapshot]:
        """Return a context in which an observation is written. When it is left by an error, nothing
        was published."""
        ...

    def write_ledger(self, number: int, ledger: CallLedger) -> None:
        """Replace the ledger, unless it is as it was; `number` is the newest observation."""
        ...

    def withdraw(self, number: int) -> None:
        """Let an observation not be published, because the ledger after it could not be written."""
        ...

    def remove_old(self) -> None:
        """Remove all observations but the newest ones."""
        ...

    def close(self) -> None:
        """Let another collector have the store. Closing twice does nothing."""
        ...


class ObservationDirectory:
    """The writer of observations in a directory; see ``ObservationStorage``. It keeps the newest
    `keep_count`. Raises Unavailable if another program writes there, and UsageError if something
    else is there."""

    def __init__(self, path: Path, keep_count: int) -> None:
        self._path = path
        self._directory = path / OBSERVATIONS
        self._keep_count = keep_count
        with explain_io_errors(path, "opened for writing"):
            path.mkdir(parents=True, exist_ok=True)
            _check_unused(path)
            lock = layout.take_lock(path)
            try:
                if not layout.has_observations(path):
                    _make(path)
                _remove_unfinished(path)
                self.stored = read_sealed(path / LEDGER, StoredLedger)
            except BaseException:
                os.close(lock)
                raise
        self._written = self.stored.ledger
        self._lock: int | None = lock

    def new(self, number: int) -> AbstractContextManager[NewSnapshot]:
        """See ``ObservationStorage``."""
        return new_directory(self._directory / str(number), None)

    def write_ledger(self, number: int, ledger: CallLedger) -> None:
        """See ``ObservationStorage``."""
        encoded = msgspec.msgpack.encode(ledger)
        if encoded == self._written:
            return
        self._written = b""  # it is not known what a failure leaves
        stored = StoredLedger(number=number, ledger=encoded)
        with explain_io_errors(self._path / LEDGER, "written"):
            replace_durably(self._path / LEDGER, seal(stored))
        self._written = encoded

    def withdraw(self, number: int) -> None:
        """See ``ObservationStorage``."""
        with contextlib.suppress(OSError):
            self._remove(number)

    def remove_old(self) -> None:
        """See ``ObservationStorage``."""
        with explain_io_errors(self._directory, "cleared of old observations"):
            for number in stored_numbers(self._path)[: -self._keep_count]:
                self._remove(number)

    def close(self) -> None:
        """See ``ObservationStorage``."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _remove(self, number: int) -> None:
        # Renamed first: no reader may see it disappear file by file.
        directory = self._directory / str(number)
        dropped = layout.dropped_path(directory)
        directory.rename(dropped)
        sync(self._directory)
        shutil.rmtree(dropped)


class ObservationBucket:
    """The writer of observations in an object store, as ``ObservationDirectory``. Raises Fenced
    once another writer has taken the store over.

    An observation that is not in the ledger is invisible, whatever is there of it: so what was
    withdrawn, or is too old, is deleted after the ledger was written without it.
    """

    def __init__(self, path: ObjectPath, keep_count: int) -> None:
        self._path = path
        self._directory = path / OBSERVATIONS
        self._keep_count = keep_count
        self._storage = storage_of(path)
        self._ledger = OwnedObject(path / LEDGER)
        self._published: list[int] = []
        self._written: tuple[bytes, list[int]] | None = None
        self._left: set[int] = set()
        self._unneeded: set[int] = set()
        self._is_lost = False
        self._files = ThreadPoolExecutor(len(FILES), "stillframe-store")
        self._lease = Lease(path / LEASE, lost=self._lose)
        with explain_io_errors(path, "opened for writing"):
            has_head = layout.has_observations(path)
            if not has_head:
                _check_unused(path)
            self._lease.acquire(self._in_use)
            try:
                check_conditional_writes(self._directory)
                self._take_over(has_head=has_head)
            except BaseException:
                self.close()
                raise

    @contextlib.contextmanager
    def new(self, number: int) -> Iterator[NewSnapshot]:
        """See ``ObservationStorage``."""
        self._check()
        directory = self._directory / str(number)
        try:
            yield NewObjects(directory, self._files)
        except BaseException as error:
            self._left.add(number)
            if not isinstance(error, OSError):
                raise
            raise StoreError(
                f"{directory} could not be written: {error.strerror or error}; nothing was "
                f"published: {io_advice(directory, error)}. The next one is tried as usual",
                path=directory,
            ) from error
        self._published.append(number)

    def write_ledger(self, number: int, ledger: CallLedger) -> None:
        """See ``ObservationStorage``. It lists the newest observations only."""
        encoded, kept = msgspec.msgpack.encode(ledger), self._published[-self._keep_count :]
        if (encoded, kept) != self._written:
            self._write_ledger(number, encoded, kept)

    def withdraw(self, number: int) -> None:
        """See ``ObservationStorage``. The next ledger that is written decides it."""
        self._published.remove(number)
        self._left.add(number)

    def remove_old(self) -> None:
        """See ``ObservationStorage``."""
        unneeded = sorted(self._unneeded)
        places = [self._directory / str(one) / name for one in unneeded for name in _OBJECTS]
        if places:
            with explain_io_errors(self._directory, "cleared of old observations"):
                self._storage.delete(places)
        self._unneeded.clear()

    def close(self) -> None:
        """See ``ObservationStorage``."""
        self._lease.close()
        self._files.shutdown()

    def _take_over(self, *, has_head: bool) -> None:
        """Become the only writer, and remove what an earlier one left."""
        found = self._objects()
        while True:
            before = self._read_ledger(has_head=has_head)
            # A later writer begins above what was there when this one took over. So what this one
            # deletes is of no later writer, even if it is a late one itself.
            number = max(before.number, *found, 0)
            try:
                self._write_ledger(number, before.ledger, list(before.published))
                break
            except Fenced:
                # An earlier writer, whose lease has ended, was faster: read what it wrote.
                self._is_lost = False
        if not has_head:
            with contextlib.suppress(FileExistsError):
                # Last: this object makes the place a store of observations.
                head = seal(BucketObservationsHead())
                self._storage.put_if_absent(self._path / OBSERVATIONS_HEAD, head)
        unpublished = found.keys() - {*self._published}
        self._storage.delete(place for one in sorted(unpublished) for place in found[one])
        self.stored: StoredLedger = msgspec.structs.replace(before, number=number)

    def _read_ledger(self, *, has_head: bool) -> BucketLedger:
        place = self._path / LEDGER
        content = self._ledger.read(bytes_max=SEALED_BYTES_MAX)
        if content is None:
            if has_head:
                raise Damaged(
                    f"{place} is missing: put it back from a copy of the store", path=place
                )
            return BucketLedger(token="", number=0, ledger=_NO_CALLS, published=())
        before = read_sealed_bytes(place, content, BucketLedger)
        if before.published and not has_head:
            raise _without_head(self._path)
        return before

    def _objects(self) -> dict[int, list[Location]]:
        """Return the objects that are there, by the number of their observation."""
        found: dict[int, list[Location]] = {}
        for one in self._storage.files_below(self._directory):
            place = one.location.parent
            if place.parent == self._directory and is_number(place.name):
                found.setdefault(int(place.name), []).append(one.location)
        return found

    def _write_ledger(self, number: int, ledger: bytes, published: list[int]) -> None:
        self._check()
        self._written = None  # it is not known what a failure leaves
        stored = BucketLedger(
            number=number, ledger=ledger, token=secrets.token_hex(16), published=tuple(published)
        )
        try:
            with explain_io_errors(self._path / LEDGER, "written"):
                self._ledger.replace(seal(stored))
        except Fenced:
            self._is_lost = True
            raise
        self._unneeded |= ({*self._published} | self._left) - {*published}
        self._left.clear()
        self._published, self._written = published, (ledger, [*published])

    def _check(self) -> None:
        """Raise Fenced if it is known that another writer has taken the store over."""
        if self._is_lost:
            raise Fenced(
                f"another program has taken over as the writer of {self._path}; this one can write "
                "no more",
                path=self._path,
            )

    def _lose(self) -> None:
        self._is_lost = True

    def _in_use(self, holder: str) -> Unavailable:
        return layout.in_use(self._path, f"another program that writes to it: {holder}")


def _check_unused(path: Location) -> None:
    """Raise a UsageError if `path` holds something else than observations."""
    if layout.has_observations(path):
        return
    left_by_a_crash = {"lock", LEASE, LEDGER, OBSERVATIONS}
    left_by_a_crash |= {partial_path(Path(name)).name for name in (LEDGER, OBSERVATIONS_HEAD)}
    foreign = sorted({*names(path)} - left_by_a_crash)
    if foreign:
        what = "a store of snapshots" if layout.is_store(path) else "not empty"
        raise UsageError(
            f"{path} is {what}, and not a store of observations; it contains "
            f"{layout.first_names(foreign)}",
            path=path,
            remedy="give an empty or new directory",
        )
    if isinstance(path, Path) and layout.visible(path / OBSERVATIONS):
        raise _without_head(path)


def _without_head(path: Location) -> Damaged:
    head = path / OBSERVATIONS_HEAD
    return Damaged(f"{head} is missing: put it back from a copy of the store", path=head)


def _make(path: Path) -> None:
    (path / OBSERVATIONS).mkdir(exist_ok=True)
    replace_durably(path / LEDGER, seal(StoredLedger(number=0, ledger=_NO_CALLS)))
    # Last: this file makes the directory a store of observations.
    replace_durably(path / OBSERVATIONS_HEAD, seal(ObservationsHead()))
    sync(path.parent)


def _remove_unfinished(path: Path) -> None:
    """Remove what a crashed collector has left."""
    for left in layout.unfinished(path / OBSERVATIONS):
        shutil.rmtree(left)
    if (path / OBSERVATIONS).is_dir():
        # It may have died between the two steps of a publication.
        sync(path / OBSERVATIONS)
    for name in (LEDGER, OBSERVATIONS_HEAD):
        partial_path(path / name).unlink(missing_ok=True)
