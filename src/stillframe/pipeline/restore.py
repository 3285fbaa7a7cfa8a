"""Restores a stopped pipeline to a snapshot, or makes a second one from it.

Everything new is written next to the current files: checkpoint directories of the next epoch, from
the pinned files, and the restored states of its services. Then ``pipeline.json`` is replaced, and
that one rename is the restore: every log now ends at its barrier, and entries that older epochs
appended after it are not part of it any more.

In an object store a restore first reserves the number of the new epoch, so no other attempt writes
into it. It fails if another coordinator has begun since.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from stillframe.durable_files import link_tree, partial_path, replace_durably, sync
from stillframe.errors import Damaged, NotConsistent, StoreError, Unavailable, UsageError
from stillframe.model import Abandoned, SnapshotId, check_process_id
from stillframe.pipeline import checkpoint
from stillframe.pipeline.coordinator import (
    ID_FILE,
    LastSnapshot,
    clear_pending,
    take_snapshot,
)
from stillframe.pipeline.kafka import brokers
from stillframe.pipeline.known_topics import held_topic, known_id
from stillframe.pipeline.locks import busy_participant, coordinating, participant_lock
from stillframe.pipeline.log import DATA, entry_name, epoch_directory
from stillframe.pipeline.metadata import (
    CHECKPOINTS,
    Metadata,
    MetadataWriter,
    ObjectMetadata,
    Segment,
    as_ranges,
    begin_writing,
    check_place,
    claim_place,
    create_metadata,
    read_metadata,
    write_metadata,
)
from stillframe.pipeline.query_runs import current_run, first_checkpoint
from stillframe.pipeline.snapshot_manifest import (
    MANIFEST,
    Manifest,
    check_channels,
    read_manifest,
    snapshot_path,
    verify_files,
)
from stillframe.pipeline.stopped import place_services
from stillframe.protocol.aligner import Mode
from stillframe.protocol.topic_positions import check_end, starts
from stillframe.storage.files import below, copy_all, names
from stillframe.storage.location import Location, ObjectPath, locate
from stillframe.storage.owned import PROBE, check_conditional_writes
from stillframe.store.layout import explain_io_errors
from stillframe.store.sealed_json import read_sealed, seal
from stillframe.store.store import Store

SEARCH_S = 3600.0
"""How long it searches for the newest consistent point: there may be nothing else to restore."""


def restore(root: Location, manifest: Manifest, progress: Callable[[int], None]) -> None:
    """Restore the pipeline at `root` to a snapshot, as ``Pipeline.restore``."""
    with coordinating(root, "a restore"), _all_stopped(root):
        _restore(root, manifest.snapshot, progress)


def restore_newest_consistent(root: Location, progress: Callable[[int], None]) -> Manifest:
    """Restore the pipeline at `root` to the newest consistent point, as ``Pipeline.restore``. No
    program starts between the moment when it is found and the end of the restore."""
    with coordinating(root, "a restore"), _all_stopped(root):
        metadata = read_metadata(root)
        if in_memory := metadata.dataflow.in_memory:
            raise UsageError(
                f"{root} has the service {in_memory[0]}, which keeps its state "
                "in memory, so only snapshots have that state: restore a snapshot",
                path=root,
            )
        begin_writing(root, metadata, are_stopped=True)
        found = take_snapshot(root, Mode.RETAINED, None, SEARCH_S)
        if isinstance(found, Abandoned):
            raise NotConsistent(
                f"no newest consistent point of {root} was found: {found.detail}", path=root
            )
        _restore(root, found.snapshot, progress)
        return found


def repeated_batch_counts(root: Location, manifest: Manifest) -> dict[str, int]:
    """Return how many micro-batches of each query were committed after a snapshot in its epoch. A
    restore to the snapshot repeats them."""
    counts = {}
    for query in manifest.queries:
        last = checkpoint.last_committed(current_run(root, manifest.epoch, query).checkpoint)
        chosen = manifest.last_batches.get(query, checkpoint.START)
        counts[query] = 0 if last is None else max(0, last.batch - chosen)
    return counts


def _restore(root: Location, snapshot: SnapshotId, progress: Callable[[int], None]) -> None:
    """Restore a pipeline whose locks are all held."""
    # What is found from here on holds until the end, or the last write fails.
    writer = MetadataWriter(root) if isinstance(root, ObjectPath) else None
    metadata = read_metadata(root) if writer is None else writer.metadata
    manifest = read_manifest(root, snapshot)  # it may have been dropped by now
    if metadata.dataflow != manifest.dataflow:
        raise UsageError(
            f"snapshot {snapshot} has other queries, services or channels than the pipeline "
            "declares now: fork it into a new directory instead"
        )
    _verify(root, manifest, progress)
    for cut in manifest.systems:
        Store.open(locate(cut.store)).verify(cut.snapshot)
    check_topics(root, manifest)
    if writer is not None:
        _restore_objects(writer, manifest)
        return
    assert isinstance(root, Path)
    begin_writing(root, metadata, are_stopped=True)
    clear_pending(root)
    new = _metadata_after(metadata, manifest, metadata.epoch + 1)
    place_services(root, new, manifest, metadata.epoch)
    _export(root, manifest, root, new)
    write_metadata(root, new)


def check_topics(root: Location, manifest: Manifest) -> None:
    """Raise NotConsistent if Kafka does not hold the records any more with which a query or service
    would continue from a snapshot. A topic that was created again does not, nor one that was cut
    short. A partition that was added since the snapshot is checked when its readers start."""
    with brokers() as broker_of:
        for cut in manifest.topics:
            topic = manifest.dataflow.topic(cut.channel)
            topic_id = cut.topic_id or known_id(root, topic)
            held = held_topic(broker_of(topic), topic.topic, topic_id)
            check_end(held, cut.ends)
            in_cut = held.without(held.first.keys() - cut.ends.keys())
            for positions in cut.positions.values():
                starts(in_cut, positions or None)


def _verify(root: Location, manifest: Manifest, progress: Callable[[int], None]) -> None:
    """Check every file and record that a snapshot needs."""
    try:
        verify_files(root, manifest, progress)
        check_channels(root, manifest)
    except (Damaged, NotConsistent):
        read_manifest(root, manifest.snapshot)  # it may have been deleted meanwhile
        raise


def _restore_objects(writer: MetadataWriter, manifest: Manifest) -> None:
    before = writer.metadata
    writer.replace(last_epoch=before.last_epoch + 1, request=None)
    new = _metadata_after(before, manifest, writer.metadata.last_epoch)
    place_services(writer.root, new, manifest, before.epoch)
    _export(writer.root, manifest, writer.root, new)
    try:
        writer.replace(
            epoch=new.epoch,
            restored_from=new.restored_from,
            segments=new.segments,
            batches=new.batches,
            starts=new.starts,
        )
    except Unavailable:
        # If this program was frozen before it had the answer, another one may have begun in the
        # new epoch, whose number is this restore's alone.
        if read_metadata(writer.root).epoch != new.epoch:
            raise


def fork(
    root: Location,
    manifest: Manifest,
    target: Location,
    name: str | None,
    progress: Callable[[int], None],
) -> None:
    """Make a second pipeline in `target` that continues from a snapshot, as ``Pipeline.fork``.
    Neither sees what the other writes: files are shared as hard links, and no file is ever changed
    in place. From or into an object store they are copied."""
    if manifest.dataflow.topics:
        raise UsageError(
            f"{root} has a channel that is a topic of Kafka, {manifest.dataflow.topics[0].name}, "
            "which two pipelines cannot write: such a pipeline cannot be forked"
        )
    if manifest.systems:
        raise UsageError(
            f"snapshot {manifest.snapshot} includes a system with its own store, "
            f"{manifest.systems[0].store}: such a pipeline cannot be forked"
        )
    new_name = check_process_id(target.stem if name is None else name, "a pipeline")
    check_place(target, manifest.dataflow)
    with explain_io_errors(target, "made"):
        if isinstance(target, Path):
            target.mkdir(parents=True, exist_ok=True)
        if any(not name.startswith(PROBE) for name in names(target)):
            raise _not_empty(target)
    with coordinating(root, "a fork"):
        manifest = read_manifest(root, manifest.snapshot)
        _verify(root, manifest, progress)
        metadata = msgspec.structs.replace(
            read_metadata(root), name=new_name, dataflow=manifest.dataflow
        )
        # Snapshot numbers continue: those of barriers in the logs must not be used again.
        if isinstance(metadata, ObjectMetadata):
            last, last_epoch = metadata.last_snapshot, metadata.last_epoch
        else:
            last, last_epoch = read_sealed(root / ID_FILE, LastSnapshot).last, metadata.epoch
        new = _metadata_after(metadata, manifest, last_epoch + 1)
        if isinstance(target, ObjectPath):
            _fork_to_objects(root, manifest, target, new, last)
        else:
            _fork_to_directory(root, manifest, target, new, last)


def _fork_to_directory(
    root: Location, manifest: Manifest, target: Path, new: Metadata, last: int
) -> None:
    # All of it under another name first: a fork that was cut short has not taken place.
    partial = partial_path(target)
    try:
        with explain_io_errors(target, "written"):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            replace_durably(partial / ID_FILE, seal(LastSnapshot(last=last)))
        _copy_content(root, manifest, partial, new)
        write_metadata(
            partial, Metadata(**{n: getattr(new, n) for n in Metadata.__struct_fields__})
        )
        with explain_io_errors(target, "written"):
            partial.rename(target)
            sync(target.parent)
    except StoreError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _fork_to_objects(
    root: Location, manifest: Manifest, target: ObjectPath, new: Metadata, last: int
) -> None:
    with explain_io_errors(target, "written"):
        check_conditional_writes(target)
        try:
            # First: two forks at once would overwrite what the other one has copied.
            claimed = claim_place(target)
        except FileExistsError:
            raise _not_empty(target) from None
    try:
        _copy_content(root, manifest, target, new)
    except StoreError:
        # What was copied stays: only a user can know that no other program needs that place now.
        read_manifest(root, manifest.snapshot)  # it may have been deleted meanwhile
        raise
    # While it was copied, another program may have taken over, and deleted part of it.
    read_manifest(root, manifest.snapshot)
    with explain_io_errors(target, "written"):
        # Last: this object makes it a pipeline.
        published = as_ranges([manifest.snapshot])
        create_metadata(target, new, claimed, last_snapshot=last, published=published)


def _not_empty(target: Location) -> UsageError:
    return UsageError(
        f"{target} is not empty", path=target, remedy="give an empty or new directory"
    )


def _copy_content(root: Location, manifest: Manifest, target: Location, new: Metadata) -> None:
    """Copy all that the second pipeline needs, the snapshot too: it can be restored there."""
    with explain_io_errors(target, "written"):
        _copy_logs(root, manifest, target)
        source, copy = (snapshot_path(place, manifest.snapshot) for place in (root, target))
        if isinstance(source, Path) and isinstance(copy, Path):
            link_tree(source, copy)
        else:
            # By name, so that it is noticed if it is being deleted.
            pairs: list[tuple[Location, Location]] = [
                (
                    below(manifest.pinned(root, file.query), file.name),
                    below(manifest.pinned(target, file.query), file.name),
                )
                for file in manifest.files
            ]
            copy_all([(source / MANIFEST, copy / MANIFEST), *pairs])
    place_services(target, new, manifest, 0)
    _export(root, manifest, target, new)


@contextlib.contextmanager
def _all_stopped(root: Location) -> Iterator[None]:
    """Hold the lock of every participant, so that none starts before the restore is done."""
    with contextlib.ExitStack() as locks:
        taken = [(n, participant_lock(root, n)) for n in read_metadata(root).dataflow.participants]
        for _, lock in taken:
            locks.callback(lock.release)
        if (name := busy_participant(taken)) is not None:
            raise Unavailable(
                f"{name} is running",
                path=root,
                process=name,
                remedy="stop every query and service of the pipeline before a restore",
            )
        yield


def _metadata_after(metadata: Metadata, manifest: Manifest, epoch: int) -> Metadata:
    """Return the metadata with which the pipeline continues from a snapshot in `epoch`."""
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
        one.participant: one.version + 1
        for one in manifest.fragments
        if one.participant in manifest.dataflow.versioned
    }
    return msgspec.structs.replace(
        metadata,
        epoch=epoch,
        restored_from=manifest.snapshot,
        segments={log: continued(old, barriers[log]) for log, old in manifest.segments.items()},
        batches={
            name: continued(manifest.batches[name], first) for name, first in next_batches.items()
        },
        starts=starts,
    )


def _export(root: Location, manifest: Manifest, target: Location, metadata: Metadata) -> None:
    """Make the checkpoint directories of the new epoch, and force them to the disk."""
    with explain_io_errors(target / CHECKPOINTS, "written"):
        if isinstance(target, Path):
            place = target / CHECKPOINTS / f"epoch-{metadata.epoch}"
            if place.exists():
                shutil.rmtree(place)  # left by an attempt that did not replace pipeline.json
            place.mkdir(parents=True)
        for query, batch in manifest.pinned_batches.items():
            checkpoint.export(
                manifest.pinned(root, query),
                first_checkpoint(target, metadata.epoch, query),
                batch,
                metadata.starts[query],
            )
        if isinstance(target, Path):
            os.sync()


def _copy_logs(root: Location, manifest: Manifest, target: Location) -> None:
    """Copy every entry that the second pipeline may need, and all of its outputs: logs no target
    reads."""
    pairs: list[tuple[Location, Location]] = []
    for log in manifest.dataflow.logs:
        reader = manifest.reader(root, log.name)
        ends = [cut.position for cut in manifest.channels if cut.log == log.name]
        ends.append(manifest.barriers[log.name])
        # Entries read past the barrier (at-least-once) are in the books of the snapshot.
        first = manifest.first_needed(log.name) if log.targets else reader.first_kept()
        for entry in reader.entries(first, max(ends)):
            directory = epoch_directory(target, log.name, entry.epoch)
            files = ((reader.data_path(entry, f), directory / DATA / f.name) for f in entry.files)
            pairs.extend(files)
            pairs.append((reader.entry_path(entry.number), directory / entry_name(entry.number)))
            reader.forget(entry.number)
    copy_all(pairs)
