"""Makes snapshots of what processes wrote of them, each by itself, on many machines.

Whatever became of the coordinator: a snapshot is what its processes recorded. Those whose fragments
are all there go into a store that can be asked, verified and restored from like any other.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from stillframe.errors import UsageError
from stillframe.model import Reason, SnapshotId
from stillframe.spark import joining, verified
from stillframe.spark.gathering import Group, Judgement, gather, is_after, judge
from stillframe.spark.joining import JOIN_SCHEMA, JOINED, join_files
from stillframe.spark.manifests import Published, read_published
from stillframe.spark.shipping import ship
from stillframe.spark.soundness import CONSISTENT, INCOMPLETE, INCONSISTENT
from stillframe.store.contents import publish_directory
from stillframe.store.disk import partial_path, replace_durably, sync, write_new
from stillframe.store.fragments import FragmentPlace, FragmentTopology
from stillframe.store.history import History, SnapshotAbandoned, SnapshotBegan, SnapshotPublished
from stillframe.store.manifest import MANIFEST, FileRecord, Head, Manifest, file_names
from stillframe.store.opening import (
    ASSEMBLED,
    HEAD,
    SNAPSHOTS,
    check_free,
    explained,
    make_store,
    remove_partial,
    take_lock,
)
from stillframe.store.seal import FORMAT, seal
from stillframe.store.topologies import changed

TIMEOUT_S = 10.0
_TIME = pa.timestamp("us", tz="UTC")
ASSEMBLED_SCHEMA = pa.schema(
    [
        pa.field("snapshot", pa.string()),  # P1-17
        pa.field("epoch", pa.int64()),
        pa.field("verdict", pa.string()),  # consistent: it is in the store now
        pa.field("why", pa.string()),  # it is not, for people
        pa.field("fragment_count", pa.int64()),  # how many can be read
        pa.field("missing", pa.list_(pa.string())),  # the processes of which none can
        pa.field("late", pa.list_(pa.string())),  # those whose fragments came after the time-out
        pa.field("recorded_at", _TIME),  # when the first process recorded its state
        pa.field("completed_at", _TIME),  # when the last fragment was complete
    ]
)
Outcomes = list[tuple[Group, Judgement]]


class _Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `ASSEMBLED`: it says that a store is one that fragments were assembled
    into."""

    format: int = FORMAT


class _Joined(msgspec.Struct):
    """The files of a snapshot as tasks have written them; or whose part of it is not what it should
    be, and why."""

    records: dict[str, FileRecord] = {}
    process: str = ""
    why: str = ""


def assemble(
    spark: SparkSession,
    directory: Path,
    out: Path,
    *,
    timeout_s: float = TIMEOUT_S,
    epoch: int | None = None,
) -> DataFrame:
    """Make snapshots of the fragments in `directory`, and add them to the store `out`.

    Each is written with all that it holds, also of what fragments hold only the changes of. Those
    that are in the store already are left as they are, so what comes late is added by doing it
    again.

    Args:
        spark: the session; its executors see both directories under these paths.
        directory: the fragments of all processes.
        out: a new directory, or the store of an earlier time.
        timeout_s: a fragment is late that was complete so long after the first process recorded
            its state, in seconds.
        epoch: of which; None for all.

    Returns:
        a row for each snapshot that was not in the store (`ASSEMBLED_SCHEMA`).

    Raises:
        UsageError: there are no fragments, or `out` is something else.
        Damaged: what the fragments are parts of, or the store, is not what was written.
        Unavailable: another program writes to `out`.
        StoreError: something cannot be read or written; what was in `out` is as it was, or with
            some of the snapshots.
    """
    _check_apart(directory, out)
    groups = gather(directory, epoch=epoch)
    outcomes = [(group, judge(group, timeout_s=timeout_s)) for group in groups]
    good = [group for group, judgement in outcomes if judgement.verdict == CONSISTENT]
    if good:
        with _writing(out, good) as published:
            outcomes = _new(outcomes, published)
            wanted = [group for group, judged in outcomes if judged.verdict == CONSISTENT]
            joined = _join(spark, directory, out, wanted) if wanted else {}
            outcomes = [_with_damage(*outcome, joined) for outcome in outcomes]
            _publish(out, outcomes, joined, _restore_points(good))
    return spark.createDataFrame(_table(outcomes))


def _check_apart(directory: Path, out: Path) -> None:
    inner, outer = out.resolve(), directory.resolve()
    if inner == outer or outer in inner.parents or inner in outer.parents:
        raise UsageError(
            f"the store cannot be in {out}: that is among the fragments in {directory} or around "
            "them; give a directory of its own"
        )


