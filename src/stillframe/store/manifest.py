"""What a manifest says of one snapshot, and what the store says of itself."""

import re
import time
from collections.abc import Container, Iterable
from pathlib import Path

import msgspec

from stillframe.errors import Damaged
from stillframe.model import ProcessId, Snapshot, SnapshotId
from stillframe.store.disk import WHAT_TO_DO
from stillframe.store.seal import FORMAT, read_sealed
from stillframe.topology import Description

MANIFEST = "manifest.json"
PROCESSES = "processes.parquet"
CHANNELS = "channels.parquet"
MESSAGES = "messages.parquet"
FILES = (PROCESSES, CHANNELS, MESSAGES)
"""The files of a snapshot, in the order in which a manifest lists them."""

_HASH = re.compile(r"[0-9a-f]{64}")


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``store.json``.

    `reference` is where the topology came from, ``module:attribute``. `restored_from` is the
    snapshot from which the current epoch began. `former` are the topologies before a change of
    code, of which there are snapshots still.
    """

    format: int = FORMAT
    reference: str | None
    description: Description
    epoch: int = 0
    restored_from: SnapshotId | None = None
    former: tuple[Description, ...] = ()


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a snapshot: its name, length in bytes and SHA-256."""

    name: str
    bytes: int
    hash: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``manifest.json``. Times are seconds since 1970.

    `sequence` counts what was published in this store, from 1. `is_restore_point` says whether a
    death goes back to this one (``Store.publish``). `excluded` is as in ``model.Snapshot``.
    `parent` is for snapshots that hold only what changed; all are whole now. `topology` is the hash
    of the description.
    """

    format: int = FORMAT
    snapshot: SnapshotId
    sequence: int
    epoch: int
    initiated_at: float
    completed_at: float
    published_at: float
    pause_s: float = 0.0
    capture_s: float = 0.0
    excluded: dict[ProcessId, SnapshotId] = {}
    is_restore_point: bool
    parent: None = None
    process_count: int
    channel_count: int
    message_count: int
    topology: str
    files: tuple[FileRecord, ...]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A published snapshot, as the store lists it.

    Times are seconds since 1970; `pause_s` and `capture_s` are seconds, they and `excluded` as in
    ``model.Snapshot``.
    `sequence` is the order of publishing, `bytes` the length of its Parquet files together.
    `is_restore_point` says whether a death goes back to it, as long as
    none follows (``Store.publish``).
    """

    id: SnapshotId
    sequence: int
    epoch: int
    initiated_at: float
    completed_at: float
    published_at: float
    pause_s: float = 0.0
    capture_s: float = 0.0
    excluded: dict[ProcessId, SnapshotId] = {}
    is_restore_point: bool
    process_count: int
    channel_count: int
    message_count: int
    bytes: int
    directory: Path


def manifest_of(
    snapshot: Snapshot,
    files: tuple[FileRecord, ...],
    *,
    sequence: int,
    restore_point: Entry | None,
    topology: str,
) -> Manifest:
    """Return the manifest of a snapshot that is published now.

    Args:
        snapshot: what is published.
        files: as they were written.
        sequence: its place in the order of publishing.
        restore_point: the newest one of this epoch so far.
        topology: the hash of its description.
    """
    return Manifest(
        snapshot=snapshot.id,
        sequence=sequence,
        epoch=snapshot.epoch,
        initiated_at=snapshot.initiated_at,
        completed_at=snapshot.completed_at,
        published_at=time.time(),
        pause_s=snapshot.pause_s,
        capture_s=snapshot.capture_s,
        excluded=snapshot.excluded,
        is_restore_point=(
            restore_point is None or snapshot.initiated_at >= restore_point.completed_at
        ),
        process_count=len(snapshot.state.processes),
        channel_count=len(snapshot.state.channels),
        message_count=snapshot.state.message_count,
        topology=topology,
        files=files,
    )


def entry_of(manifest: Manifest, directory: Path) -> Entry:
    """Return what the list of snapshots shows of a manifest."""
    return Entry(
        id=manifest.snapshot,
        sequence=manifest.sequence,
        epoch=manifest.epoch,
        initiated_at=manifest.initiated_at,
        completed_at=manifest.completed_at,
        published_at=manifest.published_at,
        pause_s=manifest.pause_s,
        capture_s=manifest.capture_s,
        excluded=manifest.excluded,
        is_restore_point=manifest.is_restore_point,
        process_count=manifest.process_count,
        channel_count=manifest.channel_count,
        message_count=manifest.message_count,
        bytes=sum(record.bytes for record in manifest.files),
        directory=directory,
    )


def read_manifest(directory: Path, topologies: Container[str]) -> Manifest:
    """Read the manifest of the snapshot in `directory`, of a store with topologies of these hashes.

    Raises:
        Damaged: it was changed, or does not belong into this directory or this store.
        StoreError: it cannot be read, or a newer version of Stillframe wrote it.
    """
    path = directory / MANIFEST
    manifest = read_sealed(path, Manifest, advice=WHAT_TO_DO)
    if str(manifest.snapshot) != directory.name:
        raise Damaged(f"{path} is of snapshot {manifest.snapshot}: {WHAT_TO_DO}")
    if manifest.topology not in topologies:
        raise Damaged(f"{path} is of a store with another topology: {WHAT_TO_DO}")
    # Names are compared with what there may be, never used to make a path: '../x' leads nowhere.
    if tuple(record.name for record in manifest.files) != FILES or any(
        record.bytes < 0 or not _HASH.fullmatch(record.hash) for record in manifest.files
    ):
        raise Damaged(f"{path} lists other files than {', '.join(FILES)}: {WHAT_TO_DO}")
    return manifest


def newest_restore_point(
    directories: Iterable[Path], topologies: Container[str], epoch: int
) -> Entry | None:
    """Return the newest restore point of an epoch.

    Looks from the newest snapshot back and no further than that epoch, since numbers only rise.

    Args:
        directories: of the snapshots, in any order.
        topologies: the hashes of the store's topologies.
        epoch: the current one.

    Raises:
        Damaged, StoreError: as ``read_manifest``.
    """
    ids = {directory: SnapshotId.parse(directory.name) for directory in directories}
    for directory in sorted(ids, key=lambda directory: ids[directory].number, reverse=True):
        manifest = read_manifest(directory, topologies)
        if manifest.epoch != epoch:
            return None
        if manifest.is_restore_point:
            return entry_of(manifest, directory)
    return None
