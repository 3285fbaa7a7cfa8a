"""The history of a system in ``STORE/history.ndjson``, one line for each event.

The writer of the store appends to it, and it outlives the writer: a supervisor that replaces a dead
one reads from it which numbers were given to snapshots, and which of these have not ended.
Therefore the start of a snapshot is forced to the disk before any process is notified. So is a
removal, unless the disk is full: then it is written with the next line that fits. All other lines
are only written, which suffices unless the machine itself crashes.

Each line is exactly ``{"event":<JSON>,"crc32":"<8 digits>"}``. A crash can cut the last line
short; that one is removed. A file that has become long is renamed to ``history.1.ndjson``,
replacing the one before, and the next starts with a summary of everything before it.

A cursor into the history outlives the program that reads it: it names a file by its first line,
because these files change their names, and have first lines that are never written twice.

Every function that reads raises StoreError if the history cannot be read.
"""

import abc
import contextlib
import errno
import hashlib
import io
import itertools
import os
import re
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, assert_never

import msgspec

from stillframe.durable_files import no_wait, partial_path, shell_command, sync, write_new
from stillframe.errors import Damaged, StoreError, text_of
from stillframe.model import DECODING_ERRORS, Abandoned, ProcessId, Reason, SnapshotId
from stillframe.storage.files import mapped
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import FILE_ADVICE, is_there, read_file
from stillframe.store import version_1
from stillframe.store.layout import HISTORY_FILES, SNAPSHOTS, explain_io_errors, is_published

NEWER, OLDER = HISTORY_FILES
FILE_BYTES_MAX = 2**20
"""Size after which a new file is started."""
READ_BYTES_MAX = 2 * FILE_BYTES_MAX
UNWRITTEN_BYTES_MAX = 2**18
"""Maximum size of lines that are kept while the disk is full."""
_EARLY_COUNT_MAX = 1000
_TEXT_LENGTH_MAX = 2000
SHORTEST_LINE_BYTES = 100
"""Minimum length of a line that gives a snapshot its number."""

_LINE = re.compile(rb'\{"(event|%b)":(\{.*\}),"crc32":"([0-9a-f]{8})"\}' % version_1.HISTORY_KEY)


class EpochBegan(msgspec.Struct, frozen=True, tag=True):
    """The system started: from a snapshot, or from the initial states."""

    epoch: int
    restored_from: SnapshotId | None


class TakenOver(msgspec.Struct, frozen=True, tag=True):
    """A supervisor replaced one that had died; the processes kept running."""

    epoch: int


class ProcessDied(msgspec.Struct, frozen=True, tag=True):
    """A process died, which ended the epoch."""

    process: ProcessId
    cause: str


class SnapshotBegan(msgspec.Struct, frozen=True, tag=True):
    """A snapshot was given its number."""

    snapshot: SnapshotId


class SnapshotPublished(msgspec.Struct, frozen=True, tag=True):
    """A snapshot was published.

    `is_removal_noted`: a ``SnapshotRemoved`` precedes its removal; older versions wrote none.
    """

    snapshot: SnapshotId
    is_removal_noted: bool = False


class SnapshotRemoved(msgspec.Struct, frozen=True, tag=True):
    """A published snapshot is about to be removed, by retention or by name."""

    snapshot: SnapshotId


class WriterChanged(msgspec.Struct, frozen=True, tag=True):
    """A program opened a store in an object store for writing. An earlier writer, which has not
    read this line, can append no other."""

    token: str


class SnapshotAbandoned(msgspec.Struct, frozen=True, tag=True):
    """A snapshot was abandoned; `reason` is the name of a ``model.Reason``."""

    snapshot: SnapshotId
    reason: str
    missing: tuple[ProcessId, ...]
    detail: str

    def __str__(self) -> str:
        known = Reason.__members__.get(self.reason)
        if known is None:  # a newer version wrote it
            return f"snapshot {self.snapshot} was abandoned: {self.reason}; {self.detail}"
        return str(Abandoned(self.snapshot, known, self.missing, self.detail))


class EventCounts(msgspec.Struct):
    """Number of events since the store was created; `abandoned` by the name of the reason."""

    begun: int = 0
    published: int = 0
    abandoned: dict[str, int] = {}
    starts: int = 0
    restores: int = 0
    takeovers: int = 0
    deaths: dict[ProcessId, int] = {}