def _new(outcomes: Outcomes, published: Published) -> Outcomes:
    """Return those that the store does not have; of those whose number another one has there, that
    it has."""
    by_number = {manifest.sequence: manifest for manifest in published.manifests.values()}
    found: Outcomes = []
    for group, judgement in outcomes:
        there = by_number.get(group.snapshot.number)
        if there is None:
            found.append((group, judgement))
        elif (there.epoch, there.snapshot) != (group.epoch, group.snapshot):
            why = (
                f"{published.path} holds {there.snapshot} of epoch {there.epoch}, which has the "
                "same number: assemble the two epochs with --epoch, into directories of their own"
            )
            worse = msgspec.structs.replace(judgement, verdict=INCOMPLETE, why=why)
            found.append((group, worse))
    return found


def _with_damage(
    group: Group, judgement: Judgement, joined: Mapping[SnapshotId, _Joined]
) -> tuple[Group, Judgement]:
    """Return an outcome as it is, now that all of the fragments was read."""
    of_one = joined.get(group.snapshot)
    if judgement.verdict != CONSISTENT or of_one is None or not of_one.why:
        return group, judgement
    group = msgspec.structs.replace(
        group,
        chains={p: chain for p, chain in group.chains.items() if p != of_one.process},
        damages={of_one.process: of_one.why},
    )
    return group, Judgement(INCOMPLETE, (of_one.process,), judgement.late, of_one.why)


def _restore_points(groups: Sequence[Group]) -> set[SnapshotId]:
    """Return those to which a restore may go back when nothing is known but the store: no process
    was behind the one before."""
    points: list[Group] = []
    for group in groups:
        if not points or points[-1].epoch != group.epoch or is_after(group, points[-1]):
            points.append(group)
    return {group.snapshot for group in points}


@contextlib.contextmanager
def _writing(out: Path, groups: Sequence[Group]) -> Iterator[Published]:
    """Be the only one who writes to the store `out` while the body runs; it gets what is there."""
    with explained(out, "written"):
        out.mkdir(parents=True, exist_ok=True)
        check_free(out)
        lock = take_lock(out)
    try:
        with explained(out, "written"):
            if not (out / HEAD).exists():
                # First of all: without it a crash would leave a store of another kind.
                replace_durably(out / ASSEMBLED, seal(_Mark()))
                present = _topology(groups[-1])
                head = Head(reference=present.reference, description=present.description)
                make_store(out, head)
            elif not (out / ASSEMBLED).exists():
                raise UsageError(
                    f"{out} is a store of another kind: fragments are assembled into one of their "
                    "own; give a new directory"
                )
            remove_partial(out)
            published = read_published(out)
            if published.head.restored_from is not None:
                raise UsageError(
                    f"a system went on from the store {out}, which has snapshots of its own since: "
                    "give a new directory"
                )
            _put_head(out, published, groups)
        yield read_published(out)
    finally:
        os.close(lock)


def _put_head(out: Path, published: Published, groups: Sequence[Group]) -> None:
    """Let the head of the store name all topologies, the one of the newest epoch as the present."""
    head, newest = published.head, groups[-1]
    topologies = {_topology(group).description.hash: _topology(group) for group in groups}
    used = {m.topology for m in published.manifests.values()} | topologies.keys()
    present, reference = head.description, head.reference
    if newest.epoch >= head.epoch:
        present, reference = _topology(newest).description, _topology(newest).reference
    for description in (*(t.description for t in topologies.values()), present):
        head = changed(head, description, used)
    epoch = max(head.epoch, newest.epoch)
    head = msgspec.structs.replace(head, epoch=epoch, reference=reference)
    if head != published.head:
        replace_durably(out / HEAD, seal(head))


def _join(
    spark: SparkSession, directory: Path, out: Path, groups: Sequence[Group]
) -> dict[SnapshotId, _Joined]:
    """Write the files of snapshots, under names that nobody looks at yet."""
    ship(spark)
    rows: list[dict[str, object]] = []
    sizes: list[int] = []
    for group in groups:
        partial = partial_path(out / SNAPSHOTS / str(group.snapshot))
        with explained(partial, "written"):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
        for name in _names(group):
            stem = name.partition(".")[0]
            parts, size = _parts(directory, group, stem)
            what = stem if stem in (joining.PROCESSES, joining.CHANNELS, joining.MESSAGES) else ""
            rows.append(
                {
                    "snapshot": str(group.snapshot),
                    "path": str(partial / name),
                    "what": what or joining.KEYED,
                    "parts": parts,
                }
            )
            sizes.append(size)
    task_count, tasks = verified.spread_tasks(spark, sizes)
    table = pa.Table.from_pylist(
        [row | {"task": task} for row, task in zip(rows, tasks, strict=True)], schema=JOIN_SCHEMA
    )
    with verified.explained(directory):
        spread = spark.createDataFrame(table).repartitionById(task_count, F.col("task"))
        found = spread.mapInArrow(join_files, JOINED).collect()
    joined = {group.snapshot: _Joined({}) for group in groups}
    for row in found:
        of_one = joined[SnapshotId.parse(row["snapshot"])]
        if row["why"] is None:
            of_one.records[row["name"]] = FileRecord(row["name"], row["byte_count"], row["hash"])
        elif not of_one.why:
            of_one.process, of_one.why = row["process"], row["why"]
    return joined


