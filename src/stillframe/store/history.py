"""What happened to a system, one line an event, in ``STORE/history.ndjson``.

The writer of the store appends to it. What it says outlives the writer: a coordinator that takes
the place of a dead one learns from it which numbers were given to snapshots, and which of those
have not ended. Therefore the beginning of a snapshot is forced to the disk before any process hears
of it. So is a removal, unless the disk is full: then it is written with the next line that fits.
Everything else is only written, which is enough unless the machine itself goes down.

Each line is exactly ``{"happening":<JSON>,"crc32":"<8 digits>"}``. A crash can cut the last line
short; that one is taken off again. A file that has become long is put aside as
``history.1.ndjson``, in the place of the one before, and the next begins with what must be known.
"""

import contextlib
import os
import re
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import assert_never

import msgspec

from stillframe.decoding import DECODING_ERRORS
from stillframe.errors import Damaged, StoreError
from stillframe.model import ProcessId, SnapshotId
from stillframe.store.disk import PUT_BACK, partial_path, read_file, sync, write_new
from stillframe.store.opening import SNAPSHOTS, explained, is_published

NEWER = "history.ndjson"
OLDER = "history.1.ndjson"
FILE_BYTES_MAX = 2**20
"""A file that has become longer is put aside."""
READ_BYTES_MAX = 2 * FILE_BYTES_MAX
UNWRITTEN_BYTES_MAX = 2**18
"""So much is kept of lines for which the disk has no room."""
_TEXT_LENGTH_MAX = 2000
SHORTEST_LINE_BYTES = 100
"""No line that gives a snapshot its number is shorter."""

_LINE = re.compile(rb'\{"happening":(\{.*\}),"crc32":"([0-9a-f]{8})"\}')


class EpochBegan(msgspec.Struct, frozen=True, tag=True):
    """The system started: from a snapshot, or afresh."""

    epoch: int
    restored_from: SnapshotId | None