class Rollover(msgspec.Struct, frozen=True, tag="Continued"):
    """The start of a file: a summary of the files before it.

    `counts` is None in files of versions that did not count.
    """

    last_number: int
    pending: tuple[SnapshotId, ...]
    counts: EventCounts | None = None


HistoryEvent = (
    EpochBegan
    | TakenOver
    | ProcessDied
    | SnapshotBegan
    | SnapshotPublished
    | SnapshotRemoved
    | SnapshotAbandoned
    | WriterChanged
    | Rollover
)


class HistoryRecord(msgspec.Struct, frozen=True):
    """One line: an event, and when it happened, in seconds since 1970."""

    at: float
    what: HistoryEvent


def count_event(counts: EventCounts, event: HistoryEvent) -> EventCounts:
    """Return the counts after one more event; it may be the same object, changed."""
    match event:
        case EpochBegan(_, restored_from):
            counts.starts += restored_from is None
            counts.restores += restored_from is not None
        case TakenOver():
            counts.takeovers += 1
        case ProcessDied(process):
            counts.deaths[process] = counts.deaths.get(process, 0) + 1
        case SnapshotBegan():
            counts.begun += 1
        case SnapshotPublished():
            counts.published += 1
        case SnapshotRemoved() | WriterChanged():
            pass
        case SnapshotAbandoned(_, reason):
            counts.abandoned[reason] = counts.abandoned.get(reason, 0) + 1
        case Rollover():
            # The counts of files that no longer exist.
            return counts if event.counts is None else event.counts
        case _:
            assert_never(event)
    return counts


class HistoryWriter(abc.ABC):
    """The history of a store that the caller has open for writing. Any thread may
    append. A StoreError if it cannot be read or written.

    A damaged line is passed over: the recorded states are in the snapshots. `damages` are the
    errors of such lines, `last_number` is the highest number of a snapshot so far, and `counts` is
    how often each event happened.
    """

    def __init__(self, store: Location) -> None:
        self._path = store / NEWER
        self.last_number = 0
        self.counts = EventCounts()
        self._pending: dict[SnapshotId, None] = {}
        self._ended_early: dict[SnapshotId, None] = {}
        self._appending = threading.Lock()
        self.damages: list[Damaged] = []

    def _load(self, *files: list["_Line"]) -> int:
        """Follow the events in the older and the newer file; return how many bytes of the newer one
        are whole lines."""
        damaged_bytes = 0
        for line, length in itertools.chain(*files):
            if isinstance(line, HistoryRecord):
                self._follow(line.what)
            else:
                self.damages.append(line)
                damaged_bytes += length
        # A damaged line may have been several, and each may have given a snapshot its number.
        self.last_number += 2 * len(self.damages) + damaged_bytes // SHORTEST_LINE_BYTES
        return sum(length for _, length in files[-1])

    @property
    def pending(self) -> tuple[SnapshotId, ...]:
        """The snapshots that have started and not ended, oldest first."""
        return tuple(self._pending)

    @abc.abstractmethod
    def append(self, event: HistoryEvent) -> None:
        """Append an event that happens now.

        After a StoreError, because the storage failed or has no room, a snapshot whose start could
        not be written must not start; any other line is written with the next one that fits.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Write what is left, and close. Closing twice does nothing."""

    def _must_be_known(self, event: HistoryEvent) -> bool:
        if isinstance(event, SnapshotPublished | SnapshotAbandoned):
            # The end of one that could not start need not be known: there may be many.
            return event.snapshot in self._pending
        return not isinstance(event, SnapshotBegan)

    def _summary(self) -> Rollover:
        return Rollover(self.last_number, self.pending, self.counts)

    def _follow(self, what: HistoryEvent) -> None:
        self.counts = count_event(self.counts, what)
        match what:
            case SnapshotBegan(snapshot):
                self.last_number = max(self.last_number, snapshot.number)
                if snapshot not in self._ended_early:
                    self._pending[snapshot] = None
            case SnapshotPublished(snapshot) | SnapshotAbandoned(snapshot):
                # One that could not start, on a full disk, has its number all the same.
                self.last_number = max(self.last_number, snapshot.number)
                if snapshot in self._pending:
                    del self._pending[snapshot]
                else:
                    # A slow object store may receive its start after this.
                    self._ended_early[snapshot] = None
                    if len(self._ended_early) > _EARLY_COUNT_MAX:
                        del self._ended_early[next(iter(self._ended_early))]
            case Rollover(last_number, pending):
                self.last_number = max(self.last_number, last_number)
                self._pending = dict.fromkeys(pending)


