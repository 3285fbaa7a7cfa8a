"""Takes a snapshot of a pipeline: requests it, waits for every fragment, publishes or abandons.

The caller of ``take_snapshot`` is the coordinator of that snapshot, in the driver, on the command
line or in any other program that sees the pipeline's directory: it communicates through files alone
(``pending_snapshot``). Participants that no program runs now are recorded as they are on the disk.
"""

import contextlib
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from stillframe.durable_files import replace_durably, sync, write_new
from stillframe.errors import (
    Damaged,
    NotConsistent,
    StoreError,
    Unavailable,
    UsageError,
    describe,
)
from stillframe.model import Abandoned, Reason, SnapshotId
from stillframe.pipeline import checkpoint, pending_snapshot, retained, snapshot_manifest
from stillframe.pipeline.locks import OBJECT_POLL_S, POLL_S
from stillframe.pipeline.log import Barrier, LogEntry
from stillframe.pipeline.metadata import (
    CHANNELS,
    MetadataWriter,
    ObjectMetadata,
    begin_writing,
    described_in,
    read_metadata,
)
from stillframe.pipeline.pending_snapshot import (
    Outcome,
    ParticipantFragment,
    QueryState,
    Request,
    SystemCut,
)
from stillframe.pipeline.progress import Progress, progress_of
from stillframe.pipeline.query_batches import unseen_sentences
from stillframe.pipeline.query_runs import current_run
from stillframe.pipeline.snapshot_manifest import Manifest, PinnedFile
from stillframe.pipeline.stopped import NotAtRest, record_stopped
from stillframe.protocol.aligner import Mode
from stillframe.storage.files import replace
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import is_there
from stillframe.store.history import SnapshotAbandoned, shortened
from stillframe.store.layout import explain_io_errors
from stillframe.store.sealed_json import FORMAT, TooLarge, read_sealed, seal

TIMEOUT_S = 60.0
PROGRESS_S = 0.2
"""Minimum interval between two progress reports: each one looks at every participant."""

STOPPED_S = 1.0
"""How often it is asked in an object store whether a participant has stopped, while nothing else
happens."""

REST_S = 0.05
"""Minimum pause between two periodic snapshots, in which a restore, or another waiting program, can
take the lock."""

ID_FILE = "last-snapshot.json"
ABANDONED_FILE = "abandoned.json"
ABANDONED_COUNT_MAX = 100
"""How many abandoned snapshots are remembered."""
UNSEEN_MAX = 1000
"""How many numbers are left out when ``last-snapshot.json`` is damaged: a participant may remember
that of a snapshot that was abandoned before any barrier was appended."""

_Fragments = dict[str, ParticipantFragment]


class LastSnapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``last-snapshot.json``: the number of the last snapshot that was requested."""

    format: int = FORMAT
    last: int


class AbandonedSnapshots(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``abandoned.json``: the last abandoned snapshots, the oldest first."""

    format: int = FORMAT
    snapshots: tuple[SnapshotAbandoned, ...]


def abandoned_snapshots(root: Location) -> tuple[SnapshotAbandoned, ...]:
    """Return the last abandoned snapshots of the pipeline at `root`, the oldest first; Damaged if
    the file is not what was written."""
    path = root / ABANDONED_FILE
    return read_sealed(path, AbandonedSnapshots).snapshots if is_there(path) else ()


def _remember(root: Location, abandoned: Abandoned) -> Abandoned:
    """Add an abandoned snapshot to the list, if that can be written, and return it."""
    path = root / ABANDONED_FILE
    ended = SnapshotAbandoned(
        abandoned.snapshot, abandoned.reason.name, abandoned.missing, shortened(abandoned.detail)
    )
    with contextlib.suppress(OSError, StoreError, TooLarge):
        try:
            before = abandoned_snapshots(root)
        except Damaged:
            before = ()
        kept = (*before, ended)[-ABANDONED_COUNT_MAX:]
        replace(path, seal(AbandonedSnapshots(snapshots=kept)))
    return abandoned


