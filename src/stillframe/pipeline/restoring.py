"""Takes a stopped pipeline back to a snapshot, or makes a second one from it.

Everything new is made beside what is there: checkpoint directories of the next epoch, from the
pinned files, and notes of how its services stand. Then ``pipeline.json`` is replaced, and that one
rename is the restore: every log ends at its barrier, and what older epochs appended behind it is no
part of it any more.
"""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from stillframe.errors import StoreError, Unavailable, UsageError
from stillframe.model import check_process_id
from stillframe.pipeline import checkpoint
from stillframe.pipeline.books import check_channels
from stillframe.pipeline.head import (
    CHECKPOINTS,
    Head,
    Stretch,
    checkpoint_path,
    read_head,
    write_head,
)
from stillframe.pipeline.locks import Lock, coordinating, participant_lock
from stillframe.pipeline.log import DATA, LogReader, epoch_directory, item_name
from stillframe.pipeline.published import (
    Manifest,
    pinned_path,
    read_manifest,
    snapshot_path,
    verify_files,
)
from stillframe.pipeline.resting import put_services
from stillframe.pipeline.systems import verify_system
from stillframe.pipeline.taking import COUNTER, clear_under_way
from stillframe.store.disk import link_or_copy, partial_path, sync
from stillframe.store.opening import explained


def restore(
    root: Path, manifest: Manifest, *, progress: Callable[[int], None] = lambda size: None
) -> Head:
    """Take the pipeline at `root` back to a snapshot.

    Next, start its services and queries again, as ever: each goes on from the snapshot.

    Args:
        root: the pipeline; none of its participants may be running.
        manifest: of the snapshot.
        progress: called with the length of each file that was verified.

    Returns:
        the head of the new epoch.

    Raises:
        Unavailable: a participant is running; or a snapshot or restore is under way.
        Damaged: a file of the snapshot is not what was written; nothing was changed.
        NotConsistent: a channel's books do not balance; nothing was changed.
        UsageError: the pipeline now declares other participants or channels.
        StoreError: the disk is full or failed; the pipeline is as it was.
    """
    with coordinating(root, "a restore"):
        locks = _stop_others(root)
        try:
            head = read_head(root)
            manifest = read_manifest(root, manifest.snapshot)  # it may have been dropped by now
            _check_same(head, manifest)
            verify_files(root, manifest, progress)
            check_channels(root, manifest)
            for cut in manifest.systems:
                verify_system(cut)
            clear_under_way(root)
            new = _head_after(head, manifest)
            put_services(root, new, manifest)
            _export(root, manifest, root, new)
            write_head(root, new)
            return new
        finally:
            for lock in locks:
                lock.release()


def fork(
    root: Path,
    manifest: Manifest,
    target: Path,
    *,
    name: str | None = None,
    progress: Callable[[int], None] = lambda size: None,
) -> Head:
    """Make a second pipeline that goes on from a snapshot, beside the first one, which may run.

    Neither sees what the other writes. Files are shared as hard links where both lie on one file
    system; no file is ever changed in place.

    Args:
        root: the pipeline.
        manifest: of the snapshot.
        target: the directory of the second one; empty or not there yet.
        name: of the second one; None for the name of its directory's stem.
        progress: called with the length of each file that was verified.

    Returns:
        the head of the second pipeline.

    Raises:
        UsageError: the target holds something.
        Damaged, NotConsistent, StoreError: as ``restore``.
    """
    if manifest.systems:
        raise UsageError(
            f"snapshot {manifest.snapshot} holds a system with a store of its own, "
            f"{manifest.systems[0].store}: such a pipeline cannot be forked"
        )
    new_name = check_process_id(target.stem if name is None else name)
    with explained(target, "made"):
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise UsageError(f"{target} is not empty: give a directory that is, or a new one")
    with coordinating(root, "a fork"):
        manifest = read_manifest(root, manifest.snapshot)
        verify_files(root, manifest, progress)
        check_channels(root, manifest)
        head = read_head(root)
        new = msgspec.structs.replace(
            _head_after(msgspec.structs.replace(head, dataflow=manifest.dataflow), manifest),
            name=new_name,
        )
        # All of it under another name first: a fork that was cut short has not taken place.
        partial = partial_path(target)
        try:
            with explained(target, "written"):
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                # Numbers of snapshots go on: those of barriers in the logs must not come again.
                shutil.copyfile(root / COUNTER, partial / COUNTER)
                _copy_logs(root, manifest, partial)
                _copy_snapshot(root, manifest, partial)
            put_services(partial, new, manifest)
            _export(root, manifest, partial, new)
            write_head(partial, new)
            with explained(target, "written"):
                partial.rename(target)
                sync(target.parent)
        except StoreError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return new