class History(HistoryWriter):
    """The history of a store in a directory."""

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self._store, self._local_path = store, store / NEWER
        self._unwritten: list[bytes] = []
        self._has_new_names = False
        self._length = self._load(*_read(store))
        with explain_io_errors(self._path, "written"):
            # A store may come from a stranger: a link to a file of the user is not followed.
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            self._file = os.open(self._local_path, flags, 0o666)
            os.ftruncate(self._file, self._length)
            if not self._length:
                self._append(line_of(self._summary(), time.time()), is_forced=False)
                sync(store)

    def append(self, event: HistoryEvent) -> None:
        """See ``HistoryWriter``."""
        with self._appending:
            at = time.time()
            line = line_of(event, at)
            try:
                with explain_io_errors(self._path, "written"):
                    if self._length > FILE_BYTES_MAX and not self._unwritten:
                        self._roll_over(at)
                    if self._has_new_names:
                        sync(self._store)
                        self._has_new_names = False
                    is_forced = isinstance(event, SnapshotBegan | SnapshotRemoved)
                    self._append(line, is_forced=is_forced)
            except StoreError:
                kept_bytes = len(line) + sum(map(len, self._unwritten))
                if self._must_be_known(event) and kept_bytes <= UNWRITTEN_BYTES_MAX:
                    self._unwritten.append(line)
                    self._follow(event)
                raise
            self._follow(event)

    def close(self) -> None:
        """See ``HistoryWriter``."""
        if self._file >= 0:
            if self._unwritten:
                # If the disk is still full, the next writer finds out how the snapshots ended.
                with contextlib.suppress(OSError):
                    self._append(b"", is_forced=False)
            os.close(self._file)
            self._file = -1

    def _append(self, line: bytes, *, is_forced: bool) -> None:
        written = b"".join((*self._unwritten, line))
        try:
            count = 0
            while count < len(written):  # the rest of what did not fit fails, and that says why
                added = os.pwrite(self._file, written[count:], self._length + count)
                if not added:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                count += added
            if is_forced:
                os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._length)
            raise
        self._length += len(written)
        self._unwritten.clear()

    def _roll_over(self, at: float) -> None:
        """Start a new file. Whatever fails, `_file` is open, and lines in it are not replaced."""
        partial = partial_path(self._local_path)
        partial.unlink(missing_ok=True)
        beginning = line_of(self._summary(), at)
        write_new(partial, beginning)
        sync(partial)
        newer = os.open(partial, os.O_WRONLY)
        try:
            # A crash in between leaves the older file alone, and the next writer starts a newer
            # one. So does a failure in between; then there is nothing to rename the next time.
            with contextlib.suppress(FileNotFoundError):
                self._local_path.replace(self._store / OLDER)
            partial.replace(self._local_path)
        except OSError:
            os.close(newer)
            raise
        older, self._file = self._file, newer
        self._length = len(beginning)
        self._has_new_names = True
        os.close(older)


def read_history(store: Location) -> list[HistoryRecord]:
    """Return the events of a system, the oldest first; a Damaged if a line was changed."""
    lines, damages = readable_history(store)
    for damage in damages:
        raise damage
    return lines


def readable_history(store: Location) -> tuple[list[HistoryRecord], list[Damaged]]:
    """Return the events in lines that can be read, and an error for each line that was changed."""
    lines = [line for of_file in _read(store) for line, _ in of_file]
    damages = [line for line in lines if isinstance(line, Damaged)]
    return [line for line in lines if isinstance(line, HistoryRecord)], damages


def lost_snapshots(store: Location) -> list[SnapshotId]:
    """Return the published snapshots that are missing although no writer removed them, as far
    back as the history reaches; a writer may publish and remove others meanwhile. A Damaged if a
    line was changed: then nothing is known."""
    kept = sorted(_kept(store))
    are_there = mapped(store, lambda snapshot: is_published(store, snapshot), kept)
    lost = {snapshot for snapshot, is_there in zip(kept, are_there, strict=True) if not is_there}
    if lost:
        # One that was removed meanwhile has a line now: that is written first.
        lost &= _kept(store)
    return sorted(lost, key=lambda snapshot: snapshot.number)