def take_snapshot(
    root: Location,
    mode: Mode,
    name: str | None,
    timeout_s: float,
    *,
    progress: Callable[[Progress], None] = lambda progress: None,
    report: Callable[[str], object] = lambda words: None,
) -> Manifest | Abandoned:
    """Take a snapshot of the pipeline at `root`, or a savepoint if it has a name, and publish it;
    as ``Pipeline.snapshot``. The barriers of an abandoned one stay in the logs and are stepped
    over. `progress` is called at most 5 times a second. The caller is ``coordinating``."""
    book = _ObjectBook(root) if isinstance(root, ObjectPath) else _DirectoryBook(root)
    metadata = book.metadata
    metadata.dataflow.check_mode(mode)
    if name is not None and name in (
        manifest.name for manifest in snapshot_manifest.readable_manifests(root)
    ):
        raise UsageError(f"the savepoint {name!r} already exists: give another name")
    if (left := book.begin()) is not None:
        _remember(root, Abandoned(left.snapshot, Reason.COORDINATOR_DIED))
    book.clear()
    try:
        number, now = book.next_number(), time.time()
        request = Request(
            snapshot=SnapshotId(metadata.name, number),
            epoch=metadata.epoch,
            mode=mode,
            name=name,
            initiated_at=now,
            deadline_at=now + timeout_s,
        )
        warnings: list[str] = []
        try:
            outcome = _take(book, request, progress, warnings.append)
        except BaseException as error:
            if not book.may_be_published:
                why = describe(error)
                _remember(root, Abandoned(request.snapshot, Reason.COORDINATOR_DIED, (), why))
            raise
        # If this fails, the snapshot is published all the same.
        for words in warnings:
            report(words)
        return outcome if isinstance(outcome, Manifest) else _remember(root, outcome)
    finally:
        book.clear()


def _take(
    book: "_DirectoryBook | _ObjectBook",
    request: Request,
    progress: Callable[[Progress], None],
    warn: Callable[[str], None],
) -> Manifest | Abandoned:
    asked = book.metadata.dataflow.asked(request.mode)
    (book.ask if asked else book.reserve)(request)
    deadline = _Deadline(book, request)
    fragments: _Fragments = {}
    more: dict[str, Any] = {}
    try:
        outcome = _collect(book, request, deadline, progress)
        if isinstance(outcome, Abandoned):
            return outcome
        fragments = outcome
        if request.mode is Mode.RETAINED:
            for words in unseen_sentences(book.root, book.metadata):
                warn(words)
            cut = retained.record(
                book.root, book.metadata, request.snapshot, fragments, deadline.until
            )
            if isinstance(cut, retained.NotFound):
                return Abandoned(request.snapshot, cut.reason, (cut.participant,), cut.sentence)
            book.check()
            fragments = cut.fragments
            more = {
                "topics": cut.topics,
                "staleness_s": cut.staleness_s,
                "data_age_s": cut.data_age_s,
            }
            if cut.warning is not None:
                warn(cut.warning)
        manifest = _checked_manifest(book, request, fragments, completed_at=time.time(), **more)
        book.publish(manifest)
    except NotConsistent as error:
        return Abandoned(request.snapshot, Reason.NOT_CONSISTENT, (), str(error))
    except TooLarge as error:
        return _too_large(request, fragments, error)
    return manifest


def _too_large(request: Request, fragments: _Fragments, error: TooLarge) -> Abandoned:
    sizes = {
        participant: len(one.service.encoded) if one.service is not None else 0
        for participant, one in fragments.items()
    }
    largest = max(sizes, key=lambda name: sizes[name])
    return Abandoned(
        request.snapshot,
        Reason.NOT_RECORDED,
        (largest,),
        f"the states of all services together are too large: {error}; the largest is "
        f"that of {largest}, {sizes[largest]} bytes",
    )


