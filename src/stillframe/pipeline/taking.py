"""Takes a snapshot of a pipeline: asks, waits for every participant's part, publishes or gives up.

Whoever calls ``take`` is the coordinator for that snapshot, in the driver, from the command line or
anywhere else that sees the pipeline's directory: all it says and hears is in files (``part``).
Participants that no program runs now are recorded as they lie on the disk.
"""

import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from stillframe.errors import Damaged, NotConsistent, UsageError
from stillframe.model import Abandoned, Reason, SnapshotId
from stillframe.pipeline import checkpoint
from stillframe.pipeline.books import channel_cuts
from stillframe.pipeline.head import CHANNELS, Head, read_head
from stillframe.pipeline.items import Barrier, Item
from stillframe.pipeline.locks import coordinating
from stillframe.pipeline.part import (
    PARTS,
    PINNED,
    REQUEST,
    UNDER_WAY,
    Part,
    Request,
    read_part,
    request_path,
)
from stillframe.pipeline.progress import Progress, progress_of
from stillframe.pipeline.published import (
    MANIFEST,
    SNAPSHOTS,
    Manifest,
    PinnedFile,
    hashed_files,
    pinned_path,
    published_ids,
    read_manifest,
    snapshot_path,
    undamaged,
)
from stillframe.pipeline.resting import NotAtRest, record_at_rest
from stillframe.pipeline.systems import Outcome, SystemCut, system_cut
from stillframe.protocol.aligner import Mode
from stillframe.store.disk import replace_durably, sync, write_new
from stillframe.store.opening import explained
from stillframe.store.seal import FORMAT, TooLarge, read_sealed, seal

TIMEOUT_S = 60.0
POLL_S = 0.01
"""Participants look at the disk about as often: Spark asks its sources every 10 ms."""

PROGRESS_S = 0.2
"""So often at most is told how far a snapshot is: to find it out means to look at everybody."""

REST_S = 0.05
"""So long at least no periodic snapshot is taken: a restore, or whoever else waits, comes in."""

COUNTER = "last-snapshot.json"
UNSEEN_MAX = 1000
"""How many numbers are left out when ``last-snapshot.json`` is damaged: a participant may remember
one of a snapshot that was abandoned before any barrier was appended."""