def not_removed(store: Location, snapshots: list[SnapshotId]) -> list[SnapshotId]:
    """Return those of some listed snapshots that were not removed. In an object store a late
    duplicate of a request may have brought a manifest back."""
    if not isinstance(store, ObjectPath) or not snapshots:
        return snapshots
    removed = removed_snapshots(store)
    return [snapshot for snapshot in snapshots if snapshot not in removed]


def removed_snapshots(store: Location) -> set[SnapshotId]:
    """Return the snapshots that were removed, as far back as the history reaches."""
    lines = readable_history(store)[0]
    return {line.what.snapshot for line in lines if isinstance(line.what, SnapshotRemoved)}


def began_before_epoch(store: Location, snapshot: SnapshotId, epoch: int) -> bool:
    """Return whether the history shows that a snapshot began before an epoch did. Lines that are
    damaged or no longer kept show nothing."""
    has_begun = False
    for line in readable_history(store)[0]:
        match line.what:
            case SnapshotBegan(begun):
                has_begun = has_begun or begun == snapshot
            case EpochBegan(begun_epoch) if begun_epoch == epoch:
                return has_begun
    return False


def _kept(store: Location) -> set[SnapshotId]:
    """Return the snapshots that were published and not removed, according to the history.

    Different threads write the two lines, so the removal can come first; no id is given twice.
    """
    published: set[SnapshotId] = set()
    removed: set[SnapshotId] = set()
    for line in read_history(store):
        match line.what:
            case SnapshotPublished(snapshot, is_removal_noted=True):
                published.add(snapshot)
            case SnapshotRemoved(snapshot):
                removed.add(snapshot)
    return published - removed


def explain_loss(store: Location, snapshot: SnapshotId) -> str:
    """Return a sentence about a lost snapshot: what is missing, and what to do."""
    return (
        f"{store / SNAPSHOTS / str(snapshot)} is missing: it was published, and Stillframe did "
        "not delete it. Put it back from a copy of the store, or accept the loss with "
        f"'{shell_command('delete', store, snapshot)}'"
    )


_Line = tuple[HistoryRecord | Damaged, int]
"""A line or its error, and its length in bytes."""


def _read(store: Location) -> list[list[_Line]]:
    """Return the lines of the older and of the newer file."""
    return [
        whole_lines(path, read_file(path, bytes_max=READ_BYTES_MAX)) if is_there(path) else []
        for path in (store / OLDER, store / NEWER)
    ]


def whole_lines(path: Location, content: bytes, *, first: int = 1) -> list[_Line]:
    """Return the lines in `content` that have an end; the first is number `first`."""
    encoded = content.split(b"\n")[:-1]
    lines = parse_lines(path, encoded, first=first)
    return [(line, len(text) + 1) for line, text in zip(lines, encoded, strict=True)]


def parse_lines(
    path: Location, encoded: Iterable[bytes], *, first: int = 1
) -> Iterator[HistoryRecord | Damaged]:
    """Yield the records in lines of a file, or their errors; the first is number `first`."""
    for number, line in enumerate(encoded, first):
        found = _LINE.fullmatch(line)
        if found is None or _checksum(found[2]) != found[3]:
            yield Damaged(
                f"line {number} of {path} was changed since it was written", remedy=FILE_ADVICE
            )
            continue
        event = found[2] if found[1] == b"event" else version_1.with_current_words(found[2])
        try:
            yield msgspec.json.decode(event, type=HistoryRecord)
        except DECODING_ERRORS as error:
            yield Damaged(
                f"line {number} of {path} has invalid content: {text_of(error)}", remedy=FILE_ADVICE
            )


def line_of(what: HistoryEvent, at: float) -> bytes:
    """Return the line of an event."""
    encoded = msgspec.json.encode(HistoryRecord(at, what))
    return b'{"event":%b,"crc32":"%b"}\n' % (encoded, _checksum(encoded))


def _checksum(encoded: bytes) -> bytes:
    return b"%08x" % zlib.crc32(encoded)