def periodically(interval_s: float, wait: Callable[[float], object]) -> Iterator[None]:
    """Yield every `interval_s` seconds, or a little later; missed intervals are not made up for.
    `wait` waits for a number of seconds; a true return value ends the iteration."""
    due = time.monotonic() + interval_s
    while not wait(max(REST_S, due - time.monotonic())):
        due += interval_s
        if due < (now := time.monotonic()):
            due = now + interval_s
        yield


def clear_pending(root: Path) -> None:
    """Remove the files of a snapshot that has ended; its barriers mean nothing from here on."""
    directory = root / pending_snapshot.PENDING
    with explain_io_errors(directory, "cleared"):
        directory.mkdir(exist_ok=True)
        for ended in directory.glob("[!.]*"):
            # First the name: no participant must find half of a request.
            ended.rename(directory / f".{ended.name}.{uuid.uuid4().hex}.over")
        for left in directory.iterdir():
            shutil.rmtree(left, ignore_errors=True)


class _DirectoryBook:
    """The files about a snapshot that a coordinator writes in a directory."""

    may_be_published = False
    """Whether it is unknown if the snapshot was published."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.metadata = read_metadata(root)

    def begin(self) -> Request | None:
        """Prepare to write; return the request that a killed coordinator left, if any."""
        with explain_io_errors(self.root / pending_snapshot.PENDING, "read"):
            left = pending_snapshot.pending_request(self.root)
        begin_writing(self.root, self.metadata)
        return left

    def next_number(self) -> int:
        """Return the number of the new snapshot."""
        return _next_number(self.root)

    def ask(self, request: Request) -> None:
        """Show the request to the participants."""
        _ask(self.root, request)

    def reserve(self, request: Request) -> None:
        """Prepare a snapshot for which no participant is asked to record."""
        with explain_io_errors(self.root / pending_snapshot.PENDING, "changed"):
            pending_snapshot.request_path(self.root, request.snapshot).mkdir()

    def renew(self, request: Request) -> None:
        """Show the request with a later deadline."""
        path = pending_snapshot.request_path(self.root, request.snapshot) / pending_snapshot.REQUEST
        with explain_io_errors(path, "written"):
            replace_durably(path, seal(request))

    def check(self) -> None:
        """Raise Unavailable if another coordinator has ended the request, which cannot be here."""

    def pinned_files(self, request: Request, fragments: _Fragments) -> tuple[PinnedFile, ...]:
        """Return the files of checkpoints that the participants have pinned, checked."""
        directory = pending_snapshot.request_path(self.root, request.snapshot)
        _check_pinned(directory, fragments)
        queries = [name for name, fragment in fragments.items() if fragment.query is not None]
        before = _files_before(self.root)
        return tuple(snapshot_manifest.hashed_files(directory, queries, before))

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest, and give the directory its final place."""
        _publish(self.root, manifest)

    def clear(self) -> None:
        """End the request, and remove what belongs to it."""
        clear_pending(self.root)


