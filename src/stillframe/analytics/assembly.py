"""Assemble snapshots from the fragments that processes wrote separately, on many machines.

A snapshot is what its processes recorded, whatever happened to the coordinator. Those whose
fragments are complete go into a store that can be read, verified and restored like any other.

In an object store, tasks put the files where they stay, and a manifest makes them a snapshot. A
number that an interrupted run may still publish is never used again (``store.bucket_writer``).
"""

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stillframe.analytics import fragment_merge, verified_parquet
from stillframe.analytics.fragment_merge import FragmentFiles, Merged, merge_files
from stillframe.analytics.manifests import (
    Group,
    Published,
    group_fragments,
    is_apart,
    read_published,
)
from stillframe.analytics.snapshot_verdicts import CONSISTENT, INCOMPLETE, INCONSISTENT, moment
from stillframe.channel_accounting import imbalance
from stillframe.durable_files import partial_path, replace_durably, sync, write_new
from stillframe.errors import Damaged, UsageError
from stillframe.model import GlobalState, ProcessId, Reason, SnapshotId
from stillframe.storage.location import Location, ObjectPath, locate
from stillframe.storage.owned import OwnedObject
from stillframe.storage.reading import is_there
from stillframe.store import history, layout
from stillframe.store.bucket_writer import BucketWriter
from stillframe.store.fragments import FragmentPlace
from stillframe.store.manifest import (
    MANIFEST,
    FileRecord,
    Head,
    Manifest,
    file_names,
    with_topology,
)
from stillframe.store.parquet import read_parquet
from stillframe.store.sealed_json import (
    FORMAT,
    SEALED_BYTES_MAX,
    read_sealed,
    read_sealed_bytes,
    seal,
)
from stillframe.store.snapshot_directory import publish_directory
from stillframe.store.tables import Tables
from stillframe.store.writer import DirectoryWriter, StoreWriter
from stillframe.topology import Description

TIMEOUT_S = 10.0
_NAMED_MAX = 100
BLOCK_CHANNEL_COUNT = 100_000
"""How many channels are merged at a time."""
_TIME = pa.timestamp("us", tz="UTC")
ASSEMBLED_SCHEMA = pa.schema(
    [
        pa.field("snapshot", pa.string()),  # P1-17
        pa.field("epoch", pa.int64()),
        pa.field("verdict", pa.string()),  # consistent: it is in the store now
        pa.field("why", pa.string()),  # it is not, for people
        pa.field("fragment_count", pa.int64()),  # how many can be read
        pa.field("missing", pa.list_(pa.string())),  # the processes of which none can
        pa.field("late", pa.list_(pa.string())),  # those whose fragments came after the timeout
        pa.field("recorded_at", _TIME),  # when the first process recorded its state
        pa.field("completed_at", _TIME),  # when the last fragment was complete
    ]
)


class Outcome(msgspec.Struct, frozen=True):
    """The verdict over a group of fragments: CONSISTENT, INCOMPLETE or INCONSISTENT.

    `missing` are the processes whose fragments are absent or damaged, `late` those whose fragments
    were complete after the deadline; `why` is the explanation of the verdict.
    """

    group: Group
    verdict: str
    missing: tuple[ProcessId, ...]
    late: tuple[ProcessId, ...]
    why: str

    @property
    def is_consistent(self) -> bool:
        """Whether they are a snapshot."""
        return self.verdict == CONSISTENT

    def refused(self, why: str) -> "Outcome":
        """Return this as incomplete, because the store cannot take it."""
        return msgspec.structs.replace(self, verdict=INCOMPLETE, why=why)


class _Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `ASSEMBLED`, the file that marks a store of assembled snapshots: its epoch as
    long as no system started from it, and the run of each epoch's snapshots."""

    format: int = FORMAT
    epoch: int = 0
    runs: dict[int, str] = {}


class _Output(msgspec.Struct, frozen=True):
    """The store that is written to: what was there, the run of each epoch, and the numbers that
    nothing can get any more. `points` are the restore points; new ones join them."""

    published: Published
    runs: Mapping[int, str]
    buried: AbstractSet[SnapshotId]
    writer: StoreWriter
    lines: history.HistoryWriter
    points: list[Group]