class Counter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``last-snapshot.json``: the number of the last snapshot that was begun."""

    format: int = FORMAT
    last: int


def take(
    root: Path,
    *,
    mode: Mode = Mode.ALIGNED,
    name: str | None = None,
    timeout_s: float = TIMEOUT_S,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Manifest | Abandoned:
    """Take a snapshot of the pipeline at `root` and publish it.

    Args:
        root: the pipeline.
        mode: when participants record; aligned and at-least-once need a dataflow without cycles.
        name: makes it a savepoint, which is kept until it is dropped by name.
        timeout_s: after so many seconds it is given up. Its barriers stay in the logs and are
            stepped over.
        progress: called again and again while it is under way, at most 5 times a second.

    Returns:
        the published snapshot, or why it was given up and who was missing.

    Raises:
        UsageError: the mode does not fit the dataflow, or there is a savepoint of that name.
        Unavailable: another snapshot is being taken, or the pipeline is being restored.
        StoreError: the disk is full or failed.
    """
    with coordinating(root, "a snapshot", is_patient=False):
        head = read_head(root)
        head.dataflow.check_mode(mode)
        if name is not None and name in (manifest.name for manifest in undamaged(root)):
            raise UsageError(f"there is a savepoint {name!r} already: give another name")
        clear_under_way(root)
        try:
            request = _ask(root, head, mode, name, timeout_s)
            outcome = _collect(root, head, request, progress)
            if isinstance(outcome, Abandoned):
                return outcome
            completed_at = time.time()
            try:
                return _publish(root, head, request, outcome, completed_at=completed_at)
            except NotConsistent as error:
                return Abandoned(request.snapshot, Reason.NOT_CONSISTENT, (), str(error))
            except TooLarge as error:
                largest = max(outcome, key=lambda name: _state_bytes(outcome[name]))
                return Abandoned(
                    request.snapshot,
                    Reason.NOT_RECORDED,
                    (largest,),
                    f"the states of all services together are too large: {error}; the largest is "
                    f"that of {largest}, {_state_bytes(outcome[largest])} bytes",
                )
        finally:
            clear_under_way(root)


def moments(interval_s: float, wait: Callable[[float], object]) -> Iterator[None]:
    """Yield every `interval_s` seconds, or a little later; what was missed meanwhile is not made up
    for.

    Args:
        interval_s: from one moment to the next.
        wait: waits so many seconds; if it returns something true, that is the end.
    """
    due = time.monotonic() + interval_s
    while not wait(max(REST_S, due - time.monotonic())):
        due += interval_s
        if due < (now := time.monotonic()):
            due = now + interval_s
        yield


def clear_under_way(root: Path) -> None:
    """Remove what a snapshot that is over has left; its barriers mean nothing from here on."""
    directory = root / UNDER_WAY
    with explained(directory, "cleared"):
        directory.mkdir(exist_ok=True)
        for over in directory.glob("[!.]*"):
            # First the name: nobody must find a request of which half is gone.
            over.rename(directory / f".{over.name}.{uuid.uuid4().hex}.over")
        for left in directory.iterdir():
            shutil.rmtree(left, ignore_errors=True)


def _ask(root: Path, head: Head, mode: Mode, name: str | None, timeout_s: float) -> Request:
    number = _next_number(root)
    now = time.time()
    request = Request(
        snapshot=SnapshotId(head.name, number),
        epoch=head.epoch,
        mode=mode,
        name=name,
        initiated_at=now,
        deadline_at=now + timeout_s,
    )
    directory = request_path(root, request.snapshot)
    partial = directory.with_name(f".{directory.name}.partial")
    with explained(directory, "made"):
        (partial / PARTS).mkdir(parents=True)
        replace_durably(partial / REQUEST, seal(request))
        partial.rename(directory)
    return request


def _next_number(root: Path) -> int:
    """Return a number that no snapshot had, also none that was given up: its barriers are there."""
    path = root / COUNTER
    try:
        last = read_sealed(path, Counter).last if path.exists() else _last_without_counter(root)
    except Damaged:
        last = _highest_seen(root) + UNSEEN_MAX
    number = 1 + last
    with explained(path, "written"):
        replace_durably(path, seal(Counter(last=number)))
    return number


def _last_without_counter(root: Path) -> int:
    """Return what the last number may have been: none before the first snapshot; else the file was
    lost."""
    seen = _highest_seen(root)
    return seen + UNSEEN_MAX if seen else 0


def _highest_seen(root: Path) -> int:
    """Return the highest number of a snapshot that was published or has a barrier in a log.

    Raises:
        Damaged, StoreError: an item of a log was changed or cannot be read.
    """
    numbers = [snapshot.number for snapshot in published_ids(root)]
    with explained(root / CHANNELS, "read"):
        for path in (root / CHANNELS).glob("*/epoch-*/*.json"):
            content = read_sealed(path, Item).content
            if isinstance(content, Barrier):
                numbers.append(content.snapshot.number)
    return max(numbers, default=0)


def _collect(
    root: Path, head: Head, request: Request, progress: Callable[[Progress], None]
) -> dict[str, Part] | Abandoned:
    """Wait for every part."""
    parts: dict[str, Part] = {}
    told_at = -math.inf
    while True:
        for name in head.dataflow.participants:
            if name in parts:
                continue
            try:
                part = read_part(root, request.snapshot, name) or record_at_rest(
                    root, head, request, name
                )
            except NotAtRest as error:
                return Abandoned(request.snapshot, Reason.NOT_AT_REST, (name,), str(error))
            if part is not None and part.failure is not None:
                return Abandoned(request.snapshot, Reason.NOT_RECORDED, (name,), part.failure)
            if part is not None:
                parts[name] = part
        systems = _systems(root, request, parts)
        for cut in systems:
            if cut is not None and cut.outcome is Outcome.ABANDONED:
                return Abandoned(request.snapshot, Reason.NOT_RECORDED, (cut.name,), cut.detail)
        if len(parts) == len(head.dataflow.participants) and all(
            cut is not None and cut.outcome is Outcome.PUBLISHED for cut in systems
        ):
            return parts
        if time.time() > request.deadline_at:
            late = progress_of(root, head, request, parts)
            return Abandoned(
                request.snapshot, Reason.DEADLINE, late.awaited, late.culprit_sentence()
            )
        if time.monotonic() - told_at >= PROGRESS_S:
            progress(progress_of(root, head, request, parts))
            told_at = time.monotonic()
        time.sleep(POLL_S)


def _state_bytes(part: Part) -> int:
    return 0 if part.service is None else len(part.service.encoded)


def _systems(root: Path, request: Request, parts: dict[str, Part]) -> list[SystemCut | None]:
    """Return how far the systems are of which some participant is a process."""
    names = sorted({part.system for part in parts.values() if part.system is not None})
    return [system_cut(root, request.snapshot, name) for name in names]


def _publish(
    root: Path,
    head: Head,
    request: Request,
    parts: dict[str, Part],
    *,
    completed_at: float,
) -> Manifest:
    """Check what was recorded, write the manifest, and give the directory its final place."""
    directory = request_path(root, request.snapshot)
    for name, part in parts.items():
        if part.query is not None and part.query.batch is not None:
            expected = checkpoint.Committed(part.query.batch, part.positions)
            checkpoint.check_pinned(pinned_path(directory, name), expected)
    channels = channel_cuts(root, head, parts, request.mode)
    queries = [name for name, part in parts.items() if part.query is not None]
    files = hashed_files(directory, queries, _files_before(root))
    manifest = Manifest(
        snapshot=request.snapshot,
        name=request.name,
        epoch=head.epoch,
        mode=request.mode,
        initiated_at=request.initiated_at,
        completed_at=completed_at,
        published_at=time.time(),
        dataflow=head.dataflow,
        stretches=head.stretches,
        batches=head.batches,
        parts=tuple(parts[name] for name in sorted(parts)),
        systems=tuple(cut for cut in _systems(root, request, parts) if cut is not None),
        channels=tuple(channels),
        files=tuple(files),
    )
    target = snapshot_path(root, request.snapshot)
    with explained(target, "written"):
        (root / SNAPSHOTS).mkdir(exist_ok=True)
        write_new(directory / MANIFEST, seal(manifest))
        # Neither Spark nor the logs force each file to the disk. Before the snapshot has its name,
        # everything that it rests on must be there.
        os.sync()
        # First out of sight: whoever finds the request and not its own part would record again.
        whole = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.whole")
        directory.rename(whole)
        _clear_all_but_the_cut(whole)
        whole.rename(target)
        sync(root / SNAPSHOTS)
    return manifest


def _clear_all_but_the_cut(directory: Path) -> None:
    """Remove what the manifest holds, and checkpoints that were pinned and not needed."""
    for path in (*directory.iterdir(), *directory.glob(f"{PINNED}/.*")):
        if path.parent != directory or path.name not in (MANIFEST, PINNED):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _files_before(root: Path) -> list[PinnedFile]:
    """Return the files of the snapshot before, which need not be read again."""
    before = published_ids(root)
    try:
        return list(read_manifest(root, before[-1]).files) if before else []
    except Damaged:
        return []  # an older snapshot that was damaged does not keep a new one from being taken
