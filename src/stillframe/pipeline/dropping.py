"""Deletes snapshots, and from the logs what no live snapshot and no participant needs any more.

A log is trimmed only behind the oldest live snapshot: while there is none, nothing is deleted.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from stillframe.errors import UsageError
from stillframe.pipeline.head import CHANNELS, Head, Stretch, read_head
from stillframe.pipeline.log import DATA, LogReader, item_name
from stillframe.pipeline.published import SNAPSHOTS, Manifest, manifests, snapshot_path
from stillframe.store.disk import sync
from stillframe.store.opening import explained


def beyond(root: Path, count: int) -> list[Manifest]:
    """Return the snapshots that are not among the newest `count`, no savepoints, and not the one
    from which the present epoch began."""
    head = read_head(root)
    unnamed = [
        manifest
        for manifest in manifests(root)
        if manifest.name is None and manifest.snapshot != head.restored_from
    ]
    return unnamed[: max(0, len(unnamed) - count)]


def drop(root: Path, unwanted: Iterable[Manifest]) -> None:
    """Delete snapshots and trim the logs. The caller coordinates (``locks.coordinating``).

    Raises:
        UsageError: the present epoch began from one of them: services read their state there.
        StoreError: the disk failed.
    """
    head = read_head(root)
    chosen = list(unwanted)
    for manifest in chosen:
        if manifest.snapshot == head.restored_from:
            raise UsageError(
                f"the present epoch began from snapshot {manifest.snapshot}: take a new one and "
                "restore from that before this one can go"
            )
    with explained(root / SNAPSHOTS, "changed"):
        for manifest in chosen:
            path = snapshot_path(root, manifest.snapshot)
            gone = path.with_name(f".{path.name}.dropped")
            path.rename(gone)
        if chosen:
            sync(root / SNAPSHOTS)
        for left in (root / SNAPSHOTS).glob(".*.dropped"):
            shutil.rmtree(left)
    live = manifests(root)
    if chosen and live:
        trim(root, head, live)


def trim(root: Path, head: Head, live: list[Manifest]) -> None:
    """Delete every item before the ones that a live snapshot, or the way on from here, needs.

    Args:
        root: the pipeline.
        head: as it is now.
        live: the snapshots that stay; at least one.
    """
    for log in head.dataflow.logs:
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
