"""``stillframe spark list`` and ``drop``: which snapshots of a pipeline there are."""

from pathlib import Path
from typing import Any

import typer

from stillframe.cli import output, quantities
from stillframe.cli.verdict import EXIT_NO
from stillframe.errors import Damaged, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline.metadata import Metadata, read_metadata
from stillframe.pipeline.pipeline import Pipeline, sentence_on_damaged
from stillframe.pipeline.snapshot_manifest import Manifest, listing, published_ids

COLUMNS = (
    "snapshot",
    "name",
    "course",
    "mode",
    "published",
    "epoch",
    "recorded in",
    "on channels",
    "duplicates",
    "size",
)


def list_snapshots(path: Path, *, is_json: bool) -> None:
    """Write the snapshots of the pipeline at `path`, in the order of publishing, and name those
    whose manifest is damaged.

    Raises:
        typer.Exit: with 1; one is.
    """
    pipeline = Pipeline(path)
    head = read_metadata(pipeline.path)
    manifests, damages = listing(pipeline.path)
    present = [manifest for manifest in manifests if _course(manifest, head)]
    if is_json:
        output.put_json(
            {
                "pipeline": pipeline.path,
                "name": head.name,
                "epoch": head.epoch,
                "restored_from": head.restored_from,
                "latest": present[-1].snapshot if present else None,
                "snapshots": [
                    document_of(manifest) | {"is_of_present_course": manifest in present}
                    for manifest in manifests
                ],
                "damaged": [{"id": one, "detail": str(damage)} for one, damage in damages.items()],
            }
        )
        _refuse(damages)
        return
    if manifests:
        output.put_table("", COLUMNS, (_row(manifest, head) for manifest in manifests), texts=5)
    began = f", which began from {head.restored_from}" if head.restored_from else ""
    end = (
        f"a restore goes back to {present[-1].snapshot}"
        if present
        else f"none to go back to: 'stillframe spark snapshot {path}' takes one"
    )
    output.say(
        f"{quantities.count(len(manifests), 'snapshot')}; pipeline {head.name} is in epoch "
        f"{head.epoch}{began}; {end}"
    )
    _refuse(damages)


def _refuse(damages: dict[SnapshotId, Damaged]) -> None:
    """Name the damaged snapshots, if there are any, and end with 1."""
    if damages:
        output.say(*(f"no: {damage}" for damage in damages.values()))
        raise typer.Exit(EXIT_NO)


def drop(path: Path, names: tuple[str, ...], *, keep: int | None, is_json: bool) -> None:
    """Delete the snapshots `names` of the pipeline at `path`, or all but the newest `keep`.

    Raises:
        UsageError: neither is given, or both.
    """
    if bool(names) == (keep is not None):
        raise UsageError("say which snapshots to drop, or with --keep how many stay: one of both")
    pipeline = Pipeline(path)
    before = published_ids(pipeline.path)
    damaged = pipeline.drop(*names) if keep is None else pipeline.keep(keep)
    left = published_ids(pipeline.path)
    dropped = [snapshot for snapshot in before if snapshot not in left]
    if is_json:
        output.put_json({"dropped": dropped, "left": left})
    words = f" ({', '.join(map(str, dropped))})" if dropped else ""
    output.say(
        f"dropped {quantities.count(len(dropped), 'snapshot')}{words}; "
        f"{quantities.count(len(left), 'snapshot')} left",
        *([sentence_on_damaged(damaged)] if damaged else []),
    )


def document_of(manifest: Manifest) -> dict[str, Any]:
    """Return what JSON says of a snapshot."""
    return {
        "id": manifest.snapshot,
        "name": manifest.name,
        "epoch": manifest.epoch,
        "mode": str(manifest.mode),
        "initiated_at": manifest.initiated_at,
        "completed_at": manifest.completed_at,
        "published_at": manifest.published_at,
        "record_count": manifest.record_count,
        "duplicate_count": manifest.duplicate_count,
        "byte_count": manifest.bytes,
    }


def _course(manifest: Manifest, head: Metadata) -> str:
    """Return what a snapshot is to the present course of the pipeline; nothing if it is of another.

    These are the ones among which ``Pipeline.latest`` chooses.
    """
    if manifest.snapshot == head.restored_from:
        return "began here"
    return "present" if manifest.epoch == head.epoch else ""


def _row(manifest: Manifest, head: Metadata) -> tuple[str, ...]:
    return (
        str(manifest.snapshot),
        manifest.name or "",
        _course(manifest, head),
        str(manifest.mode),
        quantities.moment(manifest.published_at),
        str(manifest.epoch),
        quantities.duration(manifest.completed_at - manifest.initiated_at),
        f"{manifest.record_count:,}",
        f"{manifest.duplicate_count:,}",
        quantities.size(manifest.bytes),
    )
