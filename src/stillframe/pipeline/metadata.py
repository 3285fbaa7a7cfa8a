"""``pipeline.json``: the dataflow, its epoch, and the segments of each log's timeline.

    ROOT/pipeline.json                  this file; a restore replaces it, and that is all
    ROOT/channels/LOG/epoch-2/          what was appended to a log in epoch 2 (``log``)
    ROOT/checkpoints/epoch-2/QUERY/     Spark's checkpoint of a query in epoch 2 (``checkpoint``)
    ROOT/participants/NAME.lock         held by the program that runs a participant (``locks``)
    ROOT/pending/shop-17/               a snapshot that is being taken (``pending_snapshot``)
    ROOT/snapshots/shop-17/             a published one (``snapshot_manifest``)

An epoch writes into its own directories. So the records appended by a program of an older epoch
that is still alive are never read.

In an object store ``pipeline.json`` says more (``ObjectMetadata``): everything that a coordinator
decides is one replacement of it, which fails if another program has replaced it meanwhile.
"""

import contextlib
import itertools
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stillframe.durable_files import replace_durably
from stillframe.errors import Damaged, Unavailable, UsageError
from stillframe.model import SnapshotId, check_process_id
from stillframe.pipeline.dataflow import Dataflow, Log, check_dataflow
from stillframe.pipeline.locks import Busy, coordinating, participant_lock
from stillframe.protocol.aligner import Mode
from stillframe.storage.files import Place, below
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.owned import OwnedObject
from stillframe.storage.reading import FILE_ADVICE, is_there
from stillframe.storage.storage import Changed, Version
from stillframe.store import version_1
from stillframe.store.layout import HEAD as STORE_HEAD
from stillframe.store.layout import explain_io_errors, refuse_observations
from stillframe.store.sealed_json import (
    FORMAT,
    SEALED_BYTES_MAX,
    read_sealed,
    read_sealed_bytes,
    seal,
)

PIPELINE_FILE = "pipeline.json"
CHANNELS = "channels"
CHECKPOINTS = "checkpoints"
PUBLISHED_COUNT_MAX = 10_000_000
POSITION_END = 2**62
"""No log has a position as high as this."""
_FOR_SPARK = ("s3", "hdfs", "memory")
"""Object stores for pipelines with queries; in memory none can run, but all else works."""
_ADVICE = (
    f"{FILE_ADVICE} made since the last restore, which replaces only this file: without it the "
    "pipeline and its snapshots cannot be used"
)


_Metadata = TypeVar("_Metadata", bound="Metadata")


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From entry `first` on, until the next segment of its timeline begins, a log was written in
    `epoch`. Of a query or service it is a micro-batch or a transaction."""

    epoch: int
    first: int


def with_ends(timeline: Sequence[Segment]) -> Iterator[tuple[Segment, int | None]]:
    """Yield each segment with the number at which it ends; None for the last one."""
    ends = [*(segment.first for segment in timeline[1:]), None]
    return zip(timeline, ends, strict=True)


class Metadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``pipeline.json``.

    `segments` is the timeline of each log, `batches` that of each query's micro-batches, and in a
    pipeline with topics of Kafka that of each service's transactions. `starts` is each
    participant's start position on each incoming log in this epoch. `restored_from` is the snapshot
    from which the epoch began, None for a fresh start.
    """

    format: int = FORMAT
    name: str
    dataflow: Dataflow
    epoch: int
    restored_from: SnapshotId | None
    segments: dict[str, tuple[Segment, ...]]
    batches: dict[str, tuple[Segment, ...]]
    starts: dict[str, dict[str, int]]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to record: the content of ``request.json``, or in an object store a part of
    ``pipeline.json``. Times are seconds since 1970; `name` is a savepoint's."""

    format: int = FORMAT
    snapshot: SnapshotId
    epoch: int
    mode: Mode
    name: str | None
    initiated_at: float
    deadline_at: float