class _ObjectBook:
    """The same in an object store. The request, its end and the publication are replacements of
    ``pipeline.json``: as soon as another coordinator makes one, this one's fail."""

    def __init__(self, root: ObjectPath) -> None:
        self.root = root
        self._writer = MetadataWriter(root)
        self._ended: list[SnapshotId] = []
        self.may_be_published = False

    @property
    def metadata(self) -> ObjectMetadata:
        return self._writer.metadata

    def begin(self) -> Request | None:
        if (left := self.metadata.request) is not None:
            self._end(left)
        return left

    def next_number(self) -> int:
        return self.metadata.last_snapshot + 1

    def check(self) -> None:
        self._writer.check()

    def ask(self, request: Request) -> None:
        self._writer.replace(request=request, last_snapshot=request.snapshot.number)

    def renew(self, request: Request) -> None:
        self._writer.replace(request=request)

    def reserve(self, request: Request) -> None:
        self._writer.replace(last_snapshot=request.snapshot.number)

    def pinned_files(self, request: Request, fragments: _Fragments) -> tuple[PinnedFile, ...]:
        directory = snapshot_manifest.snapshot_path(self.root, request.snapshot)
        if not (states := _check_pinned(directory, fragments)):
            return ()
        before = _files_before(self.root)
        return tuple(snapshot_manifest.hashed_objects(directory, states, before))

    def publish(self, manifest: Manifest) -> None:
        path = snapshot_manifest.snapshot_path(self.root, manifest.snapshot)
        path = path / snapshot_manifest.MANIFEST
        with explain_io_errors(path, "written"):
            storage_of(path).put(path, seal(manifest))
        published = self.metadata.published_with(manifest.snapshot)
        try:
            self._writer.replace(request=None, published=published)
        except Unavailable:
            # It may be published all the same: this program was frozen before it had the answer,
            # and the other one began after that.
            self.may_be_published = True
            if not snapshot_manifest.is_published(self.root, manifest.snapshot):
                self.may_be_published = False
                raise
        except StoreError as error:
            self.may_be_published = not isinstance(error, TooLarge)
            raise
        self._ended.append(manifest.snapshot)

    def clear(self) -> None:
        request = self.metadata.request
        # If it may be published, others may know that it is, and it must stay. If it is not, the
        # next coordinator ends the request.
        if request is not None and not self.may_be_published:
            with contextlib.suppress(Unavailable):  # another one has ended it
                self._end(request)
        with contextlib.suppress(OSError):
            for snapshot in self._ended:
                storage_of(self.root).delete(self._pending_files(snapshot))
        self._ended.clear()

    def _end(self, request: Request) -> None:
        self._ended.append(request.snapshot)
        self._writer.replace(request=None)

    def _pending_files(self, snapshot: SnapshotId) -> list[Location]:
        flow = self.metadata.dataflow
        directory = pending_snapshot.request_path(self.root, snapshot)
        return [
            *(pending_snapshot.fragment_path(self.root, snapshot, n) for n in flow.participants),
            *(directory / pending_snapshot.SYSTEMS / f"{name}.json" for name in flow.services),
        ]


class _Deadline:
    """The end of a pending snapshot's timeout, which begins again with each step towards the end of
    the snapshot (``Progress.steps``). `until` is by the clock of this program, because the
    time of day may be set back.

    Participants read the deadline in the request, and none is held at a barrier for longer. So a
    later one is written there in time, and not after the one before: some may have read on.
    """

    def __init__(self, book: _DirectoryBook | _ObjectBook, request: Request) -> None:
        self.request = request
        self.timeout_s = request.deadline_at - request.initiated_at
        self.until = time.monotonic() + self.timeout_s
        self._book = book
        self._shown = self.until
        self._steps: tuple[object, ...] | None = None

    def is_over(self, progress: Progress) -> bool:
        """Return whether the deadline has passed, after a look at the progress."""
        now = time.monotonic()
        if now > self._shown:
            return True
        if self._steps not in (None, progress.steps):
            self.until = now + self.timeout_s
        self._steps = progress.steps
        if self.until > self._shown and now > self._shown - self.timeout_s / 2:
            deadline_at = time.time() + self.until - now
            self.request = msgspec.structs.replace(self.request, deadline_at=deadline_at)
            self._book.renew(self.request)
            self._shown = self.until
        return False

    @property
    def idle_s(self) -> float:
        """How long ago the last step was seen, in seconds."""
        return time.monotonic() - (self.until - self.timeout_s)


def _check_pinned(directory: Location, fragments: _Fragments) -> dict[str, QueryState]:
    """Check what the queries have pinned; return the state of each one that has pinned anything."""
    states = {}
    for name, fragment in fragments.items():
        if (state := fragment.query) is None:
            continue
        pinned = snapshot_manifest.pinned_path(directory, name, state)
        if state.batch is not None:
            checkpoint.check_pinned(pinned, checkpoint.Committed(state.batch, fragment.positions))
            states[name] = state
        elif checkpoint.has_started(pinned):
            states[name] = state
    return states