class TakenOver(msgspec.Struct, frozen=True, tag=True):
    """A coordinator took the place of one that had died; the processes had gone on."""

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

    `is_removal_noted` is whether a ``SnapshotRemoved`` is written before it is removed; older
    versions wrote none.
    """

    snapshot: SnapshotId
    is_removal_noted: bool = False


class SnapshotRemoved(msgspec.Struct, frozen=True, tag=True):
    """A published snapshot is removed now: nothing needs it, or it was dropped by name."""

    snapshot: SnapshotId


class SnapshotAbandoned(msgspec.Struct, frozen=True, tag=True):
    """A snapshot was given up; `reason` is the name of a ``model.Reason``."""

    snapshot: SnapshotId
    reason: str
    missing: tuple[ProcessId, ...]
    detail: str


class Tally(msgspec.Struct):
    """How often each thing happened since the store was made; `abandoned` by the name of the
    reason."""

    begun: int = 0
    published: int = 0
    abandoned: dict[str, int] = {}
    starts: int = 0
    restores: int = 0
    takeovers: int = 0
    deaths: dict[ProcessId, int] = {}


class Continued(msgspec.Struct, frozen=True, tag=True):
    """The beginning of a file: what of the files before must be known.

    `tally` is None in what was written before there was one.
    """

    last_number: int
    under_way: tuple[SnapshotId, ...]
    tally: Tally | None = None


Happening = (
    EpochBegan
    | TakenOver
    | ProcessDied
    | SnapshotBegan
    | SnapshotPublished
    | SnapshotRemoved
    | SnapshotAbandoned
    | Continued
)


class Line(msgspec.Struct, frozen=True):
    """One line: what happened, and when, in seconds since 1970."""

    at: float
    what: Happening


def counted(tally: Tally, what: Happening) -> Tally:
    """Return `tally` after one more line; it may be the same one, changed."""
    match what:
        case EpochBegan(_, restored_from):
            tally.starts += restored_from is None
            tally.restores += restored_from is not None
        case TakenOver():
            tally.takeovers += 1
        case ProcessDied(process):
            tally.deaths[process] = tally.deaths.get(process, 0) + 1
        case SnapshotBegan():
            tally.begun += 1
        case SnapshotPublished():
            tally.published += 1
        case SnapshotRemoved():
            pass
        case SnapshotAbandoned(_, reason):
            tally.abandoned[reason] = tally.abandoned.get(reason, 0) + 1
        case Continued():
            # What was counted before a file that nobody has any more.
            return tally if what.tally is None else what.tally
        case _:
            assert_never(what)
    return tally


class History:
    """The history of a store, for its writer.

    Args:
        store: the directory, which the caller has open for writing.

    A line that was changed is passed over: what is recorded of the system is in its snapshots. Any
    thread may note.

    Raises:
        StoreError: it cannot be read, or the disk is full or failed.

    Attributes:
        damages: what is wrong with the lines that were changed since they were written.
        last_number: the highest number of a snapshot so far.
        under_way: the snapshots that have begun and not ended, oldest first.
        tally: how often each thing happened.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._path = store / NEWER
        self.last_number = 0
        self.tally = Tally()
        self._under_way: dict[SnapshotId, None] = {}
        self._unwritten: list[bytes] = []
        self._noting = threading.Lock()
        lines, length, damaged_length = _read(store)
        self.damages = [line for line in lines if isinstance(line, Damaged)]
        for line in lines:
            if isinstance(line, Line):
                self._follow(line.what)
        # A damaged line may have been several, and each may have given a snapshot its number. No
        # number is given twice.
        self.last_number += 2 * len(self.damages) + damaged_length // SHORTEST_LINE_BYTES
        with explained(self._path, "written"):
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
            self._length = length
            os.ftruncate(self._file, length)
            if not length:
                self._append(_line(self._continued(), time.time()), is_forced=False)
                sync(store)

    @property
    def under_way(self) -> tuple[SnapshotId, ...]:
        """The snapshots that have begun and not ended, oldest first."""
        return tuple(self._under_way)

    def note(self, what: Happening) -> None:
        """Append what happened now.

        Raises:
            StoreError: the disk is full or failed. A snapshot whose beginning could not be written
                must not begin; anything else is written with the next line that can be.
        """
        with self._noting:
            self._note(what)

    def _note(self, what: Happening) -> None:
        at = time.time()
        line = _line(what, at)
        try:
            with explained(self._path, "written"):
                if self._length > FILE_BYTES_MAX and not self._unwritten:
                    self._put_aside(at)
                is_forced = isinstance(what, SnapshotBegan | SnapshotRemoved)
                self._append(line, is_forced=is_forced)
        except StoreError:
            kept_bytes = len(line) + sum(map(len, self._unwritten))
            if self._must_be_known(what) and kept_bytes <= UNWRITTEN_BYTES_MAX:
                self._unwritten.append(line)
                self._follow(what)
            raise
        self._follow(what)

    def close(self) -> None:
        """Write no more. Closing twice does nothing."""
        if self._file >= 0:
            if self._unwritten:
                # If there is no room still, whoever is next finds out how the snapshots ended.
                with contextlib.suppress(OSError):
                    self._append(b"", is_forced=False)
            os.close(self._file)
            self._file = -1

    def _must_be_known(self, what: Happening) -> bool:
        """Return whether the history is wrong without it: not what became of snapshots that could
        not begin, of which there may be many."""
        match what:
            case SnapshotBegan():
                return False
            case SnapshotPublished(snapshot) | SnapshotAbandoned(snapshot):
                return snapshot in self._under_way
        return True

    def _append(self, line: bytes, *, is_forced: bool) -> None:
        written = b"".join((*self._unwritten, line))
        try:
            if os.pwrite(self._file, written, self._length) < len(written):
                raise OSError(0, "the disk is full")
            if is_forced:
                os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._length)
            raise
        self._length += len(written)
        self._unwritten.clear()

    def _put_aside(self, at: float) -> None:
        partial = partial_path(self._path)
        partial.unlink(missing_ok=True)
        beginning = _line(self._continued(), at)
        write_new(partial, beginning)
        sync(partial)
        # A crash between the two leaves the older file alone, and the next writer begins a newer.
        self._path.replace(self._store / OLDER)
        partial.replace(self._path)
        sync(self._store)
        os.close(self._file)
        self._file = os.open(self._path, os.O_WRONLY)
        self._length = len(beginning)

    def _continued(self) -> Continued:
        return Continued(self.last_number, self.under_way, self.tally)

    def _follow(self, what: Happening) -> None:
        self.tally = counted(self.tally, what)
        match what:
            case SnapshotBegan(snapshot):
                self.last_number = max(self.last_number, snapshot.number)
                self._under_way[snapshot] = None
            case SnapshotPublished(snapshot) | SnapshotAbandoned(snapshot):
                # One that could not begin, on a full disk, was given its number all the same.
                self.last_number = max(self.last_number, snapshot.number)
                self._under_way.pop(snapshot, None)
            case Continued(last_number, under_way):
                self.last_number = max(self.last_number, last_number)
                self._under_way = dict.fromkeys(under_way)


