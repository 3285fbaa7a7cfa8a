"""``pipeline.json``: the dataflow, its epoch, and the segments of each log's timeline.

    ROOT/pipeline.json                  this file; a restore replaces it, and that is all
    ROOT/channels/LOG/epoch-2/          what was appended to a log in epoch 2 (``log``)
    ROOT/checkpoints/epoch-2/QUERY/     Spark's checkpoint of a query in epoch 2 (``checkpoint``)
    ROOT/participants/NAME.lock         held by the program that runs a participant (``locks``)
    ROOT/pending/shop-17/               a snapshot that is being taken (``pending_snapshot``)
    ROOT/snapshots/shop-17/             a published one (``snapshot_manifest``)

An epoch writes into its own directories. So the records appended by a program of an older epoch
that is still alive are never read.
"""

import contextlib
import itertools
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from stillframe.durable_files import replace_durably
from stillframe.errors import Damaged, Unavailable, UsageError
from stillframe.model import SnapshotId, check_process_id
from stillframe.pipeline.dataflow import Dataflow, Log, check_dataflow
from stillframe.pipeline.locks import coordinating, participant_lock
from stillframe.storage.reading import FILE_ADVICE
from stillframe.store import version_1
from stillframe.store.layout import HEAD as STORE_HEAD
from stillframe.store.layout import explain_io_errors
from stillframe.store.sealed_json import FORMAT, read_sealed, seal

PIPELINE_FILE = "pipeline.json"
CHANNELS = "channels"
CHECKPOINTS = "checkpoints"
_ADVICE = (
    f"{FILE_ADVICE} made since the last restore, which replaces only this file: without it the "
    "pipeline and its snapshots cannot be used"
)


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From entry `first` on, until the next segment of its timeline begins, a log was written in
    `epoch`; or from micro-batch `first` on a query ran in `epoch`."""

    epoch: int
    first: int


def with_ends(timeline: Sequence[Segment]) -> Iterator[tuple[Segment, int | None]]:
    """Yield each segment with the number at which it ends; None for the last one."""
    ends = [*(segment.first for segment in timeline[1:]), None]
    return zip(timeline, ends, strict=True)


class Metadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``pipeline.json``.

    `segments` is the timeline of each log, `batches` that of each query's micro-batches, and
    `starts` each participant's start position on each incoming log in this epoch. `restored_from`
    is the snapshot from which the epoch began, None for a fresh start.
    """

    format: int = FORMAT
    name: str
    dataflow: Dataflow
    epoch: int
    restored_from: SnapshotId | None
    segments: dict[str, tuple[Segment, ...]]
    batches: dict[str, tuple[Segment, ...]]
    starts: dict[str, dict[str, int]]


def initial_metadata(name: str, dataflow: Dataflow) -> Metadata:
    """Return the metadata of a new pipeline."""
    return Metadata(
        name=name,
        dataflow=dataflow,
        epoch=1,
        restored_from=None,
        segments={log.name: (Segment(1, 0),) for log in dataflow.logs},
        batches={query: (Segment(1, 0),) for query in dataflow.queries},
        starts={
            name: {log.name: 0 for log in dataflow.incoming(name)} for name in dataflow.participants
        },
    )


def read_metadata(root: Path) -> Metadata:
    """Read the metadata of the pipeline at `root`; UsageError if there is no pipeline."""
    if not (root / PIPELINE_FILE).exists():
        if (root / STORE_HEAD).exists():
            raise UsageError(
                f"{root} is a store, with the snapshots of a system of processes, not a pipeline",
                path=root,
                remedy="use the commands that are not under 'stillframe pipeline', such as "
                "'stillframe list', or stillframe.open_store in Python",
            )
        what = "is not a pipeline" if root.exists() else "does not exist"
        raise UsageError(
            f"{root} {what}",
            path=root,
            remedy="give the directory in which the program created its pipeline",
        )
    path = root / PIPELINE_FILE
    metadata = read_sealed(path, Metadata, advice=_ADVICE)
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
def described_in(path: Path) -> Iterator[None]:
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
    """Raise UsageError if a dataflow, or the timeline of a log or query, cannot be in `epoch`."""
    check_dataflow(dataflow)
    if epoch < 1:
        raise UsageError(f"there is no epoch {epoch}: epochs start at 1")
    if segments.keys() != {log.name for log in dataflow.logs}:
        raise UsageError("it has timelines of other channels than the pipeline")
    if batches.keys() != set(dataflow.queries):
        raise UsageError("it has timelines of other queries than the pipeline")
    for name, timeline in (*segments.items(), *batches.items()):
        epochs = [0, *(segment.epoch for segment in timeline), epoch + 1]
        firsts = [-1, *(segment.first for segment in timeline)]
        if not timeline or not (_is_rising(epochs) and _is_rising(firsts)):
            raise UsageError(f"{name} cannot consist of {list(timeline)}")


def check_positions(positions: Mapping[str, int], logs: Iterable[Log], participant: str) -> None:
    """Raise UsageError if a participant has no position on one of these logs, or on another."""
    if positions.keys() != {log.name for log in logs} or min(positions.values(), default=0) < 0:
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


def begin_writing(root: Path, metadata: Metadata, *, are_stopped: bool = False) -> None:
    """Write the metadata in this version of the format, before a program writes anything else: then
    an older release refuses the pipeline. The caller holds the coordinator's lock.

    Unavailable if a program of an older release still runs, whose state would be lost; the caller
    can know that all `are_stopped`.
    """
    if metadata.format == FORMAT:
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


def begin_taking_part(root: Path) -> None:
    """Do what ``begin_writing`` does, for a program that will run a participant. It calls this
    before it locks that, so that programs of this release do not take each other for older ones."""
    if read_metadata(root).format != FORMAT:
        with coordinating(root, "the first start with this release"):
            begin_writing(root, read_metadata(root))


def checkpoint_path(root: Path, epoch: int, query: str) -> Path:
    """Return the directory of a query's Spark checkpoint in an epoch."""
    return root / CHECKPOINTS / f"epoch-{epoch}" / query