def shortened(text: str) -> str:
    """Return `text`, cut to the maximum length of a text in the history."""
    return text if len(text) <= _TEXT_LENGTH_MAX else f"{text[:_TEXT_LENGTH_MAX]} ..."


_PASSAGE_BYTES = 2**16


class HistoryCursor(msgspec.Struct, frozen=True):
    """A position in a history: `file` is the SHA-256 of the first line of a file, `length` how many
    bytes of that file have been read."""

    file: str
    length: int


PlacedRecord = tuple[HistoryRecord | Damaged, HistoryCursor]
"""A line or its error, and the cursor after it."""


def first_record(store: Location) -> PlacedRecord | None:
    """Return the oldest line that still exists; None if there is none."""
    for name in (OLDER, NEWER):
        path = store / name
        with _opened(path) as file:
            first = b"" if file is None else file.readline(READ_BYTES_MAX)
        if first.endswith(b"\n"):
            [(line, length)] = whole_lines(path, first)
            return line, HistoryCursor(_name_of(first), length)
    return None


def read_after(store: Location, place: HistoryCursor) -> list[PlacedRecord] | None:
    """Return some of the lines after a cursor, the oldest first; none if there are no more for now;
    None if the file was deleted, and its lines are unknown."""
    newer, older = store / NEWER, store / OLDER
    # The newer one first: if it becomes the older one meanwhile, it still follows that.
    with _opened(newer) as new, _opened(older) as old:
        if _is_of(new, place):
            return _records(newer, new, place)
        if not _is_of(old, place):
            return None
        steps = _records(older, old, place)
        if steps or new is None:
            return steps
        new.seek(0)
        first = new.readline(READ_BYTES_MAX)
        return (
            _records(newer, new, HistoryCursor(_name_of(first), 0)) if first.endswith(b"\n") else []
        )


def read_again(store: Location, place: HistoryCursor) -> list[PlacedRecord] | None:
    """Return all lines of the file that a cursor is in, if ``read_after`` does not find it there;
    None if the file was deleted. The last line before it could not be written for good, and others
    were written in its place."""
    for name in (NEWER, OLDER):
        path = store / name
        with _opened(path) as file:
            if file is None or _name_of(file.readline(READ_BYTES_MAX)) != place.file:
                continue
            file.seek(0)
            lines = whole_lines(path, file.read(READ_BYTES_MAX))
            return _placed(lines, HistoryCursor(place.file, 0))
    return None


def _name_of(first: bytes) -> str:
    return hashlib.sha256(first).hexdigest()


def _is_of(file: IO[bytes] | None, place: HistoryCursor) -> bool:
    """Return whether a cursor is in this file, and not in a line that the disk had no room for."""
    if file is None or _name_of(file.readline(READ_BYTES_MAX)) != place.file:
        return False
    file.seek(place.length - 1)
    return file.read(1) == b"\n"


def _records(path: Location, file: IO[bytes] | None, place: HistoryCursor) -> list[PlacedRecord]:
    assert file is not None, "its first line was read"
    file.seek(place.length)
    content = file.read(_PASSAGE_BYTES)
    if b"\n" not in content:  # a longer line, or one that is being written
        content += file.readline(READ_BYTES_MAX)
    lines = whole_lines(path, content)
    if any(isinstance(line, Damaged) for line, _ in lines):
        # An error has the number of its line in the file: only then are lines counted.
        file.seek(0)
        first = 1 + file.read(place.length).count(b"\n")
        lines = whole_lines(path, content, first=first)
    return _placed(lines, place)


def _placed(lines: Iterable[_Line], place: HistoryCursor) -> list[PlacedRecord]:
    """Return the lines that follow a cursor, each with the cursor after it."""
    steps, length = [], place.length
    for line, line_bytes in lines:
        length += line_bytes
        steps.append((line, HistoryCursor(place.file, length)))
    return steps


@contextlib.contextmanager
def _opened(path: Location) -> Iterator[IO[bytes] | None]:
    with explain_io_errors(path, "read"), contextlib.ExitStack() as stack:
        file: IO[bytes] | None = None
        with contextlib.suppress(FileNotFoundError):
            if isinstance(path, ObjectPath):
                content, _ = storage_of(path).read(path, bytes_max=READ_BYTES_MAX)
                file = io.BytesIO(content)
            else:
                file = stack.enter_context(open(path, "rb", opener=no_wait))
        yield file