def read_history(store: Path) -> list[Line]:
    """Return what happened to the system of `store`, the oldest first; nothing if it never ran.

    Raises:
        Damaged: a line was changed since it was written.
        StoreError: it cannot be read.
    """
    lines, damages = readable_history(store)
    for damage in damages:
        raise damage
    return lines


def readable_history(store: Path) -> tuple[list[Line], list[Damaged]]:
    """Return what ``read_history`` does of the lines that can be read, and what is wrong with those
    that were changed since they were written.

    Raises:
        StoreError: the history cannot be read.
    """
    found, _, _ = _read(store)
    damages = [line for line in found if isinstance(line, Damaged)]
    return [line for line in found if isinstance(line, Line)], damages


def history_damages(store: Path) -> list[Damaged]:
    """Return what is wrong with the lines that were changed since they were written.

    Raises:
        StoreError: the history cannot be read.
    """
    return readable_history(store)[1]


def lost_snapshots(store: Path) -> list[SnapshotId]:
    """Return the snapshots that were published and are gone, but not removed by a writer of the
    store, as far back as the history reaches; a writer may publish and remove others meanwhile.

    Raises:
        Damaged: a line was changed since it was written: then nothing is known.
        StoreError: the history cannot be read.
    """
    lost = {snapshot for snapshot in _kept(store) if not is_published(store, snapshot)}
    if lost:
        # Those that were removed meanwhile have a line since, which is written first.
        lost &= _kept(store)
    return sorted(lost, key=lambda snapshot: snapshot.number)


def began_before_epoch(store: Path, snapshot: SnapshotId, epoch: int) -> bool:
    """Return whether the history shows that a snapshot began before an epoch did. Lines that are
    damaged or no longer kept show nothing.

    Raises:
        StoreError: the history cannot be read.
    """
    has_begun = False
    for line in readable_history(store)[0]:
        match line.what:
            case SnapshotBegan(begun):
                has_begun = has_begun or begun == snapshot
            case EpochBegan(begun_epoch) if begun_epoch == epoch:
                return has_begun
    return False


def _kept(store: Path) -> set[SnapshotId]:
    """Return the snapshots that were published and not removed, as the history has it.

    Different threads note the two, so that the removal can come first; no name is given twice.
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


def loss(store: Path, snapshot: SnapshotId) -> str:
    """Return what is wrong with a lost snapshot, and what to do."""
    return (
        f"{store / SNAPSHOTS / str(snapshot)} is missing: it was published, and not removed with "
        f"Stillframe: put it back from a copy of the store, or accept the loss with 'stillframe "
        f"drop {store} {snapshot}'"
    )


def _read(store: Path) -> tuple[list[Line | Damaged], int, int]:
    """Return all lines, or what is wrong with them, how many bytes the newer file has, and how many
    bytes are in damaged lines."""
    lines: list[Line | Damaged] = []
    length = damaged_length = 0
    for name in (OLDER, NEWER):
        path, length = store / name, 0
        if path.exists():
            content = read_file(path, bytes_max=READ_BYTES_MAX)
            length = content.rfind(b"\n") + 1
            encoded = content[:length].splitlines()
            parsed = list(parse_lines(path, encoded))
            lines += parsed
            damaged_length += sum(
                len(raw)
                for raw, line in zip(encoded, parsed, strict=True)
                if isinstance(line, Damaged)
            )
    return lines, length, damaged_length


def parse_lines(
    path: Path, encoded: Iterable[bytes], *, first: int = 1
) -> Iterator[Line | Damaged]:
    """Yield what lines of the file at `path` say, or what is wrong with them; the first one has the
    number `first`."""
    for number, line in enumerate(encoded, first):
        found = _LINE.fullmatch(line)
        if found is None or _checksum(found[1]) != found[2]:
            yield Damaged(f"line {number} of {path} was changed since it was written: {PUT_BACK}")
            continue
        try:
            yield msgspec.json.decode(found[1], type=Line)
        except DECODING_ERRORS as error:
            yield Damaged(
                f"line {number} of {path} does not hold what it should: {error}: {PUT_BACK}"
            )


def _line(what: Happening, at: float) -> bytes:
    encoded = msgspec.json.encode(Line(at, what))
    return b'{"happening":%b,"crc32":"%b"}\n' % (encoded, _checksum(encoded))


def _checksum(encoded: bytes) -> bytes:
    return b"%08x" % zlib.crc32(encoded)


def shortened(text: str) -> str:
    """Return `text` as far as a line of the history has room for it."""
    return text if len(text) <= _TEXT_LENGTH_MAX else f"{text[:_TEXT_LENGTH_MAX]} ..."