class ObjectMetadata(Metadata, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``pipeline.json`` in an object store.

    `last_epoch` and `last_snapshot` are the highest numbers given, also to attempts that came to
    nothing. `request` is that of the pending snapshot. `published` has the numbers of the published
    snapshots by the name in their ids, as ranges from a first to a last one. `token` is new in each
    version, so that none is like an earlier one.
    """

    last_epoch: int
    last_snapshot: int
    request: Request | None
    published: dict[str, tuple[tuple[int, int], ...]]
    token: str

    def published_ids(self) -> list[SnapshotId]:
        """Return the ids of the published snapshots, in any order."""
        return [
            SnapshotId(name, number)
            for name, ranges in self.published.items()
            for first, last in ranges
            for number in range(first, last + 1)
        ]

    def has_published(self, snapshot: SnapshotId) -> bool:
        """Return whether a snapshot is published."""
        ranges = self.published.get(snapshot.initiator, ())
        return any(first <= snapshot.number <= last for first, last in ranges)

    def published_with(self, snapshot: SnapshotId) -> dict[str, tuple[tuple[int, int], ...]]:
        """Return what is published together with a snapshot that has a higher number than all."""
        *before, last = self.published.get(snapshot.initiator) or [(0, 0)]
        ranges = [*before, (last[0] or snapshot.number, snapshot.number)]
        if last[0] and last[1] != snapshot.number - 1:
            ranges = [*before, last, (snapshot.number, snapshot.number)]
        return {**self.published, snapshot.initiator: tuple(ranges)}


class ForkClaim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``pipeline.json`` in an object store while a fork is copied there, so that no
    other program makes a pipeline in that place. `forking` is new in each."""

    format: int = FORMAT
    forking: str


_CLAIM_BYTES_MAX = 256
"""Maximum size of a sealed claim; metadata are longer."""


def as_ranges(snapshots: Iterable[SnapshotId]) -> dict[str, tuple[tuple[int, int], ...]]:
    """Return ids as ``ObjectMetadata.published`` has them."""
    found: dict[str, list[tuple[int, int]]] = {}
    for snapshot in sorted(snapshots):
        ranges = found.setdefault(snapshot.initiator, [])
        if ranges and ranges[-1][1] == snapshot.number - 1:
            ranges[-1] = (ranges[-1][0], snapshot.number)
        else:
            ranges.append((snapshot.number, snapshot.number))
    return {name: tuple(ranges) for name, ranges in found.items()}


def initial_metadata(name: str, dataflow: Dataflow) -> Metadata:
    """Return the metadata of a new pipeline."""
    return Metadata(
        name=name,
        dataflow=dataflow,
        epoch=1,
        restored_from=None,
        segments={log.name: (Segment(1, 0),) for log in dataflow.logs},
        batches={name: (Segment(1, 0),) for name in dataflow.versioned},
        starts={
            name: {log.name: 0 for log in dataflow.incoming(name)} for name in dataflow.participants
        },
    )


def read_metadata(root: Location) -> Metadata:
    """Read the metadata of the pipeline at `root`; UsageError if there is no pipeline."""
    if isinstance(root, ObjectPath):
        return read_object_metadata(root)[0]
    if not (root / PIPELINE_FILE).exists():
        raise _no_pipeline(root)
    path = root / PIPELINE_FILE
    return _checked(path, read_sealed(path, Metadata, advice=_ADVICE))


def read_object_metadata(
    root: ObjectPath, known: tuple[ObjectMetadata, Version] | None = None
) -> tuple[ObjectMetadata, Version]:
    """Read the metadata of a pipeline in an object store; errors as for ``read_metadata``. What is
    `known` from the last read is returned if nothing has changed."""
    path = root / PIPELINE_FILE
    with explain_io_errors(path, "read"):
        try:
            sealed, version = storage_of(path).read(path, bytes_max=SEALED_BYTES_MAX)
        except FileNotFoundError:
            raise _no_pipeline(root) from None
    if known is not None and known[1] == version:
        return known
    return _decoded(path, sealed), version


def _decoded(path: ObjectPath, sealed: bytes) -> ObjectMetadata:
    if len(sealed) <= _CLAIM_BYTES_MAX and b'"forking":' in sealed:
        raise UsageError(
            f"a fork is being copied to {path.parent}, or it was interrupted",
            path=path.parent,
            remedy="wait until it is complete; or delete what is there, and fork again",
        )
    metadata = read_sealed_bytes(path, sealed, ObjectMetadata, advice=_ADVICE)
    with described_in(path):
        if not (1 <= metadata.epoch <= metadata.last_epoch and metadata.last_snapshot >= 0):
            raise UsageError(f"epoch {metadata.epoch} was not given yet")
        count = 0
        for name, ranges in metadata.published.items():
            check_process_id(name)
            bounds = [0, *itertools.chain.from_iterable(ranges), metadata.last_snapshot]
            if bounds != sorted(bounds) or (ranges and ranges[0][0] < 1):
                raise UsageError(f"it cannot have published the snapshots {ranges[:3]}")
            count += sum(last - first + 1 for first, last in ranges)
        if count > PUBLISHED_COUNT_MAX:
            raise UsageError(f"it has {count} snapshots, more than {PUBLISHED_COUNT_MAX}")
        if (request := metadata.request) is not None:
            check_process_id(request.snapshot.initiator)
    return _checked(path, metadata)


def check_place(root: Location, dataflow: Dataflow) -> None:
    """Raise UsageError if a pipeline of this kind cannot be at `root`."""
    is_elsewhere = isinstance(root, ObjectPath) and root.root.partition(":")[0] not in _FOR_SPARK
    if is_elsewhere and dataflow.queries:
        raise UsageError(
            f"{root} cannot hold the checkpoint of the query {dataflow.queries[0]}, because Spark "
            "can write it only into a directory, S3 or HDFS: give one of these"
        )


def _no_pipeline(root: Location) -> UsageError:
    refuse_observations(root)
    if is_there(root / STORE_HEAD):
        return UsageError(
            f"{root} is a store, with the snapshots of a system of processes, not a pipeline",
            path=root,
            remedy="use the commands that are not under 'stillframe pipeline', such as "
            "'stillframe list', or stillframe.open_store in Python",
        )
    what = (
        "is not a pipeline" if isinstance(root, ObjectPath) or root.exists() else "does not exist"
    )
    return UsageError(
        f"{root} {what}",
        path=root,
        remedy="give the directory in which the program created its pipeline",
    )


def _checked(path: Location, metadata: _Metadata) -> _Metadata:
    with described_in(path):
        check_process_id(metadata.name)
        check_timeline(metadata.dataflow, metadata.epoch, metadata.segments, metadata.batches)
        origin = metadata.restored_from
        if origin is not None and SnapshotId.parse(str(origin)) != origin:
            raise UsageError(f"{origin} is not a snapshot id")
        if metadata.starts.keys() != set(metadata.dataflow.participants):
            raise UsageError(
                "its start positions are for other queries and services than the pipeline has"
            )
        for name, positions in metadata.starts.items():
            check_positions(positions, metadata.dataflow.incoming(name), name)
    return metadata


@contextlib.contextmanager
def described_in(path: Location) -> Iterator[None]:
    """Turn a UsageError about the content of a file into a Damaged that names the file. Names in
    such a file become paths: one that cannot be a name leads somewhere else."""
    try:
        yield
    except UsageError as error:
        raise Damaged(
            f"{path} does not describe a valid pipeline: {error}", path=path, remedy=FILE_ADVICE
        ) from error


def check_timeline(
    dataflow: Dataflow,
    epoch: int,
    segments: Mapping[str, Sequence[Segment]],
    batches: Mapping[str, Sequence[Segment]],
) -> None:
    """Raise UsageError if a dataflow, or the timeline of a log or participant, cannot be in
    `epoch`."""
    check_dataflow(dataflow)
    if epoch < 1:
        raise UsageError(f"there is no epoch {epoch}: epochs start at 1")
    if segments.keys() != {log.name for log in dataflow.logs}:
        raise UsageError("it has timelines of other channels than the pipeline")
    if batches.keys() != set(dataflow.versioned):
        raise UsageError("it has timelines of other queries or services than the pipeline")
    for name, timeline in (*segments.items(), *batches.items()):
        epochs = [0, *(segment.epoch for segment in timeline), epoch + 1]
        firsts = [-1, *(segment.first for segment in timeline), POSITION_END]
        if not timeline or not (_is_rising(epochs) and _is_rising(firsts)):
            raise UsageError(f"{name} cannot consist of {list(timeline)}")


def check_positions(positions: Mapping[str, int], logs: Iterable[Log], participant: str) -> None:
    """Raise UsageError if a participant has no position on one of these logs, or on another."""
    is_possible = all(0 <= position < POSITION_END for position in positions.values())
    if positions.keys() != {log.name for log in logs} or not is_possible:
        raise UsageError(f"{participant} cannot have the positions {dict(positions)}")


def check_savepoint_name(name: str) -> None:
    """Raise UsageError if a name is not allowed for a savepoint, or looks like a snapshot id."""
    check_process_id(name, "a savepoint")
    try:
        SnapshotId.parse(name)
    except UsageError:
        return
    raise UsageError(
        f"a savepoint cannot be called {name!r}, because snapshot ids look like that; give a "
        "name that does not end in '-' and a number"
    )


def _is_rising(numbers: list[int]) -> bool:
    return all(first < second for first, second in itertools.pairwise(numbers))


def write_metadata(root: Path, metadata: Metadata) -> None:
    """Replace the metadata in one step; it is on the disk when this returns."""
    with explain_io_errors(root / PIPELINE_FILE, "written"):
        replace_durably(root / PIPELINE_FILE, seal(metadata))


def begin_writing(root: Location, metadata: Metadata, *, are_stopped: bool = False) -> None:
    """Write the metadata in this version of the format, before a program writes anything else: then
    an older release refuses the pipeline. The caller holds the coordinator's lock.

    Unavailable if a program of an older release still runs, whose state would be lost; the caller
    can know that all `are_stopped`.
    """
    if metadata.format == FORMAT or isinstance(root, ObjectPath):
        return
    for name in () if are_stopped else metadata.dataflow.participants:
        lock = participant_lock(root, name)
        if not lock.acquire():
            raise Unavailable(
                f"{name} of the pipeline {root} still runs with an older release of Stillframe: "
                "stop all programs of the pipeline before you start one with this release"
            )
        lock.release()
    shutil.rmtree(root / version_1.PENDING, ignore_errors=True)
    write_metadata(root, metadata)


def begin_taking_part(root: Location) -> None:
    """Do what ``begin_writing`` does, for a program that will run a participant. It calls this
    before it locks that, so that programs of this release do not take each other for older ones."""
    if isinstance(root, Path) and read_metadata(root).format != FORMAT:
        with coordinating(root, "the first start with this release"):
            begin_writing(root, read_metadata(root))


def checkpoint_path(root: Place, epoch: int, query: str) -> Place:
    """Return the directory of a query's Spark checkpoint in an epoch; in an object store it holds
    those of the query's runs (``query_runs``)."""
    return below(root, CHECKPOINTS, f"epoch-{epoch}", query)


class MetadataWriter:
    """Replaces the metadata of a pipeline in an object store, as long as no other program does.

    It is made before a coordinator looks at anything else: what that one decides then holds for
    the `metadata` that were read here, or it fails. Make it while you hold the coordinator's lock.
    """

    def __init__(self, root: ObjectPath) -> None:
        self.root = root
        path = root / PIPELINE_FILE
        self._object = OwnedObject(path)
        with explain_io_errors(path, "read"):
            sealed = self._object.read(bytes_max=SEALED_BYTES_MAX)
        if sealed is None:
            raise _no_pipeline(root)
        self.metadata = _decoded(path, sealed)

    def replace(self, **changes: Any) -> None:
        """Replace some members. Unavailable if another program has replaced the metadata since they
        were read: then nothing is changed. After a StoreError that is unknown; then the next
        replacement counts, which knows nothing of that one."""
        changed = msgspec.structs.replace(self.metadata, **changes, token=secrets.token_hex(16))
        with explain_io_errors(self._object.location, "written"):
            try:
                self._object.replace(seal(changed))
            except Changed:
                raise self._overtaken() from None
        self.metadata = changed

    def check(self) -> None:
        """Raise Unavailable if another program has replaced the metadata."""
        if read_object_metadata(self.root)[0].token != self.metadata.token:
            raise self._overtaken()

    def _overtaken(self) -> Busy:
        return Busy(
            f"another program has taken, deleted or restored a snapshot of {self.root}, because "
            "this one did not renew its lease in time; nothing was changed",
            path=self.root,
            remedy="try again",
        )


def claim_place(root: ObjectPath) -> Version:
    """Let no other program make a pipeline at `root` before ``create_metadata``, which takes the
    result; FileExistsError if there is one, or another fork has begun."""
    claim = ForkClaim(forking=secrets.token_hex(16))
    return storage_of(root).put_if_absent(root / PIPELINE_FILE, seal(claim))


def create_metadata(
    root: ObjectPath, metadata: Metadata, claimed: Version | None = None, **more: Any
) -> None:
    """Write the metadata of a new pipeline in an object store, with the members that only
    ``ObjectMetadata`` has; FileExistsError if there is one already, unless it was `claimed`."""
    members = {name: getattr(metadata, name) for name in Metadata.__struct_fields__}
    defaults: dict[str, Any] = {
        "last_epoch": metadata.epoch,
        "last_snapshot": 0,
        "request": None,
        "published": {},
    }
    made = seal(ObjectMetadata(**members, **(defaults | more), token=secrets.token_hex(16)))
    if claimed is None:
        storage_of(root).put_if_absent(root / PIPELINE_FILE, made)
    else:
        storage_of(root).replace_if_unchanged(root / PIPELINE_FILE, made, claimed)