def _stop_others(root: Path) -> list[Lock]:
    """Take the lock of every participant, so that none starts before the restore is done."""
    locks: list[Lock] = []
    with contextlib.ExitStack() as taken:
        for name in read_head(root).dataflow.participants:
            lock = participant_lock(root, name)
            taken.callback(lock.release)
            if not lock.take_soon():
                raise Unavailable(
                    f"{name} is running: a restore would take the ground from under it; stop every "
                    "query and service of the pipeline first"
                )
            locks.append(lock)
        taken.pop_all()
    return locks


def _check_same(head: Head, manifest: Manifest) -> None:
    if head.dataflow != manifest.dataflow:
        raise UsageError(
            f"snapshot {manifest.snapshot} is of other queries, services or channels than the "
            "pipeline declares now: fork it into a new directory instead"
        )


def _head_after(head: Head, manifest: Manifest) -> Head:
    """Return the head with which the pipeline goes on from a snapshot."""
    epoch = head.epoch + 1
    barriers = {name: at for part in manifest.parts for name, at in part.barriers.items()}
    stretches = {
        log: _continued(old, epoch, barriers[log]) for log, old in manifest.stretches.items()
    }
    batches = {
        part.participant: _continued(
            manifest.batches[part.participant],
            epoch,
            0 if part.query.batch is None else part.query.batch + 1,
        )
        for part in manifest.parts
        if part.query is not None
    }
    # Who had read past a barrier, in mode at-least-once, reads on from it: that is what it doubles.
    starts = {
        part.participant: {log: min(at, barriers[log]) for log, at in part.positions.items()}
        for part in manifest.parts
    }
    return msgspec.structs.replace(
        head,
        epoch=epoch,
        restored_from=manifest.snapshot,
        stretches=stretches,
        batches=batches,
        starts=starts,
    )


def _continued(old: tuple[Stretch, ...], epoch: int, first: int) -> tuple[Stretch, ...]:
    """Return what a log, or the micro-batches of a query, consist of if `epoch` begins there."""
    return (*(stretch for stretch in old if stretch.first < first), Stretch(epoch, first))


def _export(root: Path, manifest: Manifest, target: Path, head: Head) -> None:
    """Make the checkpoint directories of the new epoch, and force them to the disk."""
    with explained(target / CHECKPOINTS, "written"):
        place = target / CHECKPOINTS / f"epoch-{head.epoch}"
        if place.exists():
            # What an attempt left that did not come as far as the new pipeline.json.
            shutil.rmtree(place)
        place.mkdir(parents=True)
        for part in manifest.parts:
            if part.query is not None and part.query.batch is not None:
                checkpoint.export(
                    pinned_path(snapshot_path(root, manifest.snapshot), part.participant),
                    checkpoint_path(target, head.epoch, part.participant),
                    part.query.batch,
                    head.starts[part.participant],
                )
        os.sync()


def _copy_logs(root: Path, manifest: Manifest, target: Path) -> None:
    """Give the second pipeline every item of every log that it can still be asked for, and all of
    those that no target reads: they are what the pipeline makes."""
    barriers = {name: at for part in manifest.parts for name, at in part.barriers.items()}
    for log in manifest.dataflow.logs:
        reader = LogReader(root, log, manifest.stretches[log.name])
        ends = [cut.position for cut in manifest.channels if cut.log == log.name]
        ends.append(barriers[log.name])
        # One item before the first that is read says at which offsets that one begins.
        # What was read past the barrier (at-least-once) is in the books of the snapshot.
        first = max(0, min(ends) - 1) if log.targets else reader.first_kept()
        for number in range(first, max(ends)):
            item = reader.item(number)
            directory = epoch_directory(target, log.name, item.epoch)
            (directory / DATA).mkdir(parents=True, exist_ok=True)
            for file in item.files:
                place = directory / DATA / file.name
                place.parent.mkdir(exist_ok=True)
                link_or_copy(reader.data_path(item, file), place)
            link_or_copy(reader.item_path(number), directory / item_name(number))


def _copy_snapshot(root: Path, manifest: Manifest, target: Path) -> None:
    """Give the second pipeline the snapshot that it begins with: it can go back there."""
    source = snapshot_path(root, manifest.snapshot)
    for path in sorted(source.rglob("*")):
        if path.is_file():
            place = snapshot_path(target, manifest.snapshot) / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(path, place)
