"""Deletes snapshots, and from the logs what no live snapshot and no participant needs any more.

A log is trimmed only behind the oldest live snapshot: while there is none, nothing is deleted. A
log without targets is what the pipeline makes for its users: it is never trimmed. While a snapshot
stays whose manifest is damaged, no log is trimmed: nobody knows what that one needs.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline.head import CHANNELS, Head, Stretch, read_head
from stillframe.pipeline.log import DATA, LogReader, item_name
from stillframe.pipeline.published import (
    SNAPSHOTS,
    Manifest,
    published_ids,
    snapshot_path,
    undamaged,
)
from stillframe.store.disk import sync
from stillframe.store.opening import explained


def keep(root: Path, count: int) -> list[SnapshotId]:
    """Delete all but the newest `count` snapshots, and trim the logs. Savepoints stay, and the one
    from which the present epoch began as long as it is needed, and any whose manifest is damaged:
    it may be a savepoint, and nothing is trimmed before it is dropped. The caller coordinates.

    Returns:
        those whose manifest is damaged.

    Raises:
        StoreError: a manifest cannot be read, or the disk failed.
    """
    if len(published_ids(root)) <= count:
        return []
    head, every = read_head(root), undamaged(root)
    unnamed = [manifest.snapshot for manifest in every if manifest.name is None]
    unwanted = unnamed[: max(0, len(unnamed) - count)]
    if _why_it_began_here(head, every, unwanted) is not None:
        unwanted = [snapshot for snapshot in unwanted if snapshot != head.restored_from]
    return _delete(root, head, every, unwanted)


def drop(root: Path, unwanted: Iterable[SnapshotId]) -> list[SnapshotId]:
    """Delete snapshots, damaged ones as well, and trim the logs. The caller coordinates
    (``locks.coordinating``).

    Returns:
        those that stay and whose manifest is damaged.

    Raises:
        UsageError: the present epoch began from one of them, and it is still needed.
        StoreError: a manifest cannot be read, or the disk failed.
    """
    head, every, chosen = read_head(root), undamaged(root), list(unwanted)
    if (why := _why_it_began_here(head, every, chosen)) is not None:
        raise UsageError(why)
    return _delete(root, head, every, chosen)


def _why_it_began_here(head: Head, every: list[Manifest], unwanted: list[SnapshotId]) -> str | None:
    """Return why the snapshot from which the epoch began cannot go with the others that are
    unwanted; None if it can, or if it is not among them."""
    if head.restored_from not in unwanted:
        return None
    why = f"the present epoch began from snapshot {head.restored_from}"
    began = next((one for one in every if one.snapshot == head.restored_from), None)
    if began is not None and began.systems:
        return (
            f"{why}, and so will the system of processes {began.systems[0].name} when it is "
            "started: restore the pipeline from another snapshot before this one can go"
        )
    if any(one.epoch == head.epoch and one.snapshot not in unwanted for one in every):
        return None
    return f"{why}: take a new one, which stays, before this one can go"


def _delete(
    root: Path, head: Head, every: list[Manifest], chosen: list[SnapshotId]
) -> list[SnapshotId]:
    with explained(root / SNAPSHOTS, "changed"):
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
        trim(root, head, live)
    return damaged


def trim(root: Path, head: Head, live: list[Manifest]) -> None:
    """Delete every item before the ones that a live snapshot, or the way on from here, needs.

    Args:
        root: the pipeline.
        head: as it is now.
        live: the snapshots that stay; at least one.
    """
    for log in (log for log in head.dataflow.logs if log.targets):
        # epoch -> the first number that somebody may still ask for
        needed: dict[int, int] = {}
        for manifest in live:
            first = _first_needed(manifest, log.name)
            _note(needed, manifest.stretches.get(log.name, ()), first)
        current = [m for m in live if m.epoch == head.epoch or m.snapshot == head.restored_from]
        if not current:
            continue
        _note(needed, head.stretches[log.name], min(_first_needed(m, log.name) for m in current))
        with explained(root / CHANNELS / log.name, "trimmed"):
            _delete_before(root, log.name, needed, head)


def _first_needed(manifest: Manifest, log: str) -> int:
    """Return the first item of a log that a snapshot needs: the one before the first to be read,
    which says at which offsets that one begins."""
    at = [cut.position for cut in manifest.channels if cut.log == log]
    barrier = [part.barriers[log] for part in manifest.parts if log in part.barriers]
    return max(0, min([*at, *barrier], default=0) - 1)


def _note(needed: dict[int, int], stretches: Iterable[Stretch], first: int) -> None:
    """Note for every epoch of a course which of its items are needed from `first` on."""
    ordered = list(stretches)
    ends = [*(stretch.first for stretch in ordered[1:]), None]
    for stretch, end in zip(ordered, ends, strict=True):
        if end is None or end > first:
            begin = max(first, stretch.first)
            needed[stretch.epoch] = min(needed.get(stretch.epoch, begin), begin)


def _delete_before(root: Path, log: str, needed: dict[int, int], head: Head) -> None:
    for directory in (root / CHANNELS / log).glob("epoch-*"):
        epoch = int(directory.name.removeprefix("epoch-"))
        if epoch not in needed:
            shutil.rmtree(directory)
            continue
        reader = LogReader(root, head.dataflow.log(log), (Stretch(epoch, 0),))
        numbers = sorted(int(path.stem) for path in directory.glob("[0-9]*.json"))
        for number in (number for number in numbers if number < needed[epoch]):
            # The data first: an item that is left names what is gone, never the other way round.
            for file in reader.item(number).files:
                path = directory / DATA / file.name
                path.unlink(missing_ok=True)
                # A micro-batch has a directory of its own. Only of one that is in the log is it
                # certain that nobody writes into it any more.
                if path.parent != directory / DATA and not any(path.parent.glob("part-*.parquet")):
                    shutil.rmtree(path.parent, ignore_errors=True)
            (directory / item_name(number)).unlink()
