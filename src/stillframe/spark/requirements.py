"""Checks before a query starts: what is refused would make its snapshots wrong."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from stillframe.errors import Damaged, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline import checkpoint
from stillframe.pipeline.log import LogWriter
from stillframe.pipeline.metadata import Metadata, checkpoint_path
from stillframe.pipeline.snapshot_manifest import (
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
_RELATION = "StreamingRelation"
_AFTER_ANALYZED = "== Optimized Logical Plan =="
_OURS = re.compile(r"StreamingRelationV2 (?:\S+, )?stillframe, ", re.IGNORECASE)
_OPTIONS = re.compile(r" stillframe, .*?\[(.*)\], \[", re.IGNORECASE)
_PIPELINE = re.compile(
    r"\bpipeline=(.*?)(?:$|, (?:query|channels|maxRowsPerTrigger)=)", re.IGNORECASE
)
_QUERY = re.compile(r"\bquery=([\w.-]+)(?:,|$)", re.IGNORECASE)
_CHANNELS = re.compile(r"\bchannels=([\w., -]*)(?:,|$)", re.IGNORECASE)


def check_spark(version: str) -> None:
    """Refuse a Spark that cannot let a Python source end a micro-batch."""
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < SPARK_VERSION_MIN:
        raise Unavailable(
            f"Spark {version} is too old: from 4.2 on a source written in Python may say where a "
            "micro-batch ends; install pyspark 4.2 or later"
        )


def check_options(trigger: Mapping[str, Any], options: Mapping[str, str]) -> None:
    """Refuse ways to run a query that cannot be combined with snapshots."""
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


def check_sources(frame: DataFrame, root: Path, head: Metadata, query: str) -> None:
    """Refuse a DataFrame without a source of ours, with one of another query, or without a channel
    that the query is declared to read: its snapshots would never be complete.

    Spark shows sources only in its plan, as text, and may cut off, hide or change parts of it: what
    is not found there is not refused.
    """
    try:
        explained = frame.sparkSession.sql("explain extended select * from {frame}", frame=frame)
        plan, is_whole, _ = explained.collect()[0][0].partition(_AFTER_ANALYZED)
    except PySparkException:
        return  # whatever is wrong with it, Spark says when it starts
    relations = [line for line in plan.splitlines() if _RELATION in line]
    if not is_whole or not relations:
        return
    logs = [log.name for log in head.dataflow.incoming(query)]
    ours = [line for line in relations if _OURS.search(line)]
    if not ours:
        what = (
            "reads none of its channels: make it with "
            f"read_channels({', '.join(['spark', 'pipeline', *map(repr, (query, *logs))])})"
            if logs
            else "has no source of Stillframe, which would wait at barriers: put "
            f"with_barriers(frame, pipeline, {query!r}) around its source"
        )
        raise UsageError(
            f"query {query} of {root} could take part in no snapshot, because its DataFrame {what}"
        )
    unread: set[str] | None = set(logs)
    for line in ours:
        options = match[1] if (match := _OPTIONS.search(line)) else ""
        _check_reader(options, root, query)
        channels = _CHANNELS.search(options)
        if channels is None:
            unread = None
        elif unread is not None:
            unread -= {name.strip() for name in channels[1].split(",")}
    if unread:
        raise UsageError(
            f"query {query} of {root} is declared to read {', '.join(sorted(unread))}, and "
            "its DataFrame does not: read every declared channel exactly once"
        )


def _check_reader(options: str, root: Path, query: str) -> None:
    """Refuse a source that reads as another query, as far as its options can be seen."""
    found = _QUERY.search(options)
    name = found[1] if found else query
    found = _PIPELINE.search(options)
    place = found[1] if found else str(root)
    try:
        is_other = not Path(place).samefile(root)
    except (OSError, ValueError):
        place, is_other = str(root), False
    if is_other or name != query:
        raise UsageError(
            f"the DataFrame for query {query} of {root} reads as query {name} of {place}, whose "
            f"barriers it would take: make it with read_channels or with_barriers for {query!r}; "
            "another pipeline's records come from a channel that a service of this one writes"
        )


def check_checkpoint(root: Path, head: Metadata, query: str) -> None:
    """Refuse a checkpoint that was rolled back or edited by hand: one behind the snapshots of this
    epoch, the one that it began from, or the query's logs, or that contradicts them. Damaged
    manifests and snapshots that are dropped meanwhile are passed over."""
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
        state = manifest.fragment(query).query
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


def _of_epoch(root: Path, head: Metadata) -> Iterator[Manifest]:
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
