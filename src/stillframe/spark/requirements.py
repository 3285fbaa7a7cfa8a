"""What is refused before a query starts, because snapshots of it would lie."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stillframe.errors import Damaged, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline import checkpoint
from stillframe.pipeline.head import Head, checkpoint_path
from stillframe.pipeline.log import LogWriter
from stillframe.pipeline.published import (
    Manifest,
    pinned_path,
    published_ids,
    read_manifest,
    snapshot_path,
)

SPARK_VERSION_MIN = (4, 2)
_ASYNC = "asyncprogresstracking"
_REFUSED_TRIGGERS = {
    "realTime": "real-time mode has no micro-batches to end at a barrier",
    "continuous": "continuous processing has no micro-batches to end at a barrier",
}


def check_spark(version: str) -> None:
    """Refuse a Spark that cannot let a Python source end a micro-batch.

    Raises:
        Unavailable: it is older than 4.2.
    """
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < SPARK_VERSION_MIN:
        raise Unavailable(
            f"Spark {version} is too old: from 4.2 on a source written in Python may say where a "
            "micro-batch ends; install pyspark 4.2 or later"
        )


def check_options(trigger: Mapping[str, Any], options: Mapping[str, str]) -> None:
    """Refuse ways to run a query that cannot be combined with snapshots.

    Raises:
        UsageError: one of them was asked for.
    """
    for name, reason in _REFUSED_TRIGGERS.items():
        if trigger.get(name) is not None:
            raise UsageError(f"the trigger {name} cannot be combined with snapshots: {reason}")
    for name, value in options.items():
        if name.lower().startswith(_ASYNC) and str(value).lower() not in ("false", ""):
            raise UsageError(
                f"the option {name} cannot be combined with snapshots: with asynchronous progress "
                "tracking a micro-batch begins before the one before is committed; leave it out"
            )
        if name.lower() == "checkpointlocation":
            raise UsageError(
                "the checkpoint of a query lies in its pipeline (checkpoint_location): leave out "
                "the option checkpointLocation"
            )


def check_checkpoint(root: Path, head: Head, query: str) -> None:
    """Refuse a checkpoint that somebody has taken back or deleted by hand.

    What the pipeline knows by itself is compared with it: the snapshots of this epoch, the
    snapshot from which it began, and the micro-batches whose records are in the query's logs.

    A manifest that is damaged itself is passed over: that matters to whoever restores it. So is a
    snapshot that is dropped meanwhile.

    Raises:
        Damaged: it is behind what is known, or tells another story.
    """
    path = checkpoint_path(root, head.epoch, query)
    advice = (
        f"the checkpoint {path} was edited or deleted: state would be wrong without a word; "
        "restore the pipeline from a snapshot instead"
    )
    if (wrong := checkpoint.contradiction(path)) is not None:
        raise Damaged(f"{advice} ({wrong})")
    found = checkpoint.last_committed(path)
    planned = checkpoint.planned_batch(path)
    for manifest in _of_epoch(root, head):
        state = manifest.part(query).query
        if state is None or state.batch is None:
            continue
        if found is None or found.batch < state.batch:
            raise Damaged(f"snapshot {manifest.snapshot} has micro-batch {state.batch}; {advice}")
        if manifest.epoch == head.epoch:
            pinned = pinned_path(snapshot_path(root, manifest.snapshot), query)
            if not checkpoint.agrees(path, pinned, state.batch):
                raise Damaged(
                    f"snapshot {manifest.snapshot} has another micro-batch {state.batch}; {advice}"
                )
    for log in head.dataflow.outgoing(query):
        written = LogWriter(root, log, head).last_batch()
        if written is not None and (planned is None or written > planned):
            raise Damaged(f"channel {log.name} has records of micro-batch {written}; {advice}")


def _of_epoch(root: Path, head: Head) -> Iterator[Manifest]:
    """Yield the snapshots of the present epoch, the newest first, then the one it began from."""
    for snapshot in reversed(published_ids(root)):
        manifest = _if_whole(root, snapshot)
        if manifest is not None and manifest.epoch != head.epoch:
            break  # numbers only rise, and epochs with them
        if manifest is not None:
            yield manifest
    if head.restored_from is not None:
        began = _if_whole(root, head.restored_from)
        if began is not None:
            yield began


def _if_whole(root: Path, snapshot: SnapshotId) -> Manifest | None:
    """Return a manifest, or None if it is damaged or its snapshot was dropped."""
    try:
        return read_manifest(root, snapshot)
    except (Damaged, UsageError):
        return None
