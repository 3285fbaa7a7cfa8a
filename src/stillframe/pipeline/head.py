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

from pathlib import Path

import msgspec

from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline.dataflow import Dataflow
from stillframe.store.disk import replace_durably
from stillframe.store.opening import HEAD as STORE_HEAD
from stillframe.store.opening import explained
from stillframe.store.seal import FORMAT, read_sealed, seal

HEAD = "pipeline.json"
CHANNELS = "channels"
CHECKPOINTS = "checkpoints"


class Stretch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From item `first` on, and until the next stretch begins, a log was written in `epoch`."""

    epoch: int
    first: int


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``pipeline.json``.

    `stretches` says for each log which epochs' files it consists of, `starts` for each participant
    the position on each incoming log from which it begins in this epoch. `restored_from` is the
    snapshot from which the epoch began, None for a fresh start.
    """

    format: int = FORMAT
    name: str
    dataflow: Dataflow
    epoch: int
    restored_from: SnapshotId | None
    stretches: dict[str, tuple[Stretch, ...]]
    starts: dict[str, dict[str, int]]


def first_head(name: str, dataflow: Dataflow) -> Head:
    """Return the head of a pipeline that starts afresh."""
    return Head(
        name=name,
        dataflow=dataflow,
        epoch=1,
        restored_from=None,
        stretches={log.name: (Stretch(1, 0),) for log in dataflow.logs},
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
    return read_sealed(root / HEAD, Head)


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