@contextlib.contextmanager
def _exclusive_writer(
    out: Location, groups: Sequence[Group], good: Sequence[Group]
) -> Iterator[_Output]:
    """Write to the store `out` alone while the body runs; then record where a restore starts from.
    The topologies of `good` are known before."""
    with layout.explain_io_errors(out, "written"):
        is_remote = isinstance(out, ObjectPath)
        opened = _open_objects if is_remote else _open_directory
        mark, writer = opened(out, groups, good)
    with contextlib.closing(writer):
        with layout.explain_io_errors(out, "written"):
            published = read_published(out)
            for why in published.damages.values():
                raise Damaged(why)
            _put_topologies(writer, published.head, good)
            lines = writer.open_history()
        there = published.manifests
        points = [g for g in good if g.snapshot in there and there[g.snapshot].is_restore_point]
        with contextlib.closing(lines):
            yield _Output(published, mark.runs, _buried(published), writer, lines, points)
        with layout.explain_io_errors(out, "written"):
            _put_epoch(writer, out, mark.epoch, groups)


def _open_directory(
    out: Location, groups: Sequence[Group], good: Sequence[Group]
) -> tuple[_Mark, StoreWriter]:
    assert isinstance(out, Path)
    out.mkdir(parents=True, exist_ok=True)
    layout.check_unused(out)
    lock = layout.take_lock(out)
    try:
        path = out / layout.ASSEMBLED
        mark = _next_mark(out, read_sealed(path, _Mark) if path.exists() else None, groups, good)
        # First of all: without it a crash would leave a store of another kind.
        replace_durably(path, seal(mark))
        if not layout.is_store(out):
            layout.make_store(out, _first_head(good))
        layout.remove_unfinished(out)
    except BaseException:
        os.close(lock)
        raise
    return mark, DirectoryWriter(out, lock)


def _open_objects(
    out: Location, groups: Sequence[Group], good: Sequence[Group]
) -> tuple[_Mark, StoreWriter]:
    assert isinstance(out, ObjectPath)
    layout.check_unused(out)
    is_new = not layout.is_store(out)
    # Before a system's store is taken over.
    _marked(out, groups, good, is_written=is_new)
    head = _first_head(good) if is_new else None
    writer = BucketWriter(out, head=head, lost=lambda: None, keeps_files=True)
    try:
        mark = _marked(out, groups, good, is_written=True)
    except BaseException:
        writer.close()
        raise
    return mark, writer


def _marked(
    out: ObjectPath, groups: Sequence[Group], good: Sequence[Group], *, is_written: bool
) -> _Mark:
    """Return the next mark, and write it if asked to; ``Changed`` if another program has replaced
    the one that it follows."""
    place = OwnedObject(out / layout.ASSEMBLED)
    before = place.read(bytes_max=SEALED_BYTES_MAX)
    known = None if before is None else read_sealed_bytes(place.location, before, _Mark)
    mark = _next_mark(out, known, groups, good)
    if is_written and seal(mark) != before:
        place.replace(seal(mark))
    return mark


def _next_mark(
    out: Location, known: _Mark | None, groups: Sequence[Group], good: Sequence[Group]
) -> _Mark:
    """Return the mark of the store with the new snapshots, after the `known` one; a UsageError if
    it is of another kind, or a system has started from it."""
    if known is None and layout.is_store(out):
        raise UsageError(
            f"{out} is a store of another kind: fragments are assembled into a separate "
            "store; give a new directory"
        )
    mark = known or _Mark()
    if layout.is_store(out) and layout.read_head(out).epoch > mark.epoch:
        raise UsageError(
            f"a system was started from the store {out}, and has added its own "
            "snapshots: give a new directory"
        )
    runs = dict(mark.runs)
    for group in good:
        runs.setdefault(group.epoch, str(group.run))
    epoch = max(mark.epoch, *(group.epoch for group in groups if group.fragments))
    return _Mark(epoch=epoch, runs=runs)