def _ask(root: Path, request: Request) -> None:
    directory = pending_snapshot.request_path(root, request.snapshot)
    partial = directory.with_name(f".{directory.name}.partial")
    with explain_io_errors(directory, "made"):
        (partial / pending_snapshot.FRAGMENTS).mkdir(parents=True)
        replace_durably(partial / pending_snapshot.REQUEST, seal(request))
        partial.rename(directory)


def _next_number(root: Path) -> int:
    """Return a number that no snapshot had, not even an abandoned one, whose barriers exist."""
    path = root / ID_FILE
    try:
        if path.exists():
            last = read_sealed(path, LastSnapshot).last
        else:
            # There has been no snapshot yet, or else the file was lost.
            last = seen + UNSEEN_MAX if (seen := _highest_seen(root)) else 0
    except Damaged:
        last = _highest_seen(root) + UNSEEN_MAX
    with explain_io_errors(path, "written"):
        replace_durably(path, seal(LastSnapshot(last=1 + last)))
    return 1 + last


def _highest_seen(root: Path) -> int:
    """Return the highest number of a snapshot that was published or has a barrier in a log."""
    numbers = [snapshot.number for snapshot in snapshot_manifest.published_ids(root)]
    with explain_io_errors(root / CHANNELS, "read"):
        for path in (root / CHANNELS).glob("*/epoch-*/*.json"):
            content = read_sealed(path, LogEntry).content
            if isinstance(content, Barrier):
                numbers.append(content.snapshot.number)
    return max(numbers, default=0)


def _fragment_of(
    book: _DirectoryBook | _ObjectBook, request: Request, name: str, *, is_looking: bool
) -> ParticipantFragment | Abandoned | None:
    """Return the fragment of a participant; None if it has not recorded. One that has stopped is
    recorded here, if `is_looking`."""
    try:
        fragment = pending_snapshot.read_fragment(book.root, request.snapshot, name)
        fragment = _that_counts(book, fragment)
        if fragment is None and is_looking:
            fragment = record_stopped(book.root, book.metadata, request, name)
            fragment = _that_counts(book, fragment)
    except NotAtRest as error:
        return Abandoned(request.snapshot, Reason.NOT_AT_REST, (name,), str(error))
    if fragment is not None and fragment.failure is not None:
        return Abandoned(request.snapshot, Reason.NOT_RECORDED, (name,), fragment.failure)
    if fragment is not None:
        with described_in(pending_snapshot.fragment_path(book.root, request.snapshot, name)):
            pending_snapshot.check_fragment(book.metadata.dataflow, fragment)
    return fragment


def _that_counts(
    book: _DirectoryBook | _ObjectBook, fragment: ParticipantFragment | None
) -> ParticipantFragment | None:
    """Return a fragment, unless a driver submitted it whose query was started again by another one.
    That is asked after it was read: then a later run continues a checkpoint that contains it."""
    if fragment is None or fragment.query is None or isinstance(book.root, Path):
        return fragment
    run = current_run(book.root, book.metadata.epoch, fragment.participant)
    return fragment if run.has(fragment) else None


def _collect(
    book: _DirectoryBook | _ObjectBook,
    request: Request,
    deadline: _Deadline,
    progress: Callable[[Progress], None],
) -> _Fragments | Abandoned:
    """Wait for the fragment of each participant that is asked, until the deadline."""
    root, metadata = book.root, book.metadata
    asked = metadata.dataflow.asked(request.mode)
    fragments: _Fragments = {}
    reported_at = looked_at = -math.inf
    count = 0
    while True:
        now = time.monotonic()
        # In a directory that costs nothing. A new fragment may make it the turn of others.
        is_looking = (
            isinstance(root, Path) or now - looked_at >= STOPPED_S or len(fragments) > count
        )
        if is_looking:
            book.check()
        looked_at, count = now if is_looking else looked_at, len(fragments)
        for name in (name for name in asked if name not in fragments):
            fragment = _fragment_of(book, request, name, is_looking=is_looking)
            if isinstance(fragment, Abandoned):
                return fragment
            if fragment is not None:
                fragments[name] = fragment
        systems = _systems(root, request, fragments)
        for cut in systems:
            if cut is not None and cut.outcome is Outcome.ABANDONED:
                return Abandoned(request.snapshot, Reason.NOT_RECORDED, (cut.name,), cut.detail)
        if len(fragments) == len(asked) and all(
            cut is not None and cut.outcome is Outcome.PUBLISHED for cut in systems
        ):
            return fragments
        if time.monotonic() - reported_at >= PROGRESS_S:
            found = progress_of(root, metadata, deadline.request, fragments)
            if deadline.is_over(found):
                sentence = f"{found.straggler_sentence()}; no step for {deadline.idle_s:.1f} s"
                return Abandoned(request.snapshot, Reason.DEADLINE, found.awaited, sentence)
            progress(found)
            reported_at = time.monotonic()
        time.sleep(OBJECT_POLL_S if isinstance(root, ObjectPath) else POLL_S)


