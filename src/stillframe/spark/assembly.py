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
from typing import NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.spark import verified
from stillframe.spark.gathering import Group, Judgement, gather, in_order, judge
from stillframe.spark.joining import JOIN_SCHEMA, JOINED, join_files
from stillframe.spark.manifests import Published, read_published
from stillframe.spark.shipping import ship
from stillframe.spark.soundness import CONSISTENT, INCOMPLETE
from stillframe.store.contents import publish_directory
from stillframe.store.disk import partial_path, replace_durably, sync, write_new
from stillframe.store.fragments import FragmentPlace, FragmentTopology
from stillframe.store.manifest import (
    CHANNELS,
    MANIFEST,
    MESSAGES,
    FileRecord,
    Head,
    Manifest,
    file_names,
)
from stillframe.store.opening import (
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
MARK = "assembled.json"
_ORDER = {CHANNELS: ["source", "target"], MESSAGES: ["source", "target", "number"]}
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


class _Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `MARK`: it says that a store is one that fragments were assembled into."""

    format: int = FORMAT


class _Outcome(NamedTuple):
    group: Group
    judgement: Judgement


def assemble(
    spark: SparkSession,
    directory: Path,
    out: Path,
    *,
    timeout_s: float = TIMEOUT_S,
    epoch: int | None = None,
) -> DataFrame:
    """Make snapshots of the fragments in `directory`, and add them to the store `out`.

    Those that are in the store already are left as they are, so what comes late is added by doing
    it again.

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
    groups = gather(directory, epoch=epoch, without=_there(out))
    outcomes = {g.snapshot: _Outcome(g, judge(g, timeout_s=timeout_s)) for g in groups}
    good = [o.group for o in outcomes.values() if o.judgement.verdict == CONSISTENT]
    if good:
        with _writing(out, good) as published:
            topologies = {s: m.topology for s, m in published.manifests.items()}
            ordered, broken = in_order(good, topologies)
            made = _join(spark, directory, out, ordered) if ordered else {}
            broken |= _publish(out, published, ordered, made)
        for snapshot, why in broken.items():
            group, judgement = outcomes[snapshot]
            worse = msgspec.structs.replace(judgement, verdict=INCOMPLETE, why=why)
            outcomes[snapshot] = _Outcome(group, worse)
    return spark.createDataFrame(_table(list(outcomes.values())))


def _there(out: Path) -> set[SnapshotId]:
    """Return the snapshots that the store has, if it is one already."""
    if not (out / HEAD).exists():
        return set()
    return set(read_published(out).manifests)


@contextlib.contextmanager
def _writing(out: Path, groups: Sequence[Group]) -> Iterator[Published]:
    """Be the only one who writes to the store `out` while the body runs; it gets what is there."""
    newest = max(groups, key=lambda group: (group.epoch, group.recorded_at))
    topologies = {_topology(group).description.hash: _topology(group) for group in groups}
    with explained(out, "written"):
        out.mkdir(parents=True, exist_ok=True)
        check_free(out)
        lock = take_lock(out)
    try:
        with explained(out, "written"):
            if not (out / HEAD).exists():
                present = _topology(newest)
                head = Head(reference=present.reference, description=present.description)
                make_store(out, head)
                replace_durably(out / MARK, seal(_Mark()))
            elif not (out / MARK).exists():
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
            _put_head(out, published, newest, topologies)
        yield read_published(out)
    finally:
        os.close(lock)


def _put_head(
    out: Path, published: Published, newest: Group, topologies: Mapping[str, FragmentTopology]
) -> None:
    """Let the head of the store name all topologies, the one of the newest epoch as the present."""
    head = published.head
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
) -> dict[SnapshotId, tuple[dict[str, FileRecord], str | None]]:
    """Write the files of snapshots, under names that nobody looks at yet; return by snapshot which
    those are, and what was wrong with a part."""
    ship(spark)
    files = []
    for group in groups:
        partial = partial_path(out / SNAPSHOTS / str(group.snapshot))
        with explained(partial, "written"):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
        for name in _names(group):
            parts = list(_parts(directory, group, name))
            size = sum(int(str(part["byte_count"])) for part in parts)
            files.append((group.snapshot, partial / name, parts, _ORDER.get(name, []), size))
    task_count, tasks = verified.spread_tasks(spark, [file[-1] for file in files])
    columns = [
        [str(file[0]) for file in files],
        [str(file[1]) for file in files],
        [file[2] for file in files],
        [file[3] for file in files],
        tasks,
    ]
    rows = spark.createDataFrame(pa.table(columns, schema=JOIN_SCHEMA))
    with verified.explained(directory):
        spread = rows.repartitionById(task_count, F.col("task"))
        found = spread.mapInArrow(join_files, JOINED).collect()
    made: dict[SnapshotId, tuple[dict[str, FileRecord], str | None]] = {}
    for row in found:
        records, damage = made.get(SnapshotId.parse(row["snapshot"]), ({}, None))
        records[row["name"]] = FileRecord(row["name"], row["byte_count"], row["hash"])
        made[SnapshotId.parse(row["snapshot"])] = records, damage or row["damage"]
    return made


