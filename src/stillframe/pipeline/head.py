"""``pipeline.json``: the dataflow, its epoch, and which files each log consists of in that epoch.

    ROOT/pipeline.json                  this file; a restore replaces it, and that is all
    ROOT/channels/LOG/epoch-2/          what was appended to a log in epoch 2 (``log``)
    ROOT/checkpoints/epoch-2/QUERY/     Spark's checkpoint of a query in epoch 2 (``checkpoint``)
    ROOT/participants/NAME.lock         held by the program that runs a participant (``locks``)
    ROOT/under-way/shop-17/             a snapshot that is being taken (``part``)
    ROOT/snapshots/shop-17/             a published one (``published``)

An epoch writes into directories of its own. So a program of an older epoch that is still alive can
append as much as it likes: nobody reads it.
"""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from stillframe.errors import Damaged, UsageError
from stillframe.model import SnapshotId, check_process_id
from stillframe.pipeline.dataflow import Dataflow, Log, check_dataflow
from stillframe.store.disk import PUT_BACK, replace_durably
from stillframe.store.opening import HEAD as STORE_HEAD
from stillframe.store.opening import explained
from stillframe.store.seal import FORMAT, read_sealed, seal

HEAD = "pipeline.json"
CHANNELS = "channels"
CHECKPOINTS = "checkpoints"
_ADVICE = (
    f"{PUT_BACK} that was made since the last restore, which replaces this file alone: without it "
    "nothing of the pipeline can be used, not even its snapshots"
)


class Stretch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From item `first` on, and until the next stretch begins, a log was written in `epoch`; or
    from micro-batch `first` on a query ran in `epoch`."""

    epoch: int
    first: int


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``pipeline.json``.

    `stretches` says for each log which epochs' files it consists of, `batches` for each query in
    which epochs its micro-batches ran, `starts` for each participant the position on each incoming
    log from which it begins in this epoch. `restored_from` is the snapshot from which the epoch
    began, None for a fresh start.
    """

    format: int = FORMAT
    name: str
    dataflow: Dataflow
    epoch: int
    restored_from: SnapshotId | None
    stretches: dict[str, tuple[Stretch, ...]]
    batches: dict[str, tuple[Stretch, ...]]
    starts: dict[str, dict[str, int]]


def first_head(name: str, dataflow: Dataflow) -> Head:
    """Return the head of a pipeline that starts afresh."""
    return Head(
        name=name,
        dataflow=dataflow,
        epoch=1,
        restored_from=None,
        stretches={log.name: (Stretch(1, 0),) for log in dataflow.logs},
        batches={query: (Stretch(1, 0),) for query in dataflow.queries},
        starts={
            name: {log.name: 0 for log in dataflow.incoming(name)} for name in dataflow.participants
        },
    )


def read_head(root: Path) -> Head:
    """Read the head of the pipeline at `root`.

    Raises:
        UsageError: there is no pipeline.
        Damaged, StoreError: its file was changed or cannot be read.
    """
    if not (root / HEAD).exists():
        if (root / STORE_HEAD).exists():
            raise UsageError(
                f"{root} is a store, the snapshots of a system of processes, and no pipeline: use "
                "the commands that are not under 'stillframe spark', such as 'stillframe list'"
            )
        what = "is no pipeline" if root.exists() else "does not exist"
        raise UsageError(f"{root} {what}: give the directory that the program made its pipeline in")
    path = root / HEAD
    head = read_sealed(path, Head, advice=_ADVICE)
    with described_in(path):
        check_process_id(head.name)
        check_course(head.dataflow, head.epoch, head.stretches, head.batches)
        if head.restored_from is not None:
            check_snapshot_id(head.restored_from)
        if head.starts.keys() != set(head.dataflow.participants):
            raise UsageError("it says for other queries and services where they begin")
        for name, positions in head.starts.items():
            check_positions(positions, head.dataflow.incoming(name), name)
    return head


@contextlib.contextmanager
def described_in(path: Path) -> Iterator[None]:
    """Turn what is wrong with what a file describes into a Damaged that names the file.

    Names in such a file become paths: one that cannot be a name leads somewhere else.
    """
    try:
        yield
    except UsageError as error:
        raise Damaged(f"{path} describes what no pipeline has: {error}: {PUT_BACK}") from error


def check_course(
    dataflow: Dataflow,
    epoch: int,
    stretches: Mapping[str, Sequence[Stretch]],
    batches: Mapping[str, Sequence[Stretch]],
) -> None:
    """Check a dataflow, and that each of its logs and the micro-batches of each of its queries
    consist of stretches up to an epoch.

    Raises:
        UsageError: what cannot be.
    """
    check_dataflow(dataflow)
    if epoch < 1:
        raise UsageError(f"there is no epoch {epoch}: they begin with 1")
    if stretches.keys() != {log.name for log in dataflow.logs}:
        raise UsageError("it says of other channels than there are what they consist of")
    if batches.keys() != set(dataflow.queries):
        raise UsageError("it says of other queries than there are in which epochs they ran")
    for name, course in (*stretches.items(), *batches.items()):
        epochs = [0, *(stretch.epoch for stretch in course), epoch + 1]
        firsts = [-1, *(stretch.first for stretch in course)]
        if not course or not (_is_rising(epochs) and _is_rising(firsts)):
            raise UsageError(f"{name} cannot consist of {list(course)}")


def check_positions(positions: Mapping[str, int], logs: Iterable[Log], participant: str) -> None:
    """Check that there is a position on each of some logs of a participant, and on no other.

    Raises:
        UsageError: what cannot be.
    """
    if positions.keys() != {log.name for log in logs} or min(positions.values(), default=0) < 0:
        raise UsageError(f"{participant} cannot stand at {dict(positions)}")


def check_snapshot_id(snapshot: SnapshotId) -> None:
    """Check that an id is one.

    Raises:
        UsageError: it is not.
    """
    if SnapshotId.parse(str(snapshot)) != snapshot:
        raise UsageError(f"{snapshot} is no snapshot id")


def check_savepoint_name(name: str) -> str:
    """Return `name` if a savepoint can be called so.

    Raises:
        UsageError: it cannot be a name, or looks like the id of a snapshot.
    """
    check_process_id(name)
    try:
        SnapshotId.parse(name)
    except UsageError:
        return name
    raise UsageError(
        f"a savepoint cannot be called {name!r}: snapshots have ids like that; give a name that "
        "does not end in '-' and a number"
    )


def _is_rising(numbers: list[int]) -> bool:
    return all(first < second for first, second in itertools.pairwise(numbers))


def write_head(root: Path, head: Head) -> None:
    """Replace the head in one step; it is on the disk when this returns.

    Raises:
        StoreError: the disk is full or failed; the old head is still there.
    """
    with explained(root / HEAD, "written"):
        replace_durably(root / HEAD, seal(head))


def checkpoint_path(root: Path, epoch: int, query: str) -> Path:
    """Return where the Spark checkpoint of a query lies in an epoch."""
    return root / CHECKPOINTS / f"epoch-{epoch}" / query
