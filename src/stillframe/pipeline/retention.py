"""Deletes snapshots, and the log entries that no remaining snapshot and no participant needs.

A log is trimmed only before the oldest snapshot: while there is none, nothing is deleted. A log
without targets is the output of the pipeline and is never trimmed. While a snapshot with a damaged
manifest remains, no log is trimmed, since the entries that it needs are unknown.
"""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from stillframe.durable_files import sync
from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline.log import DATA, LogReader, entry_name, numbers_in
from stillframe.pipeline.metadata import (
    CHANNELS,
    CHECKPOINTS,
    Metadata,
    MetadataWriter,
    ObjectMetadata,
    Segment,
    as_ranges,
    read_metadata,
    with_ends,
)
from stillframe.pipeline.pending_snapshot import PENDING
from stillframe.pipeline.snapshot_manifest import (
    SNAPSHOTS,
    Manifest,
    published_ids,
    readable_manifests,
    snapshot_path,
)
from stillframe.storage.files import mapped, names, remove_tree
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.store.layout import explain_io_errors

_DELETED_COUNT = 500
"""Entries that are deleted together."""


def keep(root: Location, count: int) -> list[SnapshotId]:
    """Delete all but the newest `count` snapshots, and trim the logs. Savepoints stay, and the one
    from which the current epoch began as long as it is needed, and any whose manifest is damaged:
    it may be a savepoint; these are returned. The caller coordinates (``locks.coordinating``)."""
    if len(published_ids(root)) <= count:
        return []
    book = _book_of(root)
    metadata, every = book.metadata, readable_manifests(root)
    unnamed = [manifest.snapshot for manifest in every if manifest.name is None]
    unwanted = unnamed[: max(0, len(unnamed) - count)]
    if _why_needed(metadata, every, unwanted) is not None:
        unwanted = [snapshot for snapshot in unwanted if snapshot != metadata.restored_from]
    return _delete(book, every, unwanted)


def drop(root: Location, unwanted: Iterable[SnapshotId]) -> list[SnapshotId]:
    """Delete snapshots, even damaged ones, and trim the logs; returns as ``keep``. UsageError if
    the current epoch began from one that is still needed."""
    book = _book_of(root)
    every, chosen = readable_manifests(root), list(unwanted)
    metadata = book.metadata
    if (why := _why_needed(metadata, every, chosen)) is not None:
        raise UsageError(why, path=root, snapshot=metadata.restored_from)
    return _delete(book, every, chosen)


def _why_needed(
    metadata: Metadata, every: list[Manifest], unwanted: list[SnapshotId]
) -> str | None:
    """Return why the snapshot from which the epoch began cannot be deleted with the others; None if
    it can, or if it is not among them."""
    if metadata.restored_from not in unwanted:
        return None
    why = f"the current epoch started from snapshot {metadata.restored_from}"
    began = next((one for one in every if one.snapshot == metadata.restored_from), None)
    if began is not None and began.systems:
        return (
            f"{why}, and so will the system of processes {began.systems[0].name} when it is "
            "started: restore the pipeline from another snapshot before you delete this one"
        )
    if any(one.epoch == metadata.epoch and one.snapshot not in unwanted for one in every):
        return None
    return f"{why}: take a new snapshot, which stays, before you delete this one"