def _names(group: Group) -> tuple[str, ...]:
    return file_names(_topology(group).description, is_whole=not group.bases)


def _parts(directory: Path, group: Group, name: str) -> Iterator[dict[str, object]]:
    """Yield the files of the fragments of which the file `name` is made."""
    stem = name.partition(".")[0]
    for process, fragment in group.fragments.items():
        path = FragmentPlace(group.epoch, group.snapshot, process).path(directory)
        for record in fragment.files:
            # Those of keyed fields have other names if they are whole.
            if record.name.partition(".")[0] == stem:
                yield {
                    "path": str(path / record.name),
                    "byte_count": record.bytes,
                    "hash": record.hash,
                }


def _publish(
    out: Path,
    published: Published,
    groups: Sequence[Group],
    made: Mapping[SnapshotId, tuple[dict[str, FileRecord], str | None]],
) -> dict[SnapshotId, str]:
    """Give snapshots their names, each after those that it is based on; return which could not be,
    and why."""
    broken: dict[SnapshotId, str] = {}
    manifests = dict(published.manifests)
    for group in groups:
        snapshot = group.snapshot
        records, damage = made[snapshot]
        lost = next((b for b in group.bases.values() if b not in manifests), None)
        directory = out / SNAPSHOTS / str(snapshot)
        if damage is not None or lost is not None:
            broken[snapshot] = damage or f"it holds what changed since {lost}, which is not there"
            shutil.rmtree(partial_path(directory), ignore_errors=True)
            continue
        manifest = _manifest(group, records, manifests)
        with explained(directory, "written"):
            partial = partial_path(directory)
            write_new(partial / MANIFEST, seal(manifest))
            sync(partial / MANIFEST)
            sync(partial)
            publish_directory(directory)
        manifests[snapshot] = manifest
    return broken


def _manifest(
    group: Group, records: Mapping[str, FileRecord], manifests: Mapping[SnapshotId, Manifest]
) -> Manifest:
    description = _topology(group).description
    parts = group.fragments.values()
    points = [m for m in manifests.values() if m.epoch == group.epoch and m.is_restore_point]
    received = [of_one for part in parts for of_one in part.received.values()]
    return Manifest(
        snapshot=group.snapshot,
        sequence=1 + max((m.sequence for m in manifests.values()), default=0),
        epoch=group.epoch,
        initiated_at=group.recorded_at,
        completed_at=group.completed_at,
        published_at=time.time(),
        pause_s=max(part.pause_s for part in parts),
        capture_s=max(part.capture_s for part in parts),
        is_restore_point=all(group.recorded_at >= m.completed_at for m in points),
        bases=group.bases or None,
        process_count=len(description.processes),
        channel_count=len(description.channels),
        message_count=sum(of_one.recorded_count for of_one in received),
        topology=description.hash,
        files=tuple(records[name] for name in _names(group)),
    )


def _table(outcomes: Sequence[_Outcome]) -> pa.Table:
    rows = [
        {
            "snapshot": str(group.snapshot),
            "epoch": group.epoch,
            "verdict": judgement.verdict,
            "why": judgement.why,
            "fragment_count": len(group.fragments),
            "missing": judgement.missing,
            "late": judgement.late,
            "recorded_at": _time(group.recorded_at) if group.fragments else None,
            "completed_at": _time(group.completed_at) if group.fragments else None,
        }
        for group, judgement in outcomes
    ]
    return pa.Table.from_pylist(rows, schema=ASSEMBLED_SCHEMA)


def _time(seconds: float) -> int:
    return round(seconds * 1e6)


def _topology(group: Group) -> FragmentTopology:
    assert group.topology is not None, "a consistent one was read"
    return group.topology
