"""Restores a stopped pipeline to a snapshot, or makes a second one from it.

Everything new is written next to the current files: checkpoint directories of the next epoch, from
the pinned files, and the restored states of its services. Then ``pipeline.json`` is replaced, and
that one rename is the restore: every log now ends at its barrier, and entries that older epochs
appended after it are not part of it any more.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from stillframe.durable_files import link_into, link_tree, partial_path, sync
from stillframe.errors import StoreError, Unavailable, UsageError
from stillframe.model import check_process_id
from stillframe.pipeline import checkpoint
from stillframe.pipeline.coordinator import ID_FILE, clear_pending
from stillframe.pipeline.locks import coordinating, participant_lock
from stillframe.pipeline.log import DATA, entry_name, epoch_directory
from stillframe.pipeline.metadata import (
    CHECKPOINTS,
    Metadata,
    Segment,
    begin_writing,
    checkpoint_path,
    read_metadata,
    write_metadata,
)
from stillframe.pipeline.snapshot_manifest import (
    Manifest,
    check_channels,
    pinned_path,
    read_manifest,
    snapshot_path,
    verify_files,
)
from stillframe.pipeline.stopped import place_services
from stillframe.store.layout import explain_io_errors
from stillframe.store.store import Store


def restore(root: Path, manifest: Manifest, progress: Callable[[int], None]) -> None:
    """Restore the pipeline at `root` to a snapshot, as ``Pipeline.restore``."""
    with coordinating(root, "a restore"), _all_stopped(root):
        metadata = read_metadata(root)
        manifest = read_manifest(root, manifest.snapshot)  # it may have been dropped by now
        if metadata.dataflow != manifest.dataflow:
            raise UsageError(
                f"snapshot {manifest.snapshot} has other queries, services or channels than the "
                "pipeline declares now: fork it into a new directory instead"
            )
        verify_files(root, manifest, progress)
        check_channels(root, manifest)
        for cut in manifest.systems:
            Store.open(Path(cut.store)).verify(cut.snapshot)
        begin_writing(root, metadata, are_stopped=True)
        clear_pending(root)
        new = _metadata_after(metadata, manifest)
        place_services(root, new, manifest)
        _export(root, manifest, root, new)
        write_metadata(root, new)


def fork(
    root: Path, manifest: Manifest, target: Path, name: str | None, progress: Callable[[int], None]
) -> None:
    """Make a second pipeline in `target` that continues from a snapshot, as ``Pipeline.fork``.
    Neither sees what the other writes: files are shared as hard links, and no file is ever changed
    in place."""
    if manifest.systems:
        raise UsageError(
            f"snapshot {manifest.snapshot} includes a system with its own store, "
            f"{manifest.systems[0].store}: such a pipeline cannot be forked"
        )
    new_name = check_process_id(target.stem if name is None else name, "a pipeline")
    with explain_io_errors(target, "made"):
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise UsageError(
                f"{target} is not empty", path=target, remedy="give an empty or new directory"
            )
    with coordinating(root, "a fork"):
        manifest = read_manifest(root, manifest.snapshot)
        verify_files(root, manifest, progress)
        check_channels(root, manifest)
        metadata = msgspec.structs.replace(
            read_metadata(root), name=new_name, dataflow=manifest.dataflow
        )
        new = _metadata_after(metadata, manifest)
        # All of it under another name first: a fork that was cut short has not taken place.
        partial = partial_path(target)
        try:
            with explain_io_errors(target, "written"):
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                # Snapshot numbers continue: those of barriers in the logs must not be used again.
                shutil.copyfile(root / ID_FILE, partial / ID_FILE)
                _copy_logs(root, manifest, partial)
                # It can be restored there.
                link_tree(*(snapshot_path(path, manifest.snapshot) for path in (root, partial)))
            place_services(partial, new, manifest)
            _export(root, manifest, partial, new)
            write_metadata(partial, new)
            with explain_io_errors(target, "written"):
                partial.rename(target)
                sync(target.parent)
        except StoreError:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextlib.contextmanager
def _all_stopped(root: Path) -> Iterator[None]:
    """Hold the lock of every participant, so that none starts before the restore is done."""
    with contextlib.ExitStack() as locks:
        for name in read_metadata(root).dataflow.participants:
            lock = participant_lock(root, name)
            if not lock.acquire():
                raise Unavailable(
                    f"{name} is running",
                    path=root,
                    process=name,
                    remedy="stop every query and service of the pipeline before a restore",
                )
            locks.callback(lock.release)
        yield


def _metadata_after(metadata: Metadata, manifest: Manifest) -> Metadata:
    """Return the metadata with which the pipeline continues from a snapshot."""
    epoch = metadata.epoch + 1
    barriers = manifest.barriers

    def continued(old: tuple[Segment, ...], first: int) -> tuple[Segment, ...]:
        return (*(segment for segment in old if segment.first < first), Segment(epoch, first))

    # A target that had read past a barrier, in mode at-least-once, reads on from the barrier: those
    # are the records that it receives twice.
    starts = {
        one.participant: {log: min(at, barriers[log]) for log, at in one.positions.items()}
        for one in manifest.fragments
    }
    next_batches = {
        one.participant: 0 if one.query.batch is None else one.query.batch + 1
        for one in manifest.fragments
        if one.query is not None
    }
    return msgspec.structs.replace(
        metadata,
        epoch=epoch,
        restored_from=manifest.snapshot,
        segments={log: continued(old, barriers[log]) for log, old in manifest.segments.items()},
        batches={
            query: continued(manifest.batches[query], first)
            for query, first in next_batches.items()
        },
        starts=starts,
    )


def _export(root: Path, manifest: Manifest, target: Path, metadata: Metadata) -> None:
    """Make the checkpoint directories of the new epoch, and force them to the disk."""
    with explain_io_errors(target / CHECKPOINTS, "written"):
        place = target / CHECKPOINTS / f"epoch-{metadata.epoch}"
        if place.exists():
            shutil.rmtree(place)  # left by an attempt that did not replace pipeline.json
        place.mkdir(parents=True)
        for fragment in manifest.fragments:
            if fragment.query is not None and fragment.query.batch is not None:
                checkpoint.export(
                    pinned_path(snapshot_path(root, manifest.snapshot), fragment.participant),
                    checkpoint_path(target, metadata.epoch, fragment.participant),
                    fragment.query.batch,
                    metadata.starts[fragment.participant],
                )
        os.sync()


def _copy_logs(root: Path, manifest: Manifest, target: Path) -> None:
    """Copy every entry that the second pipeline may need, and all of its outputs: logs no target
    reads."""
    for log in manifest.dataflow.logs:
        reader = manifest.reader(root, log.name)
        ends = [cut.position for cut in manifest.channels if cut.log == log.name]
        ends.append(manifest.barriers[log.name])
        # Entries read past the barrier (at-least-once) are in the books of the snapshot.
        first = manifest.first_needed(log.name) if log.targets else reader.first_kept()
        for entry in reader.entries(first, max(ends)):
            directory = epoch_directory(target, log.name, entry.epoch)
            for file in entry.files:
                link_into(reader.data_path(entry, file), directory / DATA / file.name)
            link_into(reader.entry_path(entry.number), directory / entry_name(entry.number))