class _DirectoryBook:
    """Snapshots in a directory, as they are deleted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.metadata = read_metadata(root)

    def delete(self, chosen: list[SnapshotId]) -> None:
        """Delete snapshots, and what is left of earlier ones."""
        snapshots = self.root / SNAPSHOTS
        with explain_io_errors(snapshots, "changed"):
            for snapshot in chosen:
                path = snapshot_path(self.root, snapshot)
                path.rename(path.with_name(f".{path.name}.dropped"))
            if chosen:
                sync(snapshots)
            for left in snapshots.glob(".*.dropped"):
                shutil.rmtree(left)


class _ObjectBook:
    """Snapshots in an object store. First they are taken off the list, which fails if another
    coordinator has begun; from then on none needs their files, or the entries before the others.
    """

    def __init__(self, root: ObjectPath) -> None:
        self.root = root
        self._writer = MetadataWriter(root)

    @property
    def metadata(self) -> ObjectMetadata:
        return self._writer.metadata

    def delete(self, chosen: list[SnapshotId]) -> None:
        unwanted = set(chosen)
        kept = [one for one in self.metadata.published_ids() if one not in unwanted]
        initiators = {self.metadata.name, *self.metadata.published}
        self._writer.replace(published=as_ranges(kept), request=None)
        # Also what crashed coordinators left. Higher numbers are those of a later one.
        known, last = {str(one) for one in kept}, self.metadata.last_snapshot
        for directory in (SNAPSHOTS, PENDING):
            with explain_io_errors(self.root / directory, "changed"):
                for name in names(self.root / directory):
                    initiator, _, number = name.rpartition("-")
                    is_own = initiator in initiators and number.isdecimal()
                    is_kept = directory == SNAPSHOTS and name in known
                    if is_own and int(number) <= last and not is_kept:
                        remove_tree(self.root / directory / name)
        self._delete_checkpoints()

    def _delete_checkpoints(self) -> None:
        """Delete what Spark wrote in other epochs: snapshots have copies of what they need."""
        directory = self.root / CHECKPOINTS
        with explain_io_errors(directory, "changed"):
            for name in names(directory):
                epoch = name.removeprefix("epoch-")
                is_known = epoch.isdecimal() and int(epoch) <= self.metadata.last_epoch
                if is_known and int(epoch) != self.metadata.epoch:
                    remove_tree(directory / name)


def _book_of(root: Location) -> _DirectoryBook | _ObjectBook:
    return _ObjectBook(root) if isinstance(root, ObjectPath) else _DirectoryBook(root)


def _delete(
    book: _DirectoryBook | _ObjectBook, every: list[Manifest], chosen: list[SnapshotId]
) -> list[SnapshotId]:
    root = book.root
    book.delete(chosen)
    live = [manifest for manifest in every if manifest.snapshot not in chosen]
    whole = {manifest.snapshot for manifest in live}
    damaged = [snapshot for snapshot in published_ids(root) if snapshot not in whole]
    if chosen and live and not damaged:
        trim(root, book.metadata, live)
    return damaged


def trim(root: Location, metadata: Metadata, live: list[Manifest]) -> None:
    """Delete every entry before those that the epoch or a `live` snapshot needs; there must be
    at least one."""
    for log in (log for log in metadata.dataflow.logs if log.targets):
        # epoch -> the first number that may still be read
        needed: dict[int, int] = {}
        for manifest in live:
            first = manifest.first_needed(log.name)
            _add_needed(needed, manifest.segments.get(log.name, ()), first)
        current = [
            m for m in live if m.epoch == metadata.epoch or m.snapshot == metadata.restored_from
        ]
        if not current:
            continue
        first = min(manifest.first_needed(log.name) for manifest in current)
        _add_needed(needed, metadata.segments[log.name], first)
        with explain_io_errors(root / CHANNELS / log.name, "trimmed"):
            _delete_before(root, log.name, needed, metadata)


def _add_needed(needed: dict[int, int], segments: Sequence[Segment], first: int) -> None:
    """Add for every epoch of a timeline which of its entries are needed from `first` on."""
    for segment, end in with_ends(segments):
        if end is None or end > first:
            begin = max(first, segment.first)
            needed[segment.epoch] = min(needed.get(segment.epoch, begin), begin)


def _delete_before(root: Location, log: str, needed: dict[int, int], metadata: Metadata) -> None:
    if isinstance(metadata, ObjectMetadata):
        _delete_objects_before(root / CHANNELS / log, needed, metadata, root)
        return
    assert isinstance(root, Path)
    for directory in (root / CHANNELS / log).glob("epoch-*"):
        epoch = int(directory.name.removeprefix("epoch-"))
        if epoch not in needed:
            shutil.rmtree(directory)
            continue
        reader = LogReader(root, metadata.dataflow.log(log), (Segment(epoch, 0),))
        numbers = sorted(int(path.stem) for path in directory.glob("[0-9]*.json"))
        for number in (number for number in numbers if number < needed[epoch]):
            # The data first: a remaining entry may name deleted files, but no file is without its
            # entry.
            for file in reader.entry(number).files:
                path = directory / DATA / file.name
                path.unlink(missing_ok=True)
                # A micro-batch has a directory of its own. Only if it is in the log is it certain
                # that no program writes into it any more.
                if path.parent != directory / DATA and not any(path.parent.glob("part-*.parquet")):
                    shutil.rmtree(path.parent, ignore_errors=True)
            (directory / entry_name(number)).unlink()


def _delete_objects_before(
    place: Location, needed: dict[int, int], metadata: ObjectMetadata, root: Location
) -> None:
    """Delete the entries of a log in an object store, `place`, that are not needed."""
    storage = storage_of(place)
    for name in names(place):
        epoch, directory = name.removeprefix("epoch-"), place / name
        # A higher epoch began after the metadata were read.
        if not epoch.isdecimal() or int(epoch) > metadata.last_epoch:
            continue
        if int(epoch) not in needed:
            remove_tree(directory)
            continue
        reader = LogReader(root, metadata.dataflow.log(place.name), (Segment(int(epoch), 0),))
        numbers = sorted(n for n in numbers_in(directory) if n < needed[int(epoch)])
        for first in range(0, len(numbers), _DELETED_COUNT):
            some = numbers[first : first + _DELETED_COUNT]
            entries = mapped(place, reader.entry, some)
            files = [file for entry in entries for file in entry.files]
            storage.delete([directory / DATA / file.name for file in files])
            # After their files: the next trim finds by these what a crash has left.
            storage.delete([directory / entry_name(number) for number in some])
            reader.forget(some[-1] + 1)