def _first_head(good: Sequence[Group]) -> Head:
    present = good[-1].described
    return Head(reference=present.reference, description=present.description)


def _buried(published: Published) -> set[SnapshotId]:
    """Return the snapshots whose manifest can never come, or means nothing any more."""
    snapshots = published.path / layout.SNAPSHOTS
    if not isinstance(snapshots, ObjectPath):
        return set()
    others = set(layout.snapshot_ids(snapshots)) - published.manifests.keys()
    ended = {one for one in others if is_there(snapshots / str(one) / MANIFEST)}
    return ended | history.removed_snapshots(published.path)


def _put_topologies(writer: StoreWriter, before: Head, good: Sequence[Group]) -> None:
    """Add the topologies of the new snapshots to the head of the store."""
    new = {group.topology_hash: group.described.description for group in good}
    used = {d.hash for d in (*before.former, before.description)} | new.keys()
    head = before
    for description in (*new.values(), before.description):
        head = with_topology(head, description, used)
    if head != before or before.format < FORMAT:
        writer.write_head(head)


def _put_epoch(writer: StoreWriter, out: Location, epoch: int, groups: Sequence[Group]) -> None:
    """Put the store in the last known epoch, with the topology of its newest snapshot. A system
    starts from the newest restore point of it, or what it began from, or the newest before."""
    published = read_published(out)
    manifests = published.manifests
    newest = max(manifests.values(), key=lambda m: (m.epoch, m.sequence), default=None)
    if newest is None:
        return
    began_from = {g.epoch: one.began_from for g in groups for one in g.fragments.values()}
    limit = began_from.get(epoch)
    points = [
        m
        for m in manifests.values()
        if m.is_restore_point and (m.epoch == epoch or limit is None or m.sequence <= limit.number)
    ]
    point = max(points, key=lambda m: (m.epoch, m.sequence), default=None)
    if limit in manifests and (point is None or point.epoch < epoch):
        point = manifests[limit]
    head = published.head
    used = {manifest.topology for manifest in manifests.values()}
    described = published.description(newest.snapshot)
    references = {g.topology_hash: g.described.reference for g in groups if g.topology is not None}
    head = msgspec.structs.replace(
        with_topology(head, described, used),
        epoch=epoch,
        reference=references.get(described.hash, head.reference),
        restored_from=None if point is None else point.snapshot,
    )
    if head != published.head:
        writer.write_head(head)


def assemble(
    spark: SparkSession,
    directory: str | Location,
    out: str | Location,
    *,
    timeout_s: float = TIMEOUT_S,
    epoch: int | None = None,
) -> DataFrame:
    """Make snapshots of the fragments in `directory`, and add them to the store `out`.

    Each is written with its full state, even where fragments hold only changes. Snapshots that the
    store has stay unchanged, so late ones are added by running it again.

    Args:
        spark: the session; its executors see both directories under these paths.
        directory: the fragments of all processes; or their address, such as ``s3://bucket/parts``.
        out: a new directory or address, or a store that an earlier call created.
        timeout_s: a fragment completed later than this after the first process recorded its state
            is late, in seconds.
        epoch: use only this epoch; None for all.

    Returns:
        a row for each snapshot that was not in the store (`ASSEMBLED_SCHEMA`).

    Raises:
        UsageError: there are no fragments, or `out` is something else.
        Damaged: the topologies of the fragments, or the store, were changed.
        Unavailable: another program writes to `out`.
        StoreError: something cannot be read or written; `out` is unchanged, or has some of the
            snapshots.
    """
    directory, out = locate(directory), locate(out)
    if not is_apart(out, directory):
        raise UsageError(
            f"the store cannot be in {out}, which contains the fragments or is inside their "
            "directory, "
            f"{directory}; give a separate directory"
        )
    groups = group_fragments(directory, epoch=epoch)
    outcomes = [*drop_duplicates([classify(group, timeout_s=timeout_s) for group in groups])]
    good = [one.group for one in outcomes if one.is_consistent]
    if good:
        with _exclusive_writer(out, groups, good) as output:
            outcomes = [
                outcome
                for block in _blocks(_new(outcomes, output))
                for outcome in _add(spark, directory, output, block)
            ]
    rows = [
        {
            **msgspec.structs.asdict(outcome),
            "snapshot": str(outcome.group.snapshot),
            "epoch": outcome.group.epoch,
            "fragment_count": len(outcome.group.fragments),
            "recorded_at": moment(outcome.group.recorded_at),
            "completed_at": moment(outcome.group.completed_at),
        }
        for outcome in outcomes
    ]
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=ASSEMBLED_SCHEMA))