def _systems(root: Location, request: Request, fragments: _Fragments) -> list[SystemCut | None]:
    """Return the states of the systems that some participant is a process of."""
    names = sorted({one.system for one in fragments.values() if one.system is not None})
    return [pending_snapshot.system_cut(root, request.snapshot, name) for name in names]


def _checked_manifest(
    book: _DirectoryBook | _ObjectBook,
    request: Request,
    fragments: _Fragments,
    *,
    completed_at: float,
    **more: Any,
) -> Manifest:
    """Check what was recorded, and return the manifest, with `more` members."""
    root, metadata = book.root, book.metadata
    files = book.pinned_files(request, fragments)
    channels = snapshot_manifest.cut_channels(root, metadata, fragments, request.mode)
    return Manifest(
        snapshot=request.snapshot,
        name=request.name,
        epoch=metadata.epoch,
        mode=request.mode,
        initiated_at=request.initiated_at,
        completed_at=completed_at,
        published_at=time.time(),
        dataflow=metadata.dataflow,
        segments=metadata.segments,
        batches=metadata.batches,
        fragments=tuple(fragments[name] for name in sorted(fragments)),
        systems=tuple(cut for cut in _systems(root, request, fragments) if cut is not None),
        channels=tuple(channels),
        files=files,
        **more,
    )


def _publish(root: Path, manifest: Manifest) -> None:
    """Write the manifest, and give the directory its final place."""
    directory = pending_snapshot.request_path(root, manifest.snapshot)
    target = snapshot_manifest.snapshot_path(root, manifest.snapshot)
    with explain_io_errors(target, "written"):
        (root / snapshot_manifest.SNAPSHOTS).mkdir(exist_ok=True)
        write_new(directory / snapshot_manifest.MANIFEST, seal(manifest))
        # Neither Spark nor the logs force each file to the disk. Everything that the snapshot
        # depends on must be there before it has its name.
        os.sync()
        # First out of sight: a participant that finds the request without its own fragment would
        # record again.
        unseen = f".{directory.name}.{uuid.uuid4().hex}{pending_snapshot.WHOLE}"
        complete = directory.with_name(unseen)
        directory.rename(complete)
        _clear_all_but_the_cut(complete)
        complete.rename(target)
        sync(root / snapshot_manifest.SNAPSHOTS)


def _clear_all_but_the_cut(directory: Path) -> None:
    """Remove what the manifest contains, and checkpoints that were pinned and not needed."""
    kept = (snapshot_manifest.MANIFEST, pending_snapshot.PINNED)
    for path in (*directory.iterdir(), *directory.glob(f"{pending_snapshot.PINNED}/.*")):
        if path.parent != directory or path.name not in kept:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _files_before(root: Location) -> list[PinnedFile]:
    """Return the files of the snapshot before, which need not be read again."""
    before = snapshot_manifest.published_ids(root)
    try:
        return list(snapshot_manifest.read_manifest(root, before[-1]).files) if before else []
    except Damaged:
        return []  # an older snapshot that was damaged does not keep a new one from being taken
