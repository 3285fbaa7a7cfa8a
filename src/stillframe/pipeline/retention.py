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
from stillframe.pipeline.log import DATA, LogReader, entry_name
from stillframe.pipeline.metadata import CHANNELS, Metadata, Segment, read_metadata, with_ends
from stillframe.pipeline.snapshot_manifest import (
    SNAPSHOTS,
    Manifest,
    published_ids,
    readable_manifests,
    snapshot_path,
)
from stillframe.store.layout import explain_io_errors


def keep(root: Path, count: int) -> list[SnapshotId]:
    """Delete all but the newest `count` snapshots, and trim the logs. Savepoints stay, and the one
    from which the current epoch began as long as it is needed, and any whose manifest is damaged:
    it may be a savepoint; these are returned. The caller coordinates (``locks.coordinating``)."""
    if len(published_ids(root)) <= count:
        return []
    metadata, every = read_metadata(root), readable_manifests(root)
    unnamed = [manifest.snapshot for manifest in every if manifest.name is None]
    unwanted = unnamed[: max(0, len(unnamed) - count)]
    if _why_needed(metadata, every, unwanted) is not None:
        unwanted = [snapshot for snapshot in unwanted if snapshot != metadata.restored_from]
    return _delete(root, metadata, every, unwanted)


def drop(root: Path, unwanted: Iterable[SnapshotId]) -> list[SnapshotId]:
    """Delete snapshots, even damaged ones, and trim the logs; returns as ``keep``. UsageError if
    the current epoch began from one that is still needed."""
    metadata, every, chosen = read_metadata(root), readable_manifests(root), list(unwanted)
    if (why := _why_needed(metadata, every, chosen)) is not None:
        raise UsageError(why, path=root, snapshot=metadata.restored_from)
    return _delete(root, metadata, every, chosen)


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


def _delete(
    root: Path, metadata: Metadata, every: list[Manifest], chosen: list[SnapshotId]
) -> list[SnapshotId]:
    with explain_io_errors(root / SNAPSHOTS, "changed"):
        for snapshot in chosen:
            path = snapshot_path(root, snapshot)
            path.rename(path.with_name(f".{path.name}.dropped"))
        if chosen:
            sync(root / SNAPSHOTS)
        for left in (root / SNAPSHOTS).glob(".*.dropped"):
            shutil.rmtree(left)
    live = [manifest for manifest in every if manifest.snapshot not in chosen]
    whole = {manifest.snapshot for manifest in live}
    damaged = [snapshot for snapshot in published_ids(root) if snapshot not in whole]
    if chosen and live and not damaged:
        trim(root, metadata, live)
    return damaged


def trim(root: Path, metadata: Metadata, live: list[Manifest]) -> None:
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


def _delete_before(root: Path, log: str, needed: dict[int, int], metadata: Metadata) -> None:
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