def is_after(group: Group, earlier: Group) -> bool:
    """Return whether all processes recorded `group` after `earlier`: their cuts do not cross."""
    before = earlier.fragments
    return all(
        process not in before or one.moment_s > before[process].moment_s
        for process, one in group.fragments.items()
    )


def classify(group: Group, *, timeout_s: float) -> Outcome:
    """Return whether a group is a snapshot; a fragment is late that was complete `timeout_s` after
    the first process recorded its state."""
    if group.topology is None:
        why = "; ".join(group.damages.values())
        return Outcome(group, INCOMPLETE, tuple(sorted(group.damages)), (), why)
    description = group.topology.description
    missing = tuple(p for p in sorted(description.processes) if p not in group.fragments)
    deadline = (group.recorded_at or 0.0) + timeout_s
    late = tuple(sorted(p for p, one in group.fragments.items() if one.completed_at > deadline))
    if contradiction := next(_contradictions(group, description), None):
        return Outcome(group, INCONSISTENT, missing, late, contradiction)
    lost = [p for p in missing if p not in group.damages]
    why = "; ".join(
        ([f"there is no fragment of {', '.join(lost)}"] if lost else [])
        + [group.damages[p] for p in missing if p in group.damages]
    )
    return Outcome(group, INCOMPLETE if missing else CONSISTENT, missing, late, why)