def _names(group: Group) -> tuple[str, ...]:
    return file_names(_topology(group).description, is_whole=True)


def _parts(directory: Path, group: Group, stem: str) -> tuple[list[dict[str, object]], int]:
    """Return of what a file is made, as ``joining`` takes it, and how many bytes that is."""
    parts: list[dict[str, object]] = []
    size = 0
    fragments = group.fragments
    for process, chain in group.chains.items():
        is_keyed = stem not in (joining.PROCESSES, joining.CHANNELS, joining.MESSAGES)
        links = []
        for fragment in chain if is_keyed else chain[-1:]:
            path = FragmentPlace(group.epoch, fragment.snapshot, process).path(directory)
            for record in fragment.files:
                # Those of keyed fields have other names if they are whole.
                if record.name.partition(".")[0] == stem:
                    file = {"path": str(path / record.name), "hash": record.hash}
                    links.append(file | {"byte_count": record.bytes})
                    size += record.bytes
        books = [
            {
                "source": source,
                "sent_count": fragments[source].sent[process],
                "received_count": received.count,
                "message_count": received.recorded_count,
            }
            for source, received in fragments[process].received.items()
        ]
        if links:  # else it has no such field
            parts.append({"process": process, "links": links, "books": books})
    return parts, size


def _publish(
    out: Path,
    outcomes: Outcomes,
    joined: Mapping[SnapshotId, _Joined],
    points: set[SnapshotId],
) -> None:
    """Give snapshots their names, in their order, and note in the history what became of each."""
    history = History(out)
    try:
        for group, judgement in outcomes:
            snapshot = group.snapshot
            directory = out / SNAPSHOTS / str(snapshot)
            partial = partial_path(directory)
            if judgement.verdict != CONSISTENT:
                shutil.rmtree(partial, ignore_errors=True)
                if snapshot.number > history.last_number:
                    history.note(SnapshotBegan(snapshot))
                    history.note(_abandoned(snapshot, judgement))
                continue
            manifest = _manifest(group, joined[snapshot].records, is_point=snapshot in points)
            # Its number is never given again, also by a system that goes on from here.
            history.note(SnapshotBegan(snapshot))
            with explained(directory, "written"):
                write_new(partial / MANIFEST, seal(manifest))
                sync(partial / MANIFEST)
                sync(partial)
                publish_directory(directory)
            history.note(SnapshotPublished(snapshot))
    finally:
        history.close()


def _abandoned(snapshot: SnapshotId, judgement: Judgement) -> SnapshotAbandoned:
    is_wrong = judgement.verdict == INCONSISTENT
    reason = Reason.NOT_CONSISTENT if is_wrong else Reason.DEADLINE
    return SnapshotAbandoned(snapshot, reason.name, judgement.missing, judgement.why)


def _manifest(group: Group, records: Mapping[str, FileRecord], *, is_point: bool) -> Manifest:
    description = _topology(group).description
    parts = group.fragments.values()
    received = [of_one for part in parts for of_one in part.received.values()]
    return Manifest(
        snapshot=group.snapshot,
        # Others may come later that are earlier.
        sequence=group.snapshot.number,
        epoch=group.epoch,
        initiated_at=group.recorded_at or 0.0,
        completed_at=group.completed_at or 0.0,
        published_at=time.time(),
        pause_s=max(part.pause_s for part in parts),
        capture_s=max(part.capture_s for part in parts),
        is_restore_point=is_point,
        process_count=len(description.processes),
        channel_count=len(description.channels),
        message_count=sum(of_one.recorded_count for of_one in received),
        topology=description.hash,
        files=tuple(records[name] for name in _names(group)),
    )


def _table(outcomes: Outcomes) -> pa.Table:
    rows = [
        {
            "snapshot": str(group.snapshot),
            "epoch": group.epoch,
            "verdict": judgement.verdict,
            "why": judgement.why,
            "fragment_count": len(group.fragments),
            "missing": judgement.missing,
            "late": judgement.late,
            "recorded_at": _time(group.recorded_at),
            "completed_at": _time(group.completed_at),
        }
        for group, judgement in outcomes
    ]
    return pa.Table.from_pylist(rows, schema=ASSEMBLED_SCHEMA)


def _time(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


def _topology(group: Group) -> FragmentTopology:
    assert group.topology is not None, "a consistent one was read"
    return group.topology