def drop_duplicates(outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    """Refuse all but the newest epoch's of consistent snapshots with one number: it is unique."""
    newest = {one.group.snapshot.number: one.group.epoch for one in outcomes if one.is_consistent}
    for outcome in outcomes:
        own, epoch = outcome.group.epoch, newest.get(outcome.group.snapshot.number)
        if not outcome.is_consistent or own == epoch:
            yield outcome
            continue
        yield outcome.refused(
            f"epoch {epoch} used the same number: assemble this one with --epoch {own}, into a "
            "separate directory"
        )


def _contradictions(group: Group, description: Description) -> Iterator[str]:
    fragments = group.fragments.values()
    for what, names in (
        ("topologies", {one.topology for one in fragments}),
        ("runs of the system", {one.run for one in fragments}),
    ):
        if len(names) > 1:
            yield f"its fragments are of different {what}"
            return
    for channel in description.channels:
        source, target = (group.fragments.get(p) for p in (channel.source, channel.target))
        if source is None or target is None:
            continue
        received = target.received[channel.source]
        counts = source.sent[channel.target], received.count, received.recorded_count
        if why := imbalance(channel, *counts):
            yield why


def _new(outcomes: Sequence[Outcome], output: _Output) -> Iterator[Outcome]:
    """Yield those that the store lacks; what contradicts its content is incomplete."""
    published, runs = output.published, output.runs
    by_number = {manifest.sequence: manifest for manifest in published.manifests.values()}
    for outcome in outcomes:
        group = outcome.group
        there = by_number.get(group.snapshot.number)
        if outcome.is_consistent and runs[group.epoch] != group.run:
            yield outcome.refused(
                f"{published.path} holds snapshots of another run of epoch {group.epoch}, "
                "which started again from the initial states: give another directory"
            )
        elif outcome.is_consistent and group.snapshot in output.buried:
            yield outcome.refused(
                f"{published.path} had it, and it was deleted, or an earlier run was interrupted "
                "while it published it: assemble it into a separate directory"
            )
        elif there is None:
            yield outcome
        elif (there.epoch, there.snapshot) != (group.epoch, group.snapshot):
            yield outcome.refused(
                f"{published.path} holds {there.snapshot} of epoch {there.epoch}, which has the "
                "same number: assemble the two epochs with --epoch, into separate directories"
            )


def _blocks(outcomes: Iterable[Outcome]) -> Iterator[list[Outcome]]:
    """Yield some at a time, so that the counts of their channels take bounded memory."""
    block: list[Outcome] = []
    channel_count = 0
    for outcome in outcomes:
        block.append(outcome)
        channel_count += sum(len(one.received) for one in outcome.group.fragments.values())
        if channel_count >= BLOCK_CHANNEL_COUNT:
            yield block
            block, channel_count = [], 0
    if block:
        yield block


def _add(
    spark: SparkSession, directory: Location, output: _Output, outcomes: list[Outcome]
) -> list[Outcome]:
    """Write and publish a block of snapshots; new restore points join the others."""
    out = output.published.path
    wanted = [outcome.group for outcome in outcomes if outcome.is_consistent]
    merged = _merge(spark, directory, out, wanted)
    for place, outcome in enumerate(outcomes):
        group = outcome.group
        damaged = next((file for file in merged.get(group.snapshot, ()) if file.why), None)
        if outcome.is_consistent and damaged is not None:
            # In an object store, what is there stays, and fits when the fragment was repaired.
            if isinstance(written := _written_to(out, group.snapshot), Path):
                shutil.rmtree(written, ignore_errors=True)
            group = msgspec.structs.replace(
                group,
                chains={p: chain for p, chain in group.chains.items() if p != damaged.process},
                damages={damaged.process: damaged.why},
            )
            missing = (damaged.process,)
            outcomes[place] = Outcome(group, INCOMPLETE, missing, outcome.late, damaged.why)
    _publish(output, outcomes, merged)
    return outcomes


def _written_to(out: Location, snapshot: SnapshotId) -> Location:
    """Return where the files of a snapshot are written."""
    directory = out / layout.SNAPSHOTS / str(snapshot)
    return directory if isinstance(directory, ObjectPath) else partial_path(directory)


def _is_point(group: Group, points: Sequence[Group]) -> bool:
    """Return whether recovery may use `group`: its cut crosses that of no restore point."""
    of_epoch = [point for point in points if point.epoch == group.epoch]
    number = group.snapshot.number
    earlier = [point for point in of_epoch if point.snapshot.number < number]
    later = [point for point in of_epoch if point.snapshot.number > number]
    return all(is_after(group, point) for point in earlier[-1:]) and all(
        is_after(point, group) for point in later[:1]
    )


def _merge(
    spark: SparkSession, directory: Location, out: Location, groups: Sequence[Group]
) -> dict[SnapshotId, list[Merged]]:
    """Write the files of snapshots where no reader sees them. Paths are absolute, because tasks run
    where the session was started."""
    items: list[tuple[str, str, str, list[FragmentFiles]]] = []
    schemas: dict[str, dict[str, pa.Schema]] = {}
    for group in groups:
        place = _written_to(out, group.snapshot)
        if isinstance(place, Path):
            with layout.explain_io_errors(place, "written"):
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir()
        topology = group.topology_hash
        if topology not in schemas:
            schemas[topology] = _schemas(group)
        for name in schemas[topology]:
            path, files = str(place.absolute() / name), _files_of(directory, group, name)
            items.append((str(group.snapshot), path, topology, files))
    sizes = [sum(link[1] for one in files for link in one["links"]) for *_, files in items]
    merge = functools.partial(merge_files, schemas=schemas)
    merged: dict[SnapshotId, list[Merged]] = {group.snapshot: [] for group in groups}
    for answer in verified_parquet.run(spark, directory, items, sizes, merge):
        file = Merged(*answer)
        merged[SnapshotId.parse(file.snapshot)].append(file)
    return merged


def _schemas(group: Group) -> dict[str, pa.Schema]:
    """Return the columns of each file of a snapshot."""
    tables = Tables(group.described.description)
    empty = tables.of(group.snapshot, GlobalState((), ()))
    return {
        name: read_parquet(tables.to_parquet(name, table)).schema for name, table in empty.items()
    }


def _files_of(directory: Location, group: Group, name: str) -> list[FragmentFiles]:
    """Return what each process gives to the file `name` of a snapshot."""
    stem = name.partition(".")[0]
    found: list[FragmentFiles] = []
    by_process = group.fragments
    for process, chain in group.chains.items():
        links = []
        for fragment in chain[-1:] if stem in fragment_merge.PLAIN else chain:
            path = FragmentPlace(group.epoch, fragment.snapshot, process).path(directory).absolute()
            # Files of keyed fields have other names if they are full.
            links += [
                (str(path / record.name), record.bytes, record.hash)
                for record in fragment.files
                if record.name.partition(".")[0] == stem
            ]
        books = [
            (source, by_process[source].sent[process], received.count, received.recorded_count)
            for source, received in by_process[process].received.items()
            if stem in (fragment_merge.CHANNELS, fragment_merge.MESSAGES)
        ]
        if links:  # else it has no such field
            kind = group.described.description.processes[process]
            found.append(FragmentFiles(process=process, kind=kind, links=links, books=books))
    return found


def _publish(
    output: _Output,
    outcomes: Sequence[Outcome],
    merged: Mapping[SnapshotId, Sequence[Merged]],
) -> None:
    """Publish snapshots in order, and record each outcome."""
    lines, points = output.lines, output.points
    for outcome in outcomes:
        group, snapshot = outcome.group, outcome.group.snapshot
        directory = output.published.path / layout.SNAPSHOTS / str(snapshot)
        if not outcome.is_consistent:
            if group.fragments and snapshot.number > lines.last_number:
                is_wrong = outcome.verdict == INCONSISTENT
                reason = Reason.NOT_CONSISTENT if is_wrong else Reason.DEADLINE
                named, why = outcome.missing[:_NAMED_MAX], history.shortened(outcome.why)
                if isinstance(directory, Path):  # else it could never be published later
                    lines.append(history.SnapshotBegan(snapshot))
                lines.append(history.SnapshotAbandoned(snapshot, reason.name, named, why))
            continue
        is_point = _is_point(group, points)
        manifest = _manifest(group, merged[snapshot], is_point=is_point)
        if isinstance(directory, Path):
            # No system that starts from here gives its number again.
            lines.append(history.SnapshotBegan(snapshot))
            partial = partial_path(directory)
            with layout.explain_io_errors(directory, "written"):
                write_new(partial / MANIFEST, seal(manifest))
                sync(partial / MANIFEST)
                sync(partial)
                publish_directory(directory)
            lines.append(history.SnapshotPublished(snapshot, is_removal_noted=True))
        else:  # the writer writes both lines
            with (
                ThreadPoolExecutor(1) as executor,
                output.writer.new_snapshot(snapshot, executor) as new,
            ):
                new.publish(manifest)
        if is_point:
            points.append(group)
            points.sort(key=lambda point: point.snapshot.number)


def _manifest(group: Group, merged: Iterable[Merged], *, is_point: bool) -> Manifest:
    description = group.described.description
    parts = group.fragments.values()
    received = [of_one for part in parts for of_one in part.received.values()]
    records = {file.name: FileRecord(file.name, file.bytes, file.hash) for file in merged}
    return Manifest(
        snapshot=group.snapshot,
        # Others may come later that are earlier.
        sequence=group.snapshot.number,
        epoch=group.epoch,
        initiated_at=group.recorded_at or 0.0,
        completed_at=group.completed_at or 0.0,
        published_at=max(time.time(), group.completed_at or 0.0),
        pause_s=max(part.pause_s for part in parts),
        capture_s=max(part.capture_s for part in parts),
        is_restore_point=is_point,
        process_count=len(description.processes),
        channel_count=len(description.channels),
        message_count=sum(of_one.recorded_count for of_one in received),
        topology=description.hash,
        files=tuple(records[name] for name in file_names(description, is_full=True)),
    )
